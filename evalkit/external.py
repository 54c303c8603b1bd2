"""Somebody else's agent, by command or over HTTP, into the same Trace: one JSON object in, one out, logs on stderr.

request   {"protocol": "evalkit-agent/1", "suite": "desk", "sample_id": "d-1", "input": "…", "repeat": 0}
response  {"outcome" or "answer": "…", "actions_attempted": [], "actions_executed": [], "submitted": true,
           "citations": [], "usage": {"input": 0, "output": 0}}

Nothing expected is ever sent. A command's environment holds PATH and what is named. POSIX only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import scoring
from .records import Citation, Condition, Failure, Sample, Text, Trace, Usage, reason, redact, short
from .transport import LOG, AgentError, by_command, by_http

PROTOCOL, SECRET = "evalkit-agent/1", 8  # shorter values are no secret
DID = {"outcome", "actions_attempted", "actions_executed", "submitted"}
Count = Annotated[int, Field(ge=0)]


class Spent(BaseModel):
    """Tokens as the agent counts them, under the names of Usage."""

    model_config = ConfigDict(strict=True)
    input: Count = 0
    output: Count = 0
    cache_read: Count = 0
    cache_write: Count = 0
    reasoning: Count = 0


class Response(BaseModel):
    """What an agent answers; unknown fields are ignored, a wrong type is refused by the field's name."""

    model_config = ConfigDict(strict=True)
    outcome: Text | None = None
    answer: Text | None = None
    actions_attempted: list[Text] = []
    actions_executed: list[Text] = []
    submitted: bool = False
    citations: list[Text] = []
    usage: Spent | None = None


@dataclass(frozen=True)
class Agent:
    """An agent that may be asked from many threads; grid plans and fills it as it does a Model."""

    name: str  # the command or URL without its secrets, which therefore tell no two agents apart
    kind: str  # command, http or mock
    send: Callable[[bytes], tuple[bytes, str]]  # request -> (response, log)
    secrets: dict[str, str]  # text: what stands for it in records
    options: dict[str, Any]
    priced = replayed = False
    address = ""
    at_once = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The response to one request; raises AgentError."""
        return self.converse(request)[0]

    def converse(self, request: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """(response, end of the log), without what stands in the environment or is secret in the URL."""
        data, log = b"", ""
        try:
            data, log = self.send(json.dumps(request).encode())
            found = json.loads(data.decode(), parse_constant=lambda name: None)
            if isinstance(found, dict):
                return self.hide(found), self.safe(log)[-LOG:]
            kind, detail = "not_one_object", f"not one JSON object (print logs to stderr): {data.decode()}"
        except AgentError as error:
            kind, detail, log = error.kind, f"{error.detail} {error.log[-200:]}".strip(), error.log
        except (ValueError, RecursionError) as error:
            kind = "not_utf8" if isinstance(error, UnicodeDecodeError) else "not_one_object"
            why = "" if kind == "not_utf8" else "not one JSON object (print logs to stderr): "
            detail = why + data.decode(errors="replace")
        raise AgentError(kind, short(self.safe(detail), 300), self.safe(log)[-LOG:])

    def hide(self, value: Any) -> Any:
        """The value, at any depth, with a label for each secret, also where it stands as JSON writes it."""
        if isinstance(value, dict):
            return {self.hide(k): self.hide(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.hide(v) for v in value]
        for secret in sorted(self.secrets, key=len, reverse=True) if isinstance(value, str) else ():
            for form in (secret, written := json.dumps(secret)[1:-1], written.replace("/", r"\/")):
                value = value.replace(form, self.secrets[secret])
        return value

    def safe(self, text: str) -> str:
        return redact(self.hide(text))


def open_agent(spec: str, timeout: float = 30.0, env: Sequence[str] = ()) -> Agent:
    """The agent of `command:ARGV`, `http://…`, `https://…` or `mock:`; raises ValueError that says what to write."""
    if not 0 < timeout <= 86_400:
        raise ValueError(f"timeout {timeout}: write seconds, above 0 and up to a day")
    if unset := [name for name in env if name not in os.environ]:
        raise ValueError(f"{unset[0]} is to be passed to the agent and is not set; export it and run again")
    kind, _, rest = spec.partition(":")
    try:
        argv, parts = shlex.split(rest) if kind == "command" else [], urlsplit(spec)
        address = bool(kind in ("http", "https") and not env and parts.hostname and parts.port != 0)
    except ValueError:  # quotes that do not close, a port that is none
        argv, address = [], False
    if argv:
        if not shutil.which(argv[0]):
            raise ValueError(f"no program {redact(argv[0])} on PATH; write for example command:python my_agent.py")
        passed = {name: os.environ[name] for name in ("PATH", *env) if name in os.environ}
        secrets = {value: f"[{name}]" for name, value in passed.items() if len(value) >= SECRET}
        options = {"env": sorted(env)} if env else {}
        return Agent(plain(spec), kind, partial(by_command, argv, passed, timeout), secrets, options)
    if address and not re.search(r"[\x00-\x20\x7f]", spec):
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        basic = b64encode(user.encode()).decode() if parts.username else ""
        values = [basic, parts.password or "", *(pair.partition("=")[2] for pair in parts.query.split("&"))]
        secrets = {form: "[url]" for v in values for form in (v, unquote(v)) if len(form) >= SECRET}
        return Agent(plain(spec), "http", partial(by_http, spec, basic, timeout), secrets, {})
    if spec == "mock:":
        said = Response(outcome="mock", submitted=True).model_dump_json().encode()
        return Agent(spec, "mock", lambda body: (said, ""), {}, {})
    raise ValueError("write the agent as command:python my_agent.py, or as http://127.0.0.1:8000/evaluate without env")


def plain(spec: str) -> str:
    """A command or URL for people: without userinfo, query values, and what follows --token and its like."""

    def url(match: re.Match[str]) -> str:
        head, mark, query = match.group().partition("#")[0].partition("?")
        return re.sub(r"//[^/]*@", "//", head) + mark + re.sub(r"([^&=]*=|)[^&]+", r"\1…", query)

    names = r"[\w-]*(?:key|token|secret|password)"
    secret = rf"""(?i)({names}=|-{names}\s+)("[^"]*"|'[^']*'|\S+)"""
    return redact(re.sub(secret, r"\1…", re.sub(r"\bhttps?://\S+", url, spec)))


def run(sample: Sample, agent: Agent, condition: Condition, suite: str = "", key: str = "", repeat: int = 0) -> Trace:
    """One sample put to somebody else's agent, as a Trace; what goes wrong is a failure in it, never an exception."""
    asked = {"suite": suite, "sample_id": sample.id, "input": condition.brief(sample), "repeat": repeat}
    trace, _ = put(asked, agent, refused="a conversation does not fit into one input" if sample.history else "")
    return trace.model_copy(update={"key": key, "condition": condition.name})


def put(
    asked: dict[str, Any], agent: Agent, form: type[Response] = Response, refused: str = ""
) -> tuple[Trace, dict[str, Any]]:
    """(Trace, the response whole) of one request; `form` is what the response must be."""
    started, log, said, failure = time.monotonic(), "", Response(), None
    raw: dict[str, Any] = {}
    try:
        if refused:
            raise AgentError("unasked", refused)
        raw, log = agent.converse({"protocol": PROTOCOL} | asked)
        said = form.model_validate(raw)
        if said.outcome is said.answer is None and raw.get("submitted") is not False:
            raise AgentError("response", "outcome: missing, and so is answer; only what is not submitted has none", log)
    except AgentError as error:
        failure, log = Failure(where="agent", kind=error.kind, detail=error.detail), error.log
    except Exception as error:  # its form is wrong; or a fault of ours, which must not end the run
        kind = "response" if isinstance(error, ValidationError) else type(error).__name__
        failure = Failure(where="agent", kind=kind, detail=short(agent.safe(reason(error)), 300))
    seconds = time.monotonic() - started
    answer = "" if failure else (said.answer or said.outcome or "").strip()
    decided = said.submitted and said.outcome is not None
    stop = "submitted" if decided else "abstained" if scoring.declined(answer) else "answered"
    cited = [Citation(url=c) if "://" in c else Citation(path=c) for c in said.citations]
    cited = list(dict.fromkeys([*scoring.find_citations(answer), *cited]))
    return Trace(
        key="", suite=asked["suite"], sample_id=asked["sample_id"], model=agent.name, options=agent.options,
        repeat=asked["repeat"], answer=answer, citations=tuple(cited),
        stop="failed" if failure else stop, submission=None if failure else said.model_dump(include=DID),
        usage=Usage(**(said.usage or Spent()).model_dump()), seconds=seconds, failure=failure,
        notes={"stderr": log} if log else {}, at=datetime.now(UTC).isoformat(timespec="seconds"),
    ), raw  # fmt: skip
