"""Record every reply of a model by the hash of its request, and answer from such a file without a key or a network.

A line holds the cell it belongs to and the conversation it was part of: a cell that was asked again, after a fault or a
kill, is replayed as its last conversation went.
"""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

from ..records import Reply, Sample, Step, Usage, key
from ..tools import Tool
from . import Model, Prompt, ProviderError

UNPRICED = ("local", "extractive", "script", "compat", "ollama", "llamacpp")


def request_hash(model: Model, prompt: Prompt) -> str:
    """What is asked, without what the clock put into it."""
    plain: list[Any] = [(s.call.id, s.result, s.ok) if isinstance(s, Step) else
                        (s.text, s.calls) if isinstance(s, Reply) else s for s in prompt.said]  # fmt: skip
    tools = [(t.name, t.about, t.schema) for t in prompt.tools]
    return key(model.name, model.options, prompt._replace(said=plain, tools=()), tools)


class Recording(Model):
    """The model itself, every reply and every fault of which is appended to a file."""

    def __init__(
        self, model: Model, path: str, cell: tuple[Any, ...] = (), player: Model | None = None, gate: Any = None
    ):
        self.model, self.path, self.cell, self.player = model, path, cell, player or model
        try:
            open(path, "a", encoding="utf-8").close()
        except OSError as error:
            raise ValueError(f"record: {path} cannot be written ({error.strerror})") from None
        self.gate, self.talk = gate or threading.Lock(), uuid.uuid4().hex
        self.name, self.options, self.priced, self.at_once = model.name, model.options, model.priced, model.at_once
        self.address, self.room = model.address, model.room

    def for_cell(self, sample: Sample, repeat: int, condition: str = "") -> Model:
        player = self.model.for_cell(sample, repeat, condition)
        return Recording(self.model, self.path, (sample.id, condition, repeat), player, self.gate)

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return self.model.fit(tools)

    def ask(self, prompt: Prompt) -> Reply:
        line: dict[str, Any] = {"hash": request_hash(self, prompt), "cell": self.cell, "talk": self.talk}
        try:
            reply = self.player.ask(prompt)
            line |= {"reply": reply.model_dump(mode="json"), "wire": reply.wire}
            return reply
        except ProviderError as error:
            line["error"] = {"kind": error.kind, "detail": error.detail, "attempts": error.attempts,
                             "usage": error.usage.model_dump(), "served": error.served}  # fmt: skip
            raise
        finally:
            if {"reply", "error"} & line.keys():
                with self.gate, open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


class Replay(Model):
    """Answers as the recorded model did; a request that was not recorded is a failure."""

    replayed = True

    def __init__(self, name: str, options: dict[str, Any], path: str):
        if not Path(path).is_file():
            raise ValueError(f"replay: {path} does not exist; record a run with -p record FILE first")
        self.name, self.options, self.path = name, options, path
        self.priced = name.partition(":")[0] not in UNPRICED
        lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        last = {tuple(line["cell"]): line["talk"] for line in lines}
        self.kept = [line for line in lines if not line["cell"] or last[tuple(line["cell"])] == line["talk"]]
        self.cell: tuple[Any, ...] = ()
        self.answers = self._of(())

    def _of(self, cell: tuple[Any, ...]) -> dict[str, list[dict[str, Any]]]:
        """{request hash: its answers in order}; a fault that a later reply made good is left out."""
        answers: dict[str, list[dict[str, Any]]] = {}
        for line in self.kept:
            if tuple(line["cell"]) == cell:
                answers.setdefault(line["hash"], []).append(line)
        return {name: [x for x in found if "reply" in x] or found for name, found in answers.items()}

    def for_cell(self, sample: Sample, repeat: int, condition: str = "") -> Model:
        player = object.__new__(Replay)
        player.__dict__ |= self.__dict__ | {"answers": self._of((sample.id, condition, repeat))}
        return player

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if not self.name.startswith("local:"):
            return tools
        from .local import small

        return small(tools)

    def ask(self, prompt: Prompt) -> Reply:
        found = self.answers.get(request_hash(self, prompt), [])
        if not found:
            raise ProviderError("not_recorded", f"{self.path} holds no reply to this request")
        line = found.pop(0) if len(found) > 1 else found[0]  # asked again, the last answer stands
        if "error" in line:
            error = ProviderError(line["error"]["kind"], line["error"]["detail"])
            error.attempts, error.served = line["error"]["attempts"], line["error"]["served"]
            error.usage = Usage(**line["error"]["usage"])
            raise error
        return Reply.model_validate(line["reply"] | {"wire": line["wire"], "waited": 0.0})
