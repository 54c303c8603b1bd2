"""`load_suite`: a folder of data/ as a Suite, or an error that says where, what was found and what to type."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from . import scenarios, worlds
from .checks import CHECKS, conversation
from .fetch import CorpusError, entry
from .records import COLUMNS, ROOT, Budget, Condition, Sample, Suite, key, reason
from .scoring import RULES
from .search import code, corpus
from .search.pages import Pages
from .search.web import Web
from .tools import Tool

TOOLS = ("grep_index", "read_page", "fetch_url", "ripgrep", "search_code", "read_file")


class SuiteError(ValueError):
    """A suite that cannot be used; each line of the message names a file and, where there is one, a line."""


@cache
def pages(name: str) -> Pages:
    """The frozen pages of a corpus, loaded once a process."""
    return Pages(corpus.freeze(name))


def source(name: str) -> code.Code:
    """The files of a corpus of code, loaded once a process, and again when they have changed."""
    return _source(name, hash_of(name))


@cache
def _source(name: str, sha: str) -> code.Code:
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
    known = {
        "kind",
        "corpus",
        "system",
        "rules",
        "budget",
        "settings",
        "conditions",
        "frozen",
        "tools",
        "seed",
        "count",
    }
    problems = [f"{shown(config)}: unknown key {k!r}; known: {', '.join(sorted(known))}" for k in spec.keys() - known]
    rules = spec.get("rules", [])
    listed = rules if isinstance(rules, list) else [rules]
    no_rule = [rule for rule in listed if rule not in RULES]
    problems += [f"{shown(config)}: rules is text; write a list"] * (not isinstance(rules, list))
    problems += [f"{shown(config)}: no rule {rule!r}; known: {', '.join(RULES)}" for rule in no_rule]
    strange = [rule for rule in listed if rule in RULES and rule != spec.get("kind")]
    problems += [f"{shown(config)}: the rule {rule!r} is for suites of kind {rule!r}" for rule in strange]
    sizes = {n: spec.get("settings", {}).get(n, 1) for n in ("page_limit", "search_limit")}
    bad = [n for n, v in sizes.items() if not isinstance(v, int) or v < 1]
    problems += [f"{shown(config)}: settings.{n} is {sizes[n]!r}; write characters, 1 or more" for n in bad]
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
    world = None
    if spec.get("kind") == "scenario":
        samples, faults, world = drawn_samples(folder, spec)
    else:
        samples, faults = read_samples(file, spec.get("kind", ""), own, spec.get("settings", {}).get("pages", True))
    there = sorted({*TOOLS, *(str(t.get("name")) for sample in samples for t in sample.tools)})
    known = {"name", "instructions", "tools", "network", "legs", "specialists"}
    for number, row in enumerate(spec.get("conditions", []), 1):
        odd = sorted(row.keys() - known)
        problems += [f"{shown(config)}: condition {number}: unknown key {k!r}; known: {', '.join(known)}" for k in odd]
        problems += [f"{shown(config)}: condition {number} has no name"] * (not row.get("name"))
        legs = row.get("legs", ["bm25"])
        if not isinstance(legs, list) or not legs or set(map(str, legs)) - set(code.LEGS):
            some = ", ".join(code.LEGS)
            problems.append(f"{shown(config)}: condition {number}: legs is {legs!r}; write a list of some of {some}")
        odd = [tool for tool in row.get("tools", []) if tool not in there]
        problems += [f"{shown(config)}: condition {number}: no tool {t!r}; known: {', '.join(there)}" for t in odd]
    try:
        Budget(**spec.get("budget", {}))
        corpus_sha = hash_of(spec["corpus"]) if spec.get("corpus") else ""
    except (ValueError, CorpusError) as error:
        problems.append(f"{shown(config)}: {reason(error)}")
    if problems + faults:
        raise SuiteError("\n".join(problems + faults))
    sha = hashlib.sha256(worlds.written(samples) if world else file.read_bytes()).hexdigest()
    if world:
        spec["system"] = world.SYSTEM
        state = worlds.content(folder), inspect.getsource(worlds), inspect.getsource(scenarios)
        spec["settings"] = spec.get("settings", {}) | {"world": key(*state)}
    return Suite(
        name=folder.resolve().name, kind=spec["kind"], path=folder, samples=tuple(samples),
        system=spec.get("system", "").strip(),
        conditions=tuple(_condition(row, spec, Web(allow_hosts), world) for row in spec["conditions"]), world=world,
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


def _condition(row: dict[str, Any], spec: dict[str, Any], web: Web, world: Any = None) -> Condition:
    """One arm; its tools are bound to the corpus when a cell asks for them, so that loading needs no network."""

    specialists = row.get("specialists", {})

    def tools(sample: Sample) -> tuple[Tool, ...]:
        if world:
            return worlds.toolbox(sample, specialists, world)
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
    settings: dict[str, Any] = {}
    if "search_code" in row.get("tools", []):
        from .search.index import VERSION

        settings = {"legs": row.get("legs", list(code.LEGS)), "index": VERSION, **indexed}
    if world:
        settings = {"world": spec["settings"]["world"]} | ({"specialists": specialists} if specialists else {})
    return Condition(name=row["name"], instructions=row.get("instructions", "").strip(), tools=tools,
                     budget=Budget(**spec.get("budget", {})), system=spec.get("system", "").strip(),
                     network=row.get("network", False), settings=settings,
                     **({"brief": lambda sample: worlds.brief(sample, world)} if world else {}))  # fmt: skip


def drawn_samples(folder: Path, spec: dict[str, Any]) -> tuple[list[Sample], list[str], Any]:
    """The cases that a scenario suite's world draws by seed, what is wrong with its suite.toml, and the world."""
    seed, count = spec.get("seed", 0), spec.get("count", 0)
    if not isinstance(seed, int) or not isinstance(count, int) or count < 1:
        return (
            [],
            [f"{shown(folder / 'suite.toml')}: count is {count!r}; a scenario suite needs a seed and a count"],
            None,
        )
    try:
        world = worlds.load_world(folder)
        samples = worlds.samples(world, seed, count)
    except (Exception, SystemExit) as error:  # the suite's own code
        return [], [f"{shown(folder / 'world.py')}: {type(error).__name__}: {reason(error)[:300]}"], None
    have = {t.name for t in world.tools(samples[0].gold["record"], worlds.Ledger())}
    wanted = {n for row in spec.get("conditions", []) for names in row.get("specialists", {}).values() for n in names}
    odd = sorted(wanted - have)
    faults = [
        f"{shown(folder / 'suite.toml')}: specialists: no tool {n!r}; known: {', '.join(sorted(have))}" for n in odd
    ]
    return samples, faults, world


def offered(sample: Sample, names: Sequence[str], seed: int) -> tuple[Tool, ...]:
    """The sample's own tools (those named, or all) in an order drawn by seed and sample; they are offered, not run."""
    chosen = [t for t in sample.tools if not names or t["name"] in names]
    random.Random(f"{seed}/{sample.id}").shuffle(chosen)
    return tuple(Tool(t["name"], t.get("description", ""), t["parameters"], run=None) for t in chosen)


def read_samples(
    file: Path, kind: str, tools: Sequence[dict[str, Any]] = (), paged: bool = True
) -> tuple[list[Sample], list[str]]:
    """Samples of a JSON-lines file, and one sentence with file and line for each that cannot be used.

    Blank lines are skipped. Ids are compared as trimmed text; a sample without one is named by its content. A sample
    that names no `tools` of its own is offered those given here. A docs_qa sample needs pages, unless the settings of
    its suite say pages = false.
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
            if kind == "docs_qa" and paged and not (sample.gold.get("trap") or sample.gold.get("urls")):
                faults.append("gold.urls is empty; a docs_qa sample needs at least one")
            taken = sorted(sample.tags.keys() & set(COLUMNS))
            faults += [f"tag {name!r} is a column of every report; name the tag otherwise" for name in taken]
            if sample.id.lower() in seen:
                faults.append(f"id {sample.id!r} stands on line {seen[sample.id.lower()]} too; give each its own")
            seen.setdefault(sample.id.lower(), number)
            samples.append(sample)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            missing = f"the field {error} is missing" if isinstance(error, KeyError) else reason(error)
            faults = [f"not a sample: {missing}"]
        problems += [f"{shown(file)}:{number}: {fault}" for fault in faults]
    return samples, problems or [f"{shown(file)} holds no sample; write one JSON object a line"] * (not samples)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
