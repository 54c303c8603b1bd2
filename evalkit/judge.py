"""A model's verdict on an answer. Prompts are prose in prompts/*.md; a judge that answers nonsense is a missing value.

The judge sees question, gold, answer and citations; never the corpus, the condition or the model that answered.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from .models import Model, Prompt, ProviderError, cost
from .records import Failure, Sample, Suite, Trace, Usage, Verdict, key

PROMPTS = Path(__file__).parent / "prompts"
PASS = 4  # of 5
TOKENS = 1_024  # of a judge's reply
SCHEMA = {
    "type": "object",
    "properties": {
        "correctness": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
        "key_fact_match": {"type": "boolean"},
        "hallucinated_specifics": {"type": "boolean"},
        "reason": {"type": "string"},
    },
    "required": ["correctness", "key_fact_match", "hallucinated_specifics", "reason"],
    "additionalProperties": False,
}


class Grade(BaseModel):
    """What stage `grade` returns; a score out of range is invalid, never clamped."""

    correctness: int = Field(ge=1, le=5, strict=True)
    key_fact_match: bool | None = Field(None, strict=True)
    hallucinated_specifics: bool | None = Field(None, strict=True)
    reason: str = ""


def fill_prompt(name: str, values: Mapping[str, str]) -> str:
    """prompts/NAME.md with each {placeholder} replaced once; braces in values stay, fences in values are defused.

    Raises KeyError for a placeholder without a value, before anything is asked.
    """
    template = (PROMPTS / f"{name}.md").read_text("utf-8")
    fences = "|".join(re.findall(r"^<(\w+)>$", template, re.M))
    fence = re.compile(rf"<(\s*/?\s*(?:{fences})\s*)>", re.I)
    safe = {k: fence.sub(r"‹\1›", v) if fences else v for k, v in values.items()}
    return re.sub(r"\{([a-z_]+)\}", lambda match: safe[match[1]], template)


def read_grade(text: str) -> Grade:
    """The verdict of a reply: its last complete JSON object that has a score, else its last [[mark]].

    A line that names itself the verdict goes before other marks. Raises ValueError for a reply that holds none.
    """
    found, at = None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
            found = value if "correctness" in value else found
        except (ValueError, RecursionError):
            at += 1
    if found is None:
        mark = last_mark(text)
        if mark is None:
            raise ValueError("no JSON object with the field correctness")
        found = {"correctness": int(mark) if mark.isdecimal() else mark}
    return Grade.model_validate(found)


def last_mark(text: str) -> str | None:
    """The last [[mark]] of a free-text verdict; a final line such as "Verdict: [[B]]" counts before all others."""
    label = r"(?:^|(?<=[.!?\]]\s))\W*(?:final rating|rating|verdict|score|grade)[:\s*]+\[\[([^\]]+)\]\]"
    anchored = re.findall(label, text, re.I | re.M)
    marks = anchored or re.findall(r"\[\[([^\]]+)\]\]", text)
    return marks[-1] if marks else None


def owed(suite: Suite, traces: Sequence[Trace], judge: Model) -> dict[str, tuple[Sample, Trace]]:
    """{verdict key: (sample, trace)} of the grades that measured traces of a suite should have."""
    samples, prompt = {s.id: s for s in suite.samples}, (PROMPTS / "grade.md").read_text("utf-8")
    mine = [t for t in traces if t.failure is None and t.suite == suite.name and t.sample_id in samples]
    mine = [t for t in mine if samples[t.sample_id].gold.get("answer")]  # calls have a right form, and need no judge
    pairs = [(samples[t.sample_id], t) for t in mine]
    return {key(t.key, s.gold, prompt, judge.name, judge.options): (s, t) for s, t in pairs}


def grading(judge: Model) -> Any:
    """The work that grades one trace: one structured call, asked once more when the reply cannot be read."""

    def work(k: str, cell: tuple[Sample, Trace]) -> Verdict:
        sample, trace = cell
        known = {"key": k, "of": (trace.key,), "by": f"grade:{judge.name}"}
        nothing = dict.fromkeys(("correctness", "pass", "key_fact_match", "hallucinated_specifics"))
        if not trace.answer.strip():
            return Verdict(**known, values={**nothing, "correctness": 1.0, "pass": 0.0}, why="empty answer, not asked")
        values = {
            "question": sample.prompt, "gold": sample.gold["answer"], "answer": trace.answer,
            "urls": "\n".join(sample.gold.get("urls", [])) or "(none: it does not exist)",
            "citations": "\n".join(c.url for c in trace.citations) or "(none)",
        }  # fmt: skip
        prompt = Prompt("", [fill_prompt("grade", values)], max_tokens=TOKENS, schema=SCHEMA)
        started, waited, usage, usd, served = time.monotonic(), 0.0, Usage(), 0.0, ""
        notes: dict[str, Any] = {}
        grade, failure = None, None
        for _ in range(2):
            try:
                reply = judge.ask(prompt)
                usage, waited, served = usage + reply.usage, waited + reply.waited, reply.served
                usd += cost(judge, reply.served, reply.usage, notes)
                notes |= reply.notes
                grade, failure = read_grade("" if reply.truncated else reply.text), None
                break
            except ProviderError as error:
                failure = Failure(where="provider", kind=error.kind, detail=error.detail)
                usage, usd = usage + error.usage, usd + cost(judge, error.served, error.usage, notes)
                break  # its own layer has retried already
            except ValueError as error:
                what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                failure = Failure(where="judge", kind="unreadable", detail=f"{what}: {reply.text[:500]}")
        if grade:
            facts = grade.model_dump(exclude={"reason"}) | {"pass": grade.correctness >= PASS}
            nothing |= {name: None if fact is None else float(fact) for name, fact in facts.items()}
        return Verdict(**known, served=served, values=nothing, why=grade.reason[:400] if grade else "", notes=notes,
                       usage=usage, usd=usd, seconds=time.monotonic() - started - waited, failure=failure)  # fmt: skip

    return work
