"""Intervals and paired gaps. The unit is the sample (or its cluster): repeats are averaged first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

DRAWS = 10_000


class Gap(NamedTuple):
    """Mean of a minus mean of b over paired samples, with its 95 % interval."""

    estimate: float
    low: float
    high: float
    n: int
    clusters: int
    unmatched: tuple[str, ...]  # samples measured on one side only


def wilson(k: float, n: float, alpha: float = 0.05) -> tuple[float, float]:
    """Wilson score interval of k successes in n (Wilson 1927; statsmodels); no data is [0, 1]."""
    from statsmodels.stats.proportion import proportion_confint

    if not 0 <= k <= n:
        raise ValueError(f"{k} successes of {n}: it must be 0 <= k <= n")
    if n == 0:
        return 0.0, 1.0
    low, high = proportion_confint(k, n, alpha=alpha, method="wilson")
    return (max(0.0, float(low)) if k else 0.0), (min(1.0, float(high)) if k < n else 1.0)  # exact at both ends


def newcombe(a: int, b: int, c: int, d: int) -> tuple[float, float, float]:
    """Difference (b - c)/n of paired proportions with its interval (Newcombe 1998, method 10).

    a: both right, b: only the first, c: only the second, d: neither.
    """
    n = a + b + c + d
    if n == 0:
        raise ValueError("no pairs")
    p1, p2 = (a + b) / n, (a + c) / n
    (l1, u1), (l2, u2) = wilson(a + b, n), wilson(a + c, n)
    product = (a + b) * (c + d) * (a + c) * (b + d)
    delta = float(a * d - b * c)
    phi = (max(delta - n / 2, 0.0) if delta > 0 else delta) / product**0.5 if product else 0.0

    def width(x: float, y: float) -> float:
        return float(max(0.0, x * x - 2 * phi * x * y + y * y) ** 0.5)

    return p1 - p2, max(-1.0, p1 - p2 - width(p1 - l1, u2 - p2)), min(1.0, p1 - p2 + width(u1 - p1, p2 - l2))


def paired_gap(
    frame: Any, metric: str, a: str, b: str, cluster: str = "cluster", seed: int = 0, by: str = "condition"
) -> Gap:
    """Gap of `metric` between the levels a and b of column `by` of a tidy frame (report.frame), paired by sample.

    Expanded percentile bootstrap over clusters (Hesterberg 2015). Where it is degenerate (one cluster, or every
    difference the same) Newcombe's interval serves 0/1 values, and [-1, 1] others. ValueError without overlap.
    """
    from scipy.stats import norm, t

    rows = frame[(frame["metric"] == metric) & frame[by].isin([a, b])].dropna(subset=["value"])
    wide = rows.pivot_table(index=["sample_id", cluster], columns=by, values="value", aggfunc="mean")
    wide = wide.reindex(columns=[a, b])
    pairs = wide.dropna()
    if pairs.empty:
        raise ValueError(f"no sample has {metric!r} under both {a!r} and {b!r}")
    first, second = pairs[a].to_numpy(float), pairs[b].to_numpy(float)
    sums = (pairs[a] - pairs[b]).groupby(level=cluster).agg(["sum", "count"])
    total, size = sums["sum"].to_numpy(float), sums["count"].to_numpy(float)
    estimate, clusters = float(total.sum() / size.sum()), len(sums)
    unmatched = tuple(sorted(wide.index.get_level_values("sample_id")[wide.isna().any(axis=1)]))
    if clusters > 1 and np.ptp(first - second) > 0:
        weights = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=DRAWS)
        means = (weights @ total) / (weights @ size)
        tail = norm.cdf((clusters / (clusters - 1)) ** 0.5 * t.ppf(0.025, clusters - 1))
        low, high = np.quantile(means, [tail, 1 - tail])
    elif set(first) | set(second) <= {0.0, 1.0}:
        one, two = first == 1, second == 1
        _, low, high = newcombe(*(int(np.sum(cell)) for cell in (one & two, one & ~two, ~one & two, ~one & ~two)))
    else:
        low, high = -1.0, 1.0
    return Gap(estimate, max(-1.0, float(low)), min(1.0, float(high)), len(pairs), clusters, unmatched)
