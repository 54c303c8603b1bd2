"""The nouns: frozen pydantic models, their JSON lines, and the content key that names a measurement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

ROOT = Path(__file__).resolve().parents[1]  # the project folder: data/, notebooks/ and results/ stand in it
EVAL_VERSION = "1"  # raised when the loop or a tool changes what the same cell measures

Stop = Literal["answered", "submitted", "abstained", "refused", "truncated",
               "turns", "tool_calls", "output_tokens", "usd", "seconds", "failed"]  # fmt: skip


def clean(value: Any) -> Any:
    """Replace lone surrogates by U+FFFD, at any depth, so that every row can be written as UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    return [clean(v) for v in value] if isinstance(value, (list, tuple)) else value


Text = Annotated[str, BeforeValidator(clean)]
Json = Annotated[Any, BeforeValidator(clean)]


class Record(BaseModel):
    """Base of every noun: frozen, and NaN or infinity is written as null."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null", protected_namespaces=())


class Usage(Record):
    """Tokens of one or more calls; `input` excludes both cache counts."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0  # part of output

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Call(Record):
    """A tool call as the model asked for it; a malformed one has no args and is never run."""

    id: Text
    name: Text
    args: Json = Field(default_factory=dict)
    raw: Text = ""
    malformed: bool = False


class Step(Record):
    """What the world answered to one call."""

    turn: int
    call: Call
    result: Text
    ok: bool = True
    truncated: bool = False
    seconds: float = 0.0
    executed: bool = True


class Note(Record):
    """A named fact about how a row came to be: what was dropped, repaired, asked again."""

    name: str
    value: Json = None


class Reply(Record):
    """One provider turn in neutral form; `wire` is the provider's own content, sent back as it came."""

    text: Text = ""
    calls: tuple[Call, ...] = ()
    stop: str | None = None  # the provider's word, verbatim
    usage: Usage = Usage()
    served: str = ""
    refused: bool = False
    truncated: bool = False
    attempts: int = 1
    waited: float = 0.0  # seconds in back-off
    notes: tuple[Note, ...] = ()
    wire: Any = Field(None, exclude=True, repr=False)


class Message(Record):
    """One entry of a conversation; a `tool` message answers the call named by `call_id`."""

    role: Literal["user", "assistant", "tool"]
    text: Text = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    ok: bool = True
    wire: Any = Field(None, exclude=True, repr=False)


class Budget(Record):
    """What one cell may use; a spent budget ends in an answer, not in an exception."""

    turns: int = 8
    tool_calls: int = 12  # of tools that count
    output_tokens: int = 32_768  # of the whole cell
    reply_tokens: int = 4_096  # of one reply
    usd: float = 0.0  # 0: no limit
    seconds: float = 0.0  # working seconds, waiting excluded; 0: no limit


class Sample(Record):
    """One question or task with its right answer; `cluster` names the family of related samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text
    prompt: Text = Field(validation_alias=AliasChoices("prompt", "question"))
    history: tuple[Message, ...] = ()
    gold: dict[str, Json] = Field(default_factory=dict)
    cluster: Text = ""
    tags: dict[str, str | bool | int] = Field(default_factory=dict)


class Condition(Record):
    """One arm of a comparison: tools and their instructions; `system` is the suite's and the same for all."""

    name: str
    instructions: str = ""
    tools: Callable[[Sample], tuple[Any, ...]] = Field(lambda sample: (), exclude=True, repr=False)
    budget: Budget = Budget()
    system: str = ""


class Suite(Record):
    """One folder of data/: what is asked, under which conditions, over which corpus, scored by which rules."""

    name: str
    kind: str
    path: Path
    system: str = ""
    samples: tuple[Sample, ...] = ()
    conditions: tuple[Condition, ...] = ()
    corpus: str = ""
    corpus_sha: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    rules: tuple[str, ...] = ()
    sha: str = ""  # sha256 of samples.jsonl
    notes: tuple[str, ...] = ()

    def _repr_markdown_(self) -> str:
        lines = [f"**{self.name}**: {len(self.samples)} samples, samples.jsonl sha256 `{self.sha[:16]}`"]
        lines += [f"- `{c.name}`: {c.instructions.strip()}" for c in self.conditions]
        return "\n".join(lines + [f"- note: {note}" for note in self.notes])


SLOT = ("suite", "sample_id", "condition", "model", "options", "repeat")  # where a measurement stands in its run


class Cell(Record):
    """One measurement owed; `setup` names every part its key hashes, long ones by a short hash."""

    sample: Sample
    condition: Condition
    model: str
    repeat: int = 0
    setup: dict[str, str] = Field(default_factory=dict)

    @property
    def slot(self) -> tuple[str, ...]:
        return tuple(self.setup[name] for name in SLOT)


class Failure(Record):
    """The absence of data; a wrong answer is data."""

    where: Literal["provider", "agent", "tool", "scorer", "judge"]
    kind: str
    detail: Text = ""


class Citation(Record):
    """A place an answer names: a URL, or a file with a line range."""

    url: Text = ""
    path: Text = ""
    start: int = 0
    end: int = 0


class Trace(Record):
    """One measurement made."""

    key: str
    run_id: str = ""
    suite: str = ""
    sample_id: str = ""
    condition: str = ""
    model: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    served: str = ""
    repeat: int = 0
    setup: dict[str, str] = Field(default_factory=dict)  # as in its Cell
    answer: Text = ""
    citations: tuple[Citation, ...] = ()
    steps: tuple[Step, ...] = ()
    turns: int = 0
    api_calls: int = 0
    stop: Stop = "failed"
    provider_stop: str | None = None
    submission: Json = None
    ledger: Json = None
    usage: Usage = Usage()
    usd: float = 0.0
    seconds: float = 0.0  # working
    waited: float = 0.0  # in back-off and queues
    failure: Failure | None = None
    notes: tuple[Note, ...] = ()
    at: str = ""  # ISO time when the cell finished

    @property
    def slot(self) -> tuple[str, ...]:
        """The place of this row in its run; the last row of a slot counts."""
        return tuple(_text(getattr(self, name)) for name in SLOT)

    def _repr_markdown_(self) -> str:
        head = f"**{self.sample_id}** · {self.condition} · {self.model} · {self.stop} · {self.usage.total} tokens"
        steps = [f"{s.turn}. `{s.call.name}({_short(s.call.args, 160)})` → {_short(s.result, 160)}" for s in self.steps]
        answer = (self.answer or (self.failure and f"{self.failure.kind}: {self.failure.detail}") or "(empty)")
        return "\n".join([head, "", *steps, "", *("> " + line for line in _short(answer, 1200, keep=True).splitlines())])


class Verdict(Record):
    """One judgement of one trace (rule, grade, ground), of two (prefer) or of several (agree)."""

    key: str
    of: tuple[str, ...]
    by: str
    served: str = ""
    values: dict[str, float | None] = Field(default_factory=dict)
    why: Text = ""
    notes: tuple[Note, ...] = ()
    usage: Usage = Usage()
    usd: float = 0.0
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def slot(self) -> tuple[str, ...]:
        return (self.by, *self.of)


R = TypeVar("R", bound=Record)
Row = TypeVar("Row", Trace, Verdict)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _short(value: Any, limit: int, keep: bool = False) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text if keep else " ".join(text.split()).replace("`", "'")
    return text if len(text) <= limit else text[:limit] + "…"


def key(*parts: Any) -> str:
    """16 hex digits that stand for the content of the parts (canonical JSON, sha256)."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def dump_line(record: Record) -> bytes:
    """One JSON line, newline included."""
    return record.model_dump_json().encode() + b"\n"


def load_rows(path: Path, kind: type[R]) -> tuple[list[R], list[str]]:
    """All readable rows of a JSON-lines file, and one sentence for each line that could not be read.

    A last line without its newline is a write that was cut off: it is reported with its byte offset and left
    out. NaN and Infinity, which other tools write, are read as null.
    """
    rows: list[R] = []
    problems: list[str] = []
    data = path.read_bytes() if path.exists() else b""
    whole, _, torn = data.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(kind.model_validate_json(line))
        except ValidationError:
            try:
                rows.append(kind.model_validate(json.loads(line, parse_constant=lambda word: None)))
                problems.append(f"{path}:{number}: NaN or Infinity read as null")
            except ValueError as error:
                problems.append(f"{path}:{number}: not a {kind.__name__} row, left out ({_short(str(error), 120)})")
    if torn:
        problems.append(f"{path}: a line cut off at byte {len(data) - len(torn)}, left out")
    return rows, problems


def latest(rows: Iterable[Row]) -> list[Row]:
    """The rows that count: the last of each slot."""
    return list({row.slot: row for row in rows}.values())
