"""A fast local server for the bench: answers every request at once with a canned tool call, at last in words."""

from __future__ import annotations

import asyncio
import json

CALLS = 3


def bodies() -> dict[str, tuple[bytes, bytes]]:
    """{path: (a tool call, the final answer)} in each provider's format."""
    text = "The limit is 42. Sources: https://docs.example/a/"
    usage = {"input_tokens": 900, "output_tokens": 40}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "usage": usage}
    call = {"type": "tool_use", "id": "ID", "name": "grep_index", "input": {"pattern": "limit"}}
    anthropic = (
        message | {"stop_reason": "tool_use", "content": [call]},
        message | {"stop_reason": "end_turn", "content": [{"type": "text", "text": text}]},
    )
    usage = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940}
    function = {"name": "grep_index", "arguments": '{"pattern": "limit"}'}
    replies = (
        ({"content": None, "tool_calls": [{"id": "ID", "type": "function", "function": function}]}, "tool_calls"),
        ({"content": text}, "stop"),
    )
    openai = tuple(
        {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt-5.4", "usage": usage,
         "choices": [{"index": 0, "finish_reason": stop, "message": {"role": "assistant"} | said}]}
        for said, stop in replies
    )  # fmt: skip
    pack = lambda pair: tuple(json.dumps(body).encode() for body in pair)  # noqa: E731
    return {"/v1/messages": pack(anthropic), "/v1/chat/completions": pack(openai)}


BODIES = bodies()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
            size = next(int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length"))
            body = await reader.readexactly(size)
            turn = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
            call, final = BODIES[head.split(" ", 2)[1]]
            reply = call.replace(b'"ID"', b'"call-%d"' % turn) if turn < CALLS else final
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply)
            )
            writer.write(reply)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.wait_for(server.serve_forever(), 1800)


if __name__ == "__main__":
    asyncio.run(main())
