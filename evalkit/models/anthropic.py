"""`anthropic:MODEL` through the official SDK: its HTTP client and types of error, our retries, raw JSON in and out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from ..records import Call, Message, Reply, Usage
from ..tools import Tool
from . import Model, ProviderError, parse_reply, retrying

CACHE = {"type": "ephemeral"}  # system text and tools are the same for every sample of a condition


class Anthropic(Model):
    provider = "anthropic"

    def __init__(self, model: str, base_url: str = "", effort: str = ""):
        if not model:
            raise ValueError("name the model, for example anthropic:claude-haiku-4-5")
        if not os.environ.get("ANTHROPIC_API_KEY"):
            raise ValueError("ANTHROPIC_API_KEY is not set; export it (or put it in .env) and run again")
        import anthropic

        self.sdk, self.model, self.name = anthropic, model, f"anthropic:{model}"
        self.options = {"effort": effort} if effort else {}
        self.client = anthropic.Anthropic(base_url=base_url or None, max_retries=0, timeout=600.0)

    def ask(
        self, system: str, messages: Sequence[Message], tools: Sequence[Tool] = (), max_tokens: int = 4096, closing: bool = False
    ) -> Reply:
        request: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "messages": to_wire(messages)}
        if system:
            request["system"] = [{"type": "text", "text": system, "cache_control": CACHE}]
        if tools:
            request["tools"] = [{"name": t.name, "description": t.about, "input_schema": t.schema} for t in tools]
            request["tools"][-1]["cache_control"] = CACHE
            # a history with tool calls must keep its tools defined, so closing forbids them instead
            request["tool_choice"] = {"type": "none" if closing else "auto"}
        if self.options:
            request["output_config"] = self.options
        return retrying(lambda: self._send(request))

    def _send(self, request: dict[str, Any]) -> Reply:
        sdk = self.sdk
        try:
            body = self.client.messages.with_raw_response.create(**request).http_response.content
        except sdk.APIStatusError as error:
            status = error.status_code
            raise ProviderError(
                f"http_{status}", str(error.body or error), retry=status in (408, 409, 429) or status >= 500,
                after=_seconds(error.response.headers),
            ) from None  # fmt: skip
        except sdk.APIConnectionError as error:
            kind = "timeout" if isinstance(error, sdk.APITimeoutError) else "connection"
            raise ProviderError(kind, str(error.__cause__ or error), retry=True) from None
        try:
            return parse_reply(json.loads(body), "anthropic")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProviderError("unreadable", f"{type(error).__name__}: {error}", retry=True) from None


def to_wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the API wants them: a provider's own content goes back whole, results of one turn in one message."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            ids = iter(call.id for call in message.calls)
            content = [b | {"id": next(ids)} if b.get("type") == "tool_use" else b for b in message.wire or ()]
            content = content or [{"type": "text", "text": message.text}] * bool(message.text) + [
                {"type": "tool_use", "id": c.id, "name": c.name, "input": c.args} for c in message.calls
            ]
            wire.append({"role": "assistant", "content": content or [{"type": "text", "text": "(no answer)"}]})
            continue
        if message.role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.text, "is_error": not message.ok}
        else:
            block = {"type": "text", "text": message.text}
        if wire and wire[-1]["role"] == "user":
            wire[-1]["content"].append(block)
        else:
            wire.append({"role": "user", "content": [block]})
    return wire


def parse(body: dict[str, Any]) -> Reply:
    """A Messages body as a Reply. Its `input_tokens` already excludes both cache counts."""
    blocks = body.get("content") or []
    usage = body.get("usage") or {}
    stop = body.get("stop_reason")
    return Reply(
        text="".join(b.get("text") or "" for b in blocks if b.get("type") == "text"),
        calls=tuple(
            Call(id=b.get("id") or "", name=b.get("name") or "", raw=json.dumps(b.get("input")),
                 args=b["input"] if isinstance(b.get("input"), dict) else {}, malformed=not isinstance(b.get("input"), dict))
            for b in blocks if b.get("type") == "tool_use"
        ),
        stop=stop,
        usage=Usage(
            input=usage.get("input_tokens") or 0,
            output=usage.get("output_tokens") or 0,
            cache_read=usage.get("cache_read_input_tokens") or 0,
            cache_write=usage.get("cache_creation_input_tokens") or 0,
            reasoning=(usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
        ),
        served=body.get("model") or "",
        refused=stop == "refusal",
        truncated=stop in ("max_tokens", "model_context_window_exceeded"),
        wire=blocks,
    )  # fmt: skip


def _seconds(headers: Any) -> float | None:
    try:
        return float(headers.get("retry-after"))
    except (TypeError, ValueError):
        return None
