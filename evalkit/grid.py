"""Plan what is owed, fill it, resume: the only writer of results. One line per finished cell, under a file lock."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from . import agent, external
from .models import Model
from .records import CONTROLS, EVAL_VERSION, Cell, Failure, Record, Suite, Trace, Verdict, key, latest, load_rows

Work = Callable[[str, Any], Trace | Verdict]
_gate = threading.Lock()


class Busy(RuntimeError):
    """Another process fills the same run for the same model."""


class Stopped(RuntimeError):
    """The run was stopped before its end; what was measured is safe."""


class SetupChanged(RuntimeError):
    """The run holds measurements of the same cells that were made with another setup."""


def plan(
    suite: Suite, model: Model | external.Agent, conditions: Sequence[str] = (), repeats: int = 1, limit: int = 0
) -> dict[str, Cell]:
    """{content key: Cell} of samples × conditions × repeats; `limit` takes the first samples by id."""
    if repeats < 1 or limit < 0:
        raise ValueError(
            f"repeats {repeats}, limit {limit}: write repeats of 1 or more, and a limit of 0 (all) or more"
        )
    if unknown := set(conditions) - {c.name for c in suite.conditions}:
        names = ", ".join(c.name for c in suite.conditions)
        raise ValueError(f"no condition {', '.join(sorted(unknown))} in {suite.name}; it has: {names}")
    samples = sorted(suite.samples, key=lambda s: s.id)[: limit or None]
    chosen = [c for c in suite.conditions if c.name in conditions or not (conditions or c.network)]
    cells = [
        Cell(sample=s, condition=c, model=model.name, repeat=r) for s in samples for c in chosen for r in range(repeats)
    ]
    cells = [cell.model_copy(update={"setup": setup(suite, cell, model)}) for cell in cells]
    return {key(cell.setup): cell for cell in cells}


def setup(suite: Suite, cell: Cell, model: Model | external.Agent) -> dict[str, str]:
    """Every part of a measurement's identity. Gold is none of it, but for the oracle, which answers with it."""
    tools = [(t.name, t.about, t.schema, t.counts, t.final, t.limit) for t in cell.condition.tools(cell.sample)]
    part, said, options = (
        cell.condition,
        (cell.sample.prompt, cell.sample.history),
        json.dumps(model.options, sort_keys=True),
    )
    where = {"suite": suite.name, "sample_id": cell.sample.id, "condition": part.name, "model": model.name}
    what = {
        "prompt": said,
        "system": part.system,
        "instructions": part.instructions,
        "tools": tools,
        "budget": part.budget,
    }
    what |= {"settings": part.settings} if part.settings else {}
    what |= {"record": cell.sample.gold["record"]} if "record" in cell.sample.gold else {}  # a world's facts
    gold = {"gold": cell.sample.gold} if model.name == "script:oracle" else {}
    versions = {"corpus": suite.corpus_sha[:16], "eval_version": EVAL_VERSION}
    return (
        where
        | {"options": options, "repeat": str(cell.repeat)}
        | versions
        | {k: key(v) for k, v in (what | gold).items()}
    )


def tracing(run_id: str, suite: Suite, model: Model | external.Agent) -> Work:
    """The work that makes a Trace of a planned cell."""

    def work(k: str, cell: Cell) -> Trace:
        if isinstance(model, external.Agent):
            trace = external.run(cell.sample, model, cell.condition, suite.name, k, cell.repeat)
        else:
            trace = agent.run(cell.sample, model, cell.condition, k, cell.repeat)
        return trace.model_copy(update={"run_id": run_id, "suite": suite.name, "setup": cell.setup})

    return work


def read(path: Path) -> tuple[list[Any], list[str]]:
    """Every row of traces.jsonl or verdicts.jsonl, superseded ones included, and what could not be read."""
    return load_rows(path, Verdict if path.name.startswith("verdicts") else Trace)


def fill(
    path: Path, cells: Mapping[str, Any], work: Work, executor: Executor | None = None, workers: int = 8,
    who: str = "", patience: float = 0.0, watch: Callable[[Any], str] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Do `work(key, cell)` for every cell that has no finished row in `path`; each result is one appended line.

    A failed row is owed again, a wrong answer never. Raises Busy when another process fills this file for the same
    `who` for longer than `patience` seconds. An interrupt lets running cells finish: they have been paid for. `watch`
    sees every row and may say why to stop; then running cells finish too, and Stopped is raised.
    """
    name = quote(f"{path.stem}-{who}", safe="")
    locks = path.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{name}.lock")  # the kernel's own: a killed process leaves none behind
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        pid = (locks / f"{name}.pid").read_text() if (locks / f"{name}.pid").exists() else "of another name"
        raise Busy(f"process {pid} already fills {path} for {who}; wait for it, or end it, and run again") from None
    pool = executor or ThreadPoolExecutor(max(1, workers))
    futures: list[Any] = []
    try:
        (locks / f"{name}.pid").write_text(str(os.getpid()))
        rows = latest(read(path)[0])
        refuse_mixing(path, rows, cells)
        done = {row.key for row in rows if row.failure is None}
        owed = {k: cell for k, cell in cells.items() if k not in done}
        counts = {"cells": len(cells), "done_before": len(cells) - len(owed), "done": 0, "failed": 0, "usd": 0.0}
        show = progress(len(owed))
        futures += [pool.submit(_measure, path, work, k, cell) for k, cell in owed.items()]
        for future in as_completed(futures):
            row = future.result()
            counts["done" if row.failure is None else "failed"] += 1
            counts["usd"] += row.usd
            show(counts)
            if watch and (why := watch(row)):
                raise Stopped(f"{why} {counts['done']:g} cells were measured and are safe.")
    finally:
        for future in futures:
            future.cancel()
        try:
            wait(futures)
        finally:  # a second interrupt does not wait for them
            if executor is None:
                pool.shutdown(wait=False)
            lock.release()
    return counts


def _measure(path: Path, work: Work, k: str, cell: Any) -> Trace | Verdict:
    row = work(k, cell)
    try:
        append(path, row)
    except ValueError as error:  # what was answered cannot be written as JSON; that it was paid for can
        failure = Failure(where="agent", kind="unwritable", detail=str(error)[:300])
        bare: dict[str, Any] = {
            "steps": (),
            "answer": "",
            "submission": None,
            "notes": {},
            "stop": "failed",
            "failure": failure,
        }
        row = row.model_copy(update={n: v for n, v in bare.items() if n in type(row).model_fields})
        append(path, row)
    return row


def refuse_mixing(path: Path, rows: Sequence[Any], cells: Mapping[str, Any]) -> None:
    """Raise SetupChanged, naming the parts, when a cell's place holds a measurement that another setup made."""
    measured = {row.slot: row for row in rows if isinstance(row, Trace) and row.failure is None}
    parts: set[str] = set()
    for k, cell in cells.items():
        row = measured.get(cell.slot) if isinstance(cell, Cell) else None
        if row and row.key != k and row.model not in CONTROLS:
            parts |= {name for name in row.setup | cell.setup if row.setup.get(name) != cell.setup.get(name)}
    if parts:
        raise SetupChanged(
            f"{path} holds measurements of these cells made with another setup; changed: {', '.join(sorted(parts))}. "
            f"Use another run_id, so that the two are never mixed."
        )


@lru_cache(maxsize=16)
def _writing(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, poll_interval=0.002)


def append(path: Path, row: Record) -> None:
    """Add one line; what a killed process left of a line is moved aside first."""
    line = row.model_dump_json().encode() + b"\n"
    with _gate, _writing(path.parent / ".locks" / f"{path.stem}.lock"), open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            whole = path.read_bytes().rfind(b"\n") + 1
            file.seek(whole)
            path.with_name(f"{path.stem}.torn-{whole}").write_bytes(file.read())
            file.truncate(whole)
        file.write(line)


def made(run_dir: Path) -> dict[str, dict[str, Any]]:
    """How the parts of a run were made, from run.json; raises ValueError where that file is damaged."""
    path = run_dir / "run.json"
    try:
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        raise ValueError(f"{path} is damaged; move it away and run run.ipynb again, which measures nothing twice")
    return content


def note(run_dir: Path, name: str, entry: dict[str, Any]) -> None:
    """Record how a part of the run was made: run.json[name] = entry."""
    path, draft = run_dir / "run.json", run_dir / ".locks" / "run.json"
    with FileLock(run_dir / ".locks" / "run.lock"):
        content = made(run_dir)
        if "at" in entry:
            entry = entry | {"first_at": content.get(name, {}).get("first_at", entry["at"])}
        draft.write_text(json.dumps(content | {name: entry}, indent=1, sort_keys=True) + "\n", "utf-8")
        draft.replace(path)


def progress(owed: int) -> Callable[[Mapping[str, float]], None]:
    """Shows counts: in a notebook as one line that is updated in place, in a terminal as at most ten lines."""
    started, handle, tenth = time.monotonic(), None, 0
    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and ipython.get_ipython() is not None

    def show(counts: Mapping[str, float]) -> None:
        nonlocal handle, tenth
        made = counts["done"] + counts["failed"]
        left = (time.monotonic() - started) / made * (owed - made)
        text = f"{made:g} of {owed} done, {counts['failed']:g} failed, {counts['usd']:.4f} USD, {left:.0f} s left"
        if notebook:
            from IPython.display import Markdown, display

            handle = handle.update(Markdown(text)) or handle if handle else display(Markdown(text), display_id=True)
        elif made * 10 // owed > tenth:
            tenth = int(made * 10 // owed)
            print(text, file=sys.stderr)

    return show
