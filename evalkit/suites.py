"""`load_suite`: a folder of data/ as a Suite, or an error that says where, what was found and what to type."""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from .fetch import CorpusError, entry
from .records import COLUMNS, ROOT, Budget, Call, Condition, Record, Reply, Sample, Step, Suite, key, reason
from .scoring import RULES
from .search import code, corpus
from .search.pages import Pages
from .search.web import Web
from .tools import Tool


class SuiteError(ValueError):
    """A suite that cannot be used; each line of the message names a file and, where there is one, a line."""


@cache
def pages(name: str) -> Pages:
    """The frozen pages of a corpus, loaded once a process."""
    return Pages(corpus.freeze(name))


@cache
def source(name: str) -> code.Code:
    """The files of a corpus of code, loaded once a process."""
    return code.Code(name)


def load_suite(path: str | Path, allow_hosts: Sequence[str] = ()) -> Suite:
    """Read suite.toml and samples.jsonl of a folder, or of the suite of that name in data/; raises SuiteError.

    `allow_hosts` names hosts that fetch_url may reach although they are not on the public web.
    """
    try:
        return _load(path, allow_hosts)
    except (TypeError, AttributeError, KeyError, ValidationError, OSError) as error:  # a table where text should be, …
        raise SuiteError(
            f"{path}: suite.toml or samples.jsonl is not as it should be ({reason(error)[:300]})"
        ) from None


def _load(path: str | Path, allow_hosts: Sequence[str]) -> Suite:
    folder = Path(path) if (Path(path) / "suite.toml").exists() else ROOT / "data" / path
    config, file = folder / "suite.toml", folder / "samples.jsonl"
    if not config.exists():
        have = ", ".join(sorted(p.parent.name for p in (ROOT / "data").glob("*/suite.toml")))
        raise SuiteError(f"{shown(config)} does not exist; the suites of data/ are: {have}")
    try:
        spec = tomllib.loads(config.read_text("utf-8"))
    except ValueError as error:
        raise SuiteError(f"{shown(config)}: {error}") from None
    known = {"kind", "corpus", "system", "rules", "budget", "settings", "conditions", "frozen", "tools"}
    problems = [f"{shown(config)}: unknown key {k!r}; known: {', '.join(sorted(known))}" for k in spec.keys() - known]
    rules = spec.get("rules", [])
    listed = rules if isinstance(rules, list) else [rules]
    no_rule = [rule for rule in listed if rule not in RULES]
    problems += [f"{shown(config)}: rules is text; write a list"] * (not isinstance(rules, list))
    problems += [f"{shown(config)}: no rule {rule!r}; known: {', '.join(RULES)}" for rule in no_rule]
    problems += [f"{shown(config)}: no {k}; a suite needs it" for k in ("kind", "conditions") if not spec.get(k)]
    if spec.get("kind") and spec["kind"] not in CHECKS:
        problems.append(f"{shown(config)}: kind {spec['kind']!r} is unknown; known: {', '.join(CHECKS)}")
    names = [row.get("name") for row in spec.get("conditions", [])]
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    problems += [f"{shown(config)}: two conditions are named {name!r}; give each its own name" for name in twice]
    try:
        own = json.loads((folder / spec["tools"]).read_text("utf-8")) if spec.get("tools") else []
    except (ValueError, OSError) as error:
        raise SuiteError(f"{shown(config)}: tools = {spec['tools']!r} cannot be read: {error}") from None
    samples, faults = read_samples(file, spec.get("kind", ""), own)
    there = sorted({*TOOLS, *(t["name"] for sample in samples for t in sample.tools)})
    known = {"name", "instructions", "tools", "network", "legs"}
    for number, row in enumerate(spec.get("conditions", []), 1):
        odd = sorted(row.keys() - known)
        problems += [f"{shown(config)}: condition {number}: unknown key {k!r}; known: {', '.join(known)}" for k in odd]
        problems += [f"{shown(config)}: condition {number} has no name"] * ("name" not in row)
        odd = [tool for tool in row.get("tools", []) if tool not in there]
        problems += [f"{shown(config)}: condition {number}: no tool {t!r}; known: {', '.join(there)}" for t in odd]
    try:
        Budget(**spec.get("budget", {}))
        corpus_sha = hash_of(spec["corpus"]) if spec.get("corpus") else ""
    except (ValueError, CorpusError) as error:
        problems.append(f"{shown(config)}: {reason(error)}")
    if problems + faults:
        raise SuiteError("\n".join(problems + faults))
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    return Suite(
        name=folder.resolve().name, kind=spec["kind"], path=folder, samples=tuple(samples),
        system=spec.get("system", "").strip(),
        conditions=tuple(_condition(row, spec, Web(allow_hosts)) for row in spec["conditions"]),
        corpus=spec.get("corpus", ""),
        texts=lambda: corpus_texts(spec.get("corpus", "")),
        corpus_sha=corpus_sha, settings=spec.get("settings", {}), rules=tuple(spec.get("rules", [])),
        sha=sha, frozen=sha == spec.get("frozen"),
    )  # fmt: skip


def is_code(name: str) -> bool:
    """Is this corpus one of code? Else it is one of pages."""
    return name.startswith("dir:") or "code" in entry(name)


def hash_of(name: str) -> str:
    """What tells one state of a corpus from another: the lock of a package, the content of a folder."""
    if name.startswith("dir:") or entry(name)["source"].startswith("dir:"):
        return code.corpus_sha(name)
    return entry(name)["sha256" if is_code(name) else "pages_sha256"]


def corpus_texts(name: str) -> Mapping[str, str]:
    """{page or file: text} of a corpus; nothing where a suite has none."""
    return {} if not name else source(name).text if is_code(name) else pages(name).text


def _condition(row: dict[str, Any], spec: dict[str, Any], web: Web) -> Condition:
    """One arm; its tools are bound to the corpus when a cell asks for them, so that loading needs no network."""

    def tools(sample: Sample) -> tuple[Tool, ...]:
        limits = spec.get("settings", {})
        if sample.tools:
            return offered(sample, row.get("tools", ()), limits.get("seed", 0))
        sizes = {n: limits[n] for n in ("page_limit", "search_limit") if n in limits}
        of_corpus: Sequence[Tool] = ()
        if spec.get("corpus") and row.get("tools"):
            place = source(spec["corpus"]) if is_code(spec["corpus"]) else pages(spec["corpus"])
            of_corpus = place.tools(**sizes, **({"legs": row["legs"]} if "legs" in row else {}))
        have = {t.name: t for t in (*of_corpus, *web.tools(limits.get("page_limit", 30_000)))}
        if missing := [name for name in row.get("tools", []) if name not in have]:
            raise SuiteError(f"condition {row['name']}: no tool {', '.join(missing)}; there are: {', '.join(have)}")
        return tuple(have[name] for name in row.get("tools", []))

    indexed = {n: spec["settings"][n] for n in ("embedder", "store") if n in spec.get("settings", {})}
    settings = {"legs": row.get("legs", list(code.LEGS)), **indexed} if "search_code" in row.get("tools", []) else {}
    return Condition(name=row["name"], instructions=row.get("instructions", "").strip(), tools=tools,
                     budget=Budget(**spec.get("budget", {})), system=spec.get("system", "").strip(),
                     network=row.get("network", False), settings=settings)  # fmt: skip


def offered(sample: Sample, names: Sequence[str], seed: int) -> tuple[Tool, ...]:
    """The sample's own tools (those named, or all) in an order drawn by seed and sample; they are offered, not run."""
    chosen = [t for t in sample.tools if not names or t["name"] in names]
    random.Random(f"{seed}/{sample.id}").shuffle(chosen)
    return tuple(Tool(t["name"], t.get("description", ""), t["parameters"], run=None) for t in chosen)


def conversation(entries: Sequence[Any]) -> list[Any]:
    """A history as it is written in samples.jsonl: text is the user's, {"text"} and {"calls"} are the model's turns.

    A call is {"name", "arguments", "result"}; each gets an id, and its result follows the turn.
    """
    said: list[Any] = []
    for n, turn in enumerate(entries):
        if not isinstance(turn, dict):
            said.append(turn)
            continue
        if not turn or turn.keys() - {"text", "calls"}:
            raise ValueError(f"history entry {n}: write text, or an object of text and calls, not {sorted(turn)}")
        rows = turn.get("calls", [])
        calls = [Call(id=f"h{n}-{i}", name=c["name"], args=c.get("arguments", {})) for i, c in enumerate(rows)]
        said.append(Reply(text=turn.get("text", ""), calls=tuple(calls)))
        said += [Step(call=call, result=row["result"]) for call, row in zip(calls, rows, strict=True)]
    return said


def read_samples(file: Path, kind: str, tools: Sequence[dict[str, Any]] = ()) -> tuple[list[Sample], list[str]]:
    """Samples of a JSON-lines file, and one sentence with file and line for each that cannot be used.

    Blank lines are skipped. Ids are compared as trimmed text; a sample without one is named by its content. A sample
    that names no `tools` of its own is offered those given here.
    """
    samples: list[Sample] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(file.read_bytes().split(b"\n") if file.exists() else [], 1):
        try:
            if not line.removeprefix(b"\xef\xbb\xbf").strip():
                continue
            row = json.loads(line.decode("utf-8-sig"))
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
            row_id = str(row.get("id", "")).strip() or key(row.get("prompt", row.get("question")))
            family = row.get("cluster") or row.pop("scenario", "") or row_id
            tags = row.get("tags", {}) | ({"step": row.pop("step")} if "step" in row else {})
            more = {"id": row_id, "cluster": family, "tags": tags, "tools": row.get("tools", tools)}
            sample = Sample.model_validate(row | more | {"history": conversation(row.get("history", []))})
            faults = list(CHECKS[kind](sample)) if kind in CHECKS else []
            taken = sorted(sample.tags.keys() & set(COLUMNS))
            faults += [f"tag {name!r} is a column of every report; name the tag otherwise" for name in taken]
            if sample.id.lower() in seen:
                faults.append(f"id {sample.id!r} stands on line {seen[sample.id.lower()]} too; give each its own")
            seen.setdefault(sample.id.lower(), number)
            samples.append(sample)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            faults = [f"not a sample: {reason(error)}"]
        problems += [f"{shown(file)}:{number}: {fault}" for fault in faults]
    return samples, problems or [f"{shown(file)} holds no sample; write one JSON object a line"] * (not samples)


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
        elif not trap and not values:
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
    value: list[Word | Annotated[list[Word], Field(min_length=1)]]


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
    known = {t["name"]: t["parameters"].get("properties", {}) for t in sample.tools}
    calls = [*gold.get("parallel", ()), *gold.get("alternatives", ()), *([gold["call"]] if "call" in gold else [])]
    for call in map(Expected.model_validate, calls):
        for one in (call, *call.alternatives):
            if one.tool not in known:
                yield f"gold names the tool {one.tool!r}, which is not offered; there are: {', '.join(known)}"
                continue
            strange = sorted(one.args.keys() - known[one.tool].keys())
            yield from (
                f"gold: {one.tool} has no argument {n!r}; it has: {', '.join(known[one.tool])}" for n in strange
            )


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


TOOLS = ("grep_index", "read_page", "fetch_url", "ripgrep", "search_code", "read_file")
CHECKS: dict[str, Callable[[Sample], Iterator[str]]] = {
    "docs_qa": docs_qa,
    "tool_choice": tool_choice,
    "code_search": code_search,
}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
