"""A new suite that works before it is yours; what still stands between a suite and publication; its missions.

A suite is text of templates/ with its @names@ filled in. A line that is to become one's own bears the MARK, and as long
as one is left the suite is unvalidated. A mission (missions.toml) asks for a figure, a broken rule or a new world.
"""

from __future__ import annotations

import io
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from statistics import mean
from typing import Literal

from pydantic import ConfigDict

from . import grid, report, scoring
from .models import open_model
from .records import ROOT, Record, Suite, latest, reason
from .suites import load_suite, shown

MARK, LEAST, REPEATS = "REPLACE:", 24, 3  # LEAST samples of a suite that is published
TEMPLATES = Path(__file__).parent / "templates"
BRIEF = ("workflow", "risks", "archetypes", "volume", "proofs")
KINDS = tomllib.loads((TEMPLATES / "kinds.toml").read_text("utf-8"))


def read_brief(path: Path) -> dict[str, str]:
    """The five parts of a brief, each begun by a line `workflow: …` or a heading of that name; raises ValueError."""
    names = "|".join(BRIEF)
    parts = re.split(rf"^(?:#+ *)?({names})(?: wanted)?(?::|[ \t]*$)", path.read_text("utf-8"), flags=re.I | re.M)
    told = {name.lower(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    if lacks := [name for name in BRIEF if not told.get(name)]:
        raise ValueError(f"{path} says nothing of {', '.join(lacks)}; write a line for each, as in {lacks[0]}: …")
    if not (number := re.search(r"\d+", told["volume"])):
        raise ValueError(f"{path}: volume has no number; write for example volume: 48 cases")
    return told | {"volume": number[0]}


def write(name: str, kind: str, seed: int = 0, out: Path | None = None, brief: Path | None = None) -> Path:
    """Write the folder of a new suite and return it; raises ValueError rather than write over anything."""
    folder = (out or ROOT / "data") / name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name {name!r}: write small letters, digits and underscore, a letter first")
    if taken := [place for place in (folder, ROOT / "data" / name) if place.exists()]:
        raise ValueError(f"{shown(taken[0])} exists, and nothing is overwritten; choose another name")
    told = read_brief(brief) if brief else {}
    parts = {file.relative_to(TEMPLATES / base): file.read_text("utf-8")
             for base in ("common", kind) for file in sorted((TEMPLATES / base).rglob("*.*"))}  # fmt: skip
    marked = {str(path).removesuffix(".txt"): n for path, text in parts.items() if (n := text.count(MARK))}
    values = {
        "name": name, "seed": str(seed), "count": str(max(LEAST, int(told.get("volume", 0)))),
        "path": name if folder.parent.resolve() == ROOT / "data" else str(folder),
        "place": shown(folder), "home": shown(folder.resolve()), **KINDS[kind],
        "workflow": told.get("workflow", f"{MARK} one sentence on what this suite is for."),
        "risks": told.get("risks", f"- {MARK} what could go wrong in this work."),
        "archetypes": told.get("archetypes", "each kind of case that must occur does, and often enough to be counted."),
        "proofs": told.get("proofs", "what a reader must see to believe a figure is in the report."),
        "files": "\n".join(f"- `{path}`: {n} marked" for path, n in marked.items() if path[:4] not in ("READ", "FAIL")),
    }  # fmt: skip
    for path, text in parts.items():
        target = folder / str(path).removesuffix(".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"@([a-z]+)@", lambda match: values[match[1]], text), "utf-8")
    if brief:
        shutil.copyfile(brief, folder / "BRIEF.md")
    return folder


def marks(folder: Path) -> list[str]:
    """file:line of every mark that is still open; a brief is somebody's own words."""
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "BRIEF.md" and f.suffix != ".pyc"]
    lines = [(f, n, text) for f in files for n, text in enumerate(f.read_text("utf-8", "replace").splitlines(), 1)]
    return [f"{file.relative_to(folder)}:{n}" for file, n, text in lines if MARK in text]


def verify(folder: Path) -> list[str]:
    """What is wrong with a suite by its own tests and a mock evaluation of three repeats; empty when all pass."""
    suite, env = load_suite(folder), os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    if not (folder / "tests").is_dir():
        return ["it has no tests/; `python -m evalkit new` writes what they may look like", *mock(suite)]
    pytest = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run([*pytest, "--rootdir=.", "tests"], cwd=folder, env=env, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()[-1_500:]
    return [f"its tests do not pass:\n{said}"] * bool(done.returncode) + mock(suite)


def mock(suite: Suite) -> list[str]:
    """Play the controls through the grid into a folder that is thrown away: what fails, and what is out of order."""
    names = ["script:oracle", "script:null", *["script:gap"] * (suite.kind == "scenario")]
    right: defaultdict[str, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as temp, redirect_stderr(io.StringIO()):
        path = Path(temp) / "traces.jsonl"
        for name in names:
            model = open_model(name)
            grid.fill(path, grid.plan(suite, model, repeats=REPEATS), grid.tracing("mock", suite, model), who=name)
        traces = {trace.key: trace for trace in latest(grid.read(path)[0])}
        if failed := [trace.failure for trace in traces.values() if trace.failure]:
            return [f"mock run: {len(failed)} of {len(traces)} cells failed, the first with {failed[0].detail[:200]}"]
        rules = path.with_name("verdicts.jsonl")
        grid.fill(rules, scoring.owed(suite, [*traces.values()]), scoring.verdict, workers=1, who="rules")
        for verdict in grid.read(rules)[0]:
            trace = traces[verdict.of[0]]
            right[trace.condition][trace.model].append(scoring.is_right(verdict.values))
    faults = [] if right else ["mock run: suite.toml names no rule, so nothing says what is right"]
    for condition, arms in right.items():
        share = {model: mean(values) for model, values in arms.items()}
        if share["script:oracle"] < 1 or share["script:null"] == 1 or not 0 < share.get("script:gap", 0.5) < 1:
            said = ", ".join(f"{model} {value:.2f}" for model, value in share.items())
            faults.append(f"mock run: the controls are out of order under {condition}: {said}")
    return faults


def measured(name: str) -> dict[str, str]:
    """{model: run} of what has been measured of a suite, scripts and mocks left out."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "results").glob("*/traces.jsonl")):
        rows = [t for t in grid.read(path)[0] if t.suite == name and not t.failure]
        found |= {t.model: path.parent.name for t in rows if not t.model.startswith(("script:", "mock:"))}
    return found


def standing(folder: Path) -> Iterator[str]:
    """What stands between a suite and its publication, a sentence each."""
    suite, brief, modes = load_suite(folder), folder / "BRIEF.md", folder / "FAILURE_MODES.md"
    yield from (f"{place} is still to be replaced" for place in marks(folder))
    wanted, models = int(read_brief(brief)["volume"]) if brief.exists() else 0, measured(suite.name)
    if len(suite.samples) < max(LEAST, wanted):
        yield f"{len(suite.samples)} samples, and {max(LEAST, wanted)} are wanted"
    yield from ["it is not frozen: `frozen` in suite.toml is not the sha256 of its samples"] * (not suite.frozen)
    if len(models) < 2:
        have = ", ".join(f"{model} in {run}" for model, run in models.items()) or "none"
        yield f"fewer than two real models measured in results/ ({have})"
    observed = modes.read_text("utf-8").partition("## Observed")[2] if modes.exists() else ""
    if not observed.strip() or MARK in observed:
        yield "no failure that was observed stands in FAILURE_MODES.md under Observed"
    yield from verify(folder)


class Evidence(Record):
    """The mean of a metric over the samples of one arm, in results/*/verdicts.jsonl; names left out are any."""

    model_config = ConfigDict(extra="forbid")
    metric: str
    suite: str = ""  # empty: the one that declares it
    run: str = "*"
    model: str = ""
    condition: str = ""
    at_least: float = -math.inf
    at_most: float = math.inf
    equals: float | None = None  # to three places
    samples: int = 1  # measured at least


class Mission(Record):
    """Something to do with a suite, the free command that does it, and what proves that it was done."""

    model_config = ConfigDict(extra="forbid")
    name: str
    kind: Literal["reproduce", "break", "adapt"]
    what: str
    command: str
    evidence: Evidence


def missions() -> list[tuple[str, Mission]]:
    """(suite, mission) of every missions.toml in data/; raises ValueError that names the file."""
    found = []
    for path in sorted((ROOT / "data").glob("*/missions.toml")):
        try:
            rows = tomllib.loads(path.read_text("utf-8")).get("missions", [])
            found += [(path.parent.name, Mission.model_validate(row)) for row in rows]
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {reason(error)}") from None
    return found


def proven(suite: str, wanted: Evidence) -> str:
    """The run and the arm that prove a mission, with the figure they show, or nothing."""
    for path in sorted((ROOT / "results").glob(f"{wanted.run}/verdicts.jsonl")):
        tidy, arm = report.frame(path.parent).dropna(subset="value"), ["model", "condition"]
        for column in ("suite", "metric", *arm):
            name = getattr(wanted, column) or (suite if column == "suite" else "")
            tidy = tidy[tidy[column] == name] if name else tidy
        means = tidy.groupby([*arm, "sample_id"])["value"].mean().groupby(arm)
        for (model, condition), (value, n) in means.agg(["mean", "size"]).iterrows():
            equal = wanted.equals is None or abs(value - wanted.equals) < 5e-4
            if equal and wanted.at_least <= value <= wanted.at_most and n >= wanted.samples:
                return f"{path.parent.name}, {model} {condition} {wanted.metric} {value:.3f} over {n:.0f} samples"
    return ""
