"""List prices applied to measured tokens; a model without a price is refused before money is spent.

Prices come from the genai-prices package; rows of data/prices.toml, which shows how they look, go before it.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from .records import ROOT, Usage


class UnknownPrice(LookupError):
    """No price for this model; the message says what to add."""


@lru_cache(maxsize=1)
def _own(file: Path, changed: int) -> dict[str, dict[str, float]]:
    rows = tomllib.loads(file.read_text("utf-8"))
    if bad := [name for name, row in rows.items() if not {"input", "output"} <= row.keys()]:
        raise ValueError(f"{file}: {', '.join(bad)} needs input and output, in USD per million tokens")
    return rows


def usd(served: str, usage: Usage, provider: str = "") -> float:
    """USD of `usage` at the served model, matched exactly or without one trailing date; raises UnknownPrice."""
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    names = (served, re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", served))
    own = _own(file, file.stat().st_mtime_ns) if (file := ROOT / "data" / "prices.toml").exists() else {}
    for name in names:
        if name in own:
            parts = ("input", "output", "cache_read", "cache_write")
            return sum(getattr(usage, part) * own[name].get(part, own[name]["input"]) for part in parts) / 1e6
    everything = usage.input + usage.cache_read + usage.cache_write  # genai-prices wants the sum
    tokens = Tokens(input_tokens=everything, output_tokens=usage.output,
                    cache_read_tokens=usage.cache_read, cache_write_tokens=usage.cache_write)  # fmt: skip
    try:
        found = calc_price(tokens, served, provider_id=provider or None)
    except LookupError:
        found = None
    if found is None or found.model.id not in names:  # the package matches by prefix; we do not
        raise UnknownPrice(f'no price for {served!r}; add a table ["{served}"] to data/prices.toml, as it shows')
    return float(found.total_price)


def source() -> str:
    """Where prices come from, for the record of a run."""
    return f"genai-prices {version('genai-prices')}, data/prices.toml first"
