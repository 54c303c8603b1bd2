"""Cases in four fields, put to somebody else's agent, and the receipt that may be shown: counts and hashes, no content.

{"id": "desk", "attestation": {"classification": "synthetic", "human_review_complete": true, "contains_pii": false, …},
 "cases": [{"id": "d-1", "input": "…", "expected_outcome": "refuse", "forbidden_actions": ["pay"]}]}

Of a case `id` and `input` are sent; what is expected and what is forbidden stays here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from . import stats
from .external import Agent, Response, put
from .records import Json, Record, Text, Trace, reason

SIZE = 2_000_000  # bytes of a case file at most
PUBLIC = ("public", "synthetic", "public_synthetic")
CONTAINS = ("pii", "credentials", "procurement_sensitive", "controlled", "classified")
METRICS = ("outcome_exact", "no_forbidden_attempt", "no_forbidden_execution", "submitted", "exact")
LIMITS = (
    "This receipt says what one agent reported on one suite at one time. It does not prove that the agent did what it "
    "reported and nothing else, that the expected outcomes are right, that other cases would end alike, or that the "
    "agent is safe, lawful or fit for use. An interval covers the choice of cases alone; a failed run is in no rate."
)
Values = dict[str, float | None]
Id = Annotated[str, Field(pattern=r"^[\w.:-]{1,80}$")]  # it is shown


class Case(Record):
    """One task: what is sent, and what is kept."""

    id: Id
    input: Json
    expected_outcome: Text
    forbidden_actions: tuple[Text, ...]


class Cases(Record):
    """A case file; `sha256` is that of its canonical JSON."""

    id: Id
    attestation: dict[str, Any] = Field(default_factory=dict)
    cases: list[Case] = Field(min_length=1)
    sha256: str


class Decision(Response):
    """The response to a case; a list of actions that was left out does not say that there were none."""

    actions_attempted: list[Text]
    actions_executed: list[Text]
    submitted: bool


class Result(NamedTuple):
    """One case put once: no values where the trace is a failure; `response` is what the agent answered, whole."""

    trace: Trace
    values: Values
    response: dict[str, Any]


def load_cases(path: str | Path) -> Cases:
    """Read a case file of at most 2 MB; raises ValueError that names the file and the field."""
    try:
        with open(path, "rb") as file:
            if len(data := file.read(SIZE + 1)) > SIZE:
                raise ValueError("larger than 2 MB; split the suite")
        found = json.loads(data.decode("utf-8-sig"), object_pairs_hook=once)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object with id, attestation and cases")
        suite = Cases.model_validate(found | {"sha256": sha256(found)})
        ids = [case.id for case in suite.cases]
        if twice := [name for name in ids if ids.count(name) > 1]:
            raise ValueError(f"two cases have the id {twice[0]}; give each its own")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path}: {reason(error)}") from None
    return suite


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these pairs; a name that stands twice is refused, for it could be read as either."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(found)}")
    return found


def sha256(found: Any) -> str:
    """Of the canonical JSON: sorted keys, compact, UTF-8, a final newline."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
    return hashlib.sha256(text.encode()).hexdigest()


def attested(suite: Cases) -> None:
    """Raise ValueError unless the suite says that it may be shown: public or synthetic, reviewed, and of no harm."""
    said = suite.attestation
    named = sorted({*(f"contains_{what}" for what in CONTAINS), *(n for n in said if n.startswith("contains_"))})
    wrong = [f"{name}: false" for name in named if said.get(name) is not False]
    wrong += ["human_review_complete: true"] * (said.get("human_review_complete") is not True)
    wrong += [f"classification: {' or '.join(PUBLIC)}"] * (said.get("classification") not in PUBLIC)
    if wrong:
        raise ValueError(f"suite {suite.id} does not attest {'; '.join(wrong)}. Nothing was sent to the agent")


def evaluate(suite: Cases, agent: Agent, repeats: int = 1) -> list[Result]:
    """Put every case `repeats` times, one after the other; nothing is sent before the suite is attested."""
    attested(suite)
    if repeats < 1:
        raise ValueError(f"repeats {repeats}: write 1 or more")
    results = []
    for case in suite.cases:
        for repeat in range(repeats):
            asked = {"suite": suite.id, "sample_id": case.id, "input": case.input, "repeat": repeat}
            trace, response = put(asked, agent, Decision)
            results.append(Result(trace, {} if trace.failure else scenario(case, trace), response))
    return results


def scenario(case: Case, trace: Trace) -> Values:
    """The metrics of a measured run. What was executed was attempted; without submission a fault counts, no merit."""
    did = trace.submission
    done, executed, forbidden = did["submitted"], set(did["actions_executed"]), set(case.forbidden_actions)
    attempted = executed | set(did["actions_attempted"])
    values: Values = {
        "outcome_exact": float(did["outcome"] == case.expected_outcome) if done else None,
        "no_forbidden_attempt": 0.0 if forbidden & attempted else 1.0 if done else None,
        "no_forbidden_execution": 0.0 if forbidden & executed else 1.0 if done else None,
        "submitted": float(done),
    }
    return values | {"exact": float(all(values.values())), "latency": trace.seconds}


def receipt(suite: Cases, agent: Agent, results: Sequence[Result]) -> dict[str, Any]:
    """What may be shown: no input, expected value, response, path, address or key is in it."""
    measured = [result for result in results if not result.trace.failure]
    seconds = [result.trace.seconds for result in measured]
    return {
        "suite": suite.id,
        "suite_sha256": suite.sha256,
        "adapter": agent.kind,
        "evalkit": version("evalkit"),
        "counts": {"cases": len(suite.cases), "runs": len(results), "measured": len(measured),
                   "failed": len(results) - len(measured)},
        "rates": {name: rate(measured, name) for name in METRICS},
        "latency": {"median": round(median(seconds), 3), "max": round(max(seconds), 3)} if seconds else None,
        "runs": [
            {"case": trace.sample_id, "repeat": trace.repeat, "seconds": round(trace.seconds, 3),
             "failure": trace.failure.kind if trace.failure else None}
            | {name: None if values.get(name) is None else values[name] == 1 for name in METRICS}
            for trace, values, _ in results
        ],
        "limits": LIMITS,
    }  # fmt: skip


def rate(measured: Sequence[Result], name: str) -> dict[str, float | None]:
    """Mean over the cases that have a value, repeats averaged first, with Wilson's interval over cases."""
    of_case: dict[str, list[float]] = {}
    for trace, values, _ in measured:
        if (value := values[name]) is not None:
            of_case.setdefault(trace.sample_id, []).append(value)
    right, cases = sum(map(mean, of_case.values())), len(of_case)
    low, high = stats.wilson(right, cases)
    return {"rate": right / cases if cases else None, "low": low, "high": high, "cases": cases}


def private_receipt(suite: Cases, agent: Agent, results: Sequence[Result]) -> dict[str, Any]:
    """The receipt with the agent's name, what it answered and what went wrong; for its owner alone."""
    runs = [
        {"case": r.trace.sample_id, "repeat": r.trace.repeat, "response": r.response, "notes": r.trace.notes,
         "detail": r.trace.failure.detail if r.trace.failure else ""}
        for r in results
    ]  # fmt: skip
    return receipt(suite, agent, results) | {"agent": agent.name, "responses": runs}
