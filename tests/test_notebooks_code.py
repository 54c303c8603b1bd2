"""run, judge and analyze on code_search, as people run them, with a judge on loopback."""

from __future__ import annotations

import json
import os

import pytest
from provider import Provider, says
from scripted import indexed, part
from test_notebooks import banner, execute, shown

from evalkit import grid, guards, profile, report
from evalkit.records import CONTROLS

pytestmark = pytest.mark.slow  # three kernels, about half a minute
HEADS = ["The answer", "Metrics", "Preferences", "Position and length", "Repeats", "What a cell took",
         "Answers checked against their places", "Trust"]  # fmt: skip


def judge(body, number):
    """A server that keeps to the schema it is sent: grounds all but ignorance, and prefers the longer answer."""
    asked, text = body["response_format"]["json_schema"]["schema"]["properties"], body["messages"][-1]["content"]
    if "grounding" in asked:
        score = 0 if part(text, "answer_to_check") == "I don't know." else 4
        said = {"grounding": score, "faithfulness": score, "ungrounded_claims": ["it is fast"],
                "hallucinated_paths": ["lib/gone.js"], "unsupported_ranges": []}  # fmt: skip
    elif "winner" in asked:
        sizes = [len(part(text, f"answer_{n}")) for n in (1, 2)]
        said = {"winner": "1" if sizes[0] > sizes[1] else "2" if sizes[1] > sizes[0] else "tie", "confidence": "high"}
    else:
        said = {"agreement": 0.5}
    return says(json.dumps({name: said.get(name, "so") for name in asked}))


@pytest.fixture(scope="module")
def passed(tmp_path_factory, run_id):
    """(executed notebooks, requests of the judge, its name, the run's folder)."""
    indexed()
    folder, made = tmp_path_factory.mktemp("code"), {}
    os.environ["NO_PROXY"] = "127.0.0.1"
    with Provider(judge) as server:
        name = f"compat:x@{server.url}/v1"
        calls = {"run": {"run_id": run_id, "suite": "code_search", "model": "extractive:", "limit": 4, "repeats": 2,
                         "conditions": ["grep", "hybrid"]},
                 "judge": {"run_id": run_id, "judge": name}, "analyze": {"runs": [run_id]}}  # fmt: skip
        for notebook, parameters in calls.items():
            made[notebook], fault = execute(folder, notebook, **parameters)
            assert fault is None, fault
        return made, server.requests, name, guards.run_dir(run_id)


def test_every_cell_of_both_arms_is_measured_and_every_stage_judged(passed):
    made, requests, name, run = passed
    rows, verdicts = grid.read(run / "traces.jsonl")[0], grid.read(run / "verdicts.jsonl")[0]
    assert "Finished: 16 of 16 cells measured, 0 failed" in banner(made["run"]) and len(rows) == 16 * 4
    counts = {by: sum(v.by == f"{by}:{name}" for v in verdicts) for by in ("ground", "prefer", "agree", "grade")}
    assert counts == {"ground": 16 * 4, "prefer": 4 * 2, "agree": 4 * 2, "grade": 0}
    assert not any(v.failure for v in verdicts) and requests
    assert all(r.path.endswith("/chat/completions") and r.body["model"] == "x" for r in requests)
    assert not any(word in json.dumps(r.body) for r in requests for word in ("extractive", "search_code", run.name))
    assert {v.usage.total for v in verdicts if v.by.startswith("rule:")} == {0}
    assert all(v.usd == 0 and v.usage.total for v in verdicts if v.by.startswith("prefer:"))


def test_the_profile_holds_its_sections_in_order_and_what_the_judge_said(passed):
    _, _, name, run = passed
    text = (run / "profile.md").read_text("utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == HEADS
    parts = dict(part.split("\n", 1) for part in text.removeprefix("## ").split("\n## "))
    assert all(body.strip() not in ("", "(nothing)") for body in parts.values())
    (row,) = profile.preferences(report.pairs(run)).to_dict("records")
    assert (row["by"], row["a"], row["b"], row["failed"]) == (f"prefer:{name}", "grep", "hybrid", 0)
    assert row["wins"] + row["ties"] + row["losses"] == 4 and f"| prefer:{name} | extractive: |" in parts["Preferences"]
    assert "contradicted itself when the order was swapped in 0.00 of 8 pairs" in parts["Position and length"]
    assert all(f"agree:{name} | extractive: | {arm} | 4 |" in parts["Repeats"] for arm in ("grep", "hybrid"))
    assert all(f"| extractive: | {arm} |" in parts["What a cell took"] for arm in ("grep", "hybrid"))
    checked = parts["Answers checked against their places"]
    assert checked.count("it is fast") == 16 and "lib/gone.js" in checked and not any(c in checked for c in CONTROLS)
    assert all(
        metric in parts["Metrics"] for metric in ("grounding", "faithfulness", "supports", "gold_recall", "retrieved")
    )


def test_the_notebooks_say_how_far_the_judge_can_be_believed(passed):
    made, _, name, run = passed
    assert "out of order" not in shown(made["judge"]) and "The controls are in order" in shown(made["judge"])
    for notebook in ("judge", "analyze"):
        assert "decisive pairs" in shown(made[notebook]) and f"prefer:{name}" in shown(made[notebook])
    assert "grep" in banner(made["analyze"]) and "hybrid" in banner(made["analyze"])
    page = (run / "report.html").read_text("utf-8")
    assert all(text in page for text in ("What a judge prefers", "How far repeats agree", "Claims without a place"))
    assert json.loads((run / "summary.json").read_text())["baseline"] == "grep"
