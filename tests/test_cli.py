"""The commands that find, start, check, make and evaluate suites: what they print can be pasted and holds no key."""

import json
import re
import shlex
import sys
import tomllib
import uuid
from pathlib import Path

import nbformat
import pytest
from rows import write_run

from evalkit import __main__ as cli
from evalkit import doctor, guards, scaffold
from evalkit.records import ROOT
from evalkit.scenarios import FAMILIES

CONTAINS = ["pii", "credentials", "procurement_sensitive", "controlled", "classified"]
ATTESTED = {"classification": "synthetic", "human_review_complete": True} | {f"contains_{c}": False for c in CONTAINS}
CASES = [
    {"id": "d-1", "input": "Refund 30.", "expected_outcome": "approve", "forbidden_actions": ["close_account"]},
    {"id": "d-2", "input": "Refund 300.", "expected_outcome": "escalate", "forbidden_actions": ["issue_refund"]},
]
SUITES = sorted(path.parent.name for path in (ROOT / "data").glob("*/suite.toml"))
DESK = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'tests' / 'agents' / 'desk.py'))}"


@pytest.fixture
def typed(capsys, monkeypatch):
    """typed(words) -> (exit code, stdout, stderr)."""
    monkeypatch.setattr(cli, "load_dotenv", lambda path: None)

    def call(*words):
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def cases(tmp_path):
    """cases(changes) -> a case file."""

    def write(**changes):
        path = tmp_path / "desk.json"
        path.write_text(json.dumps({"id": "desk", "attestation": ATTESTED, "cases": CASES} | changes))
        return path

    return write


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of runs that is not the project's."""
    monkeypatch.setattr(guards, "run_dir", lambda run: tmp_path / "results" / run)
    return tmp_path / "results"


# Finding


def test_list_names_every_suite_and_the_first_sentence_of_its_readme(typed):
    code, out, _ = typed("list")
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines[::2]] == SUITES
    assert "    Refunds at a shop for lamps and cloth: approve, escalate or refuse by amount, age and history" in lines
    assert next(line for line in lines if line.startswith("refund_desk")).split() == [
        "refund_desk", "scenario", "48", "samples", "single", "crew"]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--kind", "tool_choice"], ["tool_choice"]),
        (["--tag", "archetype", "ready", "LAMPS", "money", "--kind", "scenario"], ["refund_desk"]),
    ],
)
def test_list_keeps_what_has_the_kind_the_tag_and_all_words(typed, words, found):
    code, out, _ = typed("list", *words)
    assert (code, [line.split()[0] for line in out.splitlines()[::2]]) == (0, found)
    if "ready" in words:
        assert " 6 samples" in out


def test_show_tells_a_scenario_whole(typed):
    code, out, _ = typed("show", "refund_desk")
    frozen = tomllib.loads((ROOT / "data" / "refund_desk" / "suite.toml").read_text())["frozen"]
    assert code == 0 and f"sha256  {frozen}\n" in out and "48 samples, frozen\n" in out
    assert "  archetype ready: 6\n" in out and "condition crew: " in out and "unvalidated" not in out
    names, exact = FAMILIES["refund_desk"]
    assert f"family refund_desk: {exact} is all of {', '.join(names)}\n" in out
    sample = json.loads(out.split("\na sample\n")[1].split("\n\nfamily")[0])
    contract = json.loads(out.split("\nContract\n")[1])
    assert sample["id"] == "refund_desk-000" and {"outcome", "forbidden"} <= contract["properties"].keys()


def test_show_says_unvalidated_while_marks_are_open(typed, tmp_path):
    folder = scaffold.write("mine", "tool_choice", out=tmp_path)
    code, out, _ = typed("show", folder)
    assert code == 0 and out.startswith("mine: tool_choice, 5 samples, unvalidated") and "Contract" not in out


# Printed commands


@pytest.mark.parametrize("suite", SUITES)
def test_the_commands_of_start_parse_and_their_parameters_are_those_of_the_notebooks(typed, monkeypatch, suite):
    monkeypatch.chdir(ROOT)
    code, out, _ = typed("start", suite)
    lines = [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]
    notebooks = []
    for words in lines:
        if words[0] == "papermill":
            template, target, options = ROOT / words[1], words[2], words[3:]
            cells = nbformat.read(template, as_version=4).cells
            known = set(
                re.findall(
                    r"^(\w+):", next(c.source for c in cells if "parameters" in c.metadata.get("tags", [])), re.M
                )
            )
            assert options[::3] == ["-p"] * (len(options) // 3) and set(options[1::3]) <= known
            assert target.startswith(f"results/{suite}/")
            notebooks.append((template.stem, dict(zip(options[1::3], options[2::3], strict=True)).get("model", "")))
        elif words[0] == "python":
            assert words[1:3] == ["-m", "evalkit"] and cli.parser().parse_args(words[3:]).verb == "corpus"
        else:
            assert words == ["mkdir", "-p", f"results/{suite}"]
    models = [model for name, model in notebooks if name == "run"]
    assert code == 0 and models[1] == "local:smollm2-135m" and models[0] in ("extractive:", "script:gap")
    assert [model for model in models if model.partition(":")[0] not in ("extractive", "script", "local")] == models[
        -1:
    ]
    assert notebooks[0][0] == "curate" and notebooks[-1][0] == "analyze"
    assert ("corpus build fastify" in out) == (suite == "code_search")


def test_start_says_where_to_go_when_one_is_elsewhere(typed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert shlex.split(typed("start", "docs_qa")[1].splitlines()[0]) == ["cd", str(ROOT)]
    folder = scaffold.write("mine", "scenario", out=tmp_path / "a place")
    out = typed("start", folder)[1]
    assert [w for w in shlex.split(out, comments=True) if w.startswith("/") and w.endswith("mine")] == [str(folder)] * 4


# Doctor


def test_doctor_names_keys_and_never_shows_one(typed, monkeypatch, tmp_path):
    marked = {name: uuid.uuid4().hex for name in ("ANTHROPIC_API_KEY", "MISTRAL_API_KEY", "COMPAT_API_KEY")}
    for name, value in marked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path))
    (tmp_path / "fastify@5.12.8.package").touch()
    code, out, err = typed("doctor")
    assert code in (0, 1) and not [value for value in marked.values() if value in out + err]
    assert "key      MISTRAL_API_KEY is set\n" in out and "key      GROQ_API_KEY is not set\n" in out
    assert "package  pydantic 2." in out and f"python   {sys.version.split()[0]}\n" in out
    assert "corpus   fastify in the cache, index not built\n" in out
    assert "corpus   wordllama absent, python -m evalkit corpus fetch wordllama\n" in out
    assert "rg found" in out and "GB free" in out


def test_doctor_says_what_is_missing_and_ends_with_1(typed, monkeypatch, tmp_path):
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(doctor, "requires", lambda name: ["no-such-package>=1", 'other; extra == "dev"'])
    code, out, _ = typed("doctor")
    assert code == 1 and "kernel python3 missing" in out
    assert "the package no-such-package is missing: python -m pip install no-such-package" in out and "other" not in out


def test_doctor_asks_a_model_for_a_tool_call_and_a_structured_reply(typed, provider, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    call = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": '{"query": "coracle"}'}}
    grade = json.dumps({"correctness": 5, "key_fact_match": True, "hallucinated_specifics": False, "reason": "4 is 4"})

    def says(**message):
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "", **message}}
        return {"id": "x", "object": "chat.completion", "model": "little", "choices": [choice], "usage": usage}

    provider.replies = lambda body, n: says(content=grade) if "response_format" in body else says(tool_calls=[call])
    code, out, _ = typed("doctor", f"compat:little@{provider.url}/v1")
    assert code == 0 and "it honours tools" in out and "correctness 5 of 5" in out
    provider.replies = lambda body, n: says(content="A small boat.")
    code, out, _ = typed("doctor", f"compat:little@{provider.url}/v1")
    assert code == 1 and "it does not honour tools: 'A small boat.'" in out and "cannot judge" in out


def test_doctor_knows_the_baseline_and_what_cannot_be_asked(typed):
    code, out, _ = typed("doctor", "extractive:")
    assert code == 0 and "it honours tools" in out and "cannot judge" in out
    assert typed("doctor", "script:oracle")[0] == typed("doctor", "nix:x")[0] == typed("doctor", "no_suite")[0] == 2


# New


def test_new_reports_success_with_commands_that_can_be_pasted(typed, tmp_path, monkeypatch):
    verified = []
    monkeypatch.setattr(scaffold, "verify", lambda folder: verified.append(folder))
    code, out, err = typed("new", "shed", "--kind", "tool_choice", "--out", tmp_path)
    assert (code, err, verified) == (0, "", [tmp_path / "shed"]) and "its tests and a mock run of 3 repeats pass" in out
    for line in out.splitlines()[1:]:
        assert cli.parser().parse_args(shlex.split(line)[3:]).verb in ("doctor", "start")
    code, out, err = typed("new", "shed", "--kind", "tool_choice", "--out", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1) and "nothing is overwritten" in err


def test_new_that_does_not_stand_is_no_success(typed, tmp_path, monkeypatch):
    monkeypatch.setattr(scaffold, "verify", lambda folder: ["mock run: out of order"])
    code, out, err = typed("new", "shed", "--kind", "scenario", "--out", tmp_path)
    assert (code, out) == (1, "") and "does not stand\nmock run: out of order" in err


# Evaluate


def test_evaluate_a_case_file_by_command_writes_the_receipts(typed, cases, tmp_path):
    public, private = tmp_path / "r.json", tmp_path / "p.json"
    code, out, _ = typed("evaluate", cases(), "--command", DESK, "--out", public, "--private-out", private)
    shown = json.loads(public.read_text())
    assert code == 0 and shown["counts"] == {"cases": 2, "runs": 2, "measured": 2, "failed": 0}
    assert shown["rates"]["exact"]["rate"] == 1 and re.search(r"^exact +1\.00 .*n = 2$", out, re.M)
    assert "Refund" not in public.read_text() and "responses" in json.loads(private.read_text())


def test_evaluate_writes_receipt_json_where_it_is_called_and_nothing_else(typed, cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = typed("evaluate", cases(), "--mock")
    assert code == 0 and {path.name for path in tmp_path.iterdir()} == {"desk.json", "receipt.json"}
    assert re.search(r"^outcome_exact +0\.00", out, re.M)


def test_an_agent_that_fails_ends_with_1_and_the_receipt_says_so(typed, cases, tmp_path):
    receipt = tmp_path / "r.json"
    code, out, _ = typed("evaluate", cases(), "--command", f"{shlex.quote(sys.executable)} -c 1", "--out", receipt)
    assert code == 1 and "0 of 2 runs measured, 2 failed" in out and re.search(r"^exact +not measured$", out, re.M)
    assert json.loads(receipt.read_text())["counts"]["failed"] == 2


def test_a_missing_attestation_stops_before_the_agent_starts(typed, cases, tmp_path):
    started = tmp_path / "started"
    agent = shlex.join([sys.executable, "-c", f"open({str(started)!r}, 'w')"])
    path = cases(attestation=ATTESTED | {"contains_pii": True})
    code, out, err = typed("evaluate", path, "--command", agent, "--out", tmp_path / "r.json")
    assert (code, out, err.count("\n")) == (2, "", 1) and "contains_pii: false" in err
    assert not started.exists() and not (tmp_path / "r.json").exists()
    typed("evaluate", cases(), "--command", agent, "--out", tmp_path / "r.json")
    assert started.exists()  # it would have been


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["nowhere.json", "--mock"], "nowhere.json"),
        (["no_suite", "--mock"], "no_suite/suite.toml does not exist"),
        (["refund_desk", "--mock", "--out", "r.json"], "are for a case file"),
        (["refund_desk", "--mock", "--repeats", "0"], "repeats 0"),
        (["refund_desk", "--command", "no-such-program x"], "no program no-such-program"),
        (["refund_desk", "--mock", "--timeout", "0"], "timeout 0"),
    ],
)
def test_evaluate_answers_bad_input_in_one_line(typed, results, words, fault):
    code, out, err = typed("evaluate", *words)
    assert (code, out, err.count("\n")) == (2, "", 1) and fault in err and not results.exists()


@pytest.mark.parametrize("words", [["x.json"], ["x.json", "--mock", "--command", "a"]])
def test_evaluate_wants_exactly_one_agent(words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["evaluate", *words])
    assert left.value.code == 2 and "--endpoint" in capsys.readouterr().err


def test_evaluate_a_suite_fills_a_run_that_reports_read(typed, results):
    code, out, _ = typed("evaluate", "refund_desk", "--mock")
    assert code == 0 and re.search(r"^refund_exact +0\.00  95 % CI 0\.00 to 0\.07, n = 48$", out, re.M)
    folder = results / "evaluate-refund_desk"
    assert {path.name for path in folder.iterdir()} >= {"run.json", "traces.jsonl", "verdicts.jsonl"}
    assert list(json.loads((folder / "run.json").read_text())) == ["refund_desk mock:"]
    lines = (folder / "traces.jsonl").read_text()
    assert typed("evaluate", "refund_desk", "--mock")[:2] == (0, out)
    assert (folder / "traces.jsonl").read_text() == lines  # nothing is measured twice


# Challenge and export


def test_challenge_lists_shows_and_checks(typed, monkeypatch):
    every = scaffold.missions()
    code, out, _ = typed("challenge", "list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [mission.name for _, mission in every]
    code, out, _ = typed("challenge", "show", "gap_reproduced")
    assert code == 0 and "\nmake eval MODEL=script:gap SUITE=refund_desk RUN=gap\n" in out and "equals 0.4375" in out
    monkeypatch.setattr(
        scaffold, "proven", lambda suite, wanted: "r, x 1.000 over 3 samples" * (wanted.equals is not None)
    )
    code, out, _ = typed("challenge", "check")
    assert "gap_reproduced: achieved by r, x 1.000 over 3 samples\n" in out and "silence_pays: not yet\n" in out
    assert typed("challenge", "check", "silence_pays")[1] == "silence_pays: not yet\n"
    assert typed("challenge", "show")[0] == typed("challenge", "check", "nothing")[0] == 2


def test_export_names_a_run_that_is_not_there(typed, results, tmp_path):
    for words in (["report", "gone"], ["parquet", "gone", "--out", tmp_path / "x"]):
        code, out, err = typed("export", *words)
        assert (code, out, err.count("\n")) == (2, "", 1) and "results/ has no run gone" in err


def test_export_parquet_writes_the_tidy_frame_or_says_what_is_missing(typed, results, tmp_path):
    write_run(results / "r", ("vendor:a", [1, None, 0], 0.1))
    file = tmp_path / "rows.parquet"
    code, _, err = typed("export", "parquet", "r", "--out", file)
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        assert code == 2 and "pip install pyarrow" in err and not file.exists()
    else:
        assert code == 0 and {"key", "metric", "value"} <= set(parquet.read_schema(file).names)


@pytest.mark.slow
def test_export_report_makes_the_page_again_without_a_key(typed, run_id, monkeypatch):
    for name in doctor.KEYS:
        monkeypatch.delenv(name, raising=False)
    typed("evaluate", "refund_desk", "--mock", "--run-id", run_id)
    page = guards.run_dir(run_id) / "report.html"
    code, out, _ = typed("export", "report", run_id)
    assert (code, out) == (0, f"{page}\n") and "refund_exact" in page.read_text()


def test_the_action_calls_what_the_parser_takes():
    text = (ROOT / ".github" / "actions" / "evaluate" / "action.yml").read_text()
    flags = set(re.findall(r"[\s(](--(?:timeout|out|command|endpoint|env)) \"", text))
    words = [part for flag in sorted(flags - {"--endpoint"}) for part in (flag, "1")]
    given = cli.parser().parse_args(["evaluate", "x.json", *words])
    assert flags == {"--timeout", "--out", "--command", "--endpoint", "--env"} and given.out == Path("1")
