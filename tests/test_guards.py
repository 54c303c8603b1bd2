"""A notebook's parameters and the folder of a run, checked before anything is paid."""

from __future__ import annotations

import uuid

import pytest

from evalkit import Trace, grid, guards, load_suite, open_model
from evalkit.records import ROOT, Call, Failure, Step, Usage

DECLARED = {"run_id": str, "model": str, "limit": int, "usd": float, "fresh": bool, "conditions": list, "options": dict}
DEFAULTS = {"run_id": "demo", "model": "extractive:", "limit": 0, "usd": 0.5, "fresh": True, "conditions": [],
            "options": {}}  # fmt: skip


def scope(*injected, **typed_by_hand):
    """A kernel's globals after papermill wrote these cells of parameters, one text a cell."""
    cells = ["", "from evalkit import guards", *(f"# Parameters\n{text}\n" for text in injected)]
    return DEFAULTS | typed_by_hand | {"__annotations__": DECLARED, "In": [*cells, "guards.parameters(globals())"]}


def checked(*injected, **typed_by_hand):
    found = scope(*injected, **typed_by_hand)
    guards.parameters(found)
    return {name: found[name] for name in DECLARED}


def test_without_an_injected_cell_the_defaults_stand():
    assert checked() == DEFAULTS


def test_injected_values_become_the_declared_types_and_others_stay():
    text = 'limit = "4"\nusd = "0.25"\nfresh = "false"\nconditions = "closed, open"\noptions = "{\\"a\\": 1}"'
    wanted = {"limit": 4, "usd": 0.25, "fresh": False, "conditions": ["closed", "open"], "options": {"a": 1}}
    assert checked(text) == DEFAULTS | wanted


def test_the_checked_values_are_shown_as_a_frame():
    shown = guards.parameters(scope("limit = 4"))
    assert dict(shown["value"]) == {name: str(value) for name, value in (DEFAULTS | {"limit": 4}).items()}


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"limt") as error:
        checked("limt = 4")
    assert all(name in str(error.value) for name in DECLARED)


@pytest.mark.parametrize(
    ("text", "what_to_type"),
    [
        ('limit = "many"', "-p limit 3"),
        ("limit = 2.5", "-p limit 3"),
        ('usd = "cheap"', "-p usd 0.5"),
        ('fresh = "perhaps"', "-p fresh true"),
        ("conditions = 3", "-p conditions a,b"),
        ('options = "a"', "-p options "),
        ('options = "[1]"', "-p options "),
    ],
)
def test_a_wrong_type_is_an_error_that_says_what_to_type(text, what_to_type):
    with pytest.raises(ValueError) as error:
        checked(text)
    assert what_to_type in str(error.value) and text.split()[0] in str(error.value)


@pytest.mark.parametrize(("hand", "what_to_type"), [({"limit": "many"}, "-p limit 3"), ({"fresh": 7}, "-p fresh true")])
def test_a_value_typed_into_the_cell_by_hand_is_checked_too(hand, what_to_type):
    with pytest.raises(ValueError, match=what_to_type):
        checked(**hand)


def test_of_two_cells_of_parameters_run_in_one_kernel_the_last_counts():
    assert checked("limit = 4", "limit = 8", limit=8)["limit"] == 8


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("str", "001", "001"),
        ("str", "", ""),
        ("int", "-3", -3),
        ("int", 3, 3),
        ("float", 2, 2.0),
        ("float", "1e-3", 0.001),
        ("bool", "false", False),
        ("bool", "False", False),
        ("bool", "0", False),
        ("bool", "true", True),
        ("bool", False, False),
        ("list", "", []),
        ("list", "one", ["one"]),
        ("list", " one , two ,", ["one", "two"]),
        ("list", '["one", "two, three"]', ["one", "two, three"]),
        ("list", ["one"], ["one"]),
        ("dict", '{"a": [1]}', {"a": [1]}),
        ("dict", {"a": 1}, {"a": 1}),
    ],
)
def test_a_value_is_read_as_one_writes_it_on_a_command_line(kind, value, wanted):
    found = guards.typed_value("name", kind, value)
    assert found == wanted and type(found) is type(wanted)


def secrets():
    """Values of the shape of a key, put together here so that none stands in a file."""
    tail = uuid.uuid4().hex
    return [f"{head}{tail}" for head in ("sk-ant-", "sk-proj-", "gsk_", "hf_", "xai-", "ghp_", "Bearer ")]


@pytest.mark.parametrize("secret", secrets(), ids=lambda secret: secret[:3].strip("-_"))
@pytest.mark.parametrize("text", ["model = {!r}", "conditions = [{!r}]", "options = {{'key': {!r}}}"])
def test_what_looks_like_a_secret_is_refused_without_repeating_it(secret, text):
    with pytest.raises(ValueError, match=r"secret.*delete") as error:
        checked(text.format(secret))
    assert secret not in str(error.value)


def test_ordinary_values_are_not_taken_for_secrets():
    text = 'model = "anthropic:claude-haiku-4-5-20251001"\nrun_id = "risk-assessment-of-tasks"'
    assert checked(text)["run_id"] == "risk-assessment-of-tasks"


@pytest.mark.parametrize("run_id", ["demo", "0017", "a.b-c_d", "2026-11-30"])
def test_a_run_has_a_folder_of_its_name(run_id):
    assert guards.run_dir(run_id) == ROOT / "results" / run_id


@pytest.mark.parametrize("run_id", ["", ".", "..", "../demo", "a/b", "/tmp", ".locks", "-x", "a b", "demo\n"])
def test_a_run_id_that_is_no_name_of_a_folder_is_refused(run_id):
    with pytest.raises(ValueError, match="run_id"):
        guards.run_dir(run_id)


def row(kind="", usd=0.0, **more):
    return Trace(key="k", failure=Failure(where="provider", kind=kind) if kind else None, usd=usd, **more)


def stops_at(rows, **limits):
    """How many of the rows a watch sees before it says stop; 0 when it never does."""
    why = guards.watch(**limits)
    return next((number for number, one in enumerate(rows, 1) if why(one)), 0)


@pytest.mark.parametrize("kind", ["http_401", "http_402", "http_403"])
def test_a_run_stops_at_once_when_the_provider_refuses_the_key_or_the_account(kind):
    assert stops_at([row(), row(kind), row()]) == 2


def test_a_run_stops_when_over_half_of_at_least_ten_cells_fail_at_the_provider():
    assert stops_at([row("http_529")] * 20) == 10
    assert stops_at([row(), row("http_529")] * 20) == 0
    assert stops_at([row()] * 10 + [row("http_529")] * 20) == 21
    assert stops_at([row("http_529")] * 20, stop_when=1.0) == 0


def test_a_run_stops_when_its_money_is_spent():
    assert stops_at([row(usd=0.4)] * 5, max_usd=1.0) == 3 and stops_at([row(usd=0.4)] * 5) == 0


def test_what_a_reader_should_know_is_said_and_nothing_else():
    clean = row(model="anthropic:m", served="m-20261101", stop="answered")
    assert guards.after([clean] * 3) == []
    broken = Step(call=Call(id="a", name="look", malformed=True), result="no")
    said = "\n".join(guards.after([
        clean, row("http_529"), row(model="anthropic:m", served="n-latest"), row(steps=(broken,)),
        row(stop="truncated", usage=Usage(output=9, reasoning=9)), row(notes={"dropped": ["temperature"]}),
    ]))  # fmt: skip
    for fact in (
        "1 of 6 cells failed",
        "served by n-latest",
        "not reproducible",
        "malformed",
        "reasoning",
        "temperature",
    ):
        assert fact in said


def test_answers_from_another_address_never_join_a_run(tmp_path, key, provider):
    suite = load_suite("tool_choice")
    real, stand_in = (open_model("openai:gpt-5.4-mini", base_url=url) for url in ("", provider.url))
    cells = grid.plan(suite, real, limit=1)
    path = tmp_path / "traces.jsonl"
    assert len(guards.preflight(suite, real, path, cells))
    path.touch()
    (tmp_path / ".locks").mkdir()
    grid.note(tmp_path, "tool_choice openai:gpt-5.4-mini", {"address": provider.url})
    assert len(guards.preflight(suite, stand_in, path, cells))
    with pytest.raises(ValueError, match=f"answers of openai:gpt-5.4-mini from {provider.url}; use another run_id"):
        guards.preflight(suite, real, path, cells)


def test_a_model_without_effort_says_so():
    for spec in ("extractive:", "script:null"):
        with pytest.raises(ValueError, match="has no effort; leave -p effort out"):
            open_model(spec, effort="low")
