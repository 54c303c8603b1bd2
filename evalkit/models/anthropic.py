"""`anthropic:MODEL`, the Messages API."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from ..records import Call, Reply, Said, Step, Usage
from . import Prompt, Served

CACHE = {"type": "ephemeral"}  # system text and tools are the same for every sample of a condition


class Anthropic(Served):
    path, wire = "/v1/messages", "anthropic"

    def __init__(self, model: str, options: dict[str, Any], base_url: str = ""):
        super().__init__(model, options, "anthropic", "ANTHROPIC_API_KEY")
        import anthropic

        self.sdk = anthropic
        key = os.environ["ANTHROPIC_API_KEY"].strip()
        self.client = self.connect(anthropic.Anthropic, api_key=key, base_url=base_url or None)

    def request(self, prompt: Prompt) -> dict[str, Any]:
        messages = to_wire(prompt.said)
        request: dict[str, Any] = {"model": self.model, "max_tokens": prompt.max_tokens, "messages": messages}
        if prompt.system:
            request["system"] = [{"type": "text", "text": prompt.system, "cache_control": CACHE}]
        if prompt.tools:
            tools = [{"name": t.name, "description": t.about, "input_schema": t.schema} for t in prompt.tools]
            # a history with tool calls must keep its tools defined, so closing forbids them instead
            choice = {"type": "none" if prompt.closing else "auto"}
            request |= {"tools": [*tools[:-1], tools[-1] | {"cache_control": CACHE}], "tool_choice": choice}
        options = self.taken()
        output = {"effort": options["effort"]} if "effort" in options else {}
        if prompt.schema:
            output["format"] = {"type": "json_schema", "schema": prompt.schema}
        if "temperature" in options:
            request["temperature"] = options["temperature"]
        return request | ({"output_config": output} if output else {})


def to_wire(said: Sequence[Said]) -> list[dict[str, Any]]:
    """The conversation as the API wants it: a reply goes back whole, the results of one turn in one user message."""
    wire: list[dict[str, Any]] = []
    for entry in said:
        if isinstance(entry, Reply):
            ids = iter(entry.calls)
            blocks = [b for b in entry.wire or () if b["type"] != "text" or b.get("text", "").strip()]
            content = [b | {"id": next(ids).id} if b["type"] == "tool_use" else b for b in blocks]
            content = content or [{"type": "text", "text": entry.text}] * bool(entry.text.strip()) + [
                {"type": "tool_use", "id": c.id, "name": c.name, "input": c.args} for c in entry.calls
            ]
            wire.append({"role": "assistant", "content": content or [{"type": "text", "text": "(no answer)"}]})
            continue
        block: dict[str, Any] = {"type": "text", "text": entry}
        if isinstance(entry, Step):
            block = {"type": "tool_result", "tool_use_id": entry.call.id, "content": entry.result}
            block |= {} if entry.ok else {"is_error": True}
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
        calls.append(Call(id=str(block.get("id") or ""), name=block.get("name") or "", **known))
    counts = {"input": "input_tokens", "output": "output_tokens",
              "cache_read": "cache_read_input_tokens", "cache_write": "cache_creation_input_tokens"}  # fmt: skip
    tokens = {ours: usage.get(theirs) or 0 for ours, theirs in counts.items()}
    thinking = (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    return Reply(
        text="".join(b.get("text") or "" for b in blocks if b.get("type") == "text"), calls=tuple(calls), stop=stop,
        usage=Usage(**tokens, reasoning=thinking), served=body.get("model") or "", refused=stop == "refusal",
        truncated=stop in ("max_tokens", "model_context_window_exceeded"), wire=blocks,
    )  # fmt: skip
