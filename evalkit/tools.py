"""Tools an agent may call. Whatever goes wrong in one is an observation for the model, never an exception."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from .records import Call, Step


class Found(NamedTuple):
    """A result in whole items, cut to the tool's limit on item borders.

    With `start` the items are lines from that line on, and what was cut can be read by asking from a later one.
    """

    items: list[str]
    total: int  # matches or lines there are in all
    start: int = 0


class ToolError(Exception):
    """Raised by a tool to say, in one sentence, what the model should do next."""


@dataclass(frozen=True)
class Tool:
    """`run(**args)` returns text or Found; `schema` is its arguments as JSON schema."""

    name: str
    about: str
    schema: dict[str, Any]
    run: Callable[..., str | Found]
    counts: bool = True  # against the tool-call budget
    final: bool = False  # a submit tool ends the run
    limit: int = 6_000  # characters of a result
    adapter: Any = field(default=None, repr=False, compare=False)


def tool(run: Callable[..., str | Found], **options: Any) -> Tool:
    """Make a Tool of a function: its name, docstring and annotated signature are what the model sees."""
    adapter: Any = TypeAdapter(run)
    schema = adapter.json_schema()
    for prop in schema.get("properties", {}).values():
        prop.pop("title", None)
    return Tool(run.__name__, inspect.getdoc(run) or "", schema, run, adapter=adapter, **options)


def execute(tools: tuple[Tool, ...], call: Call, turn: int) -> Step:
    """Run one call and return what the world answered."""
    started = time.monotonic()
    by_name = {t.name: t for t in tools}
    ok, cut = False, False
    if call.name not in by_name:
        text = f"There is no tool {call.name!r}. The tools are: {', '.join(by_name) or 'none'}."
    elif call.malformed:
        text = "The arguments are not valid JSON, so nothing was run. Send the call again with a JSON object."
    else:
        chosen = by_name[call.name]
        try:
            result = chosen.adapter.validate_python(ArgsKwargs((), call.args))
            text, cut = fit(result, chosen.limit)
            ok = True
        except ValidationError as error:
            text = f"{call.name}: {_faults(error)}. Its arguments are {_signature(chosen)}."
        except ToolError as error:
            text = str(error)
        except Exception as error:  # a broken tool must not end the measurement
            text = f"{call.name} failed ({type(error).__name__}: {error}). Try other arguments, or answer without it."
    return Step(turn=turn, call=call, result=text, ok=ok, truncated=cut, seconds=time.monotonic() - started)


def fit(result: str | Found, limit: int) -> tuple[str, bool]:
    """Cut a result to about `limit` characters on whole items, saying what is shown; (text, was it cut)."""
    found = result if isinstance(result, Found) else Found(result.split("\n"), result.count("\n") + 1, start=1)
    shown, size = 0, 0
    while shown < len(found.items) and (size := size + len(found.items[shown]) + 1) <= limit + 1:
        shown += 1
    items = found.items[:shown] or [item[:limit] + "…" for item in found.items[:1]]
    if found.start:
        last = found.start + len(items) - 1
        note = f"[lines {found.start}-{last} of {found.total}; go on with start_line={last + 1}]" * (last < found.total)
        return "\n".join([*items, note] if note else items), bool(note) or shown < len(items)
    if not found.total:
        return "no match; try another word or a wider pattern", False
    whole = len(items) == found.total
    note = f"{found.total} matches" if whole else f"showing {len(items)} of {found.total} matches, narrow the query"
    return "\n\n".join([note, *items]), not whole or shown < len(items)


def _faults(error: ValidationError) -> str:
    words = {"missing_argument": "missing argument", "unexpected_keyword_argument": "unknown argument"}
    return "; ".join(
        f"{words.get(e['type'], e['msg'])} {'.'.join(str(part) for part in e['loc'])}" for e in error.errors()
    )


def _signature(chosen: Tool) -> str:
    required = chosen.schema.get("required", [])
    props = chosen.schema.get("properties", {})
    return ", ".join(f"{name} ({p.get('type', 'any')}{'' if name in required else ', optional'})" for name, p in props.items())
