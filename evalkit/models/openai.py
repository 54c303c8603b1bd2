"""`openai:MODEL` and every server that speaks Chat Completions: the named ones, and `compat:NAME@URL` for any other."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from ..records import Call, Reply, Said, Step, Usage, redact
from . import SERVERS, Prompt, Served


class OpenAI(Served):
    path, wire = "/chat/completions", "openai"

    def __init__(self, provider: str, model: str, options: dict[str, Any], base_url: str = ""):
        url, key_name = SERVERS.get(provider, ("", "OPENAI_API_KEY"))
        name = model
        if provider == "compat":
            model, _, url = model.partition("@")
            if not re.match(r"https?://[^@]+$", url):
                raise ValueError(
                    f"compat:{redact(name)}: write compat:NAME@URL, as in compat:qwen@http://127.0.0.1:8080/v1"
                )
            key_name = "COMPAT_API_KEY" if os.environ.get("COMPAT_API_KEY") else ""
        super().__init__(model, options, provider, key_name)
        self.name = f"{provider}:{redact(name)}"
        self.priced = provider not in ("compat", "ollama", "llamacpp")
        self.limit = "max_completion_tokens" if provider == "openai" else "max_tokens"
        import openai

        self.sdk = openai
        key = os.environ[key_name].strip() if key_name else "none"
        self.client = self.connect(openai.OpenAI, api_key=key, base_url=base_url or url or None)

    def request(self, prompt: Prompt) -> dict[str, Any]:
        messages = [{"role": "system", "content": prompt.system}] * bool(prompt.system) + to_wire(prompt.said)
        request: dict[str, Any] = {"model": self.model, "messages": messages, self.limit: prompt.max_tokens}
        if prompt.tools and not prompt.closing:
            functions = [{"name": t.name, "description": t.about, "parameters": t.schema} for t in prompt.tools]
            request |= {"tools": [{"type": "function", "function": f} for f in functions], "tool_choice": "auto"}
        if prompt.schema:
            shape = {"name": "reply", "schema": prompt.schema}
            request["response_format"] = {"type": "json_schema", "json_schema": shape}
        names = {"effort": "reasoning_effort", "temperature": "temperature"}
        return request | {names[name]: value for name, value in self.taken().items()}


def to_wire(said: Sequence[Said]) -> list[dict[str, Any]]:
    """The conversation as messages; what a server thought beside its answer (`reasoning_content`) goes back with it."""
    wire: list[dict[str, Any]] = []
    for entry in said:
        if isinstance(entry, Reply):
            message: dict[str, Any] = {"role": "assistant", "content": entry.text or (None if entry.calls else "")}
            if entry.calls:
                message["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": _function(c)} for c in entry.calls
                ]
            wire.append(message | (entry.wire or {}))
        elif isinstance(entry, Step):
            wire.append({"role": "tool", "tool_call_id": entry.call.id, "content": entry.result})
        else:
            wire.append({"role": "user", "content": entry})
    return wire


def parse(body: dict[str, Any]) -> Reply:
    """A Chat Completions body as a Reply. `prompt_tokens` includes the cached ones, ours does not."""
    choice = (body.get("choices") or [{}])[0]
    message, usage, stop = choice.get("message") or {}, body.get("usage") or {}, choice.get("finish_reason")
    content = message.get("content") or ""
    if isinstance(content, list):  # parts, as Mistral writes them
        content = "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    kept = {name: message[name] for name in ("reasoning_content", "reasoning_details") if message.get(name)}
    return Reply(
        text=message.get("refusal") or content,
        calls=tuple(_call(str(c.get("id") or ""), c.get("function") or {}) for c in message.get("tool_calls") or ()),
        stop=stop, served=body.get("model") or "", truncated=stop == "length", wire=kept or None,
        refused=bool(message.get("refusal")) or stop == "content_filter",
        usage=Usage(
            input=max(0, (usage.get("prompt_tokens") or 0) - cached), cache_read=cached,
            output=usage.get("completion_tokens") or 0,
            reasoning=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
        ),
    )  # fmt: skip


def _function(call: Call) -> dict[str, str]:
    """The call as it goes back; some servers read the arguments again, so malformed ones go back empty."""
    return {"name": call.name, "arguments": "{}" if call.malformed else call.raw or json.dumps(call.args)}


def _call(call_id: str, function: dict[str, Any]) -> Call:
    """Blank argument text means {}; no argument text at all, or text that is no JSON object, is malformed."""
    raw = function.get("arguments")
    try:
        args = raw if isinstance(raw, dict) else json.loads(raw.strip() or "{}") if raw is not None else None
    except (ValueError, AttributeError, RecursionError):
        args = None
    text = raw if isinstance(raw, str) else "" if raw is None else json.dumps(raw)
    known = {"args": args} if isinstance(args, dict) else {"malformed": True}
    return Call(id=call_id, name=function.get("name") or "", raw=text, **known)
