"""The profile of a comparison that a judge has read: preferences, consistency, and what could be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from . import grid, report, stats
from .judge import majority
from .records import CONTROLS, latest, short

SIDES = {1.0: "a", 0.0: "b", 0.5: "tie"}


def decided(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a sample and pair of conditions, the majority over its repeats; lengths are their means."""
    rows = []
    known = pairs.dropna(subset=["preference"])
    for place, group in known.groupby(["by", "model", "a", "b", "sample_id", "cluster"], sort=False):
        votes = [(SIDES[p], c) for p, c in zip(group["preference"], group["confidence"], strict=True)]
        winner, confidence = majority(votes)
        value = {"a": 1.0, "b": 0.0}.get(winner, 0.5)
        rows.append((*place, value, confidence, group["len_a"].mean(), group["len_b"].mean()))
    columns = ["by", "model", "a", "b", "sample_id", "cluster", "preference", "confidence", "len_a", "len_b"]
    return pd.DataFrame(rows, columns=columns)


def preferences(pairs: pd.DataFrame) -> pd.DataFrame:
    """Per judge, model and pair of conditions: wins, ties and losses of a over samples, the win rate with ties half.

    `low` and `high` are Wilson's; `p` is the exact sign test on decisive samples; `failed` counts failed pairs.
    """
    table = []
    for place, group in decided(pairs).groupby(["by", "model", "a", "b"], sort=False):
        won = group["preference"]
        wins, ties, losses = (int((won == v).sum()) for v in (1.0, 0.5, 0.0))
        low, high = stats.wilson(float(won.sum()), len(won))
        mine = pairs[(pairs[["by", "model", "a", "b"]] == list(place)).all(axis=1)]
        failed = int(mine["failure"].notna().sum())
        table.append((*place, wins, ties, losses, won.mean(), low, high, stats.sign_test(wins, losses), failed))
    columns = ["by", "model", "a", "b", "wins", "ties", "losses", "win_rate", "low", "high", "p", "failed"]
    return pd.DataFrame(table, columns=columns)


def biases(pairs: pd.DataFrame) -> list[str]:
    """What position and length have to do with a judge's preferences, in sentences made of the numbers."""
    said = []
    for by, mine in pairs.groupby("by", sort=False):
        rounds, first = int(mine["rounds"].sum()), int(mine["first_wins"].sum())
        asked, known = mine.dropna(subset=["consistent"]), mine.dropna(subset=["preference"])
        if rounds:
            p = stats.sign_test(first, rounds - first)
            warning = "WARNING: " if p < 0.05 else ""
            said.append(f"{warning}{by} preferred the answer shown first in {first / rounds:.2f} of {rounds} rounds "
                        f"with a winner (exact binomial p {p:.3g}).")  # fmt: skip
        if len(asked):
            rate = 1 - float(asked["consistent"].mean())
            loud = "WARNING: " if rate > 0.5 else ""
            said.append(
                f"{loud}{by} contradicted itself when the order was swapped in {rate:.2f} of {len(asked)} pairs."
            )
        for (model, a, b), group in known.groupby(["model", "a", "b"], sort=False):
            length, even = stats.length_bias(group), stats.length_controlled(group)
            shown = f"the longer answer won {length.longer_wins} of {length.decisive} decisive pairs"
            shown += f" (95 % CI {length.low:.2f} to {length.high:.2f})"
            if length.paired is not None:
                shown += f"; length difference and preference correlate by {length.paired:.2f} in pairs"
            if length.pooled is not None:
                shown += f", length and winning by {length.pooled:.2f} over all answers"
            control = (
                even.note or f"at equal length {a} would win {even.estimate:.2f} ({even.low:.2f} to {even.high:.2f})"
            )
            note = f" {length.note}." if length.note else ""
            said.append(f"{model}, {a} against {b}: {shown}.{note} Length-controlled win rate: {control}.")
    return said


def consistency(run_dirs: Iterable[report.PathLike]) -> pd.DataFrame:
    """Per model and condition: mean agreement of repeats by the judge (up to three pairs) and by vectors (the rest)."""
    table = []
    for run_dir in run_dirs:
        traces = {t.key: t for t in latest(grid.read(Path(run_dir) / "traces.jsonl")[0])}
        for v in latest(grid.read(Path(run_dir) / "verdicts.jsonl")[0]):
            if v.by.startswith("agree:") and v.of[0] in traces:
                t = traces[v.of[0]]
                table.append((v.by, t.model, t.condition, v.values["agreement"], v.values["similarity"]))
    columns = ["by", "model", "condition", "agreement", "similarity"]
    frame = pd.DataFrame(table, columns=columns).astype({"agreement": float, "similarity": float})
    grouped = frame.groupby(["by", "model", "condition"], sort=False)
    return grouped.agg(samples=("agreement", "size"), agreement=("agreement", "mean"), similarity=("similarity", "mean")
                       ).reset_index()  # fmt: skip


def reliability(tidy: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Per model and condition: pass^k, the chance that k of k repeats succeed, over the samples with k repeats."""
    mine = tidy[(tidy["metric"] == metric) & tidy["value"].isin([0, 1]) & ~tidy["model"].isin(CONTROLS)]
    counts = mine.groupby(["model", "condition", "sample_id"], sort=False)["value"].agg(["sum", "count"]).reset_index()
    most = int(counts["count"].max()) if len(counts) else 0
    if most < 2:
        return pd.DataFrame()
    for k in range(1, most + 1):
        counts[f"pass^{k}"] = [
            stats.pass_hat(int(c), int(n), k) for c, n in zip(counts["sum"], counts["count"], strict=True)
        ]
    kept = counts.drop(columns=["sum", "count", "sample_id"]).astype({f"pass^{k}": float for k in range(1, most + 1)})
    return kept.groupby(["model", "condition"], sort=False).mean().reset_index()


def details(run_dirs: Iterable[report.PathLike]) -> pd.DataFrame:
    """Per answer that a judge has checked: its scores, the claims without a place, the paths that do not exist."""
    table = []
    for trace, _, said in report.rows(run_dirs):
        for by, v in said.items():
            if by.startswith("ground:") and trace.model not in CONTROLS:
                claims, paths = v.notes.get("claims", []), v.notes.get("paths", [])
                why = v.failure.kind if v.failure else ""
                table.append(
                    (
                        trace.sample_id,
                        trace.model,
                        trace.condition,
                        trace.repeat,
                        v.values["grounding"],
                        v.values["faithfulness"],
                        short("; ".join(claims), 200),
                        short("; ".join(paths), 120),
                        why,
                    )
                )
    columns = ["sample_id", "model", "condition", "repeat", "grounding", "faithfulness", "ungrounded_claims",
               "hallucinated_paths", "failure"]  # fmt: skip
    return pd.DataFrame(table, columns=columns)


def effort(found: Iterable[tuple[Any, Any, Any]]) -> pd.DataFrame:
    """What a cell took per model and condition: medians of tokens, searches, calls and seconds, and the mean USD."""
    free = {"read_file", "read_page"}
    rows = [(t.agent, t.condition, t.usage.total, sum(s.call.name not in free for s in t.steps if s.executed),
             len(t.steps), t.seconds, t.usd) for t, _, _ in found if t.model not in CONTROLS]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["model", "condition", "tokens", "searches", "calls", "seconds", "usd"])
    how = {"tokens": "median", "searches": "median", "calls": "median", "seconds": "median", "usd": "mean"}
    return frame.groupby(["model", "condition"], sort=False).agg(how).round(4).reset_index()


def markdown(path: Path, parts: Iterable[tuple[str, Any]]) -> Path:
    """Write headed text and tables as one markdown file."""
    lines = []
    for head, body in parts:
        lines.append(f"\n## {head}\n")
        if isinstance(body, pd.DataFrame):
            cells = [list(body.columns), ["---"] * body.shape[1], *body.round(3).astype(object).to_numpy().tolist()]
            text = [
                [str("" if v is None or v != v else v).replace("|", "\\|").replace("\n", " ") for v in r] for r in cells
            ]
            lines += [f"| {' | '.join(row)} |" for row in text] if len(body) else ["(nothing)"]
        else:
            lines += [f"- {line}" for line in body] or ["(nothing)"]
    path.write_text("\n".join(lines).strip() + "\n", "utf-8")
    return path
