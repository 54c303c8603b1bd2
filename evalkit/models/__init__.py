"""`open_model("provider:name")`: one adapter a provider behind one method, `ask`. Only here is wire JSON seen."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..records import Reply, Said, Sample
from ..tools import Tool


def redact(text: str) -> str:
    """Text without any secret of the environment and without what is shaped like a provider's key."""
    names = (n for n in os.environ if re.search(r"API_?KEY|TOKEN|SECRET|PASSWORD", n) and len(os.environ[n]) >= 8)
    for name in names:
        text = text.replace(os.environ[name], f"[{name}]")
    return re.sub(r"\b(sk|pk|gsk|xai|hf)[-_][\w-]{12,}", "[key]", text)


class ProviderError(RuntimeError):
    """The provider gave no usable reply; `kind` is one word for the report."""

    def __init__(self, kind: str, detail: str, retry: bool = False, after: float | None = None):
        super().__init__(f"{kind}: {redact(detail)[:600]}")
        self.kind, self.detail, self.retry, self.after = kind, redact(detail)[:600], retry, after
        self.attempts, self.waited = 1, 0.0


class Model:
    """A model that may be asked from many threads at once; `options` are part of a measurement's key."""

    name = ""  # as the user wrote it, provider included
    priced = False  # does a call cost money?
    options: dict[str, Any] = {}  # noqa: RUF012

    def ask(self, system: str, said: Sequence[Said], tools: Sequence[Tool], max_tokens: int, closing: bool) -> Reply:
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

        return Anthropic(name, base_url, effort)
    from .offline import Extractive, Script

    if provider == "script":
        return Script(name, seed)
    if spec != "extractive:":
        known = "anthropic:MODEL, extractive:, script:null, script:oracle, script:random, script:FILE"
        raise ValueError(f"unknown model {spec!r}; write one of {known}")
    return Extractive()


def parse_reply(body: dict[str, Any], wire: str) -> Reply:
    """A provider's JSON, in the wire format "anthropic", as a Reply; an error body raises ProviderError."""
    from .anthropic import parse

    if wire != "anthropic":
        raise ValueError(f"unknown wire format {wire!r}; it must be 'anthropic'")
    if body.get("type") == "error":
        error = body.get("error") or {}
        raise ProviderError(str(error.get("type", "error")), str(error.get("message", body)))
    return parse(body)


def retrying(send: Callable[[], Reply], attempts: int = 5, patience: float = 120.0) -> Reply:
    """The one layer that retries: back-off with jitter, `retry-after` obeyed, bounded in tries and seconds."""
    waited = 0.0
    for attempt in range(1, attempts + 1):
        try:
            return send().model_copy(update={"attempts": attempt, "waited": waited})
        except ProviderError as error:
            pause = error.after if error.after is not None else 0.5 * 2**attempt * random.uniform(0.75, 1.25)
            error.attempts, error.waited = attempt, waited
            if not error.retry or attempt == attempts or waited + pause > patience:
                raise
        time.sleep(pause)
        waited += pause
    raise AssertionError("unreachable")
