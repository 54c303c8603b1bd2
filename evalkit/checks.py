"""What a sample of each kind must have, told in sentences; and histories as samples.jsonl writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .records import Call, Record, Reply, Sample, Step


def conversation(entries: Any) -> list[Any]:
    """A history as it is written in samples.jsonl: text is the user's, {"text"} and {"calls"} are the model's turns.

    A call is {"name", "arguments", "result"}; each gets an id, and its result follows the turn.
    """
    if not isinstance(entries, list):
        raise ValueError(f"history is {json.dumps(entries)[:60]}; write a list")
    said: list[Any] = []
    for n, turn in enumerate(entries):
        if isinstance(turn, str):
            said.append(turn)
            continue
        if not isinstance(turn, dict) or not turn or turn.keys() - {"text", "calls"}:
            raise ValueError(f"history[{n}] is {json.dumps(turn)[:60]}; write text, or an object of text and calls")
        rows, calls = turn.get("calls", []), []
        for i, row in enumerate(rows):
            sound = isinstance(row, dict) and row.keys() == {"name", "arguments", "result"}
            if not (sound and isinstance(row["arguments"], dict) and isinstance(row["result"], str)):
                raise ValueError(f"history[{n}].calls[{i}] needs name, arguments (an object) and result (text)")
            calls.append(Call(id=f"h{n}-{i}", name=row["name"], args=row["arguments"]))
        said.append(Reply(text=turn.get("text", ""), calls=tuple(calls)))
        said += [Step(call=call, result=row["result"]) for call, row in zip(calls, rows, strict=True)]
    return said


def docs_qa(sample: Sample) -> Iterator[str]:
    """What a docs_qa sample must have: an answer, and unless it is a trap, accepted forms of the fact and URLs."""
    gold, trap = sample.gold, bool(sample.gold.get("trap"))
    if not sample.prompt.strip() or not str(gold.get("answer") or "").strip():
        yield "the question or gold.answer is empty; a docs_qa sample needs both"
    if not isinstance(gold.get("trap", False), bool):
        yield f"gold.trap is {json.dumps(gold['trap'])}; write true, or leave it out"
    odd = sorted(gold.keys() - {"answer", "key_fact", "urls", "trap"})
    yield from (f"gold.{name} is unknown; known: answer, key_fact, urls, trap" for name in odd)
    for name in ("key_fact", "urls"):
        values = gold.get(name) or []
        if trap and values:
            yield f"gold.{name} is set; a trap has none"
        elif not trap and not values and name == "key_fact":
            yield f"gold.{name} is empty; a docs_qa sample needs at least one"
        elif not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
            yield f"gold.{name} is {json.dumps(values)[:60]}; write a list of texts"


Word = Annotated[str, Field(min_length=1)]


class Exact(Record):
    """The argument has this JSON value."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["exact"]
    value: Any


class Keywords(Record):
    """The argument's text holds every element; of an element that is a list, any."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["keywords"]
    value: list[Word | Annotated[list[Word], Field(min_length=1)]] = Field(min_length=1)


class Expected(Record):
    """One expected call; of its alternatives any will do."""

    model_config = ConfigDict(extra="forbid")
    tool: str
    args: dict[str, Annotated[Exact | Keywords, Field(discriminator="type")]] = Field(default_factory=dict)
    alternatives: tuple[Expected, ...] = ()


def tool_choice(sample: Sample) -> Iterator[str]:
    """What a tool_choice sample must have: tools, and a gold that is one call, several parallel ones or none."""
    gold = sample.gold
    if sorted(gold) not in (["call"], ["alternatives", "call"], ["parallel"], ["no_call"]):
        yield f"gold has {sorted(gold)}; write exactly one of call (and alternatives), parallel, no_call"
        return
    if "no_call" in gold and gold["no_call"] is not True:
        yield f"gold.no_call is {json.dumps(gold['no_call'])}; write true"
    if "parallel" in gold and len(gold["parallel"]) < 2:
        yield "gold.parallel needs two calls or more; write one as call"
    if not sample.tools:
        yield "no tools are offered; name a file of tools in suite.toml, or give the sample its own"
    if not sample.prompt.strip():
        yield "the prompt is empty; it is what the user asks"
    for n, t in enumerate(sample.tools):
        if not (isinstance(t.get("name"), str) and isinstance(t.get("parameters"), dict)):
            yield f"tools[{n}] needs a name and parameters (a JSON schema)"
            return
    known = {t["name"]: t["parameters"].get("properties", {}) for t in sample.tools}
    names = [t["name"] for t in sample.tools]
    yield from (f"two tools are named {name!r}" for name in known if names.count(name) > 1)
    wrong = {t["name"] for t in sample.tools if t.get("distractor")}
    calls = [*gold.get("parallel", ()), *gold.get("alternatives", ()), *([gold["call"]] if "call" in gold else [])]
    if any(call.get("alternatives") for call in gold.get("alternatives", ())):
        yield "gold: an alternative has alternatives of its own; list them side by side"
    for call in map(Expected.model_validate, calls):
        for one in (call, *call.alternatives):
            if one.tool not in known:
                yield f"gold names the tool {one.tool!r}, which is not offered; there are: {', '.join(known)}"
                continue
            if one.tool in wrong:
                yield f"gold names {one.tool!r}, a distractor, which is never right"
            takes = known[one.tool]
            exact = [(n, a.value) for n, a in one.args.items() if a.type == "exact"]
            strange = [v for n, value in exact for v in off_schema(value, takes.get(n) or {})]
            yield from (f"gold: {one.tool} takes no {json.dumps(v)}; look at the codes of its schema" for v in strange)
            odd = sorted(one.args.keys() - takes.keys())
            yield from (f"gold: {one.tool} has no argument {n!r}; it has: {', '.join(takes)}" for n in odd)


def off_schema(value: Any, schema: dict[str, Any]) -> list[Any]:
    """The values, at any depth, that are none of the codes a tool's schema allows."""
    if isinstance(value, dict):
        parts = schema.get("properties") or {}
        return [odd for n, v in value.items() for odd in off_schema(v, parts.get(n) or {})]
    return [value] if "enum" in schema and value not in schema["enum"] else []


def code_search(sample: Sample) -> Iterator[str]:
    """What a code_search sample must have: an answer, and unless it is a trap, forms of the fact and places."""
    gold, trap = sample.gold, bool(sample.gold.get("trap"))
    if not sample.prompt.strip() or not str(gold.get("answer") or "").strip():
        yield "the prompt or gold.answer is empty; a code_search sample needs both"
    odd = sorted(gold.keys() - {"answer", "key_fact", "citations", "trap"})
    yield from (f"gold.{name} is unknown; known: answer, key_fact, citations, trap" for name in odd)
    facts, places = gold.get("key_fact") or [], gold.get("citations") or []
    if not isinstance(facts, list) or not all(isinstance(v, str) and v.strip() for v in facts):
        yield f"gold.key_fact is {json.dumps(facts)[:60]}; write a list of texts"
    if not trap and not (facts and places):
        yield "gold.key_fact or gold.citations is empty; a question that is no trap needs both"
    for place in places:
        sound = isinstance(place, dict) and isinstance(place.get("path"), str)
        if not (sound and all(isinstance(place.get(n), int) for n in ("start", "end"))):
            yield f'gold.citations has {json.dumps(place)[:60]}; write {{"path": …, "start": line, "end": line}}'
        elif not 1 <= place["start"] <= place["end"]:
            yield f"gold.citations has lines {place['start']}-{place['end']}; write 1 <= start <= end"


CHECKS: dict[str, Callable[[Sample], Iterator[str]]] = {
    "docs_qa": docs_qa,
    "tool_choice": tool_choice,
    "code_search": code_search,
    "scenario": lambda sample: iter(()),  # its world has made it
}
