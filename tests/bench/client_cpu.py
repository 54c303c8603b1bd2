"""Client CPU per sample: the whole grid against the bare official SDK in a thread pool, in one run.

Both sides play 4 turns with the same 2 KB tool stub, 400 samples, 64 workers, no latency, against one local server in a
process of its own. The grid's side has everything on: loop, tool execution, scoring, writing. What is compared is the
CPU time of this process; the table goes to tests/bench/client_cpu.md with the machine named.

    python tests/bench/client_cpu.py [samples]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evalkit import grid, open_model, scoring
from evalkit.records import Condition, Sample, Suite
from evalkit.tools import tool

TURNS, WORKERS, ROUNDS = 4, 64, 3
STUB = "x" * 79 + "\n"
SERVER = Path(__file__).with_name("server.py")
SYSTEM = "You answer questions about a web framework. " * 8


def grep_index(pattern: str) -> str:
    """Search the documentation index line by line."""
    return STUB * 25


def suite(n: int) -> Suite:
    condition = Condition(name="stub", instructions="Search, then answer.", tools=lambda s: (TOOL,), system=SYSTEM)
    gold = {"answer": "It is 42.", "key_fact": ["42"], "urls": ["https://docs.example/a/"]}
    samples = tuple(Sample(id=f"q{i:04}", prompt=f"Question {i}: what is the limit?", gold=gold) for i in range(n))
    return Suite(
        name="bench", kind="docs_qa", path=Path(), samples=samples, conditions=(condition,), rules=("docs_qa",)
    )


TOOL = tool(grep_index)


def ours(spec: str, base_url: str, n: int) -> float:
    data, model = suite(n), open_model(spec, base_url=base_url)
    with tempfile.TemporaryDirectory() as folder:
        traces, verdicts = Path(folder) / "traces.jsonl", Path(folder) / "verdicts.jsonl"
        started = time.process_time()
        grid.fill(traces, grid.plan(data, model), grid.tracing("bench", data, model), workers=WORKERS)
        rows, _ = grid.read(traces)
        grid.fill(verdicts, scoring.owed(data, rows), scoring.verdict, workers=1)
        spent = time.process_time() - started
    assert all(row.stop == "answered" and row.turns == TURNS for row in rows) and len(rows) == n
    return spent


def bare_anthropic(base_url: str, n: int) -> float:
    import anthropic

    client = anthropic.Anthropic(base_url=base_url, max_retries=0)
    tools = [{"name": TOOL.name, "description": TOOL.about, "input_schema": TOOL.schema}]

    def one(i: int) -> None:
        messages = [{"role": "user", "content": f"Question {i}: what is the limit?"}]
        for _ in range(TURNS):
            reply = client.messages.create(
                model="claude-haiku-4-5", max_tokens=4096, system=SYSTEM, messages=messages, tools=tools
            )
            messages.append({"role": "assistant", "content": reply.content})
            calls = [b for b in reply.content if b.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": b.id, "content": grep_index(**b.input)} for b in calls]
            messages.append({"role": "user", "content": results})

    return pooled(one, n)


def bare_openai(base_url: str, n: int) -> float:
    import openai

    client = openai.OpenAI(base_url=base_url, max_retries=0)
    function = {"name": TOOL.name, "description": TOOL.about, "parameters": TOOL.schema}

    def one(i: int) -> None:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question {i}?"}]
        for _ in range(TURNS):
            reply = client.chat.completions.create(
                model="gpt-5.4", messages=messages, tools=[{"type": "function", "function": function}]
            )
            message = reply.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                content = grep_index(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    return pooled(one, n)


def pooled(one, n: int) -> float:
    started = time.process_time()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, range(n)))
    return time.process_time() - started


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        os.environ[name] = "bench"
    server = subprocess.Popen([sys.executable, SERVER], stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    sides = {
        "anthropic": (lambda k: bare_anthropic(url, k), lambda k: ours("anthropic:claude-haiku-4-5", url, k)),
        "openai": (lambda k: bare_openai(f"{url}/v1", k), lambda k: ours("openai:gpt-5.4", f"{url}/v1", k)),
    }
    lines = ["| SDK | bare, CPU ms a sample | grid, CPU ms a sample | ratio |", "|---|---|---|---|"]
    try:
        for name, (bare, grid_side) in sides.items():
            bare(16), grid_side(16)  # imports and connections
            pairs = [(bare(n) / n * 1e3, grid_side(n) / n * 1e3) for _ in range(ROUNDS)]
            one, two = (statistics.median(side) for side in zip(*pairs, strict=True))
            lines.append(f"| {name} | {one:.2f} | {two:.2f} | {two / one:.2f} |")
    finally:
        server.terminate()
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    where = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {cpu}, Python {platform.python_version()}"
    )
    text = (
        f"# Client CPU of the grid\n\n{n} samples, {TURNS} turns, {WORKERS} workers, 2 KB tool results, latency 0, "
        f"median of {ROUNDS} rounds. {where}.\n\n" + "\n".join(lines) + "\n"
    )
    Path(__file__).with_suffix(".md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
