"""From rows to what people read: a tidy frame, sentences made of its numbers, figures (frame and ax in, ax out), HTML."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import grid, stats
from .records import Trace, Verdict, latest
from .suites import SuiteError, load_suite

CONTROLS = ("script:null", "script:random", "script:oracle")  # floor, chance, ceiling


def frame(run_dirs: Iterable[str | Path] | str | Path) -> pd.DataFrame:
    """One tidy row per (trace, metric) of the runs: rows that count only, a failed trace with a null value.

    Columns: key, run_id, suite, sample_id, cluster, condition, model, effort, repeat, stop, failure, by, metric,
    value, usd, tokens, seconds, and one a tag. Cost is the trace's own; `spent` says what superseded rows cost.
    """
    rows: list[dict[str, Any]] = []
    for run_dir in [run_dirs] if isinstance(run_dirs, (str, Path)) else run_dirs:
        traces: list[Trace] = latest(grid.read(Path(run_dir) / "traces.jsonl")[0])
        verdicts: dict[str, list[Verdict]] = {}
        for verdict in latest(grid.read(Path(run_dir) / "verdicts.jsonl")[0]):
            if len(verdict.of) == 1:
                verdicts.setdefault(verdict.of[0], []).append(verdict)
        known = {(t.suite, v.by, m) for t in traces for v in verdicts.get(t.key, []) for m in v.values}
        samples = {(suite, s.id): s for suite in {t.suite for t in traces} for s in _samples(suite)}
        for trace in traces:
            sample = samples.get((trace.suite, trace.sample_id))
            same = {
                "key": trace.key, "run_id": trace.run_id, "suite": trace.suite, "sample_id": trace.sample_id,
                "cluster": sample.cluster if sample else trace.sample_id, "condition": trace.condition,
                "model": trace.model, "effort": trace.options.get("effort", ""), "repeat": trace.repeat,
                "stop": trace.stop, "failure": trace.failure.kind if trace.failure else None, "usd": trace.usd,
                "tokens": trace.usage.total, "seconds": trace.seconds,
            } | (sample.tags if sample else {})  # fmt: skip
            if trace.failure:
                rows += [same | {"by": by, "metric": m, "value": None} for suite, by, m in known if suite == trace.suite]
            for verdict in () if trace.failure else verdicts.get(trace.key, ()):
                rows += [same | {"by": verdict.by, "metric": m, "value": v} for m, v in verdict.values.items()]
    columns = ["key", "run_id", "suite", "sample_id", "cluster", "condition", "model", "effort", "repeat", "stop",
               "failure", "by", "metric", "value", "usd", "tokens", "seconds"]  # fmt: skip
    tidy = pd.DataFrame(rows, columns=[*columns, *dict.fromkeys(c for row in rows for c in row if c not in columns)])
    return tidy.astype({"value": float, "usd": float, "seconds": float})


def _samples(suite: str) -> Sequence[Any]:
    try:
        return load_suite(suite).samples
    except SuiteError:  # the rows outlive the suite's folder; clusters and tags are then unknown
        return ()


def rates(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Per model and condition: right, measured, attempted, rate with its Wilson interval, and both bounds.

    `rate` is of the measured, `floor` and `ceiling` count every missing one wrong or right. Repeats are averaged
    first, so the counts are of samples.
    """
    rows = []
    mine = tidy[tidy["metric"] == metric]
    mine = mine[mine["value"].notna() | mine["failure"].notna()]
    for (model, condition), group in mine.groupby(["model", "condition"], sort=False):
        means = group.groupby("sample_id")["value"].mean()
        n, attempted, k = int(means.notna().sum()), len(means), float(means.sum())
        low, high = stats.wilson(k, n)
        rows.append({"model": model, "condition": condition, "right": k, "measured": n, "attempted": attempted,
                     "rate": k / n if n else None, "low": low, "high": high,
                     "floor": k / attempted, "ceiling": (k + attempted - n) / attempted})  # fmt: skip
    columns = ["model", "condition", "right", "measured", "attempted", "rate", "low", "high", "floor", "ceiling"]
    return pd.DataFrame(rows, columns=columns)


def gaps(tidy: pd.DataFrame, metric: str, model: str, a: str, baselines: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """Paired gaps of one model under condition `a`: to its other conditions and to the controls under the same one."""
    rows = []
    for other in baselines:
        control = other in CONTROLS
        part = tidy[tidy["condition"] == a] if control else tidy[tidy["model"] == model]
        try:
            gap = stats.paired_gap(part, metric, model if control else a, other, seed=seed, by="model" if control else "condition")
        except ValueError:
            continue
        rows.append({"against": other} | gap._asdict())
    return pd.DataFrame(rows, columns=["against", *stats.Gap._fields])


def headline(gap: stats.Gap, model: str, a: str, b: str, metric: str, missing: float = 0.0) -> str:
    """The answer in one sentence, made of the numbers; withheld when over 10 % of the comparison is missing."""
    if missing > 0.1:
        return f"No comparison is claimed: {missing:.0%} of the measurements are missing."
    size = f"{abs(gap.estimate):.2f}"
    facts = f"(95 % CI {gap.low:+.2f} to {gap.high:+.2f}, {gap.n} questions)"
    if gap.low > 0 or gap.high < 0:
        word = "better" if gap.estimate > 0 else "worse"
        return f"With {a} {model} scored {size} {word} on {metric} than with {b} {facts}."
    return f"No difference was shown between {a} and {b} for {model} on {metric}: {gap.estimate:+.2f} {facts}."


def plot_rates(table: pd.DataFrame, ax: Any) -> Any:
    """Rates with their intervals, one row a model and condition; controls are hollow."""
    if table.empty:
        return _nothing(ax, "no measurement of this metric")
    for y, row in enumerate(table.iloc[::-1].itertuples()):
        control = row.model in CONTROLS
        color = "0.45" if control else "C0"
        ax.plot([row.low, row.high], [y, y], color=color, lw=2, solid_capstyle="round")
        if row.measured:
            ax.plot(row.rate, y, "o", color=color, mfc="white" if control else color, ms=7, zorder=3)
        ax.annotate(f"{row.right:g}/{row.measured}", (1.03, y), va="center", fontsize=9, color="0.3")
    ax.set_yticks(range(len(table)), [_label(f"{r.model} · {r.condition}") for r in table.iloc[::-1].itertuples()])
    ax.set(xlim=(-0.02, 1.14), ylim=(-0.6, len(table) - 0.4), xlabel="share right, 95 % Wilson interval")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    return _plain(ax)


def plot_gaps(table: pd.DataFrame, ax: Any, metric: str) -> Any:
    """A forest of paired gaps; an interval that covers 0 is grey."""
    if table.empty:
        return _nothing(ax, "no pair of measurements to compare")
    for y, row in enumerate(table.iloc[::-1].itertuples()):
        color = "0.6" if row.low <= 0 <= row.high else "C0"
        ax.plot([row.low, row.high], [y, y], color=color, lw=2, solid_capstyle="round")
        ax.plot(row.estimate, y, "o", color=color, ms=7)
        ax.annotate(f"{row.estimate:+.2f}", (row.estimate, y), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    ax.axvline(0, color="0.3", lw=1)
    ax.set_yticks(range(len(table)), [_label(f"over {r.against}") for r in table.iloc[::-1].itertuples()])
    reach = max(0.25, *(abs(v) for v in [*table["low"], *table["high"]])) * 1.1
    ax.set(xlim=(-reach, reach), ylim=(-0.6, len(table) - 0.3), xlabel=f"paired gap in {_label(metric)}, 95 % interval")
    return _plain(ax)


def plot_stops(tidy: pd.DataFrame, ax: Any) -> Any:
    """How the cells ended, as a share of each model and condition."""
    cells = tidy.drop_duplicates(["run_id", "key"])
    if cells.empty:
        return _nothing(ax, "no trace")
    shares = pd.crosstab([cells["model"], cells["condition"]], cells["stop"], normalize="index").iloc[::-1]
    shares.index = [_label(f"{model} · {condition}") for model, condition in shares.index]
    shares.plot.barh(stacked=True, ax=ax, width=0.7, colormap="tab10")
    ax.set(xlim=(0, 1), xlabel="share of cells", ylabel="")
    ax.legend(title="", loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return _plain(ax)


def _label(text: str) -> str:
    return text.replace("$", r"\$")


def _plain(ax: Any) -> Any:
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def _nothing(ax: Any, why: str) -> Any:
    ax.axis("off")
    ax.text(0.5, 0.5, why, ha="center", va="center", color="0.4")
    return ax


def html(path: Path, title: str, sections: Sequence[tuple[str, Any]]) -> Path:
    """Write one offline page: each section a heading with text, a frame, a figure, or traces behind folds."""
    from jinja2 import Environment, PackageLoader

    page = Environment(loader=PackageLoader("evalkit", "."), autoescape=True).get_template("report.html")
    path.write_text(page.render(title=title, sections=[(head, *_part(body)) for head, body in sections]), "utf-8")
    return path


def _part(body: Any) -> tuple[str, Any]:
    if isinstance(body, pd.DataFrame):
        return "frame", (list(body.columns), [["" if pd.isna(v) else f"{v:.3g}" if isinstance(v, float) else v for v in row]
                                              for row in body.itertuples(index=False)])  # fmt: skip
    if hasattr(body, "savefig"):
        file = io.StringIO()
        body.savefig(file, format="svg", bbox_inches="tight")
        return "svg", file.getvalue()[file.getvalue().index("<svg") :]
    if isinstance(body, list):
        return "traces", body
    return ("json", json.dumps(body, indent=1)) if isinstance(body, dict) else ("text", str(body))
