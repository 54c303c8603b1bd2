"""Record every reply of a model by the hash of its request, and answer from such a file without a key or a network."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from ..records import Reply, Sample, Step, Usage, key
from ..tools import Tool
from . import Model, Prompt, ProviderError


def request_hash(model: Model, repeat: int, prompt: Prompt) -> str:
    """What is asked, without what the clock put into it; the repeat is part, so that repeats never collapse."""
    plain: list[Any] = [(s.call.id, s.result, s.ok) if isinstance(s, Step) else
             (s.text, s.calls) if isinstance(s, Reply) else s for s in prompt.said]  # fmt: skip
    tools = [(t.name, t.about, t.schema) for t in prompt.tools]
    return key(model.name, model.options, repeat, prompt._replace(said=plain, tools=()), tools)


class Recording(Model):
    """The model itself, every reply and every fault of which is appended to a file."""

    def __init__(self, model: Model, path: str, repeat: int = 0, player: Model | None = None, gate: Any = None):
        self.model, self.path, self.repeat, self.player = model, path, repeat, player or model
        self.gate = gate or threading.Lock()
        self.name, self.options, self.priced, self.at_once = model.name, model.options, model.priced, model.at_once

    def for_cell(self, sample: Sample, repeat: int) -> Model:
        return Recording(self.model, self.path, repeat, self.model.for_cell(sample, repeat), self.gate)

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return self.model.fit(tools)

    def ask(self, prompt: Prompt) -> Reply:
        line: dict[str, Any] = {"hash": request_hash(self, self.repeat, prompt)}
        try:
            reply = self.player.ask(prompt)
            line |= {"reply": reply.model_dump(mode="json"), "wire": reply.wire}
            return reply
        except ProviderError as error:
            line["error"] = {"kind": error.kind, "detail": error.detail, "attempts": error.attempts,
                             "usage": error.usage.model_dump(), "served": error.served}  # fmt: skip
            raise
        finally:
            if len(line) > 1:
                with self.gate, open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


class Replay(Model):
    """Answers as the recorded model did; a request that was not recorded is a failure."""

    replayed = True

    def __init__(self, name: str, options: dict[str, Any], path: str, repeat: int = 0, lines: Any = None):
        if not Path(path).is_file():
            raise ValueError(f"replay: {path} does not exist; record a run with -p record FILE first")
        self.name, self.options, self.path, self.repeat = name, options, path, repeat
        self.priced = name.partition(":")[0] not in ("local", "extractive", "script", "compat", "ollama", "llamacpp")
        rows = (json.loads(line) for line in Path(path).read_text("utf-8").splitlines()) if lines is None else ()
        self.lines = {row["hash"]: row for row in rows} if lines is None else lines

    def for_cell(self, sample: Sample, repeat: int) -> Model:
        return Replay(self.name, self.options, self.path, repeat, self.lines)

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if not self.name.startswith("local:"):
            return tools
        from .local import small

        return small(tools)

    def ask(self, prompt: Prompt) -> Reply:
        line = self.lines.get(request_hash(self, self.repeat, prompt))
        if line is None:
            raise ProviderError("not_recorded", f"{self.path} holds no reply to this request")
        if "error" in line:
            error = ProviderError(line["error"]["kind"], line["error"]["detail"])
            error.attempts, error.served = line["error"]["attempts"], line["error"]["served"]
            error.usage = Usage(**line["error"]["usage"])
            raise error
        return Reply.model_validate(line["reply"] | {"wire": line["wire"], "waited": 0.0})
