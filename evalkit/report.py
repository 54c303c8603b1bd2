"""From rows to what people read: a tidy frame, sentences made of its numbers, figures, one offline HTML page."""

from __future__ import annotations

import io
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import grid, stats
from .records import COLUMNS, CONTROLS, EVAL_VERSION, ROOT, Sample, Trace, Verdict, latest
from .suites import SuiteError, load_suite

PathLike = str | Path


def rows(run_dirs: Iterable[PathLike] | PathLike) -> list[tuple[Trace, Sample | None, dict[str, Verdict]]]:
    """Every trace that counts, with its sample if the suite still has it and its verdicts by author.

    Its `usd` is what its place has cost, rows that were superseded included.
    """
    found: list[tuple[Trace, Sample | None, dict[str, Verdict]]] = []
    samples: dict[tuple[str, str], dict[str, Sample]] = {}
    for run_dir in dict.fromkeys([run_dirs] if isinstance(run_dirs, PathLike) else run_dirs):
        verdicts: dict[str, dict[str, Verdict]] = {}
        for verdict in latest(grid.read(Path(run_dir) / "verdicts.jsonl")[0]):
            if len(verdict.of) == 1:
                verdicts.setdefault(verdict.of[0], {})[verdict.by] = verdict
        written = grid.read(Path(run_dir) / "traces.jsonl")[0]
        spent: Counter[tuple[str, ...]] = Counter()
        for row in written:
            spent[row.slot] += row.usd
        for trace in (row.model_copy(update={"usd": spent[row.slot]}) for row in latest(written)):
            place = str(run_dir), trace.suite
            if place not in samples:
                try:
                    samples[place] = {s.id: s for s in load_suite(suite_path(Path(run_dir), trace.suite)).samples}
                except SuiteError:  # the rows outlive the suite's folder; clusters and tags are then unknown
                    samples[place] = {}
            found.append((trace, samples[place].get(trace.sample_id), verdicts.get(trace.key, {})))
    last = {name: i for i, name in enumerate(CONTROLS, 1)}
    return sorted(
        found, key=lambda r: (last.get(r[0].model, 0), r[0].model, r[0].sample_id, r[0].condition, r[0].repeat)
    )


def rescored(run_dir: PathLike) -> pd.DataFrame:
    """What a mended gold or rule changed: the metrics of rule verdicts whose value is not what it was before."""
    traces = {row.key: row for row in latest(grid.read(Path(run_dir) / "traces.jsonl")[0])}
    before: dict[tuple[str, ...], Verdict] = {}
    table = []
    for row in grid.read(Path(run_dir) / "verdicts.jsonl")[0]:
        old = before.get(row.slot)
        if old and row.by.startswith("rule:") and (trace := traces.get(row.of[0])):
            table += [(trace.sample_id, trace.model, trace.condition, trace.repeat, name, old.values.get(name), value)
                      for name, value in row.values.items() if old.values.get(name) != value]  # fmt: skip
        before[row.slot] = row
    columns = ["sample_id", "model", "condition", "repeat", "metric", "before", "after"]
    return pd.DataFrame(table, columns=columns)


PAIR = ["suite", "sample_id", "cluster", "a", "b", "repeat", "preference", "consistent", "len_a", "len_b", "by",
        "failure", "model", "confidence", "first_wins", "rounds"]  # fmt: skip


def pairs(run_dirs: Iterable[PathLike] | PathLike) -> pd.DataFrame:
    """One row a pair of answers that a judge compared: 1 says a is better, 0 b, 0.5 a tie, null that it failed.

    a and b are conditions, lengths are characters of the trimmed answers, `rounds` those with a winner, and
    `first_wins` how many of them the answer won that was shown first.
    """
    table = []
    for run_dir in dict.fromkeys([run_dirs] if isinstance(run_dirs, PathLike) else run_dirs):
        found = {trace.key: (trace, sample) for trace, sample, _ in rows(run_dir)}
        for verdict in latest(grid.read(Path(run_dir) / "verdicts.jsonl")[0]):
            if not verdict.by.startswith("prefer:") or not set(verdict.of) <= found.keys():
                continue
            (a, sample), (b, _) = (found[k] for k in verdict.of)
            rounds = [r for r in verdict.notes.get("rounds", []) if r["winner"] != "tie"]
            cluster = sample.cluster if sample else a.sample_id
            lengths = (len(a.answer.strip()), len(b.answer.strip()))
            table.append((a.suite, a.sample_id, cluster, a.condition, b.condition, a.repeat,
                          verdict.values["preference"], verdict.values["consistent"], *lengths, verdict.by,
                          verdict.failure.kind if verdict.failure else None, a.model,
                          verdict.notes.get("confidence", ""), sum(r["winner"] == r["first"] for r in rounds),
                          len(rounds)))  # fmt: skip
    return pd.DataFrame(table, columns=PAIR).astype({"preference": float, "consistent": float})


def suite_path(run_dir: Path, name: str) -> str:
    """Where the suite of a run stands: as run.json says, else data/NAME."""
    parts = grid.made(run_dir).values()
    paths = (part["suite_path"] for part in parts if part.get("suite") == name and part.get("suite_path"))
    return next((str(ROOT / path) for path in paths), name)


def frame(run_dirs: Iterable[PathLike] | PathLike) -> pd.DataFrame:
    """One tidy row per (trace, metric) of the runs, with COLUMNS and one more a tag; models first, then controls.

    `value` is null where a trace or its judge failed (`failure` says why) and where the metric does not apply.
    """
    every = rows(run_dirs)
    known = {(trace.suite, by, m) for trace, _, said in every for by, verdict in said.items() for m in verdict.values}
    tidy = []
    for trace, sample, said in every:
        same = {
            **{name: getattr(trace, name) for name in COLUMNS if name in Trace.model_fields},
            "cluster": sample.cluster if sample else trace.sample_id,
            "effort": trace.options.get("effort", ""),
            "tokens": trace.usage.total,
            **(sample.tags if sample else {}),
        }
        why = trace.failure.kind if trace.failure else None
        metrics = []
        for by, verdict in said.items():
            fault = f"{verdict.failure.where}: {verdict.failure.kind}" if verdict.failure else why
            if not fault and all(v is None for v in verdict.values.values()):  # a rule that nothing can be said by
                fault = trace.stop
            values = verdict.values or {m: None for suite, who, m in sorted(known) if (suite, who) == (trace.suite, by)}
            metrics += [(by, m, v, fault) for m, v in values.items()]
        if trace.failure:
            metrics = [(by, m, None, why) for suite, by, m in sorted(known) if suite == trace.suite]
            metrics = metrics or [("", "correct", None, why)]  # a suite of which nothing was measured
        tidy += [same | {"by": by, "metric": m, "value": v, "failure": fault} for by, m, v, fault in metrics]
    tags = list(dict.fromkeys(c for row in tidy for c in row if c not in COLUMNS))
    return pd.DataFrame(tidy, columns=COLUMNS + tags).astype({"value": float, "usd": float, "seconds": float})


def meaning(metrics: Iterable[str]) -> pd.DataFrame:
    """What these metrics say, a sentence each; a component of a scenario is told by its name alone."""
    known = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))
    rows = [(m, known[m]) for m in metrics if m in known]
    return pd.DataFrame(rows, columns=["metric", "what it says"])


def main_metric(tidy: pd.DataFrame) -> str:
    """The metric that says right or wrong: `correct`, else the conjunction of a scenario (`…_exact`)."""
    exact = [m for m in tidy["metric"].unique() if m.endswith("_exact") and m not in ("cited_exact", "outcome_exact")]
    return exact[0] if exact and "correct" not in set(tidy["metric"]) else "correct"


def by_arm(tidy: pd.DataFrame) -> pd.DataFrame:
    """The frame with models told apart by effort, and conditions and samples by suite where there are several."""
    tidy = tidy.assign(model=tidy["model"] + (" " + tidy["effort"].astype(str)).where(tidy["effort"] != "", ""))
    if tidy["suite"].nunique() < 2:
        return tidy
    return tidy.assign(**{name: tidy["suite"] + "/" + tidy[name] for name in ("condition", "sample_id", "cluster")})


def of_metric(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of a metric where it applies: it has a value, or its measurement is missing."""
    return tidy[(tidy["metric"] == metric) & (tidy["value"].notna() | tidy["failure"].notna())]


def rates(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Per model and condition: right, measured and attempted samples, the mean with its interval, both bounds.

    Repeats are averaged first. `estimate` is of the measured; `floor` and `ceiling` count every missing one wrong or
    right. Intervals are Wilson's; where samples share clusters, the wider of Wilson's on the effective n and a
    bootstrap over clusters; for scores beyond [0, 1], which have no floor or ceiling, the bootstrap.
    """
    mine = of_metric(tidy, metric)
    share = bool(mine["value"].dropna().between(0, 1).all())
    table = []
    for (model, condition), group in mine.groupby(["model", "condition"], sort=False):
        means = group.groupby(["sample_id", "cluster"])["value"].mean().reset_index()
        known = means.dropna()
        n, attempted, total = len(known), len(means), float(known["value"].sum())
        low, high = stats.mean_interval(known)
        bounds: tuple[float | None, ...] = (None, None)
        if share:
            worth = stats.effective_n(known)
            one, two = stats.wilson(total * worth / max(1, n), worth)
            if low is None or high is None or n == known["cluster"].nunique():
                low, high = one, two
            else:
                low, high = min(low, one), max(high, two)
            bounds = (total / attempted, (total + attempted - n) / attempted)
        right, mean = total if share else None, total / n if n else None
        table.append((model, condition, right, n, attempted, mean, low, high, *bounds))
    columns = ["model", "condition", "right", "measured", "attempted", "estimate", "low", "high", "floor", "ceiling"]
    return pd.DataFrame(table, columns=columns)


def gaps(tidy: pd.DataFrame, metric: str, baseline: str, seed: int = 0) -> pd.DataFrame:
    """Paired gaps of every model under every other condition: to the baseline, and to chance under the same one."""
    table = []
    arms = tidy[~tidy["model"].isin(CONTROLS)]
    others = set(arms.loc[arms["condition"] != baseline, "model"])  # an agent with no other arm is held against chance
    arms = arms[(arms["condition"] != baseline) | ~arms["model"].isin(others)]
    for model, arm in arms[["model", "condition"]].drop_duplicates().itertuples(index=False):
        pairs = [(tidy[tidy["model"] == model], arm, baseline, "condition"),
                 (tidy[tidy["condition"] == arm], model, "script:random", "model")]  # fmt: skip
        for part, a, b, by in pairs:
            try:
                gap = stats.paired_gap(part, metric, a, b, seed=seed, by=by)
            except ValueError:  # nothing to pair with
                continue
            table.append({"model": model, "condition": arm, "against": b} | gap._asdict() | {"shown": gap.shown})
    return pd.DataFrame(table, columns=["model", "condition", "against", *stats.Gap._fields, "shown"])


def lift(tidy: pd.DataFrame, metric: str, model: str, condition: str, baseline: str, seed: int = 0) -> pd.DataFrame:
    """The gap of one arm to the baseline, a condition or a control, within every tag; below 5 samples a point alone."""
    by, a = ("model", model) if baseline in CONTROLS else ("condition", condition)
    mine, table = tidy[tidy["condition"] == condition] if by == "model" else tidy[tidy["model"] == model], []
    for tag in [c for c in tidy if c not in COLUMNS]:
        for value, group in mine.groupby(tag):
            try:
                gap = stats.paired_gap(group, metric, a, baseline, seed=seed, by=by)
            except ValueError:  # nothing to pair in this group
                continue
            low, high = (gap.low, gap.high) if gap.n >= 5 else (None, None)
            table.append((f"{tag}: {value}", gap.estimate, low, high, gap.n))
    return pd.DataFrame(table, columns=["group", "estimate", "low", "high", "n"])


def judge_worth(tidy: pd.DataFrame, judge: str, rule: str = "correct") -> tuple[stats.Agreement, str]:
    """How far a judge (`grade:MODEL`) agrees with the rules on the traces both scored, and a sentence that says it."""
    passed = tidy[(tidy["by"] == judge) & (tidy["metric"] == "pass")]
    rules = tidy[(tidy["metric"] == rule) & tidy["by"].str.startswith("rule:")]
    both = passed.merge(rules[["run_id", "key", "value"]], on=["run_id", "key"], suffixes=("", "_rule"))
    both = both.dropna(subset=["value", "value_rule"])
    found = stats.agreement(both["value"], both["value_rule"])
    missing, order = int(passed["value"].isna().sum()), controls(tidy[tidy["by"] == judge], "pass", "this judge")
    facts = f"{found.n} answers judged, {missing} judgements missing"
    if not found.n:
        return found, f"{judge} has judged nothing that the rules scored ({facts})."
    kappa = "not defined: one side says the same of everything" if found.kappa is None else f"{found.kappa:.2f}"
    facts += f", agreement {found.agreement:.2f}, kappa {kappa}"
    facts += f", it passes {found.judge_rate:.2f} and the rules {found.people_rate:.2f}"
    believed = "in order" in order and found.kappa is not None and found.kappa >= 0.4
    verdict = "agrees with the rules well enough to be read" if believed else "cannot be believed"
    return found, f"{judge} {verdict}: {facts}. {order}"


def summary(tidy: pd.DataFrame, baseline: str, metric: str, made: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """What a machine should read of a report: metrics with intervals and n, gaps, cost, seconds, provenance."""
    cells = tidy.drop_duplicates(["run_id", "key"]).groupby(["model", "condition"], sort=False)
    cost = cells.agg(usd=("usd", "sum"), tokens=("tokens", "sum"), median_seconds=("seconds", "median")).reset_index()
    tables = {m: rates(tidy, m) for m in tidy["metric"].unique()}
    return {
        "eval_version": EVAL_VERSION,
        "headline": headline(tidy, gaps(tidy, metric, baseline, seed), metric),
        "metric": metric,
        "baseline": baseline,
        "metrics": {m: json.loads(t.to_json(orient="records")) for m, t in tables.items()},
        "gaps": json.loads(gaps(tidy, metric, baseline, seed).to_json(orient="records")),
        "cost_per_correct": cost_per_correct(tidy, metric),
        "cost": json.loads(cost.to_json(orient="records")),
        "provenance": made,
    }


def cost_per_correct(tidy: pd.DataFrame, metric: str) -> list[str]:
    """One line per model and condition: right of measured, what each right one cost in money and in time."""
    lines = []
    mine = of_metric(tidy, metric)
    mine = mine[~mine["model"].isin(CONTROLS)].drop_duplicates(["run_id", "key"])
    for (model, condition), group in mine.groupby(["model", "condition"], sort=False):
        right, usd = float(group["value"].sum()), float(group["usd"].sum())
        paid, took = (stats.cost_per_correct(group[c], group["value"], group["cluster"]) for c in ("usd", "seconds"))
        high = "no upper bound" if paid.high is None else f"{paid.high:.4f}"
        span = f" (95 % CI {paid.low:.4f} to {high})" if paid.low is not None else ""
        each = f"{paid.estimate:.4f} USD each{span}" if right else "no cost per correct"
        price = f"{usd:.4f} USD, {each}" if usd else "not priced"
        time = f", {took.estimate:.3g} s each" if took.estimate else ""
        lines.append(f"{model} {condition}: {right:g} right of {group['value'].count()}, {price}{time}")
    return lines


def headline(tidy: pd.DataFrame, table: pd.DataFrame, metric: str) -> str:
    """The answer in a sentence a gap, made of the numbers; withheld for a model of which over 10 % is missing."""
    said = []
    for gap in table.itertuples():
        mine = tidy[(tidy["metric"] == metric) & tidy["model"].isin([gap.model, gap.against])]
        cells = mine[mine["condition"].isin([gap.condition, gap.against])].drop_duplicates(["run_id", "key"])
        missing = float(cells["failure"].notna().mean())
        facts = f"95 % CI {gap.low:+.2f} to {gap.high:+.2f}, {gap.n} questions"
        if not gap.shown and gap.p is not None and gap.low * gap.high > 0:
            facts += f", but McNemar's p is {gap.p:.2g}"
        facts = f"({facts})"
        if missing > 0.1:
            said.append(f"Nothing is claimed for {gap.model} with {gap.condition} against {gap.against}: "
                        f"{missing:.0%} of the measurements are missing.")  # fmt: skip
        elif not gap.shown:
            power = f"the smallest gap it would show four times in five is about {gap.detectable:.2f}"
            power = power if gap.clusters >= 10 else f"{gap.n} questions are too few to show much"
            said.append(f"No difference between {gap.condition} and {gap.against} was shown for {gap.model} on "
                        f"{metric}: {gap.estimate:+.2f} {facts}; {power}.")  # fmt: skip
        else:
            word = "better" if gap.estimate > 0 else "worse"
            said.append(f"With {gap.condition}, {gap.model} scored {abs(gap.estimate):.2f} {word} on {metric} "
                        f"than {gap.against} {facts}.")  # fmt: skip
    return "\n".join(dict.fromkeys(said)) or "There is no model beside the controls yet, or nothing to compare it with."


def controls(tidy: pd.DataFrame, metric: str, what: str = "these rules") -> str:
    """Does this metric put the oracle on top and the null agent at the bottom of every condition?

    The rules may put an agent below the null one: where the right thing is to do nothing, that one is right.
    """
    means = tidy[tidy["metric"] == metric].groupby(["condition", "model"])["value"].mean().unstack()
    if not {"script:null", "script:oracle"} <= set(means):
        return f"The controls have not been run on {metric}: nothing says that {what} measure what they say."
    null, oracle = means["script:null"], means["script:oracle"]
    untested = means.index[null.isna() | oracle.isna()]
    if len(untested):
        return f"The controls have not been measured under {', '.join(untested)}: nothing tests {what} there."
    low = (null > means.min(axis=1)) & (what != "these rules")
    bad = means.index[(oracle < means.max(axis=1)) | low | (oracle <= null)]
    if len(bad):
        return f"The controls are out of order on {metric} under {', '.join(bad)}: {what} cannot be trusted."
    return (
        f"The controls are in order on {metric}: the oracle scores {oracle.min():.2f}, the null agent {null.max():.2f}."
    )


def plot_rates(table: pd.DataFrame, ax: Any) -> Any:
    """Rates with their intervals, one row a model and condition; controls are hollow."""
    styles = [("0.45", "white") if model in CONTROLS else ("C0", "C0") for model in table["model"]]
    for y, row in enumerate(table.itertuples()):
        text = f"{row.right:.3g}/{row.measured}" if pd.notna(row.right) else f"n = {row.measured}"
        ax.annotate(text, (1.02, y), xycoords=("axes fraction", "data"), va="center", fontsize=9, color="0.3")
    if table["right"].notna().any():
        ax.set(xlim=(-0.02, 1.02), xticks=[0, 0.25, 0.5, 0.75, 1])
    ax.set(xlabel="share right, 95 % interval" if table["right"].notna().any() else "mean, 95 % interval")
    return _intervals(table, ax, table["model"] + " · " + table["condition"], styles)


def plot_gaps(table: pd.DataFrame, ax: Any, metric: str) -> Any:
    """A forest of paired gaps; one that is not shown to differ from 0 is grey."""
    colors = ["C0" if row.shown else "0.6" for row in table.itertuples()]
    for y, row in enumerate(table.itertuples()):
        ax.annotate(f"{row.estimate:+.2f}", (row.estimate, y - 0.2), ha="center", fontsize=9)
    reach = 1.1 * float(table[["low", "high"]].abs().max(axis=None)) if len(table) else 1.0
    ax.axvline(0, color="0.3", lw=1)
    ax.set(xlim=(-reach, reach), xlabel=f"paired gap in {metric}, 95 % interval".replace("$", r"\$"))
    return _intervals(
        table, ax, table["model"] + " · " + table["condition"] + " over " + table["against"], [(c, c) for c in colors]
    )


def plot_lift(table: pd.DataFrame, ax: Any, title: str) -> Any:
    """The gap within each group; a group under 5 samples is a hollow point without an interval."""
    styles = [("0.6", "white") if pd.isna(low) else ("C0", "C0") for low in table["low"]]
    ax.axvline(0, color="0.3", lw=1)
    ax.set(xlim=(-1.05, 1.05), xlabel="paired gap, 95 % interval", title=title.replace("$", r"\$"))
    return _intervals(table, ax, table["group"] + "  (" + table["n"].astype(str) + ")", styles)


def _intervals(table: pd.DataFrame, ax: Any, labels: pd.Series, styles: Sequence[tuple[str, str]]) -> Any:
    if table.empty:
        ax.axis("off")
        ax.text(0.5, 0.5, "nothing to show: no measurement of this metric", ha="center", transform=ax.transAxes)
        return ax
    for y, (row, (color, face)) in enumerate(zip(table.itertuples(), styles, strict=True)):
        ax.plot([row.low, row.high], [y, y], color=color, lw=2, solid_capstyle="round")
        ax.plot([row.estimate], [y], "o", color=color, mfc=face, ms=7)
    ax.set_yticks(range(len(table)), labels.str.replace("$", r"\$", regex=False))
    ax.set_ylim(len(table) - 0.4, -0.7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def html(path: Path, title: str, sections: Sequence[tuple[str, Any]]) -> Path:
    """Write one offline page; a section is a heading with text, a frame, a figure, a dict, or rows(); none is empty."""
    from jinja2 import Environment, PackageLoader

    page = Environment(loader=PackageLoader("evalkit", "."), autoescape=True).get_template("report.html")
    full = [(head, *_part(body)) for head, body in sections if not isinstance(body, str | pd.DataFrame) or len(body)]
    path.write_text(page.render(title=title, sections=full), "utf-8")
    return path


def _part(body: Any) -> tuple[str, Any]:
    if hasattr(body, "savefig"):
        file = io.StringIO()
        body.savefig(file, format="svg", bbox_inches="tight")
        return "svg", file.getvalue().partition("<svg")[2]
    if isinstance(body, pd.DataFrame):
        return "frame", (list(body), body.astype(object).where(body.notna(), "").to_numpy().tolist())
    if isinstance(body, dict):
        return "json", json.dumps(body, indent=1)
    return ("traces" if isinstance(body, list) else "text"), body
