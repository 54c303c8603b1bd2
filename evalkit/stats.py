"""Intervals and paired gaps. The unit is the sample (or its cluster): repeats are averaged first."""

from __future__ import annotations

import warnings
from functools import lru_cache
from math import comb
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
    detectable: float  # the smallest gap this comparison would show 80 times in 100
    p: float | None  # McNemar mid-p, of independent 0/1 values

    @property
    def shown(self) -> bool:
        """Is a difference shown? Below six clusters none can be: no sign test gets under .05 there."""
        return self.clusters >= 6 and (self.low > 0 or self.high < 0) and (self.p is None or self.p < 0.05)


class Agreement(NamedTuple):
    """How far a judge and people (or rules) say the same of the same 0/1 items."""

    agreement: float | None
    kappa: float | None  # of 1 at most, 0 is chance; None where one side says the same of everything
    n: int
    judge_rate: float | None
    people_rate: float | None
    confusion: tuple[int, int, int, int]  # both 1, judge 1 only, people 1 only, both 0


class Estimate(NamedTuple):
    """A value with its 95 % interval; None where there is none, and `note` says why."""

    estimate: float | None
    low: float | None
    high: float | None
    note: str = ""


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
    if min(a, b, c, d) < 0:
        raise ValueError(f"counts {a}, {b}, {c}, {d}: none may be below 0")
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

    Expanded percentile bootstrap over clusters (Hesterberg 2015). Where it is degenerate Newcombe's interval serves
    independent 0/1 values that all differ alike, and the range of the values all else. ValueError without overlap.
    """
    if a == b:
        raise ValueError(f"{a!r} against itself is no comparison")
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
    bounded = min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1
    reach = 1.0 if bounded else float(np.ptp([*first, *second])) + abs(estimate)
    binary = set(first) | set(second) <= {0.0, 1.0}
    p = mcnemar(int(((first - second) > 0).sum()), int(((first - second) < 0).sum()))[1] if binary else None
    if clusters > 1 and np.ptp(total / size) > 1e-9:
        weights = resamples(clusters, seed)
        low, high = np.quantile((weights @ total) / (weights @ size), tails(clusters))
    elif clusters > 1 and binary:
        one = pairs.groupby(level=cluster).first()
        x, y = one[a] == 1, one[b] == 1
        _, low, high = newcombe(*(int(np.sum(cell)) for cell in (x & y, x & ~y, ~x & y, ~x & ~y)))
        low, high = min(low, estimate), max(high, estimate)
    else:
        low, high = -reach, reach
    seen = detectable_gap(float(np.var(total / size, ddof=1)), clusters) if clusters > 1 else reach
    low, high, p = max(-reach, float(low)), min(reach, float(high)), p if clusters == len(pairs) else None
    return Gap(estimate, low, high, len(pairs), clusters, unmatched, min(seen, reach), p)


def effective_n(values: Any) -> float:
    """Independent samples that clustered ones (columns value, cluster) are worth: n / (1 + (m - 1) rho).

    rho is the intraclass correlation by analysis of variance, m the size-weighted mean cluster size (Kish 1965);
    where nothing varies rho is taken as 1.
    """
    groups = values.groupby("cluster")["value"]
    size, means, n = groups.count().to_numpy(float), groups.mean().to_numpy(float), len(values)
    if len(size) == n or len(size) < 2:
        return float(len(size))
    m = float((size**2).sum() / n)
    between = float((size * (means - values["value"].mean()) ** 2).sum()) / (len(size) - 1)
    within = float(((values["value"] - groups.transform("mean")) ** 2).sum()) / (n - len(size))
    total = between + ((n - m) / (len(size) - 1) - 1) * within
    rho = min(1.0, max(0.0, (between - within) / total)) if total > 0 else 1.0
    return n / (1 + (m - 1) * rho)


def mean_interval(values: Any, seed: int = 0) -> tuple[float | None, float | None]:
    """95 % interval of a mean over samples (columns value, cluster): expanded percentile bootstrap over clusters.

    (None, None) below two clusters: one cluster says nothing about others (Hesterberg 2015).
    """
    sums = values.groupby("cluster")["value"].agg(["sum", "count"])
    total, size, clusters = sums["sum"].to_numpy(float), sums["count"].to_numpy(float), len(sums)
    if clusters < 2:
        return None, None
    weights = resamples(clusters, seed)
    low, high = np.quantile((weights @ total) / (weights @ size), tails(clusters))
    return float(low), float(high)


def cost_per_correct(cost: Any, correct: Any, cluster: Any, seed: int = 0) -> Estimate:
    """Total cost over number right, with a cluster bootstrap of the pair (cost, right); cost in any unit.

    A missing measurement (NaN in `correct`) still costs. None with none right; 0 where nothing costs.
    """
    cost, correct = np.asarray(cost, float), np.asarray(correct, float)
    if not len(cost) == len(correct) == len(cluster):
        raise ValueError(f"{len(cost)} costs, {len(correct)} results, {len(cluster)} clusters; they must be alike")
    if not np.isfinite(cost).all() or (cost < 0).any():
        raise ValueError("a cost is missing or below 0")
    total, right = float(cost.sum()), float(np.nansum(correct))
    if not right:
        return Estimate(None, None, None, "none right")
    if not total:
        return Estimate(0.0, None, None, "not priced")
    _, places = np.unique(np.asarray(cluster, dtype=str), return_inverse=True)
    weights = resamples(int(places.max()) + 1, seed)
    if weights.shape[1] < 2:
        return Estimate(total / right, None, None, "one cluster, no interval")
    sums = [np.bincount(places, np.nan_to_num(values)) for values in (cost, correct)]
    drawn_cost, drawn_right = (weights @ part for part in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(drawn_right > 0, drawn_cost / drawn_right, np.inf)
    low, high = np.quantile(ratio, tails(weights.shape[1]), method="inverted_cdf")
    note = "" if np.isfinite(high) else "no upper bound: too few right"
    return Estimate(total / right, float(low) if np.isfinite(low) else None, None if note else float(high), note)


def efficient(cost: Any, quality: Any) -> Any:
    """Which arms no other arm beats: as cheap and as good, and in one of them better. Arrays (..., arms); NaN never."""
    cost, quality = np.asarray(cost, float)[..., None, :], np.asarray(quality, float)[..., None, :]
    mine, good = np.swapaxes(cost, -1, -2), np.swapaxes(quality, -1, -2)
    beaten = (cost <= mine) & (quality >= good) & ((cost < mine) | (quality > good))
    return ~beaten.any(axis=-1) & np.isfinite(mine[..., 0]) & np.isfinite(good[..., 0])


@lru_cache(maxsize=8)
def resamples(clusters: int, seed: int = 0) -> Any:
    """Bootstrap weights, one row a draw: how often each cluster is in it."""
    return np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=DRAWS)


def tails(clusters: int) -> list[float]:
    """The quantiles of an expanded 95 % percentile interval (Hesterberg 2015)."""
    from scipy.stats import norm, t

    tail = float(norm.cdf((clusters / (clusters - 1)) ** 0.5 * t.ppf(0.025, clusters - 1)))
    return [tail, 1 - tail]


def detectable_gap(variance: float, n: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest paired gap that n samples show with this power, at this variance of the paired differences.

    Miller 2024 (arXiv 2411.00640), equation for n solved for the gap. Where no pair differs the rule of three bounds
    the share of pairs that could.
    """
    from scipy.stats import norm

    if variance <= 1e-18:
        return min(1.0, 3 / n)
    return float((norm.ppf(1 - alpha / 2) + norm.ppf(power)) * (variance / n) ** 0.5)


def samples_needed(variance: float, gap: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Paired samples that show `gap` with this power (Miller 2024, arXiv 2411.00640)."""
    from scipy.stats import norm

    return int(np.ceil((norm.ppf(1 - alpha / 2) + norm.ppf(power)) ** 2 * variance / gap**2))


def mcnemar(b: int, c: int) -> tuple[float, float]:
    """Exact and mid-p value of b against c discordant pairs, two-sided (Fagerland, Lydersen and Laake 2013)."""
    from scipy.stats import binom, binomtest

    if b + c == 0:
        return 1.0, 1.0
    exact = float(binomtest(min(b, c), b + c).pvalue)
    return exact, min(1.0, exact - float(binom.pmf(min(b, c), b + c, 0.5)))


def holm(p: Any) -> list[float]:
    """Holm's adjusted p values, for claims (statsmodels)."""
    return _adjusted(p, "holm")


def agreement(judge: Any, people: Any) -> Agreement:
    """Agreement, Cohen's kappa (1960; statsmodels), base rates and confusion of two lists of 0 and 1."""
    from statsmodels.stats.inter_rater import cohens_kappa

    if len(judge) != len(people):
        raise ValueError(f"{len(judge)} judgements and {len(people)} labels; they must be of the same items")
    if not set(judge) | set(people) <= {0, 1}:
        raise ValueError("agreement is of 0 and 1; leave out what was not judged, and cut scores first")
    one, two = np.asarray(judge, dtype=bool), np.asarray(people, dtype=bool)
    cells = tuple(int(np.sum(cell)) for cell in (one & two, one & ~two, ~one & two, ~one & ~two))
    if not len(one):
        return Agreement(None, None, 0, None, None, (0, 0, 0, 0))
    table = np.array([[cells[0], cells[1]], [cells[2], cells[3]]])
    varied = 0 < np.concatenate([one, two]).mean() < 1
    kappa = float(cohens_kappa(table, return_results=False)) if varied else None
    return Agreement(float((one == two).mean()), kappa, len(one), float(one.mean()), float(two.mean()), cells)  # type: ignore[arg-type]


class LengthBias(NamedTuple):
    """Do longer answers win? `pooled` over answers hides what `paired` over pairs shows; None cannot be estimated."""

    pooled: float | None  # Spearman of an answer's length and whether it won
    paired: float | None  # Spearman of the length difference and the preference
    longer_wins: int
    decisive: int  # pairs with a winner and different lengths
    low: float  # Wilson interval of longer_wins in decisive
    high: float
    note: str


def length_bias(pairs: Any) -> LengthBias:
    """Length and preference of a frame of pairs (len_a, len_b, preference: 1 for a, 0.5 tie, 0 for b).

    Lengths are characters of the trimmed answer. Rows without a preference are left out.
    """
    pairs = pairs.dropna(subset=["preference"])
    a, b, won = (pairs[name].to_numpy(float) for name in ("len_a", "len_b", "preference"))
    decisive = (won != 0.5) & (a != b)
    n, longer = int(decisive.sum()), int((decisive & ((a > b) == (won > 0.5))).sum())
    low, high = wilson(longer, n)
    notes = []
    if len(pairs) < 3:
        notes.append("cannot be estimated: fewer than 3 pairs")
    elif not (a != b).any():
        notes.append("cannot be estimated: the answers of every pair have one length")
    elif not (won != 0.5).any():
        notes.append("cannot be estimated: no pair has a winner")
    elif n and low > 0.5:
        notes.append(f"WARNING: the longer answer wins {longer} of {n} decisive pairs, more than chance would")
    elif n and high < 0.5:
        notes.append(f"WARNING: the shorter answer wins {n - longer} of {n} decisive pairs, more than chance would")
    able = not (notes and notes[0].startswith("cannot"))
    pooled = _spearman(np.concatenate([a, b]), np.concatenate([won == 1, won == 0])) if able else None
    return LengthBias(pooled, _spearman(a - b, won) if able else None, longer, n, low, high, "; ".join(notes))


def _spearman(x: Any, y: Any) -> float | None:
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic) if np.ptp(x) > 0 and np.ptp(np.asarray(y, float)) > 0 else None


def length_controlled(pairs: Any) -> Estimate:
    """Win rate of a over b where both answers were of one length (Dubois et al. 2024, arXiv 2404.04475, one feature).

    Logistic regression of the preference on tanh(length difference / sd), read at zero; errors clustered by sample_id
    where there is such a column. Where it cannot be estimated the note says why.
    """
    from scipy.special import expit
    from statsmodels.api import GLM, families

    pairs = pairs.dropna(subset=["preference"])
    difference, won = (pairs["len_a"] - pairs["len_b"]).to_numpy(float), pairs["preference"].to_numpy(float)
    decisive = won != 0.5
    sides = np.sign(difference[decisive]) * np.sign(won[decisive] - 0.5)
    count = f"the longer answer wins {int((sides > 0).sum())} of {int((sides != 0).sum())} decisive pairs"
    reasons = {
        "fewer than 6 pairs with a winner": 0 < decisive.sum() < 6,
        "no pair has a winner": not decisive.any(),
        "the answers of every pair have one length": not difference.any(),
        f"{count}: length and preference cannot be parted": bool(len(sides)) and abs(sides.sum()) == len(sides),
        "one side wins every pair": len(set(won)) == 1,
        "every pair differs by the same length": len(difference) > 1 and difference.std() < 1e-9,
        "the pairs are of one sample": "sample_id" in pairs and pairs["sample_id"].nunique() < 2,
    }
    if why := next((reason for reason, holds in reasons.items() if holds), ""):
        return Estimate(None, None, None, f"cannot be estimated: {why}")
    x = np.column_stack([np.ones(len(won)), np.tanh(difference / difference.std())])
    groups = np.unique(pairs["sample_id"].astype(str), return_inverse=True)[1] if "sample_id" in pairs else None
    how = {"cov_type": "cluster", "cov_kwds": {"groups": groups}} if groups is not None else {"cov_type": "HC1"}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = GLM(won, x, family=families.Binomial()).fit(**how)
    at, error = float(fit.params[0]), float(fit.bse[0])
    if not fit.converged or not np.isfinite(error) or abs(fit.params).max() > 15:
        return Estimate(None, None, None, f"cannot be estimated: {count}, the regression has no end")
    return Estimate(float(expit(at)), float(expit(at - 1.96 * error)), float(expit(at + 1.96 * error)))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact sign test on decisive pairs (scipy)."""
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def pass_hat(c: int, n: int, k: int) -> float | None:
    """pass^k, the chance that k of k repeats succeed, from c successes in n: C(c, k) / C(n, k); None where n < k."""
    if not 0 <= c <= n:
        raise ValueError(f"{c} successes of {n}: it must be 0 <= c <= n")
    return comb(c, k) / comb(n, k) if n >= k >= 1 else None


def benjamini_hochberg(p: Any) -> list[float]:
    """Benjamini and Hochberg's adjusted p values, for exploration (statsmodels)."""
    return _adjusted(p, "fdr_bh")


def _adjusted(p: Any, method: str) -> list[float]:
    from statsmodels.stats.multitest import multipletests

    if not all(0 <= value <= 1 for value in p):
        raise ValueError("p values are in [0, 1]; leave out what is missing")
    return [float(x) for x in multipletests(list(p), method=method)[1]] if len(p) else []


def rogan_gladen(p: float, se: float, sp: float) -> float:
    """A rate that a judge of this sensitivity and specificity saw, corrected (Rogan and Gladen 1978), in [0, 1]."""
    if not all(0 <= rate <= 1 for rate in (p, se, sp)):
        raise ValueError(f"rates {p}, {se}, {sp}: each must be in [0, 1]")
    if se + sp <= 1:
        raise ValueError(f"sensitivity {se} and specificity {sp}: a judge no better than chance corrects nothing")
    return min(1.0, max(0.0, (p + sp - 1) / (se + sp - 1)))


def prediction_powered(judged: Any, judge: Any, people: Any) -> Estimate:
    """Mean of what people would say of all items: the judge's mean on the unlabelled, corrected on the labelled ones.

    `judged` are the judge's values where there is no label, `judge` and `people` both values where there is one
    (Angelopoulos et al. 2023, arXiv 2301.09633).
    """
    judged, judge, people = (np.asarray(values, float) for values in (judged, judge, people))
    if not all(np.isfinite(values).all() for values in (judged, judge, people)):
        raise ValueError("a value is missing; leave out what was not judged or labelled")
    if len(judge) != len(people) or len(people) < 2 or len(judged) < 2:
        raise ValueError("two judgements without labels and two with are needed, labels one to one")
    estimate = float(judged.mean() - (judge - people).mean())
    error = (judged.var() / len(judged) + (judge - people).var() / len(people)) ** 0.5
    bounds = np.array([estimate, estimate - 1.96 * error, estimate + 1.96 * error])
    every = np.concatenate([judged, judge, people])
    if every.min() >= 0 and every.max() <= 1:
        bounds = bounds.clip(0, 1)
    if not error:
        return Estimate(float(bounds[0]), None, None, "nothing varies")
    return Estimate(float(bounds[0]), float(bounds[1]), float(bounds[2]))
