"""`python -m evalkit`: corpora and exports, so far. Run it with --help."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

from . import frontier, guards
from .fetch import CorpusError, entry, fetch
from .records import ROOT


def main(argv: list[str] | None = None) -> int:
    """Run one command; what was typed wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m evalkit")
    commands = parser.add_subparsers(dest="command", required=True)

    corpus = commands.add_parser("corpus", help="what is searched: list, fetch, build or check an index")
    corpus.add_argument("action", choices=["list", "fetch", "build", "check"])
    corpus.add_argument("name", nargs="?", default="", help="a table of data/corpora.toml, or dir:PATH")
    corpus.add_argument("--rebuild", action="store_true", help="embed everything anew")
    corpus.add_argument("--embedder", default="wordllama", help="wordllama, or MODEL@URL")
    corpus.add_argument("--store", choices=["numpy", "chroma"], default="numpy")
    corpus.set_defaults(run=run_corpus)

    export = commands.add_parser("export", help="write what others read").add_subparsers(dest="what", required=True)
    page = export.add_parser("frontier", help="a snapshot of accuracy and cost per correct, with one page to look at")
    page.add_argument("runs", nargs="+", metavar="RUN", help="run ids, folders in results/")
    page.add_argument("--out", type=Path, required=True, help="folder of the snapshots")
    page.add_argument("--metric", default="correct")
    page.add_argument("--gate", type=float, default=0.0, help="an agent below this share right is not called efficient")
    page.add_argument("--name", default="", help="of the snapshot; else the date of the newest measurement")
    page.set_defaults(run=export_frontier)

    given = parser.parse_args(argv)
    try:
        return int(given.run(given) or 0)
    except (ValueError, OSError, CorpusError) as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return 2


def run_corpus(given: Any) -> int:
    """List, fetch, build or check; a check that finds a fault ends with 1."""
    if given.action == "list":
        for name, row in tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8")).items():
            print(f"{name:16} {row['source']:32} {row['licence']}")
        return 0
    if not given.name:
        raise ValueError(
            f"corpus {given.action} which? Name it, as in: python -m evalkit corpus {given.action} fastify"
        )
    if given.action == "fetch" and not given.name.startswith("dir:"):
        print(fetch(given.name))
        return 0
    from .search import code, index

    if not given.name.startswith("dir:") and "code" not in entry(given.name):
        raise ValueError(f"{given.name} is no corpus of code and needs no index; `corpus fetch {given.name}` is enough")
    if given.action == "fetch":
        print(code.root(given.name))
    elif given.action == "build":
        made = index.build(given.name, given.embedder, given.store, given.rebuild)
        print(f"{given.name}: {made['files']} files, {made['chunks']} chunks, {made['embedded']} of them embedded now")
    else:
        faults = index.health(given.name, given.embedder, given.store)
        print("\n".join(faults) or f"{given.name}: the index is sound")
        return int(bool(faults))
    return 0


def export_frontier(given: Any) -> None:
    folders = [guards.run_dir(run) for run in given.runs]
    if absent := [folder.name for folder in folders if not (folder / "traces.jsonl").exists()]:
        raise ValueError(f"results/ has no run {', '.join(absent)}; make it by run.ipynb -p run_id {absent[0]}")
    print(frontier.export(folders, given.out, given.metric, given.gate, given.name))


if __name__ == "__main__":
    sys.exit(main())
