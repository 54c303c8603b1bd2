"""The notebooks, run as people run them: through papermill, from its API and from its command line."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import papermill
import pytest
from click.testing import CliRunner
from papermill.cli import papermill as command
from provider import error, question, tool_loop
from seen import Seen

from evalkit import grid, guards, load_suite, report
from evalkit.records import ROOT, latest

CONTROLS = ("script:null", "script:random", "script:oracle")
TEMPLATES = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIRST = sorted(sample.id for sample in load_suite("docs_qa").samples)[:4]


def execute(folder, name, **parameters):
    """The executed notebook, also when it fails, and how it failed."""
    output, fault = folder / f"{name}-{len(list(folder.iterdir()))}.ipynb", None
    try:
        papermill.execute_notebook(ROOT / "notebooks" / f"{name}.ipynb", output, parameters, progress_bar=False,
                                   execution_timeout=120, cwd=folder)  # fmt: skip
    except papermill.PapermillExecutionError as error:
        fault = error
    return json.loads(output.read_text("utf-8")), fault


def shown(notebook):
    """What a reader sees below the cells, as one text."""
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    texts = [out.get("text", "") for out in outputs] + [
        text for out in outputs for kind, text in out.get("data", {}).items() if kind.startswith("text/")
    ]
    return "\n".join("".join(text) for text in texts)


def banner(notebook):
    """What stands below the first cell that calls guards.banner."""
    first = next(c for c in notebook["cells"] if c["cell_type"] == "code" and "guards.banner()" in "".join(c["source"]))
    return shown({"cells": [first]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def first_run(folder, run_id):
    """run.ipynb with four questions, its notebook and the rows it left."""
    notebook, fault = execute(folder, "run", run_id=run_id, model="extractive:", limit=4)
    assert fault is None, fault
    return notebook, (guards.run_dir(run_id) / "traces.jsonl").read_bytes()


@pytest.fixture(scope="module")
def judged(folder, run_id, first_run):
    notebook, fault = execute(folder, "judge", run_id=run_id)
    assert fault is None, fault
    return notebook


@pytest.fixture(scope="module")
def analyzed(folder, run_id, judged):
    notebook, fault = execute(folder, "analyze", runs=[run_id])
    assert fault is None, fault
    return notebook


def test_curate_finds_no_fault_and_the_suite_as_it_was_frozen(folder):
    notebook, fault = execute(folder, "curate")
    assert fault is None and "Finished" in banner(notebook) and "0 faults" in banner(notebook)
    assert "nothing found" in shown(notebook) and "as frozen" in shown(notebook)


def test_a_run_measures_every_cell_of_the_model_and_of_the_controls_once(run_id, first_run):
    rows, problems = grid.read(guards.run_dir(run_id) / "traces.jsonl")
    assert problems == [] and not any(row.failure for row in rows)
    cells = {(m, c, s) for m in ("extractive:", *CONTROLS) for c in ("closed_book", "index_grep") for s in FIRST}
    assert {(row.model, row.condition, row.sample_id) for row in rows} == cells and len(rows) == len(cells) == 32
    assert {row.run_id for row in rows} == {run_id}


def test_a_run_says_on_top_that_it_finished_and_below_what_it_measured(run_id, first_run):
    assert "Finished: 8 of 8 cells measured, 0 failed" in banner(first_run[0])
    assert "NOT FINISHED" not in shown(first_run[0])
    assert "Provenance" in json.dumps(first_run[0]) and load_suite("docs_qa").sha in shown(first_run[0])
    noted = json.loads((guards.run_dir(run_id) / "run.json").read_text())
    assert [entry["samples_sha256"] for entry in noted.values()] == [load_suite("docs_qa").sha]


def test_a_second_run_adds_no_row(folder, run_id, first_run):
    notebook, fault = execute(folder, "run", run_id=run_id, model="extractive:", limit=4)
    assert fault is None and "Finished: 8 of 8" in banner(notebook)
    assert (guards.run_dir(run_id) / "traces.jsonl").read_bytes() == first_run[1]


def test_judge_gives_every_trace_its_verdict_and_finds_the_controls_in_order(run_id, judged):
    run = guards.run_dir(run_id)
    verdicts = grid.read(run / "verdicts.jsonl")[0]
    assert sorted(v.of[0] for v in verdicts) == sorted(t.key for t in grid.read(run / "traces.jsonl")[0])
    assert "Finished: 32 traces" in banner(judged) and "The controls are in order" in shown(judged)
    values = report.frame(run).query("metric == 'correct'").groupby("model")["value"].mean()
    assert values["script:oracle"] == 1 and values["script:null"] == 0


def test_analyze_answers_in_a_sentence_with_an_interval_on_top(analyzed):
    assert re.search(r"Finished.*extractive:.*95 % CI", banner(analyzed))


def test_the_report_is_one_small_file_that_loads_nothing_from_elsewhere(run_id, analyzed):
    file = guards.run_dir(run_id) / "report.html"
    page = file.read_text("utf-8")
    assert 10_000 < file.stat().st_size < 3_000_000
    tags, elsewhere = " ".join(re.findall(r"<[a-z][^<>]*>", page)), r"""\s*["']?\s*(?:https?:)?//"""
    assert re.findall(rf"\b(?:src|srcset|poster|data|action)\s*={elsewhere}", tags) == []
    assert re.findall(rf"<link\b[^>]*href\s*={elsewhere}", tags) == []
    assert re.findall(rf"@import|url\({elsewhere}", tags + "".join(re.findall(r"(?s)<style.*?</style>", page))) == []
    scripts = "".join(re.findall(r"(?s)<script.*?</script>", page))
    assert re.findall(r"https?://|\b(?:fetch|import|XMLHttpRequest|WebSocket)\b", scripts) == []
    assert "<svg" in page and run_id in page and load_suite("docs_qa").sha[:16] in page
    assert all(trace.sample_id in page for trace in grid.read(guards.run_dir(run_id) / "traces.jsonl")[0])


@pytest.fixture(scope="module")
def choices(folder, run_id):
    """Eight samples of tool_choice through run, judge and analyze: (id of the run, what analyze shows)."""
    name = f"{run_id}-calls"
    try:
        steps = {"run": {"run_id": name, "suite": "tool_choice", "model": "extractive:", "limit": 8},
                 "judge": {"run_id": name}, "analyze": {"runs": [name]}}  # fmt: skip
        for step, parameters in steps.items():
            notebook, fault = execute(folder, step, **parameters)
            assert fault is None, fault
        yield name, notebook
    finally:
        shutil.rmtree(guards.run_dir(name), ignore_errors=True)


def test_choices_of_a_tool_are_measured_judged_and_analyzed_by_the_same_notebooks(choices):
    name, notebook = choices
    frame = report.frame(guards.run_dir(name)).query("metric == 'correct'")
    first = sorted(sample.id for sample in load_suite("tool_choice").samples)[:8]
    assert sorted(frame["sample_id"]) == sorted(first * 4) and frame["value"].notna().all()
    assert frame.groupby("model")["value"].mean()["script:oracle"] == 1
    rows = grid.read(guards.run_dir(name) / "traces.jsonl")[0]
    assert all(row.turns == 1 and len(row.notes["offered"]) == 9 for row in rows)
    said = shown(notebook)
    assert "Finished" in banner(notebook) and "script:random" in banner(notebook)  # no baseline: compared with chance
    assert "The controls are in order on correct: the oracle scores 1.00" in said
    assert "right of 8, not priced" in said and "closed_book is no condition of these runs" in said


def test_the_report_of_choices_has_costs_tiers_and_samples(choices):
    folder = guards.run_dir(choices[0])
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert [line.partition(":")[0] for line in summary["cost_per_correct"]] == ["extractive"]
    page = (folder / "report.html").read_text("utf-8")
    seen = Seen(page)
    for heading in ("What a right answer costs", "Tiers, not ranks", "Which questions tell the arms apart"):
        assert heading in seen.text
    assert "nan" not in seen.text.lower().split()
    notes = " ".join(re.findall(r"<!-- (.*?) -->", page))  # what matplotlib writes as outlines it names in comments
    assert "seconds per right answer, 95 % interval" in notes and "no arm has a price and a right answer" in notes
    assert seen.count("svg") >= 4


def test_curate_makes_a_suite_of_a_leaderboard_and_reads_it(folder, tmp_path):
    notebook, fault = execute(folder, "curate", source="bfcl", n=12, out=str(tmp_path / "bfcl"))
    assert fault is None, fault
    suite = load_suite(tmp_path / "bfcl")
    assert (len(suite.samples), suite.kind, len({s.tags["category"] for s in suite.samples})) == (12, "tool_choice", 10)
    assert "12 samples of bfcl" in banner(notebook) and "are source text of another language" in shown(notebook)
    assert suite.sha in shown(notebook)


def test_a_misspelt_parameter_fails_with_the_known_names_and_stays_not_finished_on_top(folder, run_id):
    notebook, fault = execute(folder, "run", run_id=f"{run_id}-not", limitt=4)
    assert fault is not None and "limitt" in fault.evalue
    assert all(name in fault.evalue for name in ("run_id", "suite", "model", "conditions", "limit", "workers"))
    assert "NOT FINISHED" in banner(notebook) and "Finished:" not in shown(notebook)
    assert not guards.run_dir(f"{run_id}-not").exists()


def test_the_command_line_runs_from_anywhere_and_keeps_a_run_id_of_digits_as_text(tmp_path):
    run_id = f"00{os.getpid()}"
    run, stripped = guards.run_dir(run_id), guards.run_dir(run_id.lstrip("0"))
    assert not run.exists() and not stripped.exists()
    words = [sys.executable, "-m", "papermill", ROOT / "notebooks" / "run.ipynb", "out.ipynb", "--no-progress-bar",
             "--execution-timeout", "120", "-p", "run_id", run_id, "-p", "model", "script:null", "-p", "limit", "2",
             "-p", "conditions", "closed_book"]  # fmt: skip
    try:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-2000:]
        assert not stripped.exists() and len(grid.read(run / "traces.jsonl")[0]) == 6
        assert {row.run_id for row in grid.read(run / "traces.jsonl")[0]} == {run_id}
        assert "Finished: 2 of 2" in banner(json.loads((tmp_path / "out.ipynb").read_text()))
    finally:
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(stripped, ignore_errors=True)


def test_a_paid_model_leaves_a_row_a_cell_with_its_cost_and_never_its_key(folder, run_id, provider, key):
    prompts = {sample.prompt: sample.id for sample in load_suite("docs_qa").samples}

    def reply(body, number):
        refused = prompts[question(body)] == FIRST[1] and not body.get("tools")
        return error(400, f"no: {key}") if refused else tool_loop(2)(body, number)

    provider.replies, run = reply, guards.run_dir(run_id)
    model = "anthropic:claude-haiku-4-5"
    notebook, fault = execute(folder, "run", run_id=run_id, model=model, base_url=provider.url, limit=3)
    assert fault is None and "Finished: 5 of 6 cells measured, 1 failed" in banner(notebook)
    mine = [row for row in grid.read(run / "traces.jsonl")[0] if row.model == model]
    assert len(mine) == 6 == len({row.key for row in mine}) and mine == latest(mine)
    assert all(row.usd > 0 and row.served == "claude-haiku-4-5" for row in mine if row.failure is None)
    assert [(row.sample_id, row.condition, row.usd) for row in mine if row.failure] == [(FIRST[1], "closed_book", 0)]
    assert "http_400" in shown(notebook)
    files = [file for file in (*folder.iterdir(), *run.rglob("*")) if file.is_file()]
    assert files and all(key.encode() not in file.read_bytes() for file in files)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_holds_no_output_and_is_for_the_kernel_python3(path):
    notebook = json.loads(path.read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "papermill" not in notebook["metadata"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_help_lists_every_parameter_with_type_default_and_what_it_is(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    marked = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    assert len(marked) == 1
    help_text = CliRunner().invoke(command, ["--help-notebook", str(path)])
    assert help_text.exit_code == 0, help_text.output
    source = "".join(marked[0]["source"])
    names = [node.target.id for node in ast.parse(source).body]
    form = re.compile(r"(\w+): (str|int|float|bool|list|dict) = ([^=]*?)  # (.+)")
    lines = [form.fullmatch(line) for line in source.splitlines()]
    assert names and [line and line[1] for line in lines] == names, "each on one line: name: type = default  # help"
    for name, kind, default, about in (line.groups() for line in lines):
        listed = rf"(?m)^\s*{name}: {kind} \(default {re.escape(default)}\)\s+{re.escape(about)}$"
        assert re.search(listed, help_text.output), name
