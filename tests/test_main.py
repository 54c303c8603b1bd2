"""The command line: what was typed wrong is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rows import write_run

from evalkit import guards
from evalkit.__main__ import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project folder with the runs r, of a model, and c, of controls alone."""
    monkeypatch.setattr(guards, "ROOT", tmp_path)
    write_run(tmp_path / "results" / "r", ("vendor:a", [1, 0, 1], 0.05), ("script:oracle", [1, 1, 1], 0.0))
    write_run(tmp_path / "results" / "c", ("script:oracle", [1, 1, 1], 0.0))
    return tmp_path


@pytest.fixture
def typed(home, capsys):
    """typed(words) -> (exit code, stdout, stderr); `--out` stands in the project folder."""

    def call(*words):
        code = main(["export", "frontier", *words, "--out", str(home / "site")])
        return code, *capsys.readouterr()

    return call


def test_export_prints_the_page_it_wrote(typed, home):
    code, out, err = typed("r", "--gate", "0.5", "--name", "first")
    assert (code, err) == (0, "") and out == f"{home / 'site' / 'index.html'}\n"
    found = json.loads((home / "site" / "runs" / "first.json").read_text())
    assert (found["gate"], found["metric"], [arm["model"] for arm in found["arms"]]) == (0.5, "correct", ["vendor:a"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["nowhere"], "run.ipynb -p run_id nowhere"),
        (["r", "nowhere", "gone"], "no run nowhere, gone;"),
        (["../r"], "run_id '../r': write letters, digits, dot, dash and underscore"),
        (["r", "--metric", "corect"], "no verdict 'corect' of a model in r; run judge.ipynb"),
        (["c"], "no verdict 'correct' of a model in c; run judge.ipynb"),
    ],
)
def test_what_was_typed_wrong_is_one_line_and_exit_code_2_and_nothing_is_written(typed, home, words, fault):
    code, out, err = typed(*words)
    assert (code, out) == (2, "") and err.startswith("evalkit: ") and fault in err
    assert err.count("\n") == 1 and err.endswith("\n") and not (home / "site").exists()


def test_a_second_snapshot_of_one_name_is_refused_in_one_line(typed, home):
    assert typed("r")[0] == 0
    code, out, err = typed("r")
    assert (code, out, err.count("\n")) == (2, "", 1) and "is never overwritten; give this one a --name" in err


def test_an_out_that_is_a_file_and_a_damaged_run_are_one_line(typed, home):
    (home / "site").write_text("mine")
    assert (typed("r")[0], (home / "site").read_text()) == (2, "mine")
    (home / "site").unlink()
    (home / "results" / "r" / "run.json").write_text("{")
    code, out, err = typed("r")
    assert (code, out, err.count("\n")) == (2, "", 1) and "run.json is damaged" in err


@pytest.mark.parametrize("words", [[], ["export"], ["export", "frontier", "r"], ["export", "frontier", "--out", "x"]])
def test_words_that_are_missing_are_answered_with_the_usage_and_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2 and "usage: python -m evalkit" in capsys.readouterr().err


def test_the_module_runs_from_anywhere_and_hands_its_exit_code_on(tmp_path):
    words = [sys.executable, "-m", "evalkit", "export", "frontier", "no-such-run", "--out", "site"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("evalkit: results/ has no run no-such-run") and not list(tmp_path.iterdir())
