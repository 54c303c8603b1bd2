"""Tools an agent may call. Whatever goes wrong in one is an observation for the model, never an exception."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from .records import Call, Step, Trace, redact


class Found(NamedTuple):
    """A result in whole items of `total` there are; with `start` they are lines, and later ones can be asked for."""

    items: list[str]
    total: int
    start: int = 0


class Delegated(NamedTuple):
    """What a specialist answered, and how it came to that."""

    text: str
    trace: Trace


class ToolError(Exception):
    """Raised by a tool to say, in one sentence, what the model should do next."""


@dataclass(frozen=True)
class Tool:
    """`schema` is its arguments as JSON schema; `run(**args)` gives text or Found; without it it is only offered."""

    name: str
    about: str
    schema: dict[str, Any]
    run: Callable[..., str | Found | Delegated] | None
    counts: bool = True  # against the tool-call budget
    final: bool = False  # a submit tool ends the run
    limit: int = 6_000  # characters of a result


def tool(function: Callable[..., str | Found | Delegated], **options: Any) -> Tool:
    """Make a Tool of a function: its name, docstring and annotated signature are what the model sees."""
    adapter: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]
    schema = adapter.json_schema()
    for prop in schema.get("properties", {}).values():
        prop.pop("title", None)

    def run(**args: Any) -> str | Found | Delegated:
        return adapter.validate_python(ArgsKwargs((), args))

    return Tool(function.__name__, inspect.getdoc(function) or "", schema, run, **options)


def execute(tools: tuple[Tool, ...], call: Call, turn: int) -> Step:
    """Run one call and return what the world answered."""
    started, ok, cut = time.monotonic(), False, False
    part: dict[str, Any] = {}  # what a specialist took
    chosen = next((t for t in tools if t.name == call.name), None)
    if chosen is None:
        text = f"There is no tool {call.name!r}. The tools are: {', '.join(t.name for t in tools) or 'none'}."
    elif chosen.run is None:
        text = f"{call.name} cannot be run here. Answer without it."
    elif call.malformed:
        text = "The arguments are not valid JSON, so nothing was run. Send the call again with a JSON object."
    else:
        try:
            found = chosen.run(**call.args)
            if isinstance(found, Delegated):
                inner = found.trace
                part = {"steps": inner.steps, "usage": inner.usage, "usd": inner.usd, "api_calls": inner.api_calls}
                found, ok = found.text, inner.failure is None and bool(inner.answer)
            else:
                ok = True
            text, cut = fit(found, chosen.limit)
        except ValidationError as error:
            faults = "; ".join(f"{e['msg'].lower()}: {'.'.join(map(str, e['loc']))}" for e in error.errors())
            needs = ", ".join(f"{n} ({p.get('type', 'any')})" for n, p in chosen.schema.get("properties", {}).items())
            text = f"{call.name}: {faults}. Its arguments are {needs}."
        except ToolError as error:
            text = str(error)
        except (Exception, SystemExit) as error:  # a broken tool must not end the measurement
            why = redact(f"{type(error).__name__}: {error}")
            text = f"{call.name} failed ({why}). Try other arguments, or answer without it."
    return Step(turn=turn, call=call, result=text, ok=ok, truncated=cut, seconds=time.monotonic() - started, **part)


def fit(result: str | Found, limit: int) -> tuple[str, bool]:
    """Cut a result to about `limit` characters on whole items, saying what is shown; (text, was it cut)."""
    found = result if isinstance(result, Found) else Found(result.split("\n"), result.count("\n") + 1, start=1)
    if not found.total:
        return "no match; try another word or a wider pattern", False
    shown, size, gap = 0, 0, 1 if found.start else 2
    while shown < len(found.items) and (size := size + len(found.items[shown]) + gap) <= limit + gap:
        shown += 1
    items = found.items[:shown] or [found.items[0][:limit] + "…"]
    short = shown == 0  # one item alone is over the limit
    if found.start:
        last = found.start + len(items) - 1
        more = f"go on with start_line={last + 1}" if last < found.total else "the line is longer than can be shown"
        cut = short or last < found.total
        items = [*items, f"[lines {found.start}-{last} of {found.total}; {more}]"] if cut else items
        return "\n".join(items), cut
    cut = short or len(items) < found.total
    note = f"showing {len(items)} of {found.total} matches, narrow the query" if cut else f"{found.total} matches"
    return "\n\n".join([note, *items]), cut
