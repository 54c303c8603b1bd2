"""`open_model("provider:name")`: one adapter a provider behind one method, `ask`. Only here is wire JSON seen."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..records import Message, Reply, Sample, Usage
from ..tools import Tool

SECRET_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.I)


def redact(text: str) -> str:
    """Text without any secret of the environment and without what is shaped like a provider's key."""
    for name, value in os.environ.items():
        if SECRET_NAMES.search(name) and len(value) >= 8:
            text = text.replace(value, f"[{name}]")
    return re.sub(r"\b(sk|pk|gsk|xai|hf)[-_][\w-]{12,}", "[key]", text)


class ProviderError(RuntimeError):
    """The provider gave no usable reply; `kind` is one word for the report, `usage` what was billed all the same."""

    def __init__(self, kind: str, detail: str, retry: bool = False, after: float | None = None, usage: Usage | None = None):
        super().__init__(redact(f"{kind}: {detail}")[:600])
        self.kind, self.detail, self.retry, self.after = kind, redact(detail)[:600], retry, after
        self.usage, self.attempts, self.waited = usage or Usage(), 1, 0.0


class Model:
    """A model that may be asked from many threads at once; `options` are part of a measurement's key."""

    provider = ""
    name = ""  # as the user wrote it, provider included
    options: dict[str, Any]

    def ask(
        self, system: str, messages: Sequence[Message], tools: Sequence[Tool] = (), max_tokens: int = 4096, closing: bool = False
    ) -> Reply:
        """One provider turn; with `closing` no tool may be called any more. Raises ProviderError."""
        raise NotImplementedError

    def for_cell(self, sample: Sample, repeat: int) -> Model:
        """The model that plays one cell; only script: models look at the sample."""
        return self


def open_model(spec: str, base_url: str = "", effort: str = "", seed: int = 0) -> Model:
    """The model named `provider:name`; raises ValueError for an unknown provider and a missing key."""
    provider, _, name = spec.partition(":")
    if provider == "anthropic":
        from .anthropic import Anthropic

        return Anthropic(name, base_url=base_url, effort=effort)
    if provider in ("extractive", "script"):
        from . import offline

        return offline.Extractive() if provider == "extractive" else offline.script(name, seed)
    raise ValueError(
        f"unknown model {spec!r}; write provider:name with one of anthropic:MODEL, extractive:, "
        f"script:null, script:oracle, script:random, script:FILE"
    )


def parse_reply(body: dict[str, Any], wire: str) -> Reply:
    """A provider's JSON as a Reply; an error body raises ProviderError. `wire`: "anthropic"."""
    if body.get("error") or body.get("type") == "error":
        error = body.get("error") or {}
        error = error if isinstance(error, dict) else {"message": str(error)}
        raise ProviderError(str(error.get("type") or "error"), str(error.get("message") or body))
    if wire == "anthropic":
        from .anthropic import parse

        return parse(body)
    raise ValueError(f"unknown wire format {wire!r}; it must be 'anthropic'")


def retrying(send: Callable[[], Reply], attempts: int = 5, patience: float = 120.0) -> Reply:
    """The one layer that retries: back-off with jitter, `retry-after` obeyed, at most 5 attempts and 120 s of waiting."""
    waited, billed = 0.0, Usage()

    def give_up(error: ProviderError, attempt: int) -> NoReturn:
        error.attempts, error.waited, error.usage = attempt, waited, billed
        raise error

    for attempt in range(1, attempts + 1):
        try:
            reply = send()
            return reply.model_copy(update={"attempts": attempt, "waited": waited, "usage": reply.usage + billed})
        except ProviderError as error:
            billed = billed + error.usage
            pause = error.after if error.after is not None else min(30.0, 0.5 * 2**attempt) * random.uniform(0.75, 1.25)
            if not error.retry or attempt == attempts or waited + pause > patience:
                give_up(error, attempt)
            time.sleep(pause)
            waited += pause
    raise AssertionError("unreachable")
