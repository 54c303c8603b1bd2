"""`load_suite`: a folder of data/ as a Suite, or an error that says where, what was found and what to type."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .records import ROOT, Budget, Condition, Sample, Suite, key
from .scoring import RULES, denies, states
from .search import corpus
from .search.pages import Pages
from .tools import Tool


class SuiteError(ValueError):
    """A suite that cannot be used; each line of the message names a file and, where there is one, a line."""


@cache
def pages(name: str) -> Pages:
    """The frozen pages of a corpus, loaded once a process."""
    return Pages(corpus.freeze(name))


def find(name: str | Path) -> Path:
    """The folder of a suite, given its name in data/ or a path."""
    path = Path(name) if Path(name).is_dir() else ROOT / "data" / name
    if not (path / "suite.toml").exists():
        have = ", ".join(sorted(p.parent.name for p in (ROOT / "data").glob("*/suite.toml")))
        raise SuiteError(f"no suite {str(name)!r}: {path}/suite.toml does not exist; suites: {have}")
    return path


def load_suite(path: str | Path) -> Suite:
    """Read suite.toml and samples.jsonl of a folder, or of the suite of that name in data/; raises SuiteError."""
    folder = find(path)
    config = folder / "suite.toml"
    try:
        spec = tomllib.loads(config.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"{_shown(config)}: {error}") from None
    file = folder / "samples.jsonl"
    samples, problems = read_samples(file, spec.get("kind", ""))
    known = {"kind", "corpus", "system", "rules", "budget", "settings", "conditions", "frozen"}
    problems += [f"{_shown(config)}: unknown key {k!r}; known: {', '.join(sorted(known))}" for k in spec.keys() - known]
    problems += [
        f"{_shown(config)}: no rule {r!r}; there are: {', '.join(RULES)}" for r in spec.get("rules", []) if r not in RULES
    ]
    if not spec.get("conditions"):
        problems.append(f"{_shown(config)}: no [[conditions]]; a suite needs at least one")
    if problems:
        raise SuiteError("\n".join(problems))
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    frozen = spec.get("frozen", "")
    notes = () if sha == frozen else (f"samples.jsonl has changed since it was frozen (sha256 {frozen[:16] or 'none'})",)
    return Suite(
        name=folder.name, kind=spec["kind"], path=folder, system=spec.get("system", "").strip(), samples=tuple(samples),
        conditions=tuple(_condition(c, spec, config) for c in spec["conditions"]), corpus=spec.get("corpus", ""),
        corpus_sha=corpus.entry(spec["corpus"])["pages_sha256"] if spec.get("corpus") else "",
        settings=spec.get("settings", {}), rules=tuple(spec.get("rules", [])), sha=sha, notes=notes,
    )  # fmt: skip


def _condition(row: dict[str, Any], spec: dict[str, Any], config: Path) -> Condition:
    """One arm; its tools are bound to the corpus when a cell asks for them, so that loading needs no network."""
    names = row.get("tools", [])
    limits = {k: v for k, v in spec.get("settings", {}).items() if k in ("page_limit", "search_limit")}

    def tools(sample: Sample) -> tuple[Tool, ...]:
        have = {t.name: t for t in pages(spec["corpus"]).tools(**limits)} if names else {}
        if missing := [name for name in names if name not in have]:
            raise SuiteError(f"{_shown(config)}: [[conditions]] {row['name']}: no tool {missing}; there are: {', '.join(have)}")
        return tuple(have[name] for name in names)

    return Condition(
        name=row["name"], instructions=row.get("instructions", "").strip(), tools=tools,
        budget=Budget(**spec.get("budget", {})), system=spec.get("system", "").strip(),
    )  # fmt: skip


def read_samples(file: Path, kind: str) -> tuple[list[Sample], list[str]]:
    """Samples of a JSON-lines file, and one sentence with file and line for each that cannot be used.

    Blank lines are skipped. Ids are compared as trimmed text; a sample without one is named by its content.
    """
    samples: list[Sample] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    if not file.exists():
        return [], [f"{_shown(file)} does not exist; write one JSON object a line, each with id, prompt and gold"]
    for number, line in enumerate(file.read_text("utf-8-sig").split("\n"), 1):
        where = f"{_shown(file)}:{number}"
        if not line.strip() or line.strip() == "{}":
            continue
        try:
            row = json.loads(line)
            row["id"] = str(row.get("id") or key(row.get("prompt", row.get("question")), row.get("history"))).strip()
            sample = Sample.model_validate({"cluster": row["id"]} | row)
        except (ValidationError, ValueError, TypeError, AttributeError) as error:
            problems.append(f"{where}: {_reason(error)}")
            continue
        if sample.id.lower() in seen:
            problems.append(f"{where}: id {sample.id!r} stands on line {seen[sample.id.lower()]} too; give each its own")
        seen.setdefault(sample.id.lower(), number)
        problems += [f"{where}: {fault}" for fault in CHECKS.get(kind, _no_check)(sample)]
        samples.append(sample)
    return samples, problems or ([] if samples else [f"{_shown(file)} holds no sample"])


def _docs_qa(sample: Sample) -> Iterator[str]:
    gold = sample.gold
    if not sample.prompt.strip():
        yield "question is empty"
    if not isinstance(gold.get("answer"), str) or not gold["answer"].strip():
        yield "gold.answer is empty; a docs_qa sample needs one of 1-3 sentences"
    if gold.get("trap"):
        yield from (f"gold.{name} is set; a trap has none" for name in ("urls", "key_fact") if gold.get(name))
        return
    for name, what in (("urls", "https URL"), ("key_fact", "accepted form")):
        values = gold.get(name)
        if not values:
            yield f"gold.{name} is empty; a docs_qa sample needs at least one"
        elif not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
            yield f"gold.{name} is {json.dumps(values)[:60]}; write a list of text, each an {what}"
    if isinstance(gold.get("urls"), list):
        yield from (f"gold.urls holds {u!r}, which is not an http(s) URL" for u in gold["urls"] if not re.match(r"https?://", str(u)))


def audit(suite: Suite) -> list[str]:
    """What is wrong with gold, sentence by sentence: answers that leak into prompts, URLs that are not pages of the
    corpus, key facts that no gold page states, gold answers that the rule itself would not call right, near duplicates."""
    found, text = [], pages(suite.corpus).text if suite.corpus else {}
    for sample in suite.samples:
        gold, facts = sample.gold, sample.gold.get("key_fact", [])
        checks = {
            "the key fact stands in the prompt": facts and states(sample.prompt, facts),
            "gold.answer does not state the key fact": facts and not states(gold["answer"], facts),
            "gold.answer of a trap does not deny": gold.get("trap") and not denies(gold["answer"]),
            "no gold page states the key fact": facts and not any(states(text.get(u, ""), facts) for u in gold["urls"]),
        } | {f"{u} is not a page of {suite.corpus}": u not in text for u in gold.get("urls", [])}
        found += [f"{sample.id}: {fault}" for fault, wrong in checks.items() if wrong]
    for a, b in combinations(suite.samples, 2):
        likeness = SequenceMatcher(None, a.prompt.lower(), b.prompt.lower()).ratio()
        found += [f"{a.id} and {b.id} ask nearly the same ({likeness:.0%} alike)"] if likeness > 0.85 else []
    return found


def _no_check(sample: Sample) -> Iterator[str]:
    return iter(())


CHECKS: dict[str, Callable[[Sample], Iterator[str]]] = {"docs_qa": _docs_qa}


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'line'}: {e['msg']}" for e in error.errors())
    return f"not a JSON object ({error})"


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
