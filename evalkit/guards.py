"""Before: parameters, prices, corpus, equality, cost. During: faults and money. After: what a reader should know."""

from __future__ import annotations

import ast
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from pydantic import TypeAdapter

from . import grid, pricing
from .fetch import entry
from .models import Model
from .records import ROOT, Cell, Suite, Trace, Usage, latest, redact

BANNER = "**NOT FINISHED.** This notebook is running, or stopped before its last cell; rows of finished cells are safe."
OWN = "the provider's own address"
TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
EXAMPLES = {"int": "3", "float": "0.5", "bool": "true", "list": "a,b", "dict": "'{\"a\": 1}'"}


def banner(done: str = "") -> None:
    """Show NOT FINISHED at the top; called again with a text at the end, it replaces the warning."""
    from IPython.display import Markdown, display

    display(Markdown(done or BANNER), display_id="banner", update=bool(done))


def run_dir(run_id: str) -> Any:
    """The folder of a run; raises ValueError when the id cannot be a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", run_id):
        raise ValueError(f"run_id {run_id!r}: write letters, digits, dot, dash and underscore")
    return ROOT / "results" / run_id


def parameters(scope: dict[str, Any]) -> Any:
    """Check a notebook's parameters against its `name: type = default` cell, write the typed values into `scope`.

    The declared type decides; the exact text of papermill's -p values is read back from its command line. Returns
    the values as a frame; raises ValueError for an unknown name, a wrong type and what looks like a secret.
    """
    import pandas as pd

    declared = {name: getattr(kind, "__name__", str(kind)) for name, kind in scope["__annotations__"].items()}
    typed, lost = _command_line()
    injected = _injected(scope.get("In", []))
    if unknown := sorted(injected.keys() - declared.keys()):
        known = ", ".join(f"{n}: {kind}" for n, kind in declared.items())
        raise ValueError(f"unknown parameter {unknown[0]!r}; this notebook has {known}")
    for name, kind in declared.items():
        value = typed.get(name, injected[name]) if name in injected else scope[name]
        if redact(str(value)) != str(value):
            raise ValueError(f"parameter {name!r} looks like a secret, and papermill has written it into its output: "
                             f"delete that notebook. Keys are read from the environment or .env")  # fmt: skip
        if kind == "str" and lost and name in injected and not isinstance(value, str):
            raise ValueError(f"parameter {name!r} is text, papermill has made {value!r} of it; write -r {name} TEXT")
        scope[name] = typed_value(name, kind, value)
    return pd.DataFrame({"value": {name: str(scope[name]) for name in declared}}).rename_axis("parameter")


def differences(suite: Suite) -> list[str]:
    """Fields beside tools and instructions in which the conditions of a suite differ: none, if they are comparable."""
    first = suite.conditions[0]
    return [f for f in ("system", "budget") if any(getattr(c, f) != getattr(first, f) for c in suite.conditions)]


def preflight(
    suite: Suite, model: Model, path: Path, cells: Mapping[str, Cell], max_usd: float = 0.0, skip_health: bool = False
) -> Any:
    """What a reader should know before the first paid request, as a frame; raises where something is missing.

    UnknownPrice, CorpusError, grid.SetupChanged, and ValueError for a condition that needs a network there is not, or
    an index that is not sound, unless `skip_health`.
    """
    import pandas as pd

    provider, _, name = model.name.partition(":")
    if model.priced:
        pricing.usd(name, Usage(), provider)
    corpus = f"{suite.corpus}, {len(suite.texts())} texts, {suite.corpus_sha[:16]}" if suite.corpus else "none"
    part = " ".join(filter(None, [suite.name, model.name, model.options.get("effort", "")]))
    before = grid.made(path.parent).get(part, {}).get("address", model.address or OWN)
    if path.exists() and before != (model.address or OWN) and not model.replayed:
        raise ValueError(f"this run has answers of {model.name} from {before}; use another run_id for those from "
                         f"{model.address or OWN}")  # fmt: skip
    index = health(suite, cells)
    if index and not skip_health:
        raise ValueError("the index is not sound, and nothing was asked:\n" + "\n".join(index))
    for condition in {c.condition.name for c in cells.values() if c.condition.network and not model.replayed}:
        try:
            socket.getaddrinfo(urlsplit(entry(suite.corpus)["url"]).hostname, 443)
        except OSError:
            raise ValueError(f"condition {condition} needs the web, and there is no network; leave it out") from None
    rows = latest(grid.read(path)[0])
    grid.refuse_mixing(path, rows, cells)
    done = {row.key for row in rows if row.failure is None} & cells.keys()
    owed = [cell for k, cell in cells.items() if k not in done]
    paid = [row.usd for row in rows if row.model == model.name and row.failure is None]
    expected = (
        f"{len(owed) * sum(paid) / len(paid):.2f} USD, as {len(paid)} cells before" if paid else "nothing to go by yet"
    )
    unequal = differences(suite)
    return pd.DataFrame({"": {
        "model": model.name,
        "cells owed": f"{len(owed)} of {len(cells)}",
        "prices": pricing.source() if model.priced else "no call costs money",
        "expected cost": expected if model.priced else "0",
        "worst-case cost": f"{sum(worst(cell, name, provider) for cell in owed):.2f} USD" if model.priced else "0",
        "stops at": f"{max_usd:g} USD" if max_usd else "no limit set (max_usd)",
        "corpus": corpus,
        "index": "; ".join(index) or "sound, or none is needed",
        "conditions": f"NOT EQUAL in {', '.join(unequal)}" if unequal else "equal but for tools and their instructions",
        "samples": f"{len(suite.samples)}, sha256 {suite.sha[:16]}" + ", changed since frozen" * (not suite.frozen),
    }})  # fmt: skip


def health(suite: Suite, cells: Mapping[str, Cell]) -> list[str]:
    """What is wrong with the indices that the cells need, each with the command that mends it."""
    from .search import index

    needed = {
        json.dumps(c.condition.settings, sort_keys=True) for c in cells.values() if "legs" in c.condition.settings
    }
    required = suite.settings.get("required", ())
    faults = []
    for text in sorted(needed):
        settings = {n: v for n, v in json.loads(text).items() if n not in ("legs", "index")}
        faults += index.health(suite.corpus, required=required, **settings)
    return list(dict.fromkeys(faults))


def worst(cell: Cell, model: str, provider: str) -> float:
    """USD a cell can cost at most: every turn used, every result and reply at its limit, 4 characters a token."""
    budget, tools = cell.condition.budget, cell.condition.tools(cell.sample)
    run = [t for t in tools if t.run]
    turns = budget.turns + 1 if run else 1
    longest = max((t.limit for t in run), default=0)
    said = f"{cell.condition.system}{cell.condition.instructions}{cell.sample.said}"
    base = len(said) / 4 + 300 * len(tools)
    grown = base + budget.tool_calls * longest / 4 * bool(run) + turns * budget.reply_tokens
    usage = Usage(input=int(turns * grown), output=turns * budget.reply_tokens)
    if cell.condition.settings.get("specialists"):  # each delegated call is a small run of its own
        inner = 7 * budget.tool_calls
        more = int(inner * (2_000 + 7 * 4_096)), inner * 4_096
        usage = usage + Usage(input=more[0], output=more[1])
    usd = pricing.usd(model, usage, provider)
    return min(usd, budget.usd) if budget.usd else usd


def watch(max_usd: float = 0.0, stop_when: float = 0.5) -> Callable[[Any], str]:
    """A watch for grid.fill: stops at a refused key, at `max_usd`, and when more than `stop_when` of ten rows fail."""
    if not (max_usd >= 0 and 0 <= stop_when <= 1):
        raise ValueError(f"max_usd {max_usd}, stop_when {stop_when}: write 0 or more, and a share from 0 to 1")
    seen, last = {"rows": 0, "failed": 0, "usd": 0.0}, [""]

    def why(row: Any) -> str:
        kind = row.failure.kind if row.failure else ""
        last[0] = kind or last[0]
        seen["rows"], seen["failed"], seen["usd"] = seen["rows"] + 1, seen["failed"] + bool(kind), seen["usd"] + row.usd
        if kind in ("http_401", "http_402", "http_403"):
            return f"the provider refuses this key or account ({kind}: {row.failure.detail[:200]})."
        if seen["rows"] >= 10 and seen["failed"] > stop_when * seen["rows"]:
            detail = f"{kind or last[0]} ({row.failure.detail[:200]})" if row.failure else last[0]
            return f"Stopped: {seen['failed']:g} of {seen['rows']:g} cells failed, the last with {detail}."
        return f"Stopped: {seen['usd']:.4f} USD spent, the limit is {max_usd}." if 0 < max_usd <= seen["usd"] else ""

    return why


def after(rows: Sequence[Trace]) -> list[str]:
    """What a reader of these rows should know: failures, other models served, aliases, what was cut or dropped."""
    found: list[str] = []
    failed = sum(row.failure is not None for row in rows)
    if failed:
        kinds = Counter(row.failure.kind for row in rows if row.failure).most_common(3)
        why = ", ".join(f"{kind} {n} times" for kind, n in kinds)
        found.append(f"{failed} of {len(rows)} cells failed ({why})" + ": incomplete" * (failed > 0.1 * len(rows)))
    for asked, served in sorted({(r.model, r.served) for r in rows if r.served}):
        name = asked.partition(":")[2].partition("@")[0]
        if name != re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", served) and name != served:
            found.append(f"{asked} was served by {served}")
        if re.search(r"latest|preview|free", served):
            found.append(f"{served} is an alias: a point-in-time observation, not reproducible")
    cut = [r for r in rows if r.stop == "truncated"]
    if cut:
        thought = sum(not r.answer and r.usage.reasoning > 0 for r in cut)
        found.append(
            f"{len(cut)} replies hit their output limit" + f", {thought} of them by reasoning alone" * (thought > 0)
        )
    malformed = sum(step.call.malformed for row in rows for step in row.steps)
    found += [f"{malformed} tool calls were malformed and not run"] * bool(malformed)
    dropped = sorted({name for row in rows for name in row.notes.get("dropped", [])})
    return found + [f"parameters the model does not take were left out: {', '.join(dropped)}"] * bool(dropped)


def _injected(cells: list[str]) -> dict[str, Any]:
    """What papermill wrote into its `# Parameters` cell."""
    cell = next((c for c in reversed(cells) if c.lstrip().startswith("# Parameters\n")), "")
    found: dict[str, Any] = {}
    for line in ast.parse(cell).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:  # float("nan"), float("-inf") and the like
                found[line.targets[0].id] = float(re.sub(r"[^a-z-]|float", "", ast.unparse(line.value)))
    return found


def _command_line() -> tuple[dict[str, str], bool]:
    """The text of papermill's -p and -r options, and whether the text of other values is lost.

    Called from Python, papermill hands values over as they are; its command makes numbers of what looks like one.
    """
    try:
        words = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):
        return {}, True
    if not any(Path(word).name == "papermill" for word in words):
        return {}, False
    flags = ("-p", "--parameters", "-r", "--parameters_raw")
    return {words[i + 1]: words[i + 2] for i, word in enumerate(words[:-2]) if word in flags}, True


def typed_value(name: str, kind: str, value: Any) -> Any:
    """The value as the declared type; text is read as one would write it on a command line."""
    try:
        if kind in ("list", "dict") and isinstance(value, str):
            comma = kind == "list" and not value.lstrip().startswith("[")
            value = [part.strip() for part in value.split(",") if part.strip()] if comma else json.loads(value)
        if kind == "str" and isinstance(value, (int, float)):
            value = str(value)
        return TypeAdapter(TYPES[kind]).validate_python(value)
    except ValueError:
        example = f"-p {name} {EXAMPLES.get(kind, 'text')}"
        raise ValueError(f"parameter {name!r} is {value!r}, which is not {kind}; for example {example}") from None
