"""`evaluate`: a case file or a suite of data/ put to somebody else's agent, with the rates printed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import external, grid, guards, provenance, receipts, report, scoring
from .records import Trace, latest, short
from .suites import load_suite, shown


def run_evaluate(given: Any) -> int:
    spec = "mock:" if given.mock else given.endpoint or f"command:{given.command}"
    agent = external.open_agent(spec, given.timeout, given.env)
    return (case_file if given.suite.endswith(".json") else suite_of_data)(given, agent)


def case_file(given: Any, agent: external.Agent) -> int:
    suite = receipts.load_cases(given.suite)
    for path in filter(None, (given.out, given.private_out)):
        if not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first. Nothing was sent to the agent")
    results = receipts.evaluate(suite, agent, given.repeats)
    public, failed = receipts.receipt(suite, agent, results), sum(r.trace.failure is not None for r in results)
    written = [(given.out or Path("receipt.json"), public)]
    written += [(given.private_out, receipts.private_receipt(suite, agent, results))] if given.private_out else []
    for path, content in written:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"written: {path}")
    for name, row in public["rates"].items():
        print(told(name, row["rate"], row["low"], row["high"], row["cases"]))
    print(f"{len(results) - failed} of {len(results)} runs measured, {failed} failed{why([r.trace for r in results])}")
    return int(failed > 0)


def suite_of_data(given: Any, agent: external.Agent) -> int:
    """One condition is enough, for an agent brings its own tools; rows, verdicts and run.json go to results/."""
    if given.out or given.private_out:
        raise ValueError("--out and --private-out are for a case file; what a suite shows goes to results/RUN")
    suite = load_suite(given.suite)
    run = given.run_id or f"evaluate-{suite.name}"
    folder = guards.run_dir(run)
    cells = grid.plan(suite, agent, [next(c.name for c in suite.conditions if not c.network)], given.repeats)
    grid.fill(folder / "traces.jsonl", cells, grid.tracing(run, suite, agent), who=agent.name)
    traces = [trace for trace in latest(grid.read(folder / "traces.jsonl")[0]) if trace.key in cells]
    grid.fill(folder / "verdicts.jsonl", scoring.owed(suite, traces), scoring.verdict, workers=1, who="rules")
    grid.note(folder, f"{suite.name} {agent.name}", provenance.describe(suite) | {"model": agent.name})
    tidy, failed = report.frame(folder), sum(trace.failure is not None for trace in traces)
    tidy = tidy[tidy["key"].isin(cells.keys())]
    for metric in tidy["metric"].unique():
        for row in report.rates(tidy, metric).itertuples():
            print(told(metric, row.estimate, row.low, row.high, row.measured))
    lost = f"{failed} failed{why(traces)}"
    print(f"{len(traces) - failed} of {len(traces)} cells measured, {lost}; rows in {shown(folder)}")
    return int(failed > 0)


def why(traces: list[Trace]) -> str:
    """The kinds of failure with their numbers, in brackets, and the first one's detail; nothing where none failed."""
    faults = [t.failure for t in traces if t.failure]
    kinds = ", ".join(f"{kind} {n} times" for kind, n in Counter(f.kind for f in faults).most_common(3))
    return f" ({kinds}; the first: {short(faults[0].detail, 200)})" if faults else ""


def told(name: str, rate: float | None, low: float | None, high: float | None, n: int) -> str:
    return f"{name:24} " + (f"{rate:.2f}  95 % CI {low:.2f} to {high:.2f}, n = {n}" if n else "not measured")
