"""A run of tool_choice written by hand: traces with their verdicts, as fill leaves them."""

from __future__ import annotations

from evalkit import grid
from evalkit.records import Failure, Trace, Verdict


def write_run(folder, *arms, condition="nine_tools", at="2025-03-14T10:00:00+00:00"):
    """Append a row a value: arms are (model, values, usd of each); a value None is a failed cell, which costs too."""
    for model, values, usd in arms:
        for n, value in enumerate(values):
            key = f"{model}/{condition}/{n}"
            place = {"run_id": folder.name, "suite": "mine", "sample_id": f"q{n}", "condition": condition}
            where = {name: str(part) for name, part in (place | {"model": model}).items()}
            fault = {"failure": Failure(where="provider", kind="http_429")} if value is None else {"stop": "answered"}
            trace = Trace(key=key, model=model, usd=usd, seconds=2.0, at=at, setup=where, **place, **fault)
            grid.append(folder / "traces.jsonl", trace)
            if value is not None:
                verdict = Verdict(key=f"v {key}", of=(key,), by="rule:tool_choice", values={"correct": value})
                grid.append(folder / "verdicts.jsonl", verdict)
    return folder
