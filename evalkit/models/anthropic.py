"""`anthropic:MODEL` through the official SDK: its HTTP client and its errors, our retries, raw JSON in and out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from ..records import Call, Reply, Said, Step, Usage
from ..tools import Tool
from . import Model, ProviderError, parse_reply, retrying

CACHE = {"type": "ephemeral"}  # system text and tools are the same for every sample of a condition


class Anthropic(Model):
    priced = True

    def __init__(self, model: str, base_url: str = "", effort: str = ""):
        if not model:
            raise ValueError("name the model, for example anthropic:claude-haiku-4-5")
        if not os.environ.get("ANTHROPIC_API_KEY"):
            raise ValueError("ANTHROPIC_API_KEY is not set; export it, or put it in .env, and run again")
        import anthropic

        self.sdk, self.model, self.name = anthropic, model, f"anthropic:{model}"
        self.options = {"effort": effort} if effort else {}
        self.client = anthropic.Anthropic(base_url=base_url or None, max_retries=0, timeout=600.0)

    def ask(self, system: str, said: Sequence[Said], tools: Sequence[Tool], max_tokens: int, closing: bool) -> Reply:
        request: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "messages": to_wire(said)}
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
        try:
            response = self.client.messages.with_raw_response.create(**request)
            return parse_reply(json.loads(response.http_response.content), "anthropic")
        except self.sdk.APIStatusError as error:
            status, after = error.status_code, error.response.headers.get("retry-after", "")
            raise ProviderError(f"http_{status}", str(error.body or error), status in (408, 409, 429) or status >= 500,
                                float(after) if after.replace(".", "", 1).isdigit() else None) from None  # fmt: skip
        except self.sdk.APIConnectionError as error:
            kind = "timeout" if isinstance(error, self.sdk.APITimeoutError) else "connection"
            raise ProviderError(kind, str(error.__cause__ or error), retry=True) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # a body that is not what it should be
            raise ProviderError("unreadable", f"{type(error).__name__}: {error}", retry=True) from None


def to_wire(said: Sequence[Said]) -> list[dict[str, Any]]:
    """The conversation as the API wants it: a reply goes back whole, the results of one turn in one user message."""
    wire: list[dict[str, Any]] = []
    for entry in said:
        if isinstance(entry, Reply):
            ids = iter(entry.calls)
            content = [b | {"id": next(ids).id} if b["type"] == "tool_use" else b for b in entry.wire or ()]
            content = content or [{"type": "text", "text": entry.text}] * bool(entry.text) + [
                {"type": "tool_use", "id": c.id, "name": c.name, "input": c.args} for c in entry.calls
            ]
            wire.append({"role": "assistant", "content": content or [{"type": "text", "text": "(no answer)"}]})
            continue
        block: dict[str, Any] = {"type": "text", "text": entry}
        if isinstance(entry, Step):
            block = {"type": "tool_result", "tool_use_id": entry.call.id, "content": entry.result} | (
                {} if entry.ok else {"is_error": True}
            )
        if not wire or wire[-1]["role"] != "user":
            wire.append({"role": "user", "content": []})
        wire[-1]["content"].append(block)
    return wire


def parse(body: dict[str, Any]) -> Reply:
    """A Messages body as a Reply. Its `input_tokens` already excludes both cache counts; null counts are 0."""
    blocks, usage, stop = body.get("content") or [], body.get("usage") or {}, body.get("stop_reason")
    calls = []
    for block in (b for b in blocks if b.get("type") == "tool_use"):
        args = block.get("input")
        known = {"args": args} if isinstance(args, dict) else {"malformed": True, "raw": json.dumps(args)}
        calls.append(Call(id=block.get("id") or "", name=block.get("name") or "", **known))
    counts = {"input": "input_tokens", "output": "output_tokens",
              "cache_read": "cache_read_input_tokens", "cache_write": "cache_creation_input_tokens"}  # fmt: skip
    tokens = {ours: usage.get(theirs) or 0 for ours, theirs in counts.items()}
    thinking = (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    return Reply(
        text="".join(b.get("text") or "" for b in blocks if b.get("type") == "text"), calls=tuple(calls), stop=stop,
        usage=Usage(**tokens, reasoning=thinking), served=body.get("model") or "", refused=stop == "refusal",
        truncated=stop in ("max_tokens", "model_context_window_exceeded"), wire=blocks,
    )  # fmt: skip
