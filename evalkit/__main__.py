"""`python -m evalkit`: export, so far. Run it with --help."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import frontier, guards


def main(argv: list[str] | None = None) -> int:
    """Run one command; what was typed wrong is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m evalkit")
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write what others read").add_subparsers(dest="what", required=True)
    page = export.add_parser("frontier", help="a snapshot of accuracy and cost per correct, with one page to look at")
    page.add_argument("runs", nargs="+", metavar="RUN", help="run ids, folders in results/")
    page.add_argument("--out", type=Path, required=True, help="folder of the snapshots")
    page.add_argument("--metric", default="correct")
    page.add_argument("--gate", type=float, default=0.0, help="an agent below this share right is not called efficient")
    page.add_argument("--name", default="", help="of the snapshot; else the date of the newest measurement")
    given = parser.parse_args(argv)
    try:
        folders = [guards.run_dir(run) for run in given.runs]
        if absent := [folder.name for folder in folders if not (folder / "traces.jsonl").exists()]:
            raise ValueError(
                f"no run {', '.join(absent)} in results/; run notebooks/run.ipynb with -p run_id {absent[0]}"
            )
        print(frontier.export(folders, given.out, given.metric, given.gate, given.name))
    except (ValueError, OSError) as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
