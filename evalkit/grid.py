"""Plan what is owed, fill it, resume: the only writer of results. One line per finished cell, under a file lock."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from . import agent
from .models import Model
from .records import EVAL_VERSION, Cell, Record, Suite, Trace, Verdict, key, latest, load_rows

Work = Callable[[str, Any], Trace | Verdict]
_gate = threading.Lock()


class Busy(RuntimeError):
    """Another process fills the same run for the same model."""


class Counts(Record):
    """What a call of fill did."""

    cells: int
    done_before: int
    done: int = 0
    failed: int = 0
    usd: float = 0.0

    def __str__(self) -> str:
        return f"{self.cells} cells: {self.done_before} done before, {self.done} done now, {self.failed} failed, {self.usd:.4f} USD"


def plan(suite: Suite, model: Model, conditions: Sequence[str] = (), repeats: int = 1, limit: int = 0) -> dict[str, Cell]:
    """{content key: Cell} of samples × conditions × repeats, sample by sample; `limit` takes the first samples by id."""
    if unknown := set(conditions) - {c.name for c in suite.conditions}:
        names = ", ".join(c.name for c in suite.conditions)
        raise ValueError(f"no condition {', '.join(sorted(unknown))} in {suite.name}; it has: {names}")
    samples = sorted(suite.samples, key=lambda s: s.id)[: limit or None]
    chosen = [c for c in suite.conditions if not conditions or c.name in conditions]
    cells = [Cell(sample=s, condition=c, model=model.name, repeat=r) for s in samples for c in chosen for r in range(repeats)]
    cells = [cell.model_copy(update={"setup": setup(suite, cell, model)}) for cell in cells]
    return {key(cell.setup): cell for cell in cells}


def setup(suite: Suite, cell: Cell, model: Model) -> dict[str, str]:
    """Every part of a measurement's identity. Gold is none of it, but for the oracle, which answers with it."""
    tools = [(t.name, t.about, t.schema, t.counts, t.final, t.limit) for t in cell.condition.tools(cell.sample)]
    return {
        "suite": suite.name,
        "sample_id": cell.sample.id,
        "condition": cell.condition.name,
        "model": model.name,
        "options": json.dumps(model.options, sort_keys=True),
        "repeat": str(cell.repeat),
        "prompt": key(cell.sample.prompt, cell.sample.history),
        "system": key(cell.condition.system),
        "instructions": key(cell.condition.instructions),
        "tools": key(tools),
        "budget": key(cell.condition.budget),
        "corpus": suite.corpus_sha[:16],
        "eval_version": EVAL_VERSION,
    } | ({"gold": key(cell.sample.gold)} if model.name == "script:oracle" else {})


def tracing(run_id: str, suite: Suite, model: Model) -> Work:
    """The work that makes a Trace of a planned cell."""

    def work(k: str, cell: Cell) -> Trace:
        trace = agent.run(cell.sample, model, cell.condition, k, cell.repeat)
        return trace.model_copy(update={"run_id": run_id, "suite": suite.name, "setup": cell.setup})

    return work


def read(path: Path) -> tuple[list[Any], list[str]]:
    """Every row of traces.jsonl or verdicts.jsonl, superseded ones included, and what could not be read."""
    return load_rows(path, Verdict if path.name.startswith("verdicts") else Trace)


def fill(
    path: Path, cells: Mapping[str, Any], work: Work, executor: Executor | None = None, workers: int = 8,
    who: str = "", patience: float = 0.0,
) -> Counts:  # fmt: skip
    """Do `work(key, cell)` for every cell that has no finished row in `path`; each result is one appended line.

    A failed row is owed again, a wrong answer never. Raises Busy when another process fills this file for the same
    `who` for longer than `patience` seconds. An interrupt lets running cells finish: they have been paid for.
    """
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{path.stem}-{who}")
    locks = path.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{name}.lock")  # the kernel's own: a killed process leaves none behind
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        pid = (locks / f"{name}.pid").read_text()
        raise Busy(f"process {pid} already fills {path} for {who}; wait for it, or end it, and run again") from None
    pool = executor or ThreadPoolExecutor(max(1, workers))
    futures: list[Any] = []
    try:
        (locks / f"{name}.pid").write_text(str(os.getpid()))
        done = {row.key for row in latest(read(path)[0]) if row.failure is None}
        owed = {k: cell for k, cell in cells.items() if k not in done}
        counts, progress = Counts(cells=len(cells), done_before=len(cells) - len(owed)), Progress(len(owed))
        futures += [pool.submit(_measure, path, work, k, cell) for k, cell in owed.items()]
        for future in as_completed(futures):
            failed, usd = future.result()
            made = {"done": counts.done + (not failed), "failed": counts.failed + failed, "usd": counts.usd + usd}
            counts = counts.model_copy(update=made)
            progress.show(counts)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        if executor is None:
            pool.shutdown()
        lock.release()
    return counts


def _measure(path: Path, work: Work, k: str, cell: Any) -> tuple[bool, float]:
    row = work(k, cell)
    append(path, row)
    return row.failure is not None, row.usd


def append(path: Path, row: Record) -> None:
    """Add one line; what a killed process left of a line is moved aside first."""
    line = row.model_dump_json().encode() + b"\n"
    lock = FileLock(path.parent / ".locks" / f"{path.stem}.lock", poll_interval=0.002)
    with _gate, lock, open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            whole = path.read_bytes().rfind(b"\n") + 1
            file.seek(whole)
            path.with_name(f"{path.stem}.torn-{whole}").write_bytes(file.read())
            file.truncate(whole)
        file.write(line)


def note(run_dir: Path, name: str, entry: dict[str, Any]) -> None:
    """Record how a part of the run was made: run.json[name] = entry."""
    path, draft = run_dir / "run.json", run_dir / ".locks" / "run.json"
    with FileLock(run_dir / ".locks" / "run.lock"):
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        draft.write_text(json.dumps(content | {name: entry}, indent=1, sort_keys=True) + "\n", "utf-8")
        draft.replace(path)


class Progress:
    """In a notebook one line that is updated in place, in a terminal at most ten lines."""

    def __init__(self, owed: int):
        self.owed, self.started, self.tenth, self.handle = owed, time.monotonic(), 0, None
        ipython = sys.modules.get("IPython")
        self.notebook = ipython is not None and ipython.get_ipython() is not None

    def show(self, counts: Counts) -> None:
        made = counts.done + counts.failed
        left = (time.monotonic() - self.started) / made * (self.owed - made)
        text = f"{made} of {self.owed} owed, {counts.failed} failed, {counts.usd:.4f} USD, {left:.0f} s left"
        if self.notebook:
            from IPython.display import Markdown, display

            if self.handle:
                self.handle.update(Markdown(text))
            else:
                self.handle = display(Markdown(text), display_id=True)
        elif (tenth := made * 10 // self.owed) > self.tenth:
            self.tenth = tenth
            print(text, file=sys.stderr)
