"""A local provider: Anthropic Messages and OpenAI chat completions, saying what the test that starts it wants said.

A test gives replies, one a request of a conversation, or a function (request body, number of the request in its
conversation, from 0) -> reply. A reply is `says(...)`, `error(...)`, a body, (status, body, headers), RESET or CUT.
"""

import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

RESET, CUT = "reset", "cut"  # the connection is reset before a reply; the body ends half way


def says(text="", calls=(), stop="", usage=None, model="", before=()):
    """A reply in the format of the request; calls are (id, name, arguments), before are blocks ahead of the text."""

    def body(request):
        served = {"id": "r_1", "model": model or request.body["model"]}
        if request.path == "/v1/messages":
            uses = [{"type": "tool_use", "id": i, "name": name, "input": args} for i, name, args in calls]
            content = [*before, *[{"type": "text", "text": text}] * bool(text), *uses]
            why = {"stop_reason": stop or ("tool_use" if calls else "end_turn"), "stop_sequence": None}
            counts = {"usage": usage or {"input_tokens": 100, "output_tokens": 20}}
            return served | why | counts | {"type": "message", "role": "assistant", "content": content}
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in calls]
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": made} if made else {})
        choice = {"index": 0, "message": message, "finish_reason": stop or ("tool_calls" if calls else "stop")}
        counts = usage or {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return served | {"object": "chat.completion", "created": 0, "choices": [choice], "usage": counts}

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


def question(body):
    """The user's first words in a request."""
    content = next(m["content"] for m in body["messages"] if m["role"] == "user")
    return content if isinstance(content, str) else content[-1]["text"]


class Provider(ThreadingHTTPServer):
    """`with Provider(replies) as server:` listens on `server.url`, a free port, and keeps `server.requests`."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, replies=None, delay=0.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.replies, self.delay = replies or tool_loop(), delay  # seconds before each reply
        self.requests, self.connections, self.lock = [], 0, threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *fault):
        self.shutdown()
        super().__exit__(*fault)

    def answer(self, request):
        with self.lock:
            number = sum(earlier.conversation == request.conversation for earlier in self.requests)
            self.requests.append(request)
        time.sleep(self.delay)
        if callable(self.replies):
            return self.replies(request.body, number)
        return self.replies[number] if number < len(self.replies) else error(404, f"no reply to request {number + 1}")

    def handle_error(self, *client):
        if not isinstance(sys.exception(), ConnectionError):  # a client that went away is nothing to report
            super().handle_error(*client)


class Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1
    log_message = staticmethod(lambda *line: None)

    def setup(self):
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        first = next((i for i, m in enumerate(body["messages"]) if m["role"] == "assistant"), None)
        conversation = json.dumps([body.get("system"), body["messages"][:first]])  # all before the model's first turn
        request = SimpleNamespace(path=self.path, headers=self.headers, body=body, conversation=conversation)
        reply = self.server.answer(request)
        self.close_connection = self.close_connection or reply in (RESET, CUT)
        if reply == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self.connection.close()
        content = says("This reply is cut.") if reply == CUT else reply
        status, content, extra = content if isinstance(content, tuple) else (200, content, {})
        content = content(request) if callable(content) else content
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"content-type": "application/json", "content-length": str(len(data))} | extra).items():
            self.send_header(name, value)
        self.end_headers()
        return self.wfile.write(data[: len(data) // 2] if reply == CUT else data)
