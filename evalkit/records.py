"""The nouns: frozen pydantic models, their JSON lines, and the content key that names a measurement."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

ROOT = Path(__file__).resolve().parents[1]  # the project folder: data/, notebooks/ and results/ stand in it
EVAL_VERSION = "1"  # raised when the loop or a tool changes what the same cell measures
CONTROLS = ("script:null", "script:random", "script:oracle")  # floor, chance and ceiling of every figure
SLOT = ("suite", "sample_id", "condition", "model", "options", "repeat")  # where a measurement stands in its run

Stop = Literal["answered", "submitted", "abstained", "refused", "truncated",
               "turns", "tool_calls", "output_tokens", "usd", "seconds", "failed"]  # fmt: skip


def clean(value: Any) -> Any:
    """The value with lone surrogates replaced by U+FFFD, at any depth, so that every row can be written as UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    return [clean(v) for v in value] if isinstance(value, (list, tuple)) else value


def redact(text: str) -> str:
    """Text without any secret of the environment and without what is shaped like a provider's key."""
    for name, value in os.environ.items():
        if len(value.strip()) >= 8 and re.search(r"API_?KEY|TOKEN|SECRET|PASSWORD", name):
            text = text.replace(value.strip(), f"[{name}]")
    return re.sub(r"\b((sk|pk|csk|gsk|xai|hf|ghp|fw|tgp)[-_]|AIza)[\w-]{12,}|\bBearer\s+\S+", "[key]", text)


Text = Annotated[str, BeforeValidator(clean)]
Json = Annotated[Any, BeforeValidator(clean)]
Tokens = Annotated[int, BeforeValidator(lambda count: max(0, int(count or 0)))]  # null counts 0
COLUMNS = ["key", "run_id", "suite", "sample_id", "cluster", "condition", "model", "effort", "repeat", "stop",
           "failure", "by", "metric", "value", "usd", "tokens", "seconds"]  # fmt: skip


class Record(BaseModel):
    """Base of every noun: frozen, and NaN or infinity is written as null."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Usage(Record):
    """Tokens of one or more calls; `input` excludes both cache counts, `reasoning` is part of `output`."""

    input: Tokens = 0
    output: Tokens = 0
    cache_read: Tokens = 0
    cache_write: Tokens = 0
    reasoning: Tokens = 0

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

    turn: int = 0
    call: Call
    result: Text
    ok: bool = True
    truncated: bool = False
    seconds: float = 0.0
    executed: bool = True
    steps: tuple[Step, ...] = ()  # of a specialist it was delegated to; what that took stands here too
    usage: Usage = Usage()
    usd: float = 0.0
    api_calls: int = 0


class Reply(Record):
    """One provider turn in neutral form; `wire` is the provider's own content, sent back as it came."""

    text: Text = ""
    calls: tuple[Call, ...] = ()
    stop: Text | None = None  # the provider's word, verbatim
    usage: Usage = Usage()
    served: Text = ""
    refused: bool = False
    truncated: bool = False
    attempts: int = 1
    waited: float = 0.0  # seconds in back-off and queue
    notes: dict[str, Any] = Field(default_factory=dict)
    wire: Any = Field(None, exclude=True, repr=False)


Said = str | Reply | Step  # a conversation: the user's words, the model's reply, the world's answer to a call


class Budget(Record):
    """What one cell may use; a spent budget ends in an answer, not in an exception."""

    model_config = ConfigDict(extra="forbid")

    turns: int = Field(8, ge=0)
    tool_calls: int = Field(12, ge=0)  # of tools that count
    reply_tokens: int = Field(4_096, ge=1)  # of one reply
    output_tokens: int = Field(0, ge=0)  # of the whole cell; 0 here and below: no limit
    usd: float = Field(0.0, ge=0)
    seconds: float = Field(0.0, ge=0)  # of working time; waiting in back-off is none


class Sample(Record):
    """One question or task with its right answer; `cluster` names the family of related samples.

    `history` is what was said before the prompt; where it begins with the model's turn, what has followed it.
    """

    model_config = ConfigDict(extra="forbid")

    id: Text
    prompt: Text = Field(validation_alias=AliasChoices("prompt", "question"))
    history: tuple[Said, ...] = ()
    gold: dict[str, Json] = Field(default_factory=dict)
    cluster: Text = ""
    tags: dict[str, str | bool | int] = Field(default_factory=dict)
    tools: tuple[dict[str, Json], ...] = ()  # JSON-schema tools that are offered and not run

    @property
    def expected(self) -> str:
        """The right answer as people read it."""
        return str(self.gold.get("answer") or json.dumps(self.gold, ensure_ascii=False))

    @property
    def said(self) -> list[Said]:
        """The conversation so far, history and prompt in their order."""
        follows = bool(self.history) and isinstance(self.history[0], Reply)
        return [self.prompt, *self.history] if follows else [*self.history, self.prompt]


class Condition(Record):
    """One arm of a comparison: tools and their instructions; `system` is the suite's and the same for all."""

    name: str
    instructions: str = ""
    tools: Callable[[Sample], tuple[Any, ...]] = Field(lambda sample: (), exclude=True, repr=False)
    budget: Budget = Budget()
    system: str = ""
    network: bool = False  # needs the web, and is run only when it is asked for by name
    settings: dict[str, Any] = Field(default_factory=dict)  # of its tools, such as the legs of a hybrid search
    brief: Callable[[Sample], str] = Field(
        lambda sample: sample.prompt, exclude=True, repr=False
    )  # for one without tools


class Suite(Record):
    """One folder of data/: what is asked, under which conditions, over which corpus, scored by which rules."""

    name: str
    kind: str
    path: Path
    samples: tuple[Sample, ...]
    conditions: tuple[Condition, ...]
    system: str = ""
    corpus: str = ""
    corpus_sha: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    rules: tuple[str, ...] = ()
    texts: Callable[[], Mapping[str, str]] = Field(dict, exclude=True, repr=False)  # its corpus: {page or file: text}
    world: Any = Field(None, exclude=True, repr=False)  # the module of a scenario suite
    sha: str = ""  # sha256 of samples.jsonl
    frozen: bool = True  # is that the sha suite.toml names?

    def _repr_markdown_(self) -> str:
        head, lines = f"**{self.name}**: {len(self.samples)} samples, sha256 `{self.sha[:16]}`", []
        for c in self.conditions:
            tools = ", ".join(t.name for t in c.tools(self.samples[0])) or "no tools"
            set_to = "".join(f"; {n}: {short(v)}" for n, v in c.settings.items() if n in ("legs", "specialists"))
            lines.append(f"- `{c.name}` ({tools}{set_to}): {c.instructions}".rstrip(" :"))
        return "\n".join([head, *lines])


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
    kind: Text
    detail: Text = ""


class Citation(Record):
    """A place an answer names: a URL, or a file with a line range."""

    url: Text = ""
    path: Text = ""
    start: int = 0
    end: int = 0


class Trace(Record):
    """One measurement made; `seconds` is working time, `waited` the time in back-off."""

    key: str
    run_id: str = ""
    suite: str = ""
    sample_id: str = ""
    condition: str = ""
    model: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    served: Text = ""
    repeat: int = 0
    setup: dict[str, str] = Field(default_factory=dict)  # as in its Cell
    answer: Text = ""
    citations: tuple[Citation, ...] = ()
    steps: tuple[Step, ...] = ()
    turns: int = 0
    api_calls: int = 0
    stop: Stop = "failed"
    provider_stop: Text | None = None
    submission: Json = None
    ledger: Json = None  # of a scenario: what its tools did
    usage: Usage = Usage()
    usd: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    failure: Failure | None = None
    notes: dict[str, Json] = Field(default_factory=dict)  # named facts: what was dropped, repaired, asked again
    at: str = ""  # ISO time when the cell finished

    @property
    def agent(self) -> str:
        """The model with its effort, as reports name it."""
        return " ".join(filter(None, [self.model, str(self.options.get("effort", ""))]))

    @property
    def slot(self) -> tuple[str, ...]:
        values = (getattr(self, name) for name in SLOT)
        return tuple(v if isinstance(v, str) else json.dumps(v, sort_keys=True) for v in values)

    def _repr_markdown_(self) -> str:
        head = f"**{self.sample_id}** · {self.condition} · {self.agent} · {self.stop} · {self.usage.total} tokens"
        steps = [
            f"{s.turn}. `{short(s.call.name)} {short(s.call.args)}` → {short(s.result) if s.executed else 'not run'}"
            for s in self.steps
        ]
        answer = f"{self.failure.kind}: {self.failure.detail}" if self.failure else self.answer or "(empty)"
        return "\n".join([head, "", *steps, "", "> " + short(answer, 900)])


class Verdict(Record):
    """One judgement of one trace (rule, grade, ground), of two (prefer) or of several (agree)."""

    key: str
    of: tuple[str, ...]
    by: str  # rule:NAME, or stage:judge
    served: Text = ""
    values: dict[str, float | None] = Field(default_factory=dict)
    why: Text = ""
    notes: dict[str, Json] = Field(default_factory=dict)
    usage: Usage = Usage()
    usd: float = 0.0
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def slot(self) -> tuple[str, ...]:
        return (self.by, *self.of)


R = TypeVar("R", bound=Record)
Row = TypeVar("Row", Trace, Verdict)


def short(value: Any, limit: int = 160) -> str:
    """A value on one line of markdown, cut to `limit` characters."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
    text = text.replace("`", "'").replace("#", "\\#").replace("<", "&lt;").replace("![", "!\\[")
    return text if len(text) <= limit else text[:limit] + "…"


def key(*parts: Any) -> str:
    """16 hex digits that stand for the content of the parts (canonical JSON, sha256)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=lambda r: r.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_rows(path: Path, kind: type[R]) -> tuple[list[R], list[str]]:
    """All readable rows of a JSON-lines file, and one sentence for each line that could not be read as it stands.

    A last line without its newline is a write that was cut off. NaN and Infinity are read as null.
    """
    rows: list[R] = []
    problems: list[str] = []
    data = path.read_bytes() if path.exists() else b""
    whole, _, torn = data.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        odd: list[str] = []  # NaN and Infinity, which other tools write
        try:
            rows.append(kind.model_validate(json.loads(line, parse_constant=odd.append)))
            problems += [f"{path}:{number}: {', '.join(odd)} read as null"] if odd else []
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}:{number}: not a {kind.__name__}, left out ({short(reason(error))})")
    if torn:
        problems.append(f"{path}: a line cut off at byte {len(data) - len(torn)}, left out")
    return rows, problems


def reason(error: BaseException) -> str:
    """A validation error in one line: each field with what is wrong in it."""
    faults = error.errors() if isinstance(error, ValidationError) else []
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'line'}: {e['msg']}" for e in faults) or str(error)


def latest(rows: Iterable[Row]) -> list[Row]:
    """The rows that count: the last of each slot."""
    return list({row.slot: row for row in rows}.values())
