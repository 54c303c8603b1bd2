"""A local provider: Anthropic Messages and OpenAI chat completions, saying what the test that starts it wants said.

A test gives replies, one a request of a conversation, or a function (request body, number of the request in its
conversation, from 0) -> reply. A reply is `says(...)`, `error(...)`, a body, (status, body, headers), RESET or CUT.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

RESET, CUT = "reset", "cut"  # the connection is reset before a reply; the body ends half way


class Request(NamedTuple):
    path: str
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]
    conversation: str  # everything before the model's first turn

    @property
    def prompt(self) -> str:
        """The user's first words."""
        content = next(m["content"] for m in self.body["messages"] if m["role"] == "user")
        return content if isinstance(content, str) else content[-1]["text"]


def says(text="", calls=(), stop="", usage=None, model="", before=()):
    """A reply in the format of the request; calls are (id, name, arguments), before are blocks ahead of the text."""

    def body(request: Request) -> dict[str, Any]:
        served = model or request.body["model"]
        if request.path == "/v1/messages":
            uses = [{"type": "tool_use", "id": i, "name": name, "input": args} for i, name, args in calls]
            return {
                "id": "msg_1", "type": "message", "role": "assistant", "model": served, "stop_sequence": None,
                "content": [*before, *[{"type": "text", "text": text}] * bool(text), *uses],
                "stop_reason": stop or ("tool_use" if calls else "end_turn"),
                "usage": usage or {"input_tokens": 100, "output_tokens": 20},
            }  # fmt: skip
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in calls]
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": made} if made else {})
        choice = {"index": 0, "message": message, "finish_reason": stop or ("tool_calls" if calls else "stop")}
        counts = usage or {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return {"id": "c_1", "object": "chat.completion", "created": 0, "model": served, "choices": [choice],
                "usage": counts}  # fmt: skip

    return body


def error(status, message="no", after=None):
    """An error as both providers write it, with a retry-after header of so many seconds."""
    body = {"type": "error", "error": {"type": "api_error", "message": message}}
    return status, body, {} if after is None else {"retry-after": str(after)}


def tool_loop(turns=1, answer="The default is 30 seconds."):
    """Calls grep_index for so many turns while it may, then answers."""

    def reply(body, number):
        asked = sum(m["role"] == "assistant" for m in body["messages"])
        may = body.get("tools") and body.get("tool_choice") not in ("none", {"type": "none"})
        call = (f"call-{asked}", "grep_index", {"pattern": "timeout"})
        return says(calls=[call]) if may and asked < turns else says(answer)

    return reply


class Provider:
    """`with Provider(replies) as server:` listens on `server.url`, a free port, and keeps `server.requests`."""

    def __init__(self, replies=None, delay=0.0):
        self.replies, self.delay = replies or tool_loop(), delay  # seconds before each reply
        self.requests: list[Request] = []
        self.connections, self.lock = 0, threading.Lock()

    def __enter__(self):
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.provider = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: Request):
        with self.lock:
            number = sum(earlier.conversation == request.conversation for earlier in self.requests)
            self.requests.append(request)
        time.sleep(self.delay)
        script = self.replies
        if not callable(script) and number >= len(script):
            return error(404, f"the test has {len(script)} replies, this is request {number + 1}")
        return script(request.body, number) if callable(script) else script[number]


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128
    provider: Provider


class _Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1

    def setup(self):
        super().setup()
        with self.server.provider.lock:
            self.server.provider.connections += 1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        first = next((i for i, m in enumerate(body["messages"]) if m["role"] == "assistant"), None)
        conversation = json.dumps([body.get("system"), body["messages"][:first]])
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body, conversation)
        reply = self.server.provider.answer(request)
        if reply == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        whole = says("This reply is cut.") if reply == CUT else reply
        status, content, extra = whole if isinstance(whole, tuple) else (200, whole, {})
        content = content(request) if callable(content) else content
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"content-type": "application/json", "content-length": str(len(data))} | extra).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if reply == CUT else data)
        self.close_connection = self.close_connection or reply == CUT

    def log_message(self, *args):
        pass
