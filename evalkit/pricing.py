"""List prices applied to measured tokens; a model without a price is refused before money is spent.

Prices come from the genai-prices package; rows of data/prices.toml, which shows how they look, go before it.
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .records import ROOT, Usage

PARTS = ("input", "output", "cache_read", "cache_write")


class UnknownPrice(LookupError):
    """No price for this model; the message says what to add."""


def usd(served: str, usage: Usage, provider: str = "") -> float:
    """USD of `usage` at the served model, matched exactly or without one trailing date; raises UnknownPrice."""
    file = ROOT / "data" / "prices.toml"
    names = (served, re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", served))
    own = _own(file, file.stat().st_mtime_ns) if file.exists() else {}
    rates = next((own[name] for name in names if name in own), None) or _listed(names, provider)
    if rates is not None:
        return float(sum(getattr(usage, part) * rates.get(part, rates["input"]) for part in PARTS) / 1_000_000)
    return float(_calculate(served, usage, provider).total_price)


@lru_cache(maxsize=1)
def _own(file: Path, changed: int) -> dict[str, dict[str, Any]]:
    rows = tomllib.loads(file.read_text("utf-8"))
    if bad := [name for name, row in rows.items() if not {"input", "output"} <= row.keys()]:
        raise ValueError(f"{file}: {', '.join(bad)} needs input and output, in USD per million tokens")
    return rows


@lru_cache(maxsize=64)
def _listed(names: tuple[str, ...], provider: str) -> dict[str, Any] | None:
    """USD per million tokens of each part, or None where the price depends on how many there are."""
    try:
        found = _calculate(names[0], Usage(input=1, output=1), provider)
    except LookupError:
        found = None
    if found is None or found.model.id not in names:  # the package matches by prefix; we do not
        raise UnknownPrice(f'no price for {names[0]!r}; add a table ["{names[0]}"] to data/prices.toml, as it shows')
    rates = {part: getattr(found.model_price, f"{part}_mtok") for part in PARTS}
    known = {"output": Decimal(0)} | {part: rate for part, rate in rates.items() if rate is not None}
    flat = all(isinstance(rate, Decimal) for rate in known.values()) and not found.model_price.requests_kcount
    return known if flat and "input" in known else None


def _calculate(served: str, usage: Usage, provider: str) -> Any:
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    everything = usage.input + usage.cache_read + usage.cache_write  # the package wants the sum
    tokens = Tokens(input_tokens=everything, output_tokens=usage.output,
                    cache_read_tokens=usage.cache_read, cache_write_tokens=usage.cache_write)  # fmt: skip
    return calc_price(tokens, served, provider_id=provider or None)


def source() -> str:
    """Where prices come from, for the record of a run."""
    return f"genai-prices {version('genai-prices')}, data/prices.toml first"
