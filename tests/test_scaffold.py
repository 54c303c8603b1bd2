"""A new suite stands untouched; what one lacks is named; missions are achieved by rows and by nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rows import write_run

from evalkit import load_suite, scaffold
from evalkit.records import ROOT
from evalkit.scaffold import KINDS, Evidence, marks, missions, mock, proven, read_brief, standing, verify, write
from evalkit.scenarios import FAMILIES

BRIEF = """Workflow: a shed lends tools to a street.
Risks:
- a tool leaves without its card
## Archetypes
ready, late
Volume: 40 cases
Proofs wanted: the controls in order
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project folder without a suite and without a run."""
    monkeypatch.setattr(scaffold, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def brief(tmp_path):
    path = tmp_path / "brief.md"
    path.write_text(BRIEF)
    return path


@pytest.mark.parametrize("kind", ["scenario", *[pytest.param(k, marks=pytest.mark.slow) for k in [*KINDS][1:]]])
def test_a_new_suite_passes_its_tests_and_the_mock_run_untouched(tmp_path, kind):
    folder = write("my_suite", kind, 4, tmp_path)
    assert verify(folder) == []
    assert not list(folder.rglob("__pycache__")) or kind == "scenario"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_suite_loads_says_what_to_replace_and_is_as_tidy_as_the_house(tmp_path, kind):
    folder = write("my_suite", kind, 4, tmp_path)
    suite, readme = load_suite(folder), (folder / "README.md").read_text()
    assert (suite.kind, suite.frozen, suite.name) == (kind, False, "my_suite")
    there = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    listed = {"README.md", "FAILURE_MODES.md", "CHECKLIST.md", "ci.yml", "suite.toml", "tests/test_suite.py"}
    assert listed <= there and not [path for path in there if path.endswith(".txt")]
    open_in = {place.rpartition(":")[0] for place in marks(folder)}
    assert {path for path in open_in if path != "README.md"} <= set(re.findall(r"^- `([^`]+)`", readme, re.M))
    assert not [file for file in there if re.search(r"@[a-z]+@", (folder / file).read_text())]
    for command in (["check"], ["format", "--check"]):
        config = ["--config", str(ROOT / "pyproject.toml"), str(folder)]
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *config], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_scaffolded_world_is_its_own_and_another_seed_draws_other_cases(tmp_path):
    one, two = (write(f"shed_{seed}", "scenario", seed, tmp_path) for seed in (1, 2))
    assert [s.prompt for s in load_suite(one).samples] != [s.prompt for s in load_suite(two).samples]
    desk = (ROOT / "data" / "refund_desk" / "world.py").read_text()
    policy = re.search(r'POLICY = """(.*?)"""', (one / "world.py").read_text(), re.S)[1].strip().splitlines()
    assert len(policy) > 5 and [line for line in policy if line in desk] == []
    names, _ = FAMILIES["refund_desk"]
    assert len(names) > 1 and len(load_suite(one).samples) == scaffold.LEAST


@pytest.mark.parametrize("name", ["My suite", "../up", "", "1st"])
def test_a_name_that_is_no_folder_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match="small letters"):
        write(name, "scenario", out=tmp_path / "there")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_here_and_no_suite_of_data_is_shadowed(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "refund_desk"):
        with pytest.raises(ValueError, match=f"{name} exists, and nothing is overwritten"):
            write(name, "scenario", out=tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_brief_is_read_kept_and_written_into_the_suite(tmp_path, brief):
    told = read_brief(brief)
    assert told == {"workflow": "a shed lends tools to a street.", "risks": "- a tool leaves without its card",
                    "archetypes": "ready, late", "volume": "40", "proofs": "the controls in order"}  # fmt: skip
    folder = write("shed", "scenario", out=tmp_path / "out", brief=brief)
    assert (folder / "BRIEF.md").read_text() == BRIEF
    assert len(load_suite(folder).samples) == 40
    assert told["workflow"] in (folder / "README.md").read_text()
    assert told["risks"] in (folder / "FAILURE_MODES.md").read_text()
    assert all(told[part] in (folder / "CHECKLIST.md").read_text() for part in ("archetypes", "proofs"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [(BRIEF.replace("Risks:", "Hazards:"), "says nothing of risks;"), ("", "nothing of workflow, risks"),
     (BRIEF.replace("40", "many"), "volume has no number")],
)  # fmt: skip
def test_a_brief_that_lacks_something_is_refused_before_anything_is_written(tmp_path, brief, text, fault):
    brief.write_text(text)
    with pytest.raises(ValueError, match=fault):
        write("shed", "scenario", out=tmp_path / "out", brief=brief)
    assert not (tmp_path / "out").exists()


def test_a_rule_that_lets_who_does_nothing_win_is_out_of_order(tmp_path):
    folder = write("choice", "tool_choice", out=tmp_path)
    row = json.dumps({"id": "a", "prompt": "Thanks.", "gold": {"no_call": True}})
    (folder / "samples.jsonl").write_text(row + "\n")
    (fault,) = mock(load_suite(folder))
    assert "out of order under all_tools: script:oracle 1.00, script:null 1.00" in fault


def test_a_world_without_a_gap_is_out_of_order_and_one_that_breaks_is_named(tmp_path):
    folder = write("shed", "scenario", out=tmp_path)
    (folder / "suite.toml").write_text((folder / "suite.toml").read_text().replace("count = 24", "count = 8"))
    world, (head, tail) = folder / "world.py", (folder / "world.py").read_text().split("    return spoilt(")
    world.write_text(head + "    return calls\n")
    assert "script:gap 1.00" in mock(load_suite(folder))[0]
    world.write_text(head.replace("return POLICY.strip()", 'raise OSError("broken")') + "    return spoilt(" + tail)
    assert mock(load_suite(folder)) == []  # a reading tool that fails is an observation for the agent
    world.write_text(
        head.replace("def tools(record, ledger):", "def tools(record, ledger):\n    1 / 0") + "    return []\n"
    )
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        load_suite(folder)


def test_its_own_tests_decide_too(tmp_path):
    folder = write("choice", "tool_choice", out=tmp_path)
    (folder / "tests" / "test_suite.py").write_text("def test_it():\n    assert 1 == 2\n")
    (fault,) = verify(folder)
    assert fault.startswith("its tests do not pass") and "assert 1 == 2" in fault


def test_what_stands_between_a_suite_and_publication_is_named_until_it_is_gone(home, monkeypatch):
    monkeypatch.setattr(scaffold, "verify", lambda folder: ["verified: no"])
    folder = write("choice", "tool_choice", out=home / "data")
    lacks = list(standing(folder))
    assert [line for line in lacks if "to be replaced" not in line] == [
        "5 samples, and 24 are wanted",
        "it is not frozen: `frozen` in suite.toml is not the sha256 of its samples",
        "fewer than two real models measured in results/ (none)",
        "no failure that was observed stands in FAILURE_MODES.md under Observed",
        "verified: no",
    ]
    assert "samples.jsonl:1 is still to be replaced" in lacks and "BRIEF" not in str(lacks)

    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    many = [row | {"id": f"{row['id']}-{n}", "prompt": f"{n} {row['prompt']}"} for n in range(6) for row in rows]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row | {"tags": {}}) + "\n" for row in many))
    for file in folder.rglob("*.*"):
        file.write_text(file.read_text().replace(scaffold.MARK, ""))
    text = re.sub(r'frozen = ".*"', f'frozen = "{load_suite(folder).sha}"', (folder / "suite.toml").read_text())
    (folder / "suite.toml").write_text(text)
    monkeypatch.setattr(scaffold, "measured", lambda name: {"a:b": "r", "c:d": "r"})
    monkeypatch.setattr(scaffold, "verify", lambda folder: [])
    assert list(standing(folder)) == []
    monkeypatch.setattr(scaffold, "measured", lambda name: {"a:b": "r"})
    assert list(standing(folder)) == ["fewer than two real models measured in results/ (a:b in r)"]


def test_controls_and_mocks_are_no_real_results(home):
    write_run(home / "results" / "r", ("vendor:a", [1, 0], 0.0), ("script:gap", [1, 1], 0.0), ("mock:", [1, 0], 0.0))
    suite = json.loads((home / "results" / "r" / "traces.jsonl").read_text().splitlines()[0])["suite"]
    assert scaffold.measured(suite) == {"vendor:a": "r"} and scaffold.measured("other") == {}


@pytest.mark.parametrize(
    ("wanted", "proof"),
    [
        ({"model": "vendor:a", "equals": 0.667}, "r, vendor:a nine_tools correct 0.667 over 3 samples"),
        ({"model": "vendor:a", "equals": 0.66}, ""),
        ({"at_most": 0.7}, "r, vendor:a nine_tools correct 0.667 over 3 samples"),
        ({"equals": 0.833}, ""),  # arms are never mixed
        ({"model": "vendor:a", "at_least": 0.6, "at_most": 0.7}, "r, vendor:a nine_tools correct 0.667 over 3 samples"),
        ({"model": "vendor:a", "at_least": 0.7}, ""),
        ({"model": "vendor:a", "at_most": 0.6}, ""),
        ({"model": "vendor:a", "samples": 4}, ""),
        ({"model": "vendor:b"}, ""),
        ({"model": "vendor:a", "condition": "none"}, ""),
        ({"model": "vendor:a", "suite": "another"}, ""),
        ({"model": "vendor:a", "metric": "other"}, ""),
        ({"model": "vendor:a", "run": "s*"}, ""),
        (
            {"model": "script:oracle", "run": "r*", "equals": 1},
            "r, script:oracle nine_tools correct 1.000 over 3 samples",
        ),
    ],
)
def test_a_mission_is_proven_by_a_mean_over_the_rows_it_names(home, wanted, proof):
    write_run(home / "results" / "r", ("vendor:a", [1, 0, 1], 0.0), ("script:oracle", [1, 1, 1], 0.0))
    suite = json.loads((home / "results" / "r" / "traces.jsonl").read_text().splitlines()[0])["suite"]
    assert proven(suite, Evidence(**{"metric": "correct"} | wanted)) == proof


def test_the_missions_of_data_are_sound_free_and_about_what_their_suites_measure():
    every = missions()
    assert len(every) >= 4 and {m.kind for _, m in every} == {"reproduce", "break", "adapt"}
    assert len({m.name for _, m in every}) == len(every)
    for suite, mission in every:
        assert (ROOT / "data" / suite / "suite.toml").exists()
        assert re.search(r"MODEL=(script:|extractive:)", mission.command), mission.name
        metrics = {"correct", *[name for names, exact in FAMILIES.values() for name in (*names, exact)]}
        assert mission.evidence.metric in metrics


def test_a_damaged_missions_file_is_named_with_its_field(home):
    (home / "data" / "x").mkdir()
    path = home / "data" / "x" / "missions.toml"
    path.write_text(
        '[[missions]]\nname = "a"\nkind = "win"\nwhat = "w"\ncommand = "c"\nevidence = {metric = "m", atleast = 1}\n'
    )
    with pytest.raises(ValueError, match=r"missions\.toml: kind: .*evidence\.atleast"):
        missions()


def test_the_templates_are_part_of_the_package():
    text = Path(ROOT / "pyproject.toml").read_text()
    assert '"templates/**/*"' in text and {path.name for path in scaffold.TEMPLATES.iterdir() if path.is_dir()} == {
        "common",
        *KINDS,
    }
