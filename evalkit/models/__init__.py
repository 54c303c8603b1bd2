"""`open_model("provider:name")`: one adapter a provider behind one method, `ask`. Only here is wire JSON seen."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from .. import pricing
from ..records import Reply, Said, Sample, Usage, clean, redact
from ..tools import Tool

WIRE_NAMES = {"effort": ("reasoning_effort", "output_config", "effort")}
RETRIED = (408, 409, 429)  # and every 5xx


class ProviderError(RuntimeError):
    """The provider gave no usable reply; `kind` is one word for the report, `usage` what it billed all the same."""

    def __init__(self, kind: str, detail: str, retry: bool = False, after: float | None = None):
        super().__init__(f"{kind}: {redact(detail)[:600]}")
        self.kind, self.detail, self.retry, self.after = kind, redact(detail)[:600], retry, after
        self.attempts, self.waited, self.usage, self.served = 1, 0.0, Usage(), ""


class Prompt(NamedTuple):
    """What is asked in one turn; with `closing` no tool may be called any more, with `schema` the text is such JSON."""

    system: str
    said: Sequence[Said]
    tools: Sequence[Tool] = ()
    max_tokens: int = 4096
    closing: bool = False
    schema: dict[str, Any] | None = None


class Model:
    """A model that may be asked from many threads at once; `options` are part of a measurement's key."""

    name = ""  # as the user wrote it, provider included
    priced = False  # does a call cost money?
    replayed = False  # does it answer from a recording?
    at_once = 0  # calls it takes at once; 0: any number
    address = ""  # where it answers from, if not at the provider's own
    room = 0  # characters of a long prompt that its context holds; 0: enough
    options: dict[str, Any] = {}  # noqa: RUF012

    def ask(self, prompt: Prompt) -> Reply:
        """One provider turn; raises ProviderError."""
        raise NotImplementedError

    def for_cell(self, sample: Sample, repeat: int, condition: str = "") -> Model:
        """The model that plays one cell; only script: models look at the sample, a recording at its id."""
        return self

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """The tools with results that this model's context can hold."""
        return tools


class Served(Model):
    """A model behind an official SDK: its HTTP client and its errors, our retries, raw JSON in and out.

    A subclass gives `client`, `sdk`, `path`, `wire`, and `request()`, which writes the JSON.
    """

    priced = True
    sdk: Any
    client: Any
    path, wire = "", ""

    def __init__(self, model: str, options: dict[str, Any], provider: str, key_name: str = ""):
        if not model:
            raise ValueError(f"name the model, for example {provider}:MODEL")
        if key_name and not os.environ.get(key_name):
            raise ValueError(f"{key_name} is not set; export it, or put it in .env, and run again")
        self.model, self.name, self.options = model, f"{provider}:{model}", options
        self.dropped: dict[str, str] = {}  # option: the name it has on the wire
        self.slots = threading.BoundedSemaphore(self.at_once) if self.at_once else None

    def connect(self, client: Callable[..., Any], **options: Any) -> Any:
        """The SDK's client with our time-out and without its retries; a bad address is a ValueError without secrets."""
        try:
            return client(max_retries=0, timeout=600.0, **options)
        except Exception as error:
            raise ValueError(f"{self.name} cannot be opened, look at its base URL: {redact(str(error))}") from None

    def request(self, prompt: Prompt) -> dict[str, Any]:
        raise NotImplementedError

    def ask(self, prompt: Prompt) -> Reply:
        attempts, waited = 0, 0.0
        while True:
            request = self.request(prompt)
            try:
                reply = retrying(lambda request=request: self._send(request))  # type: ignore[misc]
                notes = {"dropped": sorted(self.dropped.values())} if self.dropped else {}
                more = {"notes": notes, "attempts": reply.attempts + attempts, "waited": reply.waited + waited}
                return reply.model_copy(update=more)
            except ProviderError as error:
                attempts, waited = attempts + error.attempts, waited + error.waited
                named = [(n, word) for n in self.taken() for word in WIRE_NAMES.get(n, (n,)) if word in error.detail]
                if error.kind != "http_400" or not named:
                    error.attempts, error.waited = attempts, waited
                    raise
                self.dropped |= dict(named[:1])  # an option this model does not take: left out, once and for all

    def taken(self) -> dict[str, Any]:
        """The options this model takes."""
        return {name: value for name, value in self.options.items() if name not in self.dropped}

    def _send(self, request: dict[str, Any]) -> Reply:
        import httpx2

        queued = time.monotonic()
        with self.slots or threading.Lock():
            queue = time.monotonic() - queued if self.slots else 0.0
            try:
                body = self.client.post(self.path, cast_to=httpx2.Response, body=request).content
            except self.sdk.APIStatusError as error:
                status, pause = error.status_code, retry_after(error.response.headers.get("retry-after", ""))
                raise ProviderError(
                    f"http_{status}", str(error.body or error), status in RETRIED or status >= 500, pause
                ) from None
            except self.sdk.APIConnectionError as error:
                kind = "timeout" if isinstance(error, self.sdk.APITimeoutError) else "connection"
                raise ProviderError(kind, str(error.__cause__ or error), retry=True) from None
        found: Any = None
        try:
            found = json.loads(body)
            reply = parse_reply(
                clean(found) if b"\\ud" in body.lower() or b"\xed" in body else found, self.wire
            )  # half a character
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:  # a body that is not what it should be
            fault = ProviderError("unreadable", f"{type(error).__name__}: {error}", retry=True)
            fault.usage, fault.served = billed(found, self.wire)
            raise fault from None
        return reply.model_copy(update={"waited": queue})


SERVERS = {  # OpenAI-compatible: base URL, name of the key's environment variable
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": ("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "fireworks": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "ollama": ("http://127.0.0.1:11434/v1", ""),
    "llamacpp": ("http://127.0.0.1:8080/v1", ""),
}


def open_model(
    spec: str, base_url: str = "", effort: str = "", temperature: float | None = None, seed: int = 0,
    record: str = "", replay: str = "",
) -> Model:  # fmt: skip
    """The model named `provider:name`; raises ValueError for an unknown provider and a missing key.

    `record` writes every reply to that file, `replay` answers from it without a key or a network.
    """
    provider, _, name = spec.partition(":")
    if effort and provider in ("extractive", "script", "local"):
        raise ValueError(f"{provider}: has no effort; leave -p effort out")
    options = {"effort": effort} if effort else {}
    options |= {"temperature": temperature} if temperature is not None else {}  # type: ignore[dict-item]
    if replay:
        from .replay import Replay

        played = Replay(spec, options, replay)
        played.address = redact(base_url)
        return played
    model: Model
    if provider == "anthropic":
        from .anthropic import Anthropic

        model = Anthropic(name, options, base_url)
    elif provider in ("openai", "compat") or provider in SERVERS:
        from .openai import OpenAI

        model = OpenAI(provider, name, options, base_url)
    elif provider == "local":
        from .local import Local

        model = Local(name)
    elif provider == "script":
        from .offline import Script

        model = Script(name, seed)
    elif spec == "extractive:":
        from .offline import Extractive

        model = Extractive()
    else:
        known = "anthropic: openai: local: extractive: script: compat:NAME@URL " + ": ".join(SERVERS)
        raise ValueError(f"unknown model {spec!r}; write provider:name with one of {known}:")
    model.address = redact(base_url)
    if record:
        from .replay import Recording

        return Recording(model, record)
    return model


def cost(model: Model, served: str, usage: Usage, notes: dict[str, Any]) -> float:
    """USD of `usage` at the model that served it, else at the requested one, which is noted."""
    provider, _, requested = model.name.partition(":")
    try:
        return pricing.usd(served or requested, usage, provider) if model.priced else 0.0
    except pricing.UnknownPrice:
        notes["priced_as_requested"] = served
    try:
        return pricing.usd(requested, usage, provider)
    except pricing.UnknownPrice:  # preflight refuses such a model before a run
        notes["not_priced"] = requested
        return 0.0


def parse_reply(body: dict[str, Any], wire: str) -> Reply:
    """A provider's JSON, in the wire format "anthropic" or "openai", as a Reply; an error body raises ProviderError."""
    if wire not in ("anthropic", "openai"):
        raise ValueError(f"unknown wire format {wire!r}; it must be 'anthropic' or 'openai'")
    error = body.get("error")
    if error or body.get("type") == "error":
        error = error if isinstance(error, dict) else {"message": str(error or body)}
        kind = str(error.get("type") or error.get("code") or "error")
        raise ProviderError(kind, str(error.get("message") or body), retry="invalid" not in kind)
    if body.keys().isdisjoint(("content", "stop_reason", "choices", "usage", "model")):
        raise ProviderError("empty_body", "the reply holds no message", retry=True)
    return parser(wire)(body)


def parser(wire: str) -> Callable[[dict[str, Any]], Reply]:
    if wire == "anthropic":
        from .anthropic import parse
    else:
        from .openai import parse
    return parse


def billed(body: Any, wire: str) -> tuple[Usage, str]:
    """(usage, served model) of a body whose content cannot be read: it was paid for all the same."""
    readable = {"usage": body.get("usage"), "model": body.get("model")} if isinstance(body, dict) else {}
    try:
        reply = parser(wire)(readable)
    except (ValueError, TypeError, AttributeError):
        return Usage(), ""
    return reply.usage, reply.served


def retry_after(header: str) -> float | None:
    """Seconds of a retry-after header, which holds a number or a date."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def retrying(send: Callable[[], Reply], attempts: int = 5, patience: float = 120.0) -> Reply:
    """The one layer that retries: back-off with jitter, `retry-after` obeyed, bounded in tries and seconds."""
    waited, billed = 0.0, Usage()
    for attempt in range(1, attempts + 1):
        try:
            reply = send()
            update = {"attempts": attempt, "waited": reply.waited + waited, "usage": reply.usage + billed}
            return reply.model_copy(update=update)
        except ProviderError as error:
            pause = error.after if error.after is not None else 0.5 * 2**attempt * random.uniform(0.75, 1.25)
            billed = billed + error.usage
            error.attempts, error.waited, error.usage = attempt, waited, billed
            if not error.retry or attempt == attempts or waited + pause > patience:
                raise
        time.sleep(pause)
        waited += pause
    raise AssertionError("unreachable")
