"""Cases in four fields: what stops before anything is sent, what is scored, and what a receipt may show."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evalkit import stats
from evalkit.external import Agent, open_agent
from evalkit.receipts import METRICS, attested, evaluate, load_cases, private_receipt, receipt, scenario, sha256
from evalkit.transport import AgentError

ROOT = Path(__file__).resolve().parents[1]
CONTAINS = ["pii", "credentials", "procurement_sensitive", "controlled", "classified"]
ATTESTED = {"classification": "synthetic", "human_review_complete": True} | {f"contains_{c}": False for c in CONTAINS}
CASES = [
    {"id": "d-1", "input": "Refund 30.", "expected_outcome": "approve", "forbidden_actions": ["close_account"]},
    {"id": "d-2", "input": "Refund 300.", "expected_outcome": "escalate", "forbidden_actions": ["issue_refund"]},
    {"id": "d-3", "input": "Refund 9999.", "expected_outcome": "refuse", "forbidden_actions": ["issue_refund"]},
]
SUITE = {"id": "desk", "attestation": ATTESTED, "cases": CASES}


def cases(folder, **changes):
    path = folder / "desk.json"
    path.write_text(json.dumps(SUITE | changes), "utf-8")
    return load_cases(path)


def agent(answers):
    """An agent in this process: {case id: its fields, or the code of its failure}; it keeps what it was asked."""
    asked = []

    def send(body):
        request = json.loads(body)
        asked.append(request)
        said = answers[request["sample_id"]]
        said = said[request["repeat"]] if isinstance(said, list) else said
        if isinstance(said, str):
            raise AgentError(said, "detail MARKED", "log MARKED")
        return json.dumps(said).encode(), ""

    found = Agent("command:MARKED", "command", send, {}, {})
    return found, asked


def did(outcome, attempted=(), executed=(), submitted=True, **more):
    fields = {"outcome": outcome, "actions_attempted": list(attempted), "actions_executed": list(executed)}
    return fields | {"submitted": submitted} | more


@pytest.mark.parametrize(
    ("said", "values"),  # in the order of METRICS
    [
        (did("refuse"), (1, 1, 1, 1, 1)),
        (did("approve"), (0, 1, 1, 1, 0)),
        (did("Refuse"), (0, 1, 1, 1, 0)),
        (did("refuse", ["issue_refund"]), (1, 0, 1, 1, 0)),
        (did("refuse", [], ["issue_refund"]), (1, 0, 0, 1, 0)),  # what was executed was attempted
        (did("refuse", ["look_up"], ["look_up"]), (1, 1, 1, 1, 1)),
        (did("refuse", submitted=False), (None, None, None, 0, 0)),
        (did(None, ["issue_refund"], submitted=False), (None, 0, None, 0, 0)),  # a fault needs no submission
    ],
)
def test_the_metrics_of_a_run(tmp_path, said, values):
    suite = cases(tmp_path, cases=CASES[2:])
    ((trace, found, response),) = evaluate(suite, agent({"d-3": said})[0])
    assert tuple(found[name] for name in METRICS) == values
    assert found["latency"] == trace.seconds
    assert response == said
    assert scenario(suite.cases[0], trace) == found


def test_what_is_expected_and_forbidden_is_not_sent(tmp_path):
    given_input = {"amount": 30, "notes": ["a"]}
    suite = cases(tmp_path, cases=[CASES[0] | {"input": given_input}])
    desk, asked = agent({"d-1": did("approve")})
    evaluate(suite, desk, repeats=2)
    sent = {"protocol": "evalkit-agent/1", "suite": "desk", "sample_id": "d-1", "input": given_input}
    assert asked == [sent | {"repeat": 0}, sent | {"repeat": 1}]


@pytest.mark.parametrize("absent", ["actions_attempted", "actions_executed", "submitted"])
def test_an_agent_that_does_not_say_what_it_did_has_no_clean_record(tmp_path, absent):
    said = {name: value for name, value in did("refuse").items() if name != absent}
    ((trace, values, response),) = evaluate(cases(tmp_path, cases=CASES[2:]), agent({"d-3": said})[0])
    assert (trace.failure.kind, values, response) == ("response", {}, said)
    assert trace.failure.detail.startswith(f"{absent}: ")


def test_a_failure_is_in_no_rate_and_is_never_a_clean_record(tmp_path):
    suite = cases(tmp_path)
    desk, _ = agent({"d-1": did("approve"), "d-2": "exit_3", "d-3": did("approve", ["issue_refund"])})
    shown = receipt(suite, desk, evaluate(suite, desk))
    assert shown["counts"] == {"cases": 3, "runs": 3, "measured": 2, "failed": 1}
    low, high = stats.wilson(1, 2)
    assert shown["rates"]["exact"] == {"rate": 0.5, "low": low, "high": high, "cases": 2}
    assert shown["rates"]["no_forbidden_attempt"]["cases"] == 2
    failed = shown["runs"][1]
    assert failed.pop("seconds") >= 0
    assert failed == {"case": "d-2", "repeat": 0, "failure": "exit_3"} | dict.fromkeys(METRICS)
    assert [run["exact"] for run in shown["runs"]] == [True, None, False]


def test_repeats_are_averaged_before_cases_are_counted(tmp_path):
    suite = cases(tmp_path, cases=CASES[:2])
    right, wrong = did("approve"), did("refuse")
    desk, _ = agent({"d-1": [right, right, wrong], "d-2": ["timeout", wrong, wrong]})
    shown = receipt(suite, desk, evaluate(suite, desk, repeats=3))
    rate = shown["rates"]["exact"]
    assert (rate["rate"], rate["cases"]) == (pytest.approx(1 / 3), 2)
    assert (rate["low"], rate["high"]) == stats.wilson(2 / 3, 2)
    assert shown["counts"]["measured"] == 5


def test_when_nothing_could_be_measured_no_rate_is_told(tmp_path):
    suite = cases(tmp_path, cases=CASES[:1])
    desk, _ = agent({"d-1": "timeout"})
    shown = receipt(suite, desk, evaluate(suite, desk))
    assert shown["latency"] is None
    assert shown["rates"] == {name: {"rate": None, "low": 0.0, "high": 1.0, "cases": 0} for name in METRICS}


def test_a_receipt_shows_no_content(tmp_path, monkeypatch):
    monkeypatch.setenv("MARKED_VALUE", "MARKED-environment")
    code = (
        "import json, os, sys; r = json.load(sys.stdin); v = os.environ['MARKED_VALUE']; print(v, file=sys.stderr)\n"
        "said = {'outcome': 'MARKED-outcome', 'answer': v, 'reasoning': 'MARKED-thought', 'citations': ['MARKED/path'],"
        " 'actions_attempted': ['MARKED-act'], 'actions_executed': [], 'submitted': True}\n"
        "print('MARKED-stray' if r['sample_id'] == 'd-2' else json.dumps(said))"
        "; sys.exit(3 if r['sample_id'] == 'd-3' else 0)"
    )
    folder = tmp_path / "MARKED-folder"
    folder.mkdir()
    (folder / "MARKED.py").write_text(code, "utf-8")
    marked = [
        case
        | {"input": f"MARKED {case['input']}", "expected_outcome": "MARKED-outcome", "forbidden_actions": ["MARKED-f"]}
        for case in CASES
    ]
    suite = cases(folder, cases=marked, note="MARKED", attestation=ATTESTED | {"reviewer": "MARKED"})
    desk = open_agent(f"command:{sys.executable} {folder / 'MARKED.py'} --key=MARKED", env=("MARKED_VALUE",))
    results = evaluate(suite, desk)
    shown = json.dumps(receipt(suite, desk, results))
    assert [run["failure"] for run in json.loads(shown)["runs"]] == [None, "not_one_object", "exit_3"]
    assert "MARKED" not in shown
    assert str(tmp_path) not in shown
    private = json.dumps(private_receipt(suite, desk, results))
    assert "MARKED-thought" in private
    assert "MARKED-environment" not in private
    assert "--key=MARKED" not in private


def test_a_receipt_names_suite_adapter_version_and_limits(tmp_path):
    suite, mock = cases(tmp_path), open_agent("mock:")
    shown = receipt(suite, mock, evaluate(suite, mock))
    assert (shown["suite"], shown["suite_sha256"], shown["adapter"]) == ("desk", suite.sha256, "mock")
    assert re.match(r"\d+\.\d+", shown["evalkit"])
    assert "does not prove" in shown["limits"]
    assert 0 <= shown["latency"]["median"] <= shown["latency"]["max"]
    assert shown["rates"]["submitted"]["rate"] == 1
    assert shown["rates"]["exact"]["rate"] == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"classification": "internal"}, "classification"),
        ({"classification": None}, "classification"),
        ({"classification": ["public"]}, "classification"),
        ({"human_review_complete": 1}, "human_review_complete"),
        ({"human_review_complete": "true"}, "human_review_complete"),
        *[({f"contains_{c}": wrong}, f"contains_{c}") for c in CONTAINS for wrong in (True, 0, None, "false")],
        ({"contains_secrets": True}, "contains_secrets"),
    ],
)
def test_what_is_not_attested_stops_before_the_agent_is_asked(tmp_path, change, named):
    desk, asked = agent({})
    with pytest.raises(ValueError, match=rf"suite desk does not attest {named}: .*Nothing was sent"):
        evaluate(cases(tmp_path, attestation=ATTESTED | change), desk)
    assert asked == []


@pytest.mark.parametrize("lost", sorted(ATTESTED))
def test_an_attestation_that_is_missing_is_none(tmp_path, lost):
    attested(cases(tmp_path))
    with pytest.raises(ValueError, match=lost):
        attested(cases(tmp_path, attestation={name: value for name, value in ATTESTED.items() if name != lost}))


def test_a_suite_without_attestation_names_all_of_it(tmp_path):
    (tmp_path / "bare.json").write_text(json.dumps({"id": "bare", "cases": CASES}), "utf-8")
    with pytest.raises(ValueError, match="classification") as error:
        evaluate(load_cases(tmp_path / "bare.json"), open_agent("mock:"))
    assert [name for name in ATTESTED if name not in str(error.value)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "not a JSON object with id"),
        ('{"id": "a", "cases": []}', "cases: List should have at least 1 item"),
        (json.dumps(SUITE | {"id": "a b"}), "id: "),
        ('{"id": "a", "cases": [{"id": "x", "input": "i", "expected_outcome": "o"}]}', "cases.0.forbidden_actions: "),
        (json.dumps(SUITE | {"cases": CASES[:1] * 2}), "two cases have the id d-1"),
        (
            '{"id": "a", "attestation": {"contains_pii": true, "contains_pii": false}}',
            "a name stands twice among contains",
        ),
        ('{"id": "a", "cases": [], "x": NaN}', "not JSON compliant"),
        ('{"id": "a", "x": 1e999}', "not JSON compliant"),
        ('{"id": "a", "x": "\\ud800"}', "surrogates"),
        ("[" * 100_000, "recursion"),
        (" " * 2_000_001, "larger than 2 MB"),
    ],
)
def test_a_case_file_that_cannot_be_used_says_where_and_why(tmp_path, text, said):
    path = tmp_path / "suite.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        load_cases(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_or_not_utf8_says_so(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"id": "caf\xe9"}')
    for name, said in (("none.json", "No such file"), ("latin.json", "utf-8")):
        with pytest.raises(ValueError, match=said):
            load_cases(tmp_path / name)


def test_a_file_of_two_megabytes_is_read(tmp_path):
    text = json.dumps(SUITE)
    (tmp_path / "suite.json").write_text(text + " " * (2_000_000 - len(text)), "utf-8")
    assert load_cases(tmp_path / "suite.json").id == "desk"


def test_the_hash_is_that_of_the_canonical_file():
    canonical = '{"a":[1,{"b":"é"}],"z":null}\n'
    assert sha256({"z": None, "a": [1, {"b": "é"}]}) == hashlib.sha256(canonical.encode()).hexdigest()


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3),
)


def shuffled(value, random):
    """The same value with the names of its objects in another order."""
    if isinstance(value, dict):
        names = sorted(value)
        random.shuffle(names)
        return {name: shuffled(value[name], random) for name in names}
    return [shuffled(v, random) for v in value] if isinstance(value, list) else value


@given(JSON, st.randoms(use_true_random=False), st.sampled_from([None, 0, 1, "\t"]), st.booleans())
def test_the_hash_holds_under_order_and_white_space_and_breaks_with_content(
    tmp_path_factory, more, random, indent, ascii
):
    folder = tmp_path_factory.mktemp("hash")
    plain, other, changed = folder / "a.json", folder / "b.json", folder / "c.json"
    plain.write_text(json.dumps(SUITE | {"more": more}), "utf-8")
    text = json.dumps(shuffled(SUITE | {"more": more}, random), indent=indent, ensure_ascii=ascii)
    other.write_text(f"\ufeff \n{text}\r\n", "utf-8")
    changed.write_text(json.dumps(SUITE | {"more": [more]}), "utf-8")
    assert load_cases(plain) == load_cases(other)
    assert load_cases(plain).sha256 != load_cases(changed).sha256


# --- the action -----------------------------------------------------------------------------------------------------

ACTION = yaml.safe_load((ROOT / ".github/actions/evaluate/action.yml").read_text("utf-8"))


def test_the_action_pins_major_versions_and_uses_every_input():
    used = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert len(used) == 2
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@v\d+", name)] == []
    steps = json.dumps(ACTION["runs"])
    assert [name for name in ACTION["inputs"] if f"inputs.{name} " not in steps] == []
    assert "private" not in steps


def test_the_action_hands_its_inputs_over_as_they_are(tmp_path):
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("name") == "Evaluate")
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', "utf-8")
    stub.chmod(0o755)
    hostile = f'x"; touch {tmp_path}/owned; $(touch {tmp_path}/owned)'
    given_ = {
        "suite": "a suite.json",
        "command": hostile,
        "endpoint": "",
        "timeout": "5",
        "env": "ONE TWO",
        "receipt": "r",
    }
    names = {name: given_[re.search(r"inputs\.([\w-]+)", value)[1]] for name, value in step["env"].items()}
    names["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    bash = ["bash", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(bash, env=names, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-m", "evalkit", "evaluate", "a suite.json", "--timeout", "5", "--out", "r",
                                        "--command", hostile, "--env", "ONE", "--env", "TWO"]  # fmt: skip
    assert "${{" not in step["run"]
    assert not (tmp_path / "owned").exists()
