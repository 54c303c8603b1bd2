"""What a right answer costs, which arms are efficient, which cannot be told apart, which samples tell them apart.

The worked row of every table: attempts A 0.04 USD (failed), A 0.06 (right), B 0.10 (wrong) cost 0.20 per correct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import report, stats
from .records import CONTROLS, EVAL_VERSION, Sample, Trace, Verdict

COSTS = {"usd": "USD per right answer", "seconds": "seconds per right answer"}


def arms(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric with a column `arm`, model and condition in one name; one row a measurement."""
    mine = report.of_metric(tidy, metric)
    return mine.drop_duplicates(["run_id", "key"]).assign(arm=mine["model"] + " · " + mine["condition"])


def frontier(tidy: pd.DataFrame, metric: str, gate: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """One row an arm: accuracy, cost and seconds per correct with their intervals, and whether it is efficient.

    An arm is efficient when none is as accurate and as cheap and better in one of them; `p_` is the share of cluster
    bootstrap draws, the same for all arms, in which it is. An arm below the accuracy `gate` or without a right answer
    is not efficient, and where nothing was paid it is not priced and stands on the frontier of seconds alone.
    """
    mine, table = arms(tidy, metric), report.rates(tidy, metric)
    mine, table = mine[~mine["model"].isin(CONTROLS)], table[~table["model"].isin(CONTROLS)].reset_index(drop=True)
    if table.empty:
        return table
    names = table["model"] + " · " + table["condition"]
    weights = stats.resamples(mine["cluster"].nunique(), seed)

    def drawn(column: str) -> Any:
        sums = mine.pivot_table(index="cluster", columns="arm", values=column, aggfunc="sum", fill_value=0.0)
        return weights @ sums.reindex(columns=names, fill_value=0.0).to_numpy(float)

    mine = mine.assign(n=mine["value"].notna().astype(float))
    right, n = drawn("value"), drawn("n")
    with np.errstate(divide="ignore", invalid="ignore"):
        quality = np.where(n > 0, right / n, np.nan)
        for unit in COSTS:
            groups = [mine[mine["arm"] == name] for name in names]
            found = [stats.cost_per_correct(g[unit], g["value"], g["cluster"], seed) for g in groups]
            columns = [f"{unit}_each", f"{unit}_low", f"{unit}_high"]
            table[columns] = np.array([[e.estimate, e.low, e.high] for e in found], dtype=float)
            table[unit] = [float(g[unit].sum()) for g in groups]
            able = (table[unit] > 0) & (table["estimate"] >= gate) & (table["right"].fillna(1) > 0)
            each = table[f"{unit}_each"].where(able)
            table[f"{unit}_efficient"] = stats.efficient(each, table["estimate"].astype(float))
            draws = np.where(able.to_numpy() & (right > 0), drawn(unit) / right, np.nan)
            table[f"{unit}_p"] = stats.efficient(draws, quality).mean(axis=0)
    table["note"] = np.where(table["usd"] > 0, "", "not priced")
    return table


def tiers(tidy: pd.DataFrame, metric: str, seed: int = 0) -> pd.DataFrame:
    """Arms by their rate, in tiers: an arm opens the next one when it is shown to be worse than the tier's first."""
    mine, table = arms(tidy, metric), report.rates(tidy, metric)
    table = table[~table["model"].isin(CONTROLS) & table["estimate"].notna()]
    table = table.sort_values("estimate", ascending=False, kind="stable").reset_index(drop=True)
    names = list(table["model"] + " · " + table["condition"])
    ranks: list[int] = []
    leads: list[str] = []
    for name in names:
        lead = leads[-1] if leads else name
        try:
            gap = stats.paired_gap(mine, metric, lead, name, seed=seed, by="arm") if name != lead else None
        except ValueError:  # no sample in common: nothing says that it is worse
            gap = None
        if not leads or (gap and gap.shown and gap.estimate > 0):
            leads.append(name)
        ranks.append(len(leads))
    return table.assign(tier=ranks)[["tier", "model", "condition", "right", "measured", "estimate", "low", "high"]]


def told(tiers: pd.DataFrame, economy: pd.DataFrame, rates: pd.DataFrame | None = None) -> str:
    """Who leads and where a right answer is cheapest, in sentences made of the tables; none leads below doing nothing.

    `rates` are report.rates, which hold the null agent too.
    """
    nothing = rates.loc[rates["model"] == CONTROLS[0], "estimate"].max() if rates is not None else 0
    if len(tiers) and nothing > 0 and tiers["estimate"].max() <= nothing:
        return f"No agent is right more often than {CONTROLS[0]}, which does nothing ({nothing:.2f} right)."
    if len(tiers) < 2:
        return ""
    first = tiers[tiers["tier"] == 1]
    names = ", ".join(f"{r.model} with {r.condition}" for r in first.itertuples())
    lead = f"None of the {len(tiers)} arms is shown to be worse than the best."
    if tiers["tier"].max() > 1:
        lead = f"{len(tiers)} arms fall into {tiers['tier'].max()} tiers; the first holds {names}."
    priced = economy.merge(first[["model", "condition"]]).query("usd_each > 0").sort_values("usd_each")
    if priced.empty:
        return lead
    r = priced.iloc[0]
    high = "no upper bound" if pd.isna(r["usd_high"]) else f"{r['usd_high']:.4f}"
    span = "no interval" if pd.isna(r["usd_low"]) else f"95 % CI {r['usd_low']:.4f} to {high}"
    cost = f"{r['usd_each']:.4f} USD ({span})"
    return f"{lead} There a right answer is cheapest from {r['model']} with {r['condition']}: {cost}."


def chains(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Clusters of several steps by arm: "whole", else the first step that broke or was not measured.

    Samples carry their step as a tag; a step that is no number has no place.
    """
    if "step" not in tidy:
        return pd.DataFrame()
    mine = arms(tidy, metric).assign(step=pd.to_numeric(tidy["step"], errors="coerce")).dropna(subset=["step"])
    mine = mine[mine.groupby("cluster")["sample_id"].transform("nunique") > 1]
    means = mine.pivot_table(index=["cluster", "step"], columns="arm", values="value", sort=False, dropna=False)
    table = {}
    for cluster, steps in means.groupby(level="cluster", sort=False):
        for arm in steps:
            known = steps[arm].droplevel("cluster").sort_index()
            first = next((n for n, value in known.items() if pd.isna(value) or value < 1), None)
            how = "is missing" if first is not None and pd.isna(known[first]) else "breaks"
            table[cluster, arm] = "whole" if first is None else f"{how} at step {first:g}"
    return pd.Series(table).unstack().rename_axis("cluster").reset_index() if table else pd.DataFrame()


Found = Sequence[tuple[Trace, Sample | None, dict[str, Verdict]]]


def items(tidy: pd.DataFrame, metric: str, found: Found = ()) -> pd.DataFrame:
    """Per sample: its rate over the arms, its item–rest correlation, and what that says about it.

    saturated: every arm is right, floor: none is; non-discriminating: the better arms do no better on it. flagged gold:
    the better half of the arms all miss it in one and the same way (of report.rows), so look at the gold first.
    """
    mine = arms(tidy, metric)
    mine = mine[~mine["model"].isin(CONTROLS)]
    wide = mine.pivot_table(index="sample_id", columns="arm", values="value", aggfunc="mean", observed=True)
    ways: dict[tuple[str, str], set[str]] = {}
    place = {(r.run_id, r.key): (r.sample_id, r.arm) for r in mine.itertuples()}
    for trace, _, _ in found:
        if (trace.run_id, trace.key) in place and trace.failure is None:
            ways.setdefault(place[trace.run_id, trace.key], set()).add(way(trace))
    table = []
    for sample, row in wide.iterrows():
        known = row.dropna()
        rest = wide.drop(index=sample)[known.index].mean()
        varied = len(known) > 2 and known.std() > 0 and rest.std() > 0
        relation = float(np.corrcoef(known, rest)[0, 1]) if varied else None
        best = [str(name) for name in rest.sort_values(ascending=False, kind="stable").index[: (len(rest) + 1) // 2]]
        alike = set().union(*(ways.get((str(sample), name), set()) for name in best))
        flagged = len(best) > 1 and len(alike) == 1 and alike != {""} and not known[best].any()
        ends = "saturated" if known.min() == 1 else "floor" if known.max() == 0 else ""
        says = "flagged gold" if flagged else ends if len(known) > 1 else ""
        says = says or ("non-discriminating" if relation is not None and relation <= 0 else "")
        table.append((sample, float(known.mean()), len(known), relation, says))
    columns = ["sample_id", "rate", "arms", "item_rest", "reading"]
    return pd.DataFrame(table, columns=columns).sort_values(["rate", "sample_id"], ignore_index=True)


def way(trace: Trace) -> str:
    """What was done, in a form two arms can share: the calls that were not run, else the answer's words."""
    calls = sorted(json.dumps([s.call.name, s.call.args], sort_keys=True) for s in trace.steps if not s.executed)
    return "\n".join(calls) or " ".join(trace.answer.lower().split())


def plot(table: pd.DataFrame, ax: Any, unit: str = "usd", controls: pd.DataFrame | None = None, gate: float = 0) -> Any:
    """Accuracy over cost per right answer, a dot an arm with both intervals; the efficient ones are joined.

    `controls` are their rows of report.rates, drawn as lines; arms without a right answer have no place on the axis.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    known = pd.DataFrame(columns=["model", "estimate"]) if controls is None else controls.dropna(subset=["estimate"])
    for height, alike in known.groupby("estimate"):
        ax.axhline(height, color="0.6", lw=1, ls=(0, (4, 3)), zorder=0)
        names, beside = "\n".join(alike["model"]), ("axes fraction", "data")
        ax.annotate(names, (1.01, height), xycoords=beside, va="center", fontsize=8, color="0.4")
    if gate:
        ax.axhspan(-0.03, gate, color="0.93", zorder=-1)
    ax.set(ylim=(-0.03, 1.05), ylabel="share right, 95 % interval", xlabel=f"{COSTS[unit]}, 95 % interval")
    ax.spines[["top", "right"]].set_visible(False)
    there = table[table[f"{unit}_each"].fillna(0) > 0] if len(table) else table
    if there.empty:
        why = "no arm has a price and a right answer" if unit == "usd" else "no arm has a right answer"
        ax.set(xticks=[])
        ax.text(0.5, 0.5, f"nothing to show: {why}", ha="center", transform=ax.transAxes)
        return ax
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    there = there.sort_values([f"{unit}_efficient", f"{unit}_each"])
    best = there[there[f"{unit}_efficient"]]
    ax.plot(best[f"{unit}_each"], best["estimate"], color="C0", lw=1.5, alpha=0.5, zorder=1)
    for row in there.to_dict("records"):
        x, y, color = row[f"{unit}_each"], row["estimate"], "C0" if row[f"{unit}_efficient"] else "0.55"
        ax.plot([x, x], [row["low"], row["high"]], color=color, lw=1.2)
        if pd.notna(row[f"{unit}_low"]):
            end = row[f"{unit}_high"] if pd.notna(row[f"{unit}_high"]) else x * 3
            ax.plot([row[f"{unit}_low"], end], [y, y], color=color, lw=1.2)
        ax.plot([x], [y], "o", color=color, ms=7)
    taken: list[tuple[float, float, float]] = []
    ax.set_xlim(ax.get_xlim())  # the limits are settled before names are placed
    to_axes = ax.transData + ax.transAxes.inverted()
    for row in there.iloc[::-1].to_dict("records"):  # a name goes up until it covers no other
        place, up = (row[f"{unit}_each"], row["estimate"]), 0
        name = f"{row['model']} · {row['condition']}" if table["condition"].nunique() > 1 else row["model"]
        x, y = to_axes.transform(place)
        left, wide = x > 0.5, 0.02 * len(name)
        start = x - wide if left else x
        while any(start < b and a < start + wide and abs(y + 0.05 * up - h) < 0.05 for a, b, h in taken):
            up += 1
        taken.append((start, start + wide, y + 0.05 * up))
        ax.annotate(name.replace("$", r"\$"), place, xytext=(-6 if left else 6, 5 + 11 * up), fontsize=8,
                    textcoords="offset points", ha="right" if left else "left")  # fmt: skip
    return ax


def export(run_dirs: Sequence[Path], out: Path, metric: str = "", gate: float = 0.0, name: str = "") -> Path:
    """Write one snapshot of the frontier: runs/<date>.json for good, latest.json, runs.json and index.html.

    The page holds the snapshot itself, so it opens from disk; served, it follows latest.json and runs.json. Raises
    FileExistsError where the snapshot is there already, and ValueError where there is nothing to show.
    """
    tidy = report.by_arm(report.frame(run_dirs))
    metric = metric or report.main_metric(tidy)
    table = frontier(tidy, metric, gate)
    if table.empty:
        raise ValueError(f"no verdict {metric!r} of a model in {', '.join(p.name for p in run_dirs)}; run judge.ipynb")
    found = report.rows(run_dirs)
    name = name or max(trace.at for trace, _, _ in found)[:10]
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"name {name!r}: write letters, digits, dot, dash and underscore")
    folder, file = out / "runs", out / "runs" / f"{name}.json"
    if file.exists():
        raise FileExistsError(f"{file} exists, and a snapshot is never overwritten; give this one a --name of its own")
    folder.mkdir(parents=True, exist_ok=True)
    ranked = table.merge(tiers(tidy, metric)[["model", "condition", "tier"]], how="left")
    snapshot = {
        "name": name, "metric": metric, "gate": gate, "eval_version": EVAL_VERSION,
        "runs": [p.name for p in run_dirs], "suites": sorted({trace.suite for trace, _, _ in found}),
        "arms": json.loads(ranked.to_json(orient="records")),
        "controls": json.loads(report.rates(tidy[tidy["model"].isin(CONTROLS)], metric).to_json(orient="records")),
    }  # fmt: skip
    text = json.dumps(snapshot, indent=1, allow_nan=False, sort_keys=True)
    with open(file, "x", encoding="utf-8") as new:
        new.write(text + "\n")
    (out / "latest.json").write_text(text + "\n", "utf-8")
    (out / "runs.json").write_text(json.dumps(sorted(p.stem for p in folder.glob("*.json"))) + "\n", "utf-8")
    page = Path(__file__).with_name("frontier.html").read_text("utf-8")
    safe = text.replace("<", "\\u003c")
    (out / "index.html").write_text(page.replace("{{ snapshot }}", safe), "utf-8")
    return out / "index.html"
