"""Plan what is owed, fill it, resume: the only writer of results. One line per finished cell, under a file lock."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from . import agent
from .models import Model
from .records import EVAL_VERSION, Cell, Record, Suite, Trace, Verdict, dump_line, key, latest, load_rows

Work = Callable[[str, Any], Trace | Verdict]
_gate = threading.Lock()


class Busy(RuntimeError):
    """Another process fills the same run with the same model."""


class SetupChanged(RuntimeError):
    """The run holds measurements of these cells made with another setup."""


class Counts(Record):
    """What a call of fill did."""

    cells: int
    done_before: int
    done: int = 0
    failed: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    def _repr_markdown_(self) -> str:
        return (
            f"{self.cells} cells: {self.done_before} done before, {self.done} done now, {self.failed} failed; "
            f"{self.usd:.4f} USD, {self.seconds:.1f} s"
        )


def plan(
    suite: Suite, model: Model, conditions: Sequence[str] = (), repeats: int = 1, limit: int = 0
) -> dict[str, Cell]:
    """{content key: Cell} of samples × conditions × repeats, sample by sample; `limit` takes the first samples by id."""
    names = [c.name for c in suite.conditions]
    if unknown := [name for name in conditions if name not in names]:
        raise ValueError(f"no condition {', '.join(unknown)} in {suite.name}; it has: {', '.join(names)}")
    samples = sorted(suite.samples, key=lambda s: s.id)[: limit or None]
    chosen = [c for c in suite.conditions if not conditions or c.name in conditions]
    cells = [
        Cell(sample=s, condition=c, model=model.name, repeat=r) for s in samples for c in chosen for r in range(repeats)
    ]
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
    """Do `work(key, cell)` for every cell that has no finished row in `path`, one appended line each.

    A failed row is owed again, a wrong answer never. Raises Busy when another process fills this file for the same
    `who` for longer than `patience` seconds, and SetupChanged when a cell was measured with another setup. An
    interrupt lets running cells finish.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path, who, patience):
        rows = latest(read(path)[0])
        refuse_mixing(path, rows, cells)
        done = {row.key for row in rows if row.failure is None}
        owed = {k: cell for k, cell in cells.items() if k not in done}
        counts = Counts(cells=len(cells), done_before=len(cells) - len(owed))
        progress, started = Progress(len(owed)), time.monotonic()
        pool = executor or ThreadPoolExecutor(max(1, workers), thread_name_prefix="cell")
        futures = [pool.submit(_measure, path, work, k, cell) for k, cell in owed.items()]
        try:
            for future in as_completed(futures):
                failed, usd = future.result()
                counts = counts.model_copy(
                    update={
                        "done": counts.done + (not failed),
                        "failed": counts.failed + failed,
                        "usd": counts.usd + usd,
                        "seconds": time.monotonic() - started,
                    }
                )
                progress.show(counts)
        finally:
            for future in futures:
                future.cancel()
            wait(futures)  # cells that run have been paid for: their rows are wanted
            if executor is None:
                pool.shutdown()
    return counts


def _measure(path: Path, work: Work, k: str, cell: Any) -> tuple[bool, float]:
    row = work(k, cell)
    append(path, row)
    return row.failure is not None, row.usd


def append(path: Path, row: Record) -> None:
    """Add one line; what a killed process left of a line is moved aside first."""
    line = dump_line(row)
    with _gate, FileLock(path.parent / f".{path.stem}.lock", poll_interval=0.002), open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            whole = path.read_bytes().rfind(b"\n") + 1
            file.seek(whole)
            path.with_name(f"{path.stem}.torn-{whole}").write_bytes(file.read())
            file.truncate(whole)
        file.write(line)


def refuse_mixing(path: Path, rows: Sequence[Any], cells: Mapping[str, Any]) -> None:
    """Raise SetupChanged when a cell's place holds a measurement that another setup made."""
    measured = {row.slot: row for row in rows if isinstance(row, Trace) and row.failure is None}
    changed: dict[str, int] = {}
    for k, cell in cells.items():
        row = measured.get(cell.slot) if isinstance(cell, Cell) else None
        if row and row.key != k:
            for part in sorted(set(row.setup) | set(cell.setup)):
                changed[part] = changed.get(part, 0) + (row.setup.get(part) != cell.setup.get(part))
    if changed:
        parts = ", ".join(f"{part} ({n} cells)" for part, n in changed.items() if n)
        raise SetupChanged(
            f"{path} holds measurements made with another setup; changed: {parts}. "
            f"Use another run_id, so that the two are never mixed"
        )


@contextmanager
def _alone(path: Path, who: str, patience: float) -> Iterator[None]:
    """Hold this file for `who`; the lock is the kernel's, so a killed process leaves none behind."""
    name = path.parent / f".{path.stem}-{re.sub(r'[^A-Za-z0-9.-]', '_', who) or 'any'}"
    lock = FileLock(f"{name}.lock")
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        pid = Path(f"{name}.pid").read_text() if Path(f"{name}.pid").exists() else "unknown"
        raise Busy(
            f"process {pid} already fills {path} for {who or 'this suite'}; wait for it, or end it and run again"
        ) from None
    try:
        Path(f"{name}.pid").write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def note(run_dir: Path, name: str, entry: dict[str, Any]) -> None:
    """Record how a part of the run was made: run.json[name] = entry."""
    path = run_dir / "run.json"
    run_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(run_dir / ".run.lock"):
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        content[name] = entry
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
        draft.replace(path)


class Progress:
    """One line that is updated in place; in a plain terminal at most ten lines."""

    def __init__(self, owed: int):
        self.owed, self.started, self.shown, self.handle = owed, time.monotonic(), 0, None
        self.notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None

    def show(self, counts: Counts) -> None:
        made = counts.done + counts.failed
        if not self.notebook and made * 10 // max(1, self.owed) == self.shown * 10 // max(1, self.owed):
            return
        self.shown = made
        left = (time.monotonic() - self.started) / made * (self.owed - made)
        text = f"{made}/{self.owed} cells, {counts.failed} failed, {counts.usd:.4f} USD, {left:.0f} s left"
        if not self.notebook:
            print(text, file=sys.stderr, flush=True)
            return
        from IPython.display import Markdown, display

        if self.handle is None:
            self.handle = display(Markdown(text), display_id=True)
        elif self.handle:
            self.handle.update(Markdown(text))
