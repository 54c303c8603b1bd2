"""The index of the whole Fastify package: built in a fresh cache, queried, started again, and mended after a change.

Package files are fetched before the clock starts; unpacking, parsing, embedding and writing are measured, in processes
of their own. The table goes to tests/bench/code_index.md with the machine named.

    python tests/bench/code_index.py
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from evalkit.fetch import fetch
from evalkit.search import code, index

ROUNDS = 3
QUERIES = ("Where is the default body limit checked?", "How is a stream sent as a reply?", "onTimeout hook",
           "which error is thrown for a duplicated route", "inherit decorators in a child context")  # fmt: skip
START = "from evalkit.search import index; index.search('fastify', 'onTimeout hook')"
BUILD = "import sys; from evalkit.search import index; index.build(sys.argv[1])"
ASK = """import json, sys, time
from evalkit.search import code, index
queries, times = json.loads(sys.argv[1]), {}
ways = {" + ".join(legs): (index.search, legs) for legs in
        (["vector", "bm25", "graph"], ["vector", "bm25"], ["vector"], ["bm25"])}
ways["ripgrep by keywords"] = (code.rg_keywords,)
for name, (way, *legs) in ways.items():
    for query in queries * 20:
        started = time.perf_counter()
        way("fastify", query, 10, *legs)
        times.setdefault(name, []).append(time.perf_counter() - started)
print(json.dumps(times))"""


def seconds(script: str, *arguments: str) -> float:
    """How long a process of its own takes, its start included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    return time.perf_counter() - started


def main() -> None:
    packages, rows, load = [fetch("fastify"), fetch("wordllama")], [], os.getloadavg()[0]
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            for package in packages:
                shutil.copy(package, cache)
            os.environ["EVALKIT_CACHE"] = cache
            rows.append([seconds(BUILD, "fastify"), seconds(START), seconds(BUILD, "fastify")])
            folder = shutil.copytree(code.root("fastify"), Path(cache) / "copy", copy_function=shutil.copyfile)
            counts = index.build(f"dir:{folder}")
            (folder / "lib").chmod(0o755)
            (folder / "lib" / "reply.js").write_text((folder / "lib" / "reply.js").read_text() + "\nlet changed = 1\n")
            changed = index.build(f"dir:{folder}")["embedded"]
            asked = subprocess.run([sys.executable, "-c", ASK, json.dumps(QUERIES)], capture_output=True, check=True)
            size = index.place("fastify").stat().st_size
            subprocess.run(["chmod", "-R", "u+w", cache], check=True)
    built, again, nothing = (statistics.median(column) for column in zip(*rows, strict=True))
    ram, python = psutil.virtual_memory().total / 2**30, platform.python_version()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {ram:.0f} GB RAM, Python {python}"
    corpus = f"fastify 5.12.8, {counts['files']} files, {counts['chunks']} chunks, embedded by wordllama"
    table = [
        f"| build in a fresh cache | {built:.1f} s |",
        f"| build when nothing changed | {nothing:.1f} s |",
        f"| chunks embedded after one line was added to lib/reply.js | {changed} of {counts['chunks']} |",
        f"| second start: process, load, first query | {again:.1f} s |",
        *(f"| a query by {name}, median | {1000 * statistics.median(times):.1f} ms |"
          for name, times in json.loads(asked.stdout).items()),
        f"| the index file | {size / 1e6:.1f} MB |",
    ]  # fmt: skip
    about = f"{corpus}, median of {ROUNDS} rounds, load {load:.1f} at the start. {machine}."
    text = "\n".join(["# The index of code", "", about, "", "| what | measured |", "|---|---|", *table, ""])
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
