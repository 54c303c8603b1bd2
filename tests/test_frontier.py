"""Cost per correct of arms: who is efficient, which tiers, where chains break, which samples tell, the snapshot."""

from __future__ import annotations

import json
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from rows import write_run
from seen import Seen, drawn

from evalkit import frontier, report, stats
from evalkit.records import COLUMNS, Call, Step, Trace

NONE = pd.DataFrame(columns=COLUMNS).astype({"value": float, "usd": float, "seconds": float})


def tidy(*arms, seconds=2.0, condition="open", **columns):
    """A frame of arms (model, values, USD of each sample); a value None is a failed cell, usd may be a list."""
    rows = [
        {"key": f"{model}/{n}", "run_id": "r", "suite": "mine", "sample_id": f"q{n}", "cluster": f"q{n}",
         "condition": condition, "model": model, "effort": "", "repeat": 0, "stop": "answered",
         "failure": None if v is not None else "http_429", "by": "rule:x", "metric": "correct", "value": v,
         "usd": usd[n] if isinstance(usd, list) else usd, "tokens": 10, "seconds": seconds}
        | {name: make(n) for name, make in columns.items()}
        for model, values, usd in arms for n, v in enumerate(values)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=COLUMNS + list(columns))
    return frame.astype({"value": float, "usd": float, "seconds": float})


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """A tenth of the draws is enough for what is asserted here."""
    monkeypatch.setattr(stats, "DRAWS", 1_000)


def economy(*arms, **options):
    """The table of frontier, one row a model."""
    return frontier.frontier(tidy(*arms), "correct", **options).set_index("model")


def of_ten(right):
    return [1] * right + [0] * (10 - right)


CHEAP, GOOD, BAD = ("cheap", of_ten(5), 0.01), ("good", of_ten(9), 0.05), ("bad", of_ten(4), 0.10)


def test_a_right_answer_costs_what_all_attempts_cost():
    row = economy(("m", [1, 0, None], [0.10, 0.06, 0.04])).loc["m"]
    assert (row["right"], row["measured"], row["attempted"]) == (1, 2, 3)
    assert (row["usd_each"], row["seconds_each"]) == pytest.approx((0.20, 6))
    assert row["usd"] == pytest.approx(0.20) and row["note"] == ""


def test_the_efficient_are_those_that_none_beats_in_both():
    table = economy(CHEAP, GOOD, BAD)
    assert dict(table["usd_efficient"]) == {"cheap": True, "good": True, "bad": False}
    assert dict(table["seconds_efficient"]) == {"cheap": False, "good": True, "bad": False}  # all take the same time
    assert table["usd_low"].lt(table["usd_each"]).all() and table["usd_high"].gt(table["usd_each"]).all()
    assert dict(table["usd_p"] > 0.5) == dict(table["usd_efficient"]) and table["usd_p"].between(0, 1).all()


def test_an_arm_that_wins_and_one_that_loses_every_draw_are_certain():
    table = economy(("m", [1] * 10, 0.01), ("n", [0] * 4 + [1] * 6, 0.9))
    assert (table["usd_p"]["m"], table["usd_p"]["n"]) == (1, 0)


def test_what_is_missing_counts_in_the_cost_of_a_draw_and_not_in_its_accuracy():
    table = economy(("m", [1] * 5 + [None] * 5, 0.1), ("n", of_ten(9), 0.01))
    assert table["usd_each"]["m"] == pytest.approx(0.2)
    assert table["usd_efficient"]["m"] and 0.5 < table["usd_p"]["m"] < 0.8  # n without its wrong one: 0.9 ** 10 = 0.35


def test_an_arm_below_the_gate_is_not_efficient_and_beats_none():
    table = economy(CHEAP, GOOD, BAD, gate=0.6)
    assert dict(table["usd_efficient"]) == {"cheap": False, "good": True, "bad": False}
    assert table["usd_p"]["cheap"] == 0 == table["seconds_p"]["cheap"] and table["usd_p"]["good"] == 1
    assert economy(CHEAP, GOOD, gate=0.5)["usd_efficient"].all()
    assert not economy(CHEAP, GOOD, gate=0.95)["usd_efficient"].any()


def test_a_model_that_costs_nothing_is_not_priced_and_stands_on_the_frontier_of_seconds_alone():
    table = economy(("local", of_ten(9), 0.0), GOOD)
    assert dict(table["note"]) == {"local": "not priced", "good": ""}
    assert dict(table["usd_efficient"]) == {"local": False, "good": True} and table["usd_p"]["local"] == 0
    assert dict(table["seconds_efficient"]) == {"local": True, "good": True}  # equals
    assert table["usd_each"]["local"] == 0 and pd.isna(table["usd_low"]["local"])


def test_an_arm_without_a_right_answer_has_no_cost_of_one_and_is_not_efficient():
    table = economy(("m", [0] * 5, 0.1), ("n", [None] * 5, 0.1), ("o", [1] * 5, 9.0))
    assert table["usd_each"][["m", "n"]].isna().all() and table["seconds_each"][["m", "n"]].isna().all()
    assert dict(table["usd_efficient"]) == {"m": False, "n": False, "o": True} and table["usd_p"]["m"] == 0


def test_few_right_answers_have_a_cost_without_an_upper_bound():
    row = economy(("m", of_ten(1), 0.1)).loc["m"]
    assert row["usd_each"] == 1 and row["usd_low"] < 1 and pd.isna(row["usd_high"]) and row["usd_efficient"]


def test_equal_arms_are_both_efficient_and_one_arm_is():
    assert economy(("m", of_ten(5), 0.1), ("n", of_ten(5), 0.1))["usd_efficient"].all()
    assert economy(GOOD)["usd_efficient"].all() and economy(GOOD)["usd_p"]["good"] == 1


@pytest.mark.parametrize("frame", [NONE, tidy(("script:null", [0, 0], 0), ("script:oracle", [1, 1], 0))])
def test_without_a_model_there_is_no_frontier_no_tier_and_nothing_to_tell(frame):
    table, tiers = frontier.frontier(frame, "correct"), frontier.tiers(frame, "correct")
    assert table.empty and tiers.empty and frontier.told(tiers, table) == ""
    assert frontier.items(frame, "correct").empty and frontier.chains(frame, "correct").empty


def test_controls_are_no_arms_of_the_frontier_and_do_not_change_it():
    alone = frontier.frontier(tidy(CHEAP, GOOD), "correct", seed=3)
    beside = frontier.frontier(tidy(CHEAP, GOOD, ("script:oracle", [1] * 10, 0.0)), "correct", seed=3)
    pd.testing.assert_frame_equal(alone, beside)


def test_the_seed_decides_the_draws_and_nothing_else():
    one, again, other = (economy(CHEAP, GOOD, BAD, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(one, again)
    bounds, shares = ([name for name in one if re.search(end, name)] for end in ("(?<=_)(low|high)$", "_p$"))
    same = [frame.drop(columns=[*bounds, *shares]) for frame in (one, other)]
    pd.testing.assert_frame_equal(*same)
    assert not one[bounds].equals(other[bounds]) and not one[shares].equals(other[shares])


def test_the_same_sample_of_two_runs_is_two_measurements_that_both_cost():
    frame = pd.concat([tidy(GOOD), tidy(GOOD).assign(run_id="s")], ignore_index=True)
    row = frontier.frontier(frame, "correct").iloc[0]
    assert (row["measured"], row["usd_each"]) == (10, pytest.approx(1.0 / 18))
    twice = pd.concat([tidy(GOOD), tidy(GOOD)], ignore_index=True)  # the same row read twice is one
    assert frontier.frontier(twice, "correct")["usd"][0] == pytest.approx(0.5)


def tier_of(*arms):
    table = frontier.tiers(tidy(*arms), "correct")
    return dict(zip(table["model"], table["tier"], strict=True))


def test_arms_share_a_tier_when_the_gap_covers_0_and_part_when_it_does_not():
    assert tier_of(("a", of_ten(6), 0), ("b", of_ten(5), 0)) == {"a": 1, "b": 1}
    assert tier_of(("b", of_ten(1), 0), ("a", of_ten(10), 0)) == {"a": 1, "b": 2}


def test_an_arm_is_compared_with_the_first_of_its_tier_and_not_with_the_one_above_it():
    arms = [(name, [1] * right + [0] * (30 - right), 0) for name, right in zip("abcd", (30, 26, 22, 18), strict=True)]
    assert tier_of(*arms) == {"a": 1, "b": 1, "c": 2, "d": 2}  # 4 of 30 are not told apart, 8 are


def test_under_six_samples_and_without_a_sample_in_common_no_tier_is_opened():
    assert tier_of(("a", [1] * 5, 0), ("b", [0] * 5, 0)) == {"a": 1, "b": 1}
    apart = tidy(("b", [0] * 9, 0)).assign(sample_id=lambda f: "x" + f["sample_id"])
    frame = pd.concat([tidy(("a", [1] * 9, 0)), apart], ignore_index=True)
    assert set(frontier.tiers(frame, "correct")["tier"]) == {1}


def told(*arms, **columns):
    frame = tidy(*arms, **columns)
    return frontier.told(frontier.tiers(frame, "correct"), frontier.frontier(frame, "correct"))


def test_what_is_told_names_the_first_tier_and_its_cheapest_and_not_a_cheaper_one_below():
    said = told(("dear", of_ten(10), 0.5), ("fair", of_ten(9), 0.1), ("poor", of_ten(1), 0.001))
    assert said.startswith("3 arms fall into 2 tiers; the first holds dear with open, fair with open.")
    assert "cheapest from fair with open: 0.1111 USD (95 % CI 0." in said and "poor" not in said


def test_arms_that_cannot_be_told_apart_are_said_to_be_so_and_a_free_one_is_not_the_cheapest():
    said = told(("a", of_ten(6), 0.0), ("b", of_ten(5), 0.1))
    assert said.startswith("None of the 2 arms is shown to be worse than the best. There") and "from b" in said
    assert told(("a", of_ten(6), 0.0), ("b", of_ten(5), 0.0)).endswith("worse than the best.")
    assert "to no upper bound" in told(("a", of_ten(1), 0.1), ("b", of_ten(1), 0.2))
    assert told(("a", of_ten(6), 0.1)) == ""


def chained(values, **columns):
    """One arm on a chain of as many steps as there are values, and on one question alone."""
    frame = tidy(("m", [*values, 1], 0), step=lambda n: n + 1, **columns)
    last = frame["sample_id"] == f"q{len(values)}"
    return frame.assign(cluster=np.where(last, "alone", "chain"), step=frame["step"].where(~last, 1))


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1, 1, 1], "whole"),
        ([1, 0, 1, 0], "breaks at step 2"),
        ([0, 0], "breaks at step 1"),
        ([1, 1, 0], "breaks at step 3"),
    ],
)
def test_a_chain_is_whole_or_breaks_at_its_first_wrong_step(values, ends):
    assert frontier.chains(chained(values), "correct").to_dict("records") == [{"cluster": "chain", "m · open": ends}]


def test_chains_have_a_column_an_arm_and_without_steps_there_are_none():
    frame = pd.concat([chained([1, 0]), chained([1, 1]).assign(model="n", key=lambda f: "n" + f["key"])])
    (row,) = frontier.chains(frame, "correct").to_dict("records")
    assert row == {"cluster": "chain", "m · open": "breaks at step 2", "n · open": "whole"}
    assert frontier.chains(tidy(GOOD), "correct").empty
    assert frontier.chains(tidy(GOOD, step=lambda n: 1), "correct").empty


def readings(frame, found=()):
    table = frontier.items(frame, "correct", found)
    return dict(zip(table["sample_id"], table["reading"], strict=True))


ARMS = ("a", [1, 0, 1, 0, 1, 1], 0), ("b", [1, 0, 1, 0, 0, 1], 0), ("c", [1, 0, 0, 1, 0, 0], 0)


def test_samples_that_tell_no_arm_from_another_are_named():
    said = readings(tidy(*ARMS, ("script:null", [0] * 6, 0)))
    assert said == {"q0": "saturated", "q1": "floor", "q2": "", "q3": "non-discriminating", "q4": "", "q5": ""}


def test_samples_stand_the_hardest_first_with_their_rate_and_their_correlation_with_the_rest():
    table = frontier.items(tidy(*ARMS), "correct").set_index("sample_id")
    assert list(table.index) == ["q1", "q3", "q4", "q2", "q5", "q0"]
    assert table["rate"]["q4"] == pytest.approx(1 / 3) and set(table["arms"]) == {3}
    assert table["item_rest"]["q2"] == pytest.approx(0.5)  # right, right, wrong of arms that have 3, 2, 2 of the rest
    assert table["item_rest"]["q3"] == pytest.approx(np.corrcoef([0, 0, 1], [4, 3, 1])[0, 1])
    assert pd.isna(table["item_rest"][["q0", "q1"]]).all()


def test_one_arm_says_nothing_about_a_sample():
    assert set(readings(tidy(ARMS[0])).values()) == {""}


def called(model, n, *calls, answer="", failure=None):
    steps = [Step(call=Call(id="1", name=name, args=args), result="", executed=False) for name, args in calls]
    return Trace(key=f"{model}/{n}", run_id="r", steps=steps, answer=answer, failure=failure), None, {}


def test_gold_that_the_better_half_misses_in_one_way_is_flagged_and_else_it_is_not():
    same = [called(model, 3, ("search", {"a": 1, "b": 2})) for model in "ab"]
    worst = called("c", 3, ("open", {}))
    assert readings(tidy(*ARMS), [*same, worst])["q3"] == "flagged gold"
    twisted = [same[0], called("b", 3, ("search", {"b": 2, "a": 1}))]
    assert readings(tidy(*ARMS), twisted)["q3"] == "flagged gold"
    unlike = [same[0], called("b", 3, ("search", {"a": 2}))]
    assert readings(tidy(*ARMS), unlike)["q3"] == "non-discriminating"
    spoken = [called(model, 1, answer=text) for model, text in zip("ab", ("No  tool.", "no tool."), strict=True)]
    assert readings(tidy(*ARMS), spoken)["q1"] == "flagged gold"
    right = [called(model, 0, ("search", {})) for model in "ab"]
    assert readings(tidy(*ARMS), right)["q0"] == "saturated"


NAMES = ["vendor/$x_1$-long_name", "a$b", "\\frac{1}{2}$", "é & <b>"]
SHAPES = {
    "many": (CHEAP[1:], GOOD[1:], BAD[1:], ([1], 0.1)),
    "one sample": (([1], 0.1), ([0], 0.1)),
    "equal scores": (([1, 0], 0.1),) * 4,
    "unbounded": ((of_ten(1), 0.1), (of_ten(10), 0.1)),
    "one model": ((of_ten(5), 0.1),),
    "far apart": ((of_ten(5), 1e-7), (of_ten(5), 900.0)),
}


@pytest.mark.parametrize(("shape", "unit"), [*((shape, "usd") for shape in SHAPES), ("many", "seconds")])
def test_no_frontier_fails_and_names_are_shown_as_typed(shape, unit):
    arms = [(name, *arm) for name, arm in zip(NAMES, SHAPES[shape], strict=False)]
    frame = tidy(*arms, ("script:oracle", [1, 1], 0))
    lines = report.rates(frame[frame["model"] == "script:oracle"], "correct")
    texts = drawn(lambda ax: frontier.plot(frontier.frontier(frame, "correct"), ax, unit, lines, 0.4))
    right = {name for name, values, _ in arms if any(values)}
    assert {*right, "script:oracle", f"{frontier.COSTS[unit]}, 95 % interval"} <= set(texts)


def test_names_say_their_condition_where_there_are_several():
    frame = pd.concat([tidy(CHEAP), tidy(GOOD, condition="closed_$")])
    texts = drawn(lambda ax: frontier.plot(frontier.frontier(frame, "correct"), ax))
    assert {"cheap · open", "good · closed_$"} <= set(texts)


@pytest.mark.parametrize(
    ("frame", "unit", "why"),
    [
        (NONE, "usd", "no arm has a price and a right answer"),
        (NONE, "seconds", "no arm has a right answer"),
        (tidy(("m", [1, 0], 0)), "usd", "no arm has a price and a right answer"),
        (tidy(("m", [0, 0], 0.1)), "usd", "no arm has a price and a right answer"),
        (tidy(("m", [0, None], 0.1)), "seconds", "no arm has a right answer"),
    ],
)
def test_a_frontier_with_nothing_on_it_says_why(frame, unit, why):
    assert f"nothing to show: {why}" in drawn(lambda ax: frontier.plot(frontier.frontier(frame, "correct"), ax, unit))


def test_a_dot_stands_for_each_arm_at_its_cost_and_share_and_the_efficient_are_joined():
    table = frontier.frontier(tidy(CHEAP, GOOD, BAD), "correct")
    ax = frontier.plot(table, mpl.figure.Figure().subplots())
    dots = {(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if line.get_marker() == "o"}
    assert dots == set(zip(table["usd_each"], table["estimate"], strict=True))
    joined = ax.lines[0].get_xydata().tolist()
    assert joined == table[table["usd_efficient"]][["usd_each", "estimate"]].to_numpy().tolist() and len(joined) == 2


HOSTILE = "v/</script><script>alert(1)</script>{{ snapshot }}$_"


@pytest.fixture
def run(tmp_path):
    """A run of three arms, one of them free and of a hostile name, and a control."""
    arms = ("vendor:a", of_ten(9), 0.05), ("vendor:b", [1, None] + [0] * 8, 0.01), (HOSTILE, of_ten(5), 0.0)
    return write_run(tmp_path / "results" / "r", *arms, ("script:oracle", [1] * 10, 0.0))


def snapshot(page):
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_a_snapshot_is_written_with_its_manifest_the_latest_and_a_page_that_holds_it(run, tmp_path):
    out = tmp_path / "site"
    page = frontier.export([run], out, gate=0.2)
    assert page == out / "index.html" and sorted(f.name for f in out.rglob("*.*")) == [
        "2025-03-14.json", "index.html", "latest.json", "runs.json"]  # fmt: skip
    assert json.loads((out / "runs.json").read_text()) == ["2025-03-14"]
    text = (out / "runs" / "2025-03-14.json").read_text("utf-8")
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (out / "latest.json").read_text("utf-8") == text and snapshot(page.read_text("utf-8")) == found
    assert (found["runs"], found["suites"], found["metric"], found["gate"]) == (["r"], ["mine"], "correct", 0.2)
    arms = {arm["model"]: arm for arm in found["arms"]}
    assert set(arms) == {"vendor:a", "vendor:b", HOSTILE} and [c["model"] for c in found["controls"]] == [
        "script:oracle"
    ]
    assert arms["vendor:a"]["usd_each"] == pytest.approx(0.5 / 9) and arms["vendor:a"]["tier"] == 1
    b = arms["vendor:b"]
    assert (b["right"], b["measured"], b["attempted"], b["usd"]) == (1, 9, 10, pytest.approx(0.1))
    assert b["usd_high"] is None and arms[HOSTILE]["note"] == "not priced" and arms[HOSTILE]["usd_low"] is None


def test_a_name_never_ends_the_script_it_stands_in(run, tmp_path):
    seen = Seen(frontier.export([run], tmp_path / "site").read_text("utf-8"))
    assert seen.count("script") == 2 and HOSTILE.replace("<", "\\u003c") in seen.text
    for tag, attributes in seen.tags:
        assert not {"src", "href", "action", "srcset"} & attributes.keys(), tag


def test_a_snapshot_is_never_overwritten_and_nothing_else_is_touched_then(run, tmp_path):
    out = tmp_path / "site"
    frontier.export([run], out)
    before = {file: file.read_bytes() for file in out.rglob("*.*")}
    write_run(run, ("vendor:c", of_ten(10), 0.01))
    with pytest.raises(FileExistsError, match=r"2025-03-14\.json exists.*--name"):
        frontier.export([run], out)
    assert {file: file.read_bytes() for file in out.rglob("*.*")} == before
    frontier.export([run], out, name="second")
    assert json.loads((out / "runs.json").read_text()) == ["2025-03-14", "second"]
    assert json.loads((out / "latest.json").read_text())["name"] == "second"
    assert all(file.read_bytes() == data for file, data in before.items() if file.parent.name == "runs")


def test_several_runs_are_one_snapshot_named_by_the_newest_measurement(run, tmp_path):
    other = write_run(tmp_path / "results" / "s", ("vendor:c", of_ten(10), 0.01), at="2025-04-01T09:00:00+00:00")
    found = snapshot(frontier.export([run, other], tmp_path / "site").read_text("utf-8"))
    assert (found["runs"], found["name"], len(found["arms"])) == (["r", "s"], "2025-04-01", 4)


@pytest.mark.parametrize("metric", ["corect", "correct"])
def test_with_nothing_to_show_no_file_is_written(tmp_path, metric):
    run = write_run(tmp_path / "r", ("script:oracle" if metric == "correct" else "vendor:a", [1, 1], 0))
    with pytest.raises(ValueError, match=f"no verdict '{metric}' of a model in r; run judge.ipynb"):
        frontier.export([run], tmp_path / "site", metric)
    assert not (tmp_path / "site").exists()


def test_nobody_leads_below_an_agent_that_does_nothing():
    tiers = pd.DataFrame({"tier": [1, 1], "model": ["a", "b"], "condition": "c", "estimate": [0.1, 0.2]})
    rates = pd.DataFrame({"model": ["a", "b", "script:null"], "estimate": [0.1, 0.2, 0.25]})
    assert frontier.told(tiers, tiers, rates) == (
        "No agent is right more often than script:null, which does nothing (0.25 right).")  # fmt: skip
