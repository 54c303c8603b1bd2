"""`python -m evalkit`: find suites, start one, look after the machine, evaluate an agent. Run it with --help."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from . import doctor, evaluate, frontier, grid, guards, report, scaffold, scenarios
from .fetch import CorpusError, entry, fetch
from .judge import STAGES
from .models import ProviderError
from .records import ROOT, redact
from .suites import load_suite, shown
from .worlds import load_world


def main(argv: list[str] | None = None) -> int:
    """Run one command; what was typed wrong is one line on stderr and exit code 2."""
    given = parser().parse_args(argv)
    load_dotenv(ROOT / ".env")  # never overrides the environment
    try:
        return int(given.run(given) or 0)
    except (ValueError, OSError, CorpusError, ProviderError, grid.Busy, grid.SetupChanged) as error:
        print(f"evalkit: {redact('; '.join(str(error).splitlines()))}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evalkit")
    commands = parser.add_subparsers(dest="verb", required=True)

    def add(name: str, run: Any, about: str, under: Any = commands) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = under.add_parser(name, help=about)
        made.set_defaults(run=run)
        return made

    suites = add("list", run_list, "the suites of data/, those that hold all WORDS")
    suites.add_argument("words", nargs="*", metavar="WORDS")
    suites.add_argument("--kind", choices=scaffold.KINDS)
    suites.add_argument("--tag", nargs=2, metavar=("KEY", "VALUE"), help="samples that have this tag")
    add("show", run_show, "what a suite is, with one sample whole").add_argument("suite")
    add("start", run_start, "the commands that run a suite, baselines first").add_argument("suite")
    about = add("doctor", run_doctor, "this machine; a model, as provider:name; or what a suite lacks for publication")
    about.add_argument("what", nargs="?", default="", metavar="MODEL|SUITE")

    new = add("new", run_new, "write a suite that works, and verify it")
    new.add_argument("name")
    new.add_argument("--kind", choices=scaffold.KINDS, required=True)
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--out", type=Path, help="folder of the suite's folder; else data/")
    new.add_argument("--brief", type=Path, help=f"text that tells {', '.join(scaffold.BRIEF)}")

    asked = add("evaluate", evaluate.run_evaluate, "put a case file, or a suite of data/, to somebody else's agent")
    asked.add_argument("suite", metavar="SUITE.json|SUITE")
    agent = asked.add_mutually_exclusive_group(required=True)
    agent.add_argument("--command", help="the agent as a command")
    agent.add_argument("--endpoint", help="the agent as a URL that takes a POST")
    agent.add_argument("--mock", action="store_true", help="an agent that says the same to everything")
    asked.add_argument("--timeout", type=float, default=30.0, help="seconds for one response")
    asked.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable the command may see")
    asked.add_argument("--repeats", type=int, default=1)
    asked.add_argument("--out", type=Path, help="the public receipt of a case file; else receipt.json")
    asked.add_argument("--private-out", type=Path, help="the receipt with the agent's responses, for its owner")
    asked.add_argument("--run-id", default="", help="of a suite's results; else evaluate-SUITE")

    challenge = add("challenge", run_challenge, "missions of the suites, and what results/ proves of them")
    challenge.add_argument("action", choices=["list", "show", "check"])
    challenge.add_argument("name", nargs="?", default="")

    corpus = add("corpus", run_corpus, "what is searched: list, fetch, build or check an index")
    corpus.add_argument("action", choices=["list", "fetch", "build", "check"])
    corpus.add_argument("name", nargs="?", default="", help="a table of data/corpora.toml, or dir:PATH")
    corpus.add_argument("--rebuild", action="store_true", help="embed everything anew")
    corpus.add_argument("--embedder", default="wordllama", help="wordllama, or MODEL@URL")
    corpus.add_argument("--store", choices=["numpy", "chroma"], default="numpy")

    export = commands.add_parser("export", help="write what others read").add_subparsers(dest="what", required=True)
    page = add("frontier", export_frontier, "a snapshot of accuracy and cost per correct, with one page", export)
    page.add_argument("runs", nargs="+", metavar="RUN", help="run ids, folders in results/")
    page.add_argument("--out", type=Path, required=True, help="folder of the snapshots")
    page.add_argument("--metric", default="", help="empty: what says right or wrong")
    page.add_argument("--gate", type=float, default=0.0, help="an agent below this share right is not called efficient")
    page.add_argument("--name", default="", help="of the snapshot; else the date of the newest measurement")
    add("report", export_report, "report.html again, from the rows and without a key", export).add_argument("run_id")
    table = add("parquet", export_parquet, "the tidy frame, a row for each trace and metric", export)
    table.add_argument("run_id")
    table.add_argument("--out", type=Path, required=True)
    return parser


def readme(folder: Path) -> str:
    """The first paragraph of a suite's README, on one line."""
    text = (folder / "README.md").read_text("utf-8") if (folder / "README.md").exists() else ""
    return " ".join(next((part for part in text.split("\n\n") if part.strip() and part[0] != "#"), "").split())


def run_list(given: Any) -> None:
    for folder in sorted(path.parent for path in (ROOT / "data").glob("*/suite.toml")):
        if given.kind and tomllib.loads((folder / "suite.toml").read_text("utf-8")).get("kind") != given.kind:
            continue
        suite, about, (key, value) = load_suite(folder.name), readme(folder), given.tag or ("", "")
        text = " ".join([suite.name, about, *(sample.prompt for sample in suite.samples)]).lower()
        tagged = [s for s in suite.samples if not key or str(s.tags.get(key)).lower() == value.lower()]
        if tagged and all(word.lower() in text for word in given.words):
            names = " ".join(condition.name for condition in suite.conditions)
            print(f"{suite.name:18} {suite.kind:12} {len(tagged):3} samples  {names}\n    {about.split('. ')[0]}")


def run_show(given: Any) -> None:
    suite = load_suite(given.suite)
    state = "unvalidated, marks are open" * bool(scaffold.marks(suite.path)) or "frozen" * suite.frozen or "not frozen"
    print(f"{suite.name}: {suite.kind}, {len(suite.samples)} samples, {state}\n{readme(suite.path)}\n")
    print(f"sha256  {suite.sha}\ncorpus  {suite.corpus or 'none'}\nrules   {', '.join(suite.rules)}\n")
    for condition in suite.conditions:
        print(f"condition {condition.name}: {' '.join(condition.instructions.split()) or 'no instructions of its own'}")
    tags = Counter((name, str(value)) for sample in suite.samples for name, value in sample.tags.items())
    print("\ntags", *(f"  {name} {value}: {count}" for (name, value), count in sorted(tags.items())), sep="\n")
    print("\na sample\n" + json.dumps(suite.samples[0].model_dump(mode="json", exclude_defaults=True), indent=1))
    if suite.kind == "scenario":
        family = load_world(suite.path).FAMILY
        components, exact = scenarios.FAMILIES[family]
        print(f"\nfamily {family}: {exact} is all of {', '.join(components)}")
        print("\nContract\n" + json.dumps(scenarios.Contract.model_json_schema(), indent=1))


def run_start(given: Any) -> None:
    suite = load_suite(given.suite)
    home = suite.path.resolve().parent == ROOT / "data"
    options = [f"--{name} {suite.settings[name]}" for name in ("embedder", "store") if name in suite.settings]
    words = {"root": shlex.quote(str(ROOT)), "run": shlex.quote(suite.name), "corpus": suite.corpus,
             "suite": suite.name if home else shlex.quote(str(suite.path.resolve())),
             "index": " ".join([shlex.quote(suite.corpus), *options])}  # fmt: skip
    holds = {"all": True, "away": Path.cwd() != ROOT, "corpus": suite.corpus and not suite.corpus.startswith("dir:"),
             "index": any("legs" in c.settings for c in suite.conditions), "judged": suite.kind in STAGES,
             "scenario": suite.kind == "scenario", "samples": suite.kind != "scenario"}  # fmt: skip
    for line in (scaffold.TEMPLATES / "start.txt").read_text("utf-8").splitlines():
        when, _, command = line.partition("| ")
        if holds[when.strip()]:
            print(re.sub(r"@([a-z]+)@", lambda match: words[match[1]], command))


def run_doctor(given: Any) -> int:
    if not given.what:
        return doctor.machine()
    if ":" in given.what and not Path(given.what).exists():
        return doctor.probe(given.what)
    suite = load_suite(given.what)
    lacks = list(scaffold.standing(suite.path))
    print(*lacks or [f"nothing stands between {suite.name} and publication"], sep="\n")
    return int(bool(lacks))


def run_new(given: Any) -> int:
    folder = scaffold.write(given.name, given.kind, given.seed, given.out, given.brief)
    if faults := scaffold.verify(folder):
        print(f"{shown(folder)} is written and does not stand", *faults, sep="\n", file=sys.stderr)
        return 1
    name = shlex.quote(given.name if folder.resolve().parent == ROOT / "data" else str(folder))
    print(
        f"{shown(folder)}: its tests and a mock run of {scaffold.REPEATS} repeats pass; README.md says what to replace"
    )
    print(f"python -m evalkit doctor {name}", f"python -m evalkit start {name}", sep="\n")
    return 0


def run_challenge(given: Any) -> int:
    if given.action == "show" and not given.name:
        raise ValueError("challenge show which? python -m evalkit challenge list names them")
    every = [(suite, m) for suite, m in scaffold.missions() if given.name in ("", m.name)]
    if not every:
        raise ValueError(f"no mission {given.name!r}; python -m evalkit challenge list names them")
    for suite, mission in every:
        if given.action == "list":
            print(f"{mission.name:20} {mission.kind:10} {suite:18} {' '.join(mission.what.split())}")
            continue
        if given.action == "show":
            wants = ", ".join(f"{k} {v}" for k, v in mission.evidence.model_dump(exclude_defaults=True).items())
            print(f"{mission.name}: {mission.kind}, {suite}\n{mission.what}\nproof: {wants}\n{mission.command}")
        proof = scaffold.proven(suite, mission.evidence)
        print(f"{mission.name}: " + (f"achieved by {proof}" if proof else "not yet"))
    return 0


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


def held(runs: list[str]) -> list[Path]:
    """The folders of these runs; raises ValueError where one is not there."""
    folders = [guards.run_dir(run) for run in runs]
    if absent := [folder.name for folder in folders if not (folder / "traces.jsonl").exists()]:
        raise ValueError(f"results/ has no run {', '.join(absent)}; make it by run.ipynb -p run_id {absent[0]}")
    return folders


def export_frontier(given: Any) -> None:
    print(frontier.export(held(given.runs), given.out, given.metric, given.gate, given.name))


def export_report(given: Any) -> None:
    import papermill

    (folder,) = held([given.run_id])
    with tempfile.TemporaryDirectory() as temp:
        papermill.execute_notebook(
            ROOT / "notebooks" / "analyze.ipynb", Path(temp) / "analyze.ipynb", {"runs": [folder.name]},
            kernel_name="python3", progress_bar=False, execution_timeout=1800,
        )  # fmt: skip
    print(folder / "report.html")


def export_parquet(given: Any) -> None:
    tidy = report.frame(held([given.run_id]))
    try:
        tidy.astype({name: str for name in tidy if tidy[name].dtype == object}).to_parquet(given.out)
    except ImportError:
        raise ValueError("parquet needs a package: python -m pip install pyarrow") from None
    print(given.out)


if __name__ == "__main__":
    sys.exit(main())
