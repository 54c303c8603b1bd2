"""List prices applied to measured tokens; a model without a price is refused before money is spent.

Prices come from the genai-prices package. Rows of `data/prices.toml` come first:

    ["my-model"]
    input = 3.0          # USD per million tokens
    output = 15.0
    cache_read = 0.3
    cache_write = 3.75
    as_of = 2026-11-30
    source = "the provider's price page"
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import version
from typing import Any

from .records import ROOT, Usage


class UnknownPrice(LookupError):
    """No price for this model; the message holds the lines to add."""


@cache
def own_rows() -> dict[str, dict[str, Any]]:
    path = ROOT / "data" / "prices.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}


def usd(served: str, usage: Usage, provider: str = "") -> float:
    """List price in USD of `usage` at the model that served it; raises UnknownPrice.

    The id matches exactly or after one trailing date (-YYYYMMDD or -YYYY-MM-DD) is stripped, never by prefix.
    """
    if provider in ("local", "extractive", "script"):
        return 0.0
    names = (served, re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", served))
    for row in (own_rows()[name] for name in names if name in own_rows()):
        parts = ("input", "output", "cache_read", "cache_write")
        return sum(getattr(usage, part) * row.get(part, row["input"]) for part in parts) / 1e6
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    tokens = Tokens(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,  # the package wants the sum
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        output_tokens=usage.output,
    )
    try:
        found = calc_price(tokens, served, provider_id=provider or None)
    except LookupError:
        found = None
    if found is None or found.model.id not in names:
        raise UnknownPrice(
            f"no price for {served!r}; add it to data/prices.toml, for example:\n"
            f'["{served}"]\ninput = 3.0  # USD per million tokens\noutput = 15.0\nas_of = 2026-01-31\nsource = "…"'
        )
    return float(found.total_price)


def source() -> str:
    """Where prices come from, for the record of a run."""
    own = f" and {len(own_rows())} rows of data/prices.toml" if own_rows() else ""
    return f"genai-prices {version('genai-prices')}{own}"
