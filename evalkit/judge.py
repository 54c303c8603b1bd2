"""A model's verdict on answers: grade, ground, prefer, agree. Prompts are prose in prompts/*.md.

A judge that answers nonsense is a missing value. It never sees the condition or the model that answered, and of the
corpus only the lines an answer cites.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from .citations import find_citations, line_count, overlap, resolve
from .fetch import CorpusError
from .models import Model, Prompt, ProviderError, cost
from .records import CONTROLS, Citation, Failure, Sample, Suite, Trace, Usage, Verdict, key

PROMPTS = Path(__file__).parent / "prompts"
PASS = 4  # of 5
TOKENS = 1_024  # of a judge's reply
AROUND, ROOM = 50, 24_000  # lines shown around a cited place, characters of all of them
STAGES = {
    "docs_qa": ("grade",),
    "code_search": ("ground", "prefer", "agree"),
}  # what a judge is asked, by kind of suite
Score = Annotated[int, Field(ge=0, le=5, strict=True)]
Reason = Annotated[str, BeforeValidator(lambda text: text or "")]
LABELS = {"1": "1", "2": "2", "a": "1", "b": "2", "answer 1": "1", "answer 2": "2", "tie": "tie"}
Work = Callable[[str, Any], Verdict]
R = TypeVar("R", bound=BaseModel)


class Grade(BaseModel):
    """What stage `grade` returns; a score out of range is invalid, never clamped."""

    correctness: int = Field(ge=1, le=5, strict=True)
    key_fact_match: bool | None = Field(None, strict=True)
    hallucinated_specifics: bool | None = Field(None, strict=True)
    reason: Reason = ""


class Ground(BaseModel):
    """What stage `ground` returns."""

    grounding: Score
    faithfulness: Score
    ungrounded_claims: list[str] = Field(default_factory=list)
    hallucinated_paths: list[str] = Field(default_factory=list)
    unsupported_ranges: list[str] = Field(default_factory=list)
    reason: Reason = ""


class Prefer(BaseModel):
    """What one round of stage `prefer` returns; a label that is none of the three is invalid, not a tie."""

    winner: Annotated[Literal["1", "2", "tie"], BeforeValidator(lambda label: LABELS.get(str(label).strip().lower()))]
    confidence: Annotated[Literal["high", "medium", "low"], BeforeValidator(lambda c: str(c).lower())] = "medium"
    reason: Reason = ""


class Agree(BaseModel):
    """What stage `agree` returns of two answers."""

    agreement: float = Field(ge=0, le=1, allow_inf_nan=False, strict=True)
    reason: Reason = ""


def schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a stage's reply in the words every provider takes: whole scores as enums, all required."""
    parts = {}
    for name, whole in kind.model_json_schema()["properties"].items():
        part = next(p for p in whole.get("anyOf", [whole]) if p.get("type") != "null")
        parts[name] = {k: v for k, v in part.items() if k in ("type", "enum", "items")}
        if part["type"] == "integer":
            parts[name]["enum"] = list(range(part["minimum"], part["maximum"] + 1))
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


SCHEMA = schema(Grade)


def fill_prompt(name: str, values: Mapping[str, str]) -> str:
    """prompts/NAME.md with each {placeholder} replaced once; braces in values stay, fences in values are defused.

    Raises KeyError for a placeholder without a value, before anything is asked.
    """
    template = (PROMPTS / f"{name}.md").read_text("utf-8")
    fences = "|".join(re.findall(r"^<(\w+)>$", template, re.M))
    space = r"[\s\u200b-\u200f\u2060\ufeff]*"
    fence = re.compile(rf"<({space}/?{space}(?:{fences})\b[^<>]{{0,80}})>", re.I)
    safe = {k: fence.sub(r"‹\1›", v) if fences else v for k, v in values.items()}
    return re.sub(r"\{([a-z_]+)\}", lambda match: safe[match[1]], template)


def read_grade(text: str) -> Grade:
    return read(text, Grade)


def read(text: str, kind: type[R]) -> R:
    """The verdict of a reply: its last complete JSON object that has the first field, else its last [[mark]].

    A line that names itself the verdict goes before other marks. Raises ValueError for a reply that holds none.
    """
    field, found, at = next(iter(kind.model_fields)), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
            found = value if field in value else found
        except (ValueError, RecursionError):
            at += 1
    if found is None:
        mark = last_mark(text)
        if mark is None:
            raise ValueError(f"no JSON object with the field {field}")
        found = {field: int(mark) if mark.isdecimal() else mark}
    return kind.model_validate(found)


def last_mark(text: str) -> str | None:
    """The last [[mark]] of a free-text verdict; a final line such as "Verdict: [[B]]" counts before all others."""
    label = r"(?:^|(?<=[.!?\]]\s))\W*(?:final rating|rating|verdict|score|grade)[:\s*]+\[\[([^\]]+)\]\]"
    anchored = re.findall(label, text, re.I | re.M)
    marks = anchored or re.findall(r"\[\[([^\]]+)\]\]", text)
    return marks[-1] if marks else None


class Asked(NamedTuple):
    """What a judge said to one question, or why it said nothing, and what the asking took."""

    said: Any
    failure: Failure | None
    spent: dict[str, Any]  # served, usage, usd, seconds, notes


def ask(judge: Model, stage: str, kind: type[BaseModel], values: Mapping[str, str]) -> Asked:
    """One structured call, asked once more when the reply cannot be read."""
    prompt = Prompt("", [fill_prompt(stage, values)], max_tokens=TOKENS, schema=schema(kind))
    started, waited, usage, usd, served = time.monotonic(), 0.0, Usage(), 0.0, ""
    said, failure, notes = None, None, dict[str, Any]()
    for _ in range(2):
        try:
            reply = judge.ask(prompt)
            usage, waited, served = usage + reply.usage, waited + reply.waited, reply.served
            usd += cost(judge, reply.served, reply.usage, notes)
            notes |= reply.notes
            said, failure = read("" if reply.truncated else reply.text, kind), None
            break
        except ProviderError as error:
            failure = Failure(where="provider", kind=error.kind, detail=error.detail)
            usage, usd = usage + error.usage, usd + cost(judge, error.served, error.usage, notes)
            break  # its own layer has retried already
        except ValueError as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            failure = Failure(where="judge", kind="unreadable", detail=f"{what}: {reply.text[:500]}")
        except Exception as error:  # a fault of ours must not end the judging, nor lose what was paid
            failure = Failure(where="judge", kind=type(error).__name__, detail=str(error)[:300])
            break
    seconds = time.monotonic() - started - waited
    return Asked(said, failure, {"served": served, "usage": usage, "usd": usd, "seconds": seconds, "notes": notes})


def judgeable(suite: Suite, traces: Sequence[Trace]) -> list[tuple[Sample, Trace]]:
    """The measured traces of a suite with their samples; calls have a right form, and need no judge."""
    samples = {s.id: s for s in suite.samples if s.gold.get("answer")}
    mine = [t for t in traces if t.failure is None and t.suite == suite.name and t.sample_id in samples]
    return [(samples[t.sample_id], t) for t in mine]


def named(stage: str, judge: Model, sample: Sample, *traces: Trace) -> str:
    """The key of a verdict: its traces in their order, the gold, the prompt and the judge."""
    prompt = (PROMPTS / f"{stage}.md").read_text("utf-8")
    return key(*(t.key for t in traces), sample.gold, prompt, judge.name, judge.options)


def owed(suite: Suite, traces: Sequence[Trace], judge: Model, stage: str = "grade") -> dict[str, Any]:
    """{verdict key: cell} of what a stage owes: (sample, trace), (sample, a, b), or (sample, the repeats).

    `prefer` pairs every two conditions of one model, sample and repeat; `agree` takes what was repeated. Both leave the
    controls out, whose answers do not vary.
    """
    found = judgeable(suite, traces)
    if stage in ("grade", "ground"):
        return {named(stage, judge, s, t): (s, t) for s, t in found}
    order = {c.name: i for i, c in enumerate(suite.conditions)}
    groups: dict[Any, list[tuple[Sample, Trace]]] = {}
    for s, t in found:
        apart = (str(t.repeat), "") if stage == "prefer" else ("", t.condition)
        if t.model not in CONTROLS:
            groups.setdefault((s.id, t.model, json.dumps(t.options, sort_keys=True), *apart), []).append((s, t))
    cells: list[tuple[Any, ...]] = []
    for group in groups.values():
        sample, mine = group[0][0], sorted((t for _, t in group), key=lambda t: (order.get(t.condition, 99), t.repeat))
        if stage == "prefer":
            cells += [(sample, a, b) for a, b in combinations(mine, 2) if a.condition != b.condition]
        elif len(mine) > 1:
            cells.append((sample, *mine))
    return {named(stage, judge, *cell): cell for cell in cells}


def work(stage: str, judge: Model, suite: Suite) -> Work:
    """The work of a stage for grid.fill."""
    stages = {"grade": grading, "prefer": preferring, "agree": agreeing}
    return grounding(judge, suite) if stage == "ground" else stages[stage](judge)


def grading(judge: Model) -> Work:
    """Is the answer right, by the gold?"""

    def grade(k: str, cell: tuple[Sample, Trace]) -> Verdict:
        sample, trace = cell
        known = {"key": k, "of": (trace.key,), "by": f"grade:{judge.name}"}
        values = dict.fromkeys(("correctness", "pass", "key_fact_match", "hallucinated_specifics"))
        if not trace.answer.strip():
            return Verdict(**known, values={**values, "correctness": 1.0, "pass": 0.0}, why="empty answer, not asked")
        said, failure, spent = ask(judge, "grade", Grade, {
            "question": sample.prompt, "gold": sample.gold["answer"], "answer": trace.answer,
            "urls": "\n".join(sample.gold.get("urls", [])) or "(none: it does not exist)",
            "citations": "\n".join(c.url for c in trace.citations) or "(none)",
        })  # fmt: skip
        if said:
            facts = said.model_dump(exclude={"reason"}) | {"pass": said.correctness >= PASS}
            values |= {name: None if fact is None else float(fact) for name, fact in facts.items()}
        return Verdict(**known, values=values, why=said.reason[:400] if said else "", failure=failure, **spent)

    return grade


def grounding(judge: Model, suite: Suite) -> Work:
    """Does the answer rest on the lines it cites? What the judge says of paths and ranges is set right by the disk."""

    def ground(k: str, cell: tuple[Sample, Trace]) -> Verdict:
        sample, trace = cell
        known = {"key": k, "of": (trace.key,), "by": f"ground:{judge.name}"}
        values: dict[str, float | None] = dict.fromkeys(("grounding", "faithfulness", "supports"))
        if not trace.answer.strip():
            nothing = {**values, "grounding": 0.0, "faithfulness": 0.0}
            return Verdict(**known, values=nothing, why="empty answer, not asked")
        files = suite.texts()
        places = snippets(trace, files, judge.room or ROOM)
        said, failure, spent = ask(judge, "ground", Ground, {
            "question": sample.prompt, "answer": trace.answer, "places": places or "(none)",
        })  # fmt: skip
        if said:
            paths, ranges = reconciled(said, files)
            spent["notes"] |= {"claims": said.ungrounded_claims, "paths": paths, "ranges": ranges}
            values = {"grounding": float(said.grounding), "faithfulness": float(said.faithfulness),
                       "supports": backed(trace, paths, ranges, files)}  # fmt: skip
        return Verdict(**known, values=values, why=said.reason[:400] if said else "", failure=failure, **spent)

    return ground


def snippets(trace: Trace, files: Mapping[str, str], room: int) -> str:
    """Every place an answer cites, whether it exists, and its numbered lines with those around; `room` characters."""
    parts = []
    cited = [c for c in trace.citations if c.path]
    for c in cited:
        path, head = resolve(c.path, files), f"{c.path}:{c.start}-{c.end}"
        lines = files[path].removesuffix("\n").split("\n") if path else []
        if not path or not 1 <= c.start <= c.end <= len(lines):
            parts.append(f"{head}: " + ("the file has no such lines" if path else "there is no such file"))
            continue
        first, last = max(1, c.start - AROUND), min(len(lines), c.end + AROUND)
        shown = [f"{'>' if c.start <= n <= c.end else ' '}{n}: {lines[n - 1]}" for n in range(first, last + 1)]
        near, share = c.start - first, room // len(cited)
        while len("\n".join(shown)) > share and len(shown) > c.end - c.start + 1:  # the cited lines stay longest
            drop = 0 if near > len(shown) - near - (c.end - c.start + 1) else -1
            near -= drop == 0
            shown.pop(drop)
        parts.append(f"{head}\n" + "\n".join(shown)[:share])
    return "\n\n".join(parts)[: 2 * room]


def reconciled(said: Ground, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(paths that do not exist, ranges without support): a path the judge misses that is there is a range, and back."""
    split = [(claim, bare(claim)) for claim in (*said.hallucinated_paths, *said.unsupported_ranges)]
    there = [bool(resolve(path, files)) for _, path in split]
    paths = [path for (_, path), is_there in zip(split, there, strict=True) if not is_there]
    ranges = [claim for (claim, _), is_there in zip(split, there, strict=True) if is_there]
    return list(dict.fromkeys(paths)), list(dict.fromkeys(ranges))


def backed(trace: Trace, paths: Sequence[str], ranges: Sequence[str], files: Mapping[str, str]) -> float | None:
    """The share of cited places that are there and that the judge found to show what they are cited for."""
    cited = [c for c in trace.citations if c.path]
    named = [place for claim in ranges for place in find_citations(claim) if place.path]
    flagged = [place.model_copy(update={"path": resolve(place.path, files)}) for place in named]
    whole = {resolve(bare(claim), files) for claim in ranges if not find_citations(claim)}
    lost = {bare(path) for path in paths}

    def holds(c: Citation) -> bool:
        place = c.model_copy(update={"path": resolve(c.path, files)})
        there = bool(place.path) and 1 <= c.start <= c.end <= line_count(files[place.path])
        return there and place.path not in whole | lost and not any(overlap(place, f) for f in flagged)

    return sum(map(holds, cited)) / len(cited) if cited else None


def bare(claim: str) -> str:
    """The path of a claim such as ./lib/a.js:1-3 or `lib/a.js` (lines 1-3)."""
    return re.sub(r"[:#(\s].*$", "", re.sub(r"^(?:\./)+", "", claim.strip("`'\" ").replace("\\", "/"))).strip("`'\"")


def preferring(judge: Model) -> Work:
    """Which of two answers is better? Asked twice with the order swapped; what does not agree is a tie."""

    def prefer(k: str, cell: tuple[Sample, Trace, Trace]) -> Verdict:
        sample, *pair = cell
        known = {"key": k, "of": (pair[0].key, pair[1].key), "by": f"prefer:{judge.name}"}
        empty = [not t.answer.strip() for t in pair]
        if any(empty):
            won = 0.5 if all(empty) else float(empty[1])
            why = "both answers are empty, not asked" if all(empty) else "one answer is empty, not asked"
            return Verdict(**known, values={"preference": won, "consistent": None}, why=why)
        rounds: list[dict[str, str]] = []
        total: dict[str, Any] = {"served": "", "usage": Usage(), "usd": 0.0, "seconds": 0.0, "notes": {}}
        failure, whys = None, []
        for first in (0, 1):
            values = {"question": sample.prompt, "first": pair[first].answer, "second": pair[1 - first].answer}
            said, failure, spent = ask(judge, "prefer", Prefer, values)
            total = {n: spent[n] or total[n] if n == "served" else total[n] | spent[n] if n == "notes"
                     else total[n] + spent[n] for n in total}  # fmt: skip
            if said is None:
                break
            winner = "tie" if said.winner == "tie" else "ab"[first] if said.winner == "1" else "ab"[1 - first]
            rounds.append({"first": "ab"[first], "label": said.winner, "winner": winner, "confidence": said.confidence})
            whys.append(said.reason[:200])
        total["notes"] |= {"rounds": rounds}
        if failure:
            return Verdict(**known, values={"preference": None, "consistent": None}, failure=failure, **total)
        winner, confidence = swapped(rounds)
        total["notes"] |= {"confidence": confidence}
        same = float(rounds[0]["winner"] == rounds[1]["winner"])
        won = {"a": 1.0, "b": 0.0, "tie": 0.5}[winner]
        return Verdict(**known, values={"preference": won, "consistent": same}, why=" / ".join(whys), **total)

    return prefer


LEVELS = ("low", "medium", "high")


def swapped(rounds: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """(winner, confidence) of the two rounds of a pair: agreeing ones win with the lower confidence, others tie low."""
    if len({r["winner"] for r in rounds}) > 1:
        return "tie", "low"
    return rounds[0]["winner"], min((r["confidence"] for r in rounds), key=LEVELS.index)


def majority(winners: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """(winner, confidence) over repeats: the plurality, leaders tied is a tie; medium above half, else low.

    A single verdict keeps its own confidence.
    """
    if len(winners) == 1:
        return winners[0]
    (first, most), *others = Counter(winner for winner, _ in winners).most_common()
    if others and others[0][1] == most:
        return "tie", "low"
    return first, "medium" if most > len(winners) / 2 else "low"


def agreeing(judge: Model) -> Work:
    """Do repeats of one cell say the same? The judge reads up to three pairs, vectors compare the rest."""

    def agree(k: str, cell: tuple[Any, ...]) -> Verdict:
        sample, *traces = cell
        known = {"key": k, "of": tuple(t.key for t in traces), "by": f"agree:{judge.name}"}
        pairs = list(combinations([t.answer for t in traces], 2))
        read_by_judge, rest = pairs[:3], pairs[3:]
        scores, failure = [], None
        total: dict[str, Any] = {"served": "", "usage": Usage(), "usd": 0.0, "seconds": 0.0}
        for first, second in read_by_judge:
            if first.strip() == second.strip() or not (first.strip() and second.strip()):
                scores.append(float(first.strip() == second.strip()))
                continue
            said, failure, spent = ask(judge, "agree", Agree, {"question": sample.prompt, "first": first,
                                                               "second": second})  # fmt: skip
            total = {n: spent[n] if n == "served" else total[n] + spent[n] for n in total}
            if said is None:
                break
            scores.append(said.agreement)
        try:
            similar = [similarity(a, b) for a, b in rest]
        except CorpusError as error:  # what the judge said is kept
            similar, failure = [], failure or Failure(where="judge", kind="embedder", detail=str(error)[:300])
        mean = sum(scores) / len(scores) if scores and len(scores) == len(read_by_judge) else None
        values = {"agreement": mean, "similarity": sum(similar) / len(similar) if similar else None}
        return Verdict(**known, values=values, failure=failure, **total)

    return agree


def similarity(a: str, b: str) -> float:
    """Cosine of the two texts' packaged embeddings, 0 to 1."""
    from .search.index import WORDLLAMA, embedding

    one, two = embedding(WORDLLAMA)([a, b])
    return min(1.0, max(0.0, float(one @ two)))
