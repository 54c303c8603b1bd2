"""What a judge prefers and what may lie behind it: worked values, a published evaluation, 52 judges asked twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import Usage, grid, profile, report, stats
from evalkit.judge import swapped
from evalkit.records import Call, Failure, Step, Trace, Verdict

CASES = Path(__file__).parent / "cases"
PLACE = {"by": "prefer:j", "model": "m", "a": "hybrid", "b": "grep", "failure": None, "consistent": 1.0}


def pairs(*rows, **same):
    """A frame of pairs; a row is (sample, preference) and then len_a, len_b, confidence, first_wins, rounds."""
    names = ("sample_id", "preference", "len_a", "len_b", "confidence", "first_wins", "rounds")
    rest = ("", None, 100, 100, "high", 1, 2)
    made = [dict(zip(names, (*row, *rest[len(row) :]), strict=True)) for row in rows]
    frame = pd.DataFrame([PLACE | {"cluster": row["sample_id"]} | row | same for row in made])
    return frame.astype({"preference": float, "consistent": float})


def only(frame):
    (row,) = frame.to_dict("records")
    return row


# Preferences


def test_seven_wins_and_three_ties_give_the_worked_values():
    row = only(profile.preferences(pairs(*[(f"q{n}", 1) for n in range(7)], *[(f"t{n}", 0.5) for n in range(3)])))
    assert (row["wins"], row["ties"], row["losses"], row["failed"]) == (7, 3, 0, 0)
    assert (row["by"], row["model"], row["a"], row["b"]) == ("prefer:j", "m", "hybrid", "grep")
    assert row["win_rate"] == pytest.approx(0.85) and row["p"] == pytest.approx(1 / 64)
    assert (row["low"], row["high"]) == pytest.approx(stats.wilson(8.5, 10))


def test_repeats_are_decided_first_and_lengths_are_their_means():
    votes = pairs(
        ("q1", 1, 10, 40), ("q1", 1, 20, 20), ("q1", 0, 30, 60), ("q2", 0), ("q2", None), ("q3", 1, 5, 6, "low")
    )
    found = profile.decided(votes).set_index("sample_id")
    assert found["preference"].to_dict() == {"q1": 1, "q2": 0, "q3": 1}
    assert found["confidence"].to_dict() == {"q1": "medium", "q2": "high", "q3": "low"}
    assert (found.loc["q1", "len_a"], found.loc["q1", "len_b"]) == (20, 40)
    assert [only(profile.preferences(votes))[n] for n in ("wins", "ties", "losses")] == [2, 0, 1]


def test_judges_models_and_pairs_of_conditions_stand_apart_and_failures_are_counted():
    frame = pd.concat(
        [
            pairs(("q1", 1)),
            pairs(("q1", 0), model="n"),
            pairs(("q1", 0.5), by="prefer:k"),
            pairs(("q1", 1), b="third"),
            pairs(("q2", None), failure="unreadable", consistent=None),
        ]
    )
    table = profile.preferences(frame)
    assert len(table) == 4 and list(table["failed"]) == [1, 0, 0, 0]
    assert table.groupby(["by", "model", "b"], sort=False)["win_rate"].first().to_list() == [1, 0, 0.5, 1]


def test_nothing_compared_is_an_empty_table_with_its_columns_and_no_sentence():
    empty = pairs(("q1", None)).iloc[:0]
    failed = pairs(("q1", None), ("q2", None), failure="unreadable", consistent=None)
    for frame in (empty, failed.assign(rounds=0, first_wins=0)):
        assert profile.preferences(frame).empty and list(profile.preferences(frame))[-1] == "failed"
        assert profile.biases(frame) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0, 0.5, 1]), min_size=1, max_size=12))
def test_turning_the_pair_round_mirrors_wins_and_interval(votes):
    one = only(profile.preferences(pairs(*[(f"q{n}", v) for n, v in enumerate(votes)])))
    two = only(profile.preferences(pairs(*[(f"q{n}", 1 - v) for n, v in enumerate(votes)])))
    assert (one["wins"], one["losses"], one["ties"]) == (two["losses"], two["wins"], two["ties"])
    assert one["win_rate"] + two["win_rate"] == pytest.approx(1) and one["p"] == pytest.approx(two["p"])
    assert (
        one["low"] == pytest.approx(1 - two["high"], abs=1e-6)
        and 0 <= one["low"] <= one["win_rate"] <= one["high"] <= 1
    )


# Biases


def test_a_judge_that_takes_the_first_is_warned_of_with_its_share_and_exact_p():
    said = profile.biases(pairs(*[(f"q{n}", 0.5, 100, 100, "low", 2, 2) for n in range(5)], consistent=0.0))
    assert said[0] == "WARNING: prefer:j preferred the answer shown first in 1.00 of 10 rounds with a winner " \
                      "(exact binomial p 0.00195)."  # fmt: skip
    assert said[1] == "WARNING: prefer:j contradicted itself when the order was swapped in 1.00 of 5 pairs."
    last = profile.biases(pairs(*[(f"q{n}", 0.5, 100, 100, "low", 0, 2) for n in range(5)], consistent=0.0))
    assert last[0].startswith("WARNING") and "in 0.00 of 10 rounds" in last[0]


def test_a_fair_judge_is_not_warned_of():
    said = profile.biases(pairs(*[(f"q{n}", n % 2, 100 + n % 3, 100 + n % 5) for n in range(12)]))
    assert "in 0.50 of 24 rounds" in said[0] and "in 0.00 of 12 pairs" in said[1] and len(said) == 3
    assert not any("WARNING" in line for line in said)


def test_a_judge_that_takes_the_longer_is_warned_of_and_the_count_stands_instead_of_a_rate():
    said = profile.biases(pairs(*[(f"q{n}", n % 2, 200 if n % 2 else 100, 150) for n in range(8)]))[-1]
    assert "m, hybrid against grep: the longer answer won 8 of 8 decisive pairs (95 % CI 0.68 to 1.00)" in said
    assert "WARNING" in said and "cannot be estimated: the longer answer wins 8 of 8 decisive pairs" in said


def test_where_length_does_not_decide_the_rate_at_equal_length_is_told():
    rows = [(f"q{n}", float(n % 4 != 0), 100 + 10 * (n % 3), 110) for n in range(24)]
    said = profile.biases(pairs(*rows))[-1]
    controlled = stats.length_controlled(pairs(*rows))
    assert f"at equal length hybrid would win {controlled.estimate:.2f} ({controlled.low:.2f} to" in said


# Published and recomputed


@pytest.fixture(scope="module")
def published():
    """The published evaluation of hybrid against grep: (pairs with hybrid as a, the case)."""
    case = json.loads((CASES / "fastify_eval_profile.json").read_text("utf-8"))
    size = {(run["task_id"], run["tool"]): run["answer_chars"] for run in case["runs"]}
    won = {"hybrid": 1, "grep": 0, "Tie": 0.5}
    rows = [(t, won[w], size[t, "hybrid"], size[t, "grep"]) for t, w in case["pairwise_winner"].items()]
    return pairs(*rows), case


def test_the_published_length_bias_hides_in_the_pool_and_shows_in_pairs(published):
    found, right = stats.length_bias(published[0]), published[1]["right"]
    assert found.pooled == pytest.approx(right["spearman_length_vs_won_over_20_runs"], abs=1e-12)
    assert found.paired == pytest.approx(right["spearman_lengthdiff_vs_score_over_10_tasks"], abs=1e-12)
    assert (found.pooled, found.paired) == (pytest.approx(0.155, abs=5e-4), pytest.approx(0.342, abs=5e-4))
    assert [found.longer_wins, found.decisive] == right["longer_answer_won_of_decisive"] == [7, 7]
    assert (found.low, found.high) == (pytest.approx(0.646, abs=5e-4), 1) and found.note.startswith("WARNING")
    controlled = stats.length_controlled(published[0])
    assert controlled.estimate is None and "the longer answer wins 7 of 7 decisive pairs" in controlled.note


def test_the_published_wins_give_the_recomputed_rates(published):
    row, right = only(profile.preferences(published[0])), published[1]["right"]
    assert (row["wins"], row["ties"], row["losses"]) == (right["hybrid"]["wins"], right["hybrid"]["ties"], 0)
    assert row["win_rate"] == pytest.approx(0.85) == right["hybrid"]["win_rate_ties_half_pct"] / 100
    assert row["p"] == right["sign_test_p"] == pytest.approx(0.0156, abs=5e-5)
    assert stats.wilson(7, 10) == pytest.approx(right["hybrid"]["wilson95"])
    assert stats.wilson(0, 10) == pytest.approx(right["grep"]["wilson95"])


def test_the_published_medians_are_those_of_the_runs(published):
    runs, free = published[1]["runs"], Step(call=Call(id="", name="read_file"), result="")
    found = []
    for run in runs:
        steps = (Step(call=Call(id="", name="s"), result=""),) * run["search_calls"] + (free,)
        usage = Usage(input=run["tokens_in"], output=run["tokens_out"])
        found.append((Trace(key="", model="m", condition=run["tool"], usage=usage, steps=steps, usd=0.25,
                            seconds=run["wall_clock_s"]), None, {}))  # fmt: skip
    table = profile.effort(found).set_index("condition")
    for tool in ("hybrid", "grep"):
        row, right = table.loc[tool], published[1]["right"][tool]
        assert row["tokens"] == right["median_tokens"] and row["searches"] == right["median_search_calls"]
        assert row["seconds"] == pytest.approx(right["median_wall_s"]) and row["usd"] == 0.25
        assert row["calls"] == right["median_search_calls"] + 1


SWAP = [json.loads(line) for line in (CASES / "judge_swap.jsonl").read_text("utf-8").splitlines()]


def kappa(one, two):
    """Cohen's kappa of labels of any number, out of the rates and agreements of each against the rest."""
    by = [stats.agreement([x == c for x in one], [y == c for y in two]) for c in sorted({*one, *two})]
    observed = 1 - sum(1 - found.agreement for found in by) / 2
    chance = sum(found.judge_rate * found.people_rate for found in by)
    return observed, (observed - chance) / (1 - chance)


@pytest.mark.parametrize("row", SWAP, ids=lambda row: row["id"])
def test_a_judge_asked_in_both_orders_gives_the_recomputed_figures(row):
    right, near = row["right"], {"abs": 1e-9}
    label, original, turned = row["label"], row["original"], row["swapped"]
    of = {
        "vs_label_original": (original, label),
        "vs_label_swapped": (turned, label),
        "between_orders": (original, turned),
    }
    agreements = {}
    for name, (one, two) in of.items():  # "-", where no winner could be read, is a label of its own there
        agreements[name], found = kappa(one, two)
        assert found == pytest.approx(right[f"kappa_{name}"], **near)
        if "-" not in one + two and len({*one}) + len({*two}) > 2:
            both = stats.agreement([x == "1" for x in one], [y == "1" for y in two])
            assert (both.agreement, both.kappa) == pytest.approx((agreements[name], found), **near)
    assert agreements["vs_label_original"] == pytest.approx(right["accuracy_original"], **near)
    assert agreements["vs_label_swapped"] == pytest.approx(right["accuracy_swapped"], **near)
    assert agreements["between_orders"] == pytest.approx(right["same_winner_rate"], **near)
    assert 1 - agreements["between_orders"] == pytest.approx(right["inconsistent_rate"], **near)

    sides, firsts = {"1": "a", "2": "b", "-": "tie"}, []
    table = []
    for n, winners in enumerate(zip(original, turned, strict=True)):
        rounds = [
            {"first": first, "winner": sides[w], "confidence": "high"} for first, w in zip("ab", winners, strict=True)
        ]
        decisive = [r for r in rounds if r["winner"] != "tie"]
        firsts.append((sum(r["winner"] == r["first"] for r in decisive), len(decisive)))
        winner = {"a": 1, "b": 0, "tie": 0.5}[swapped(rounds)[0]]
        table.append((f"q{n}", winner, 100, 100, "high", *firsts[-1]))
    frame = pairs(*table)
    first, read = frame["first_wins"].sum(), frame["rounds"].sum()
    assert read == right["verdicts_not_null"]
    assert first / read == pytest.approx(right["first_position_win_rate"], **near)
    found = only(profile.preferences(frame))
    counts = (right["output_1_wins"], right["ties"], right["output_2_wins"])
    assert (found["wins"], found["ties"], found["losses"]) == counts
    assert [found["low"], found["high"]] == pytest.approx(right["wilson95_output1_ties_half"], **near)
    decisive = (counts[0], counts[0] + counts[2])
    interval = right["wilson95_output1_decisive"] or [0, 1]  # no decisive pair
    assert list(stats.wilson(*decisive)) == pytest.approx(interval, **near)
    assert found["p"] == pytest.approx(right["sign_test_p_two_sided"] or 1, **near)


def test_two_who_never_say_the_same_have_a_kappa_of_zero():
    row = next(row for row in SWAP if row["id"] == "swap-hand-04")
    both = stats.agreement([x == "1" for x in row["original"]], [x == "1" for x in row["swapped"]])
    assert (both.agreement, both.kappa) == (0, row["right"]["kappa_between_orders"])


def test_what_the_judges_say_of_position_is_told_of_each():
    table = [
        (f"{row['id']}/{n}", 0.5, 100, 100, "low", (a == "1") + (b == "2"), 2)
        for row in SWAP[:1]
        for n, (a, b) in enumerate(zip(row["original"], row["swapped"], strict=True))
        if "-" not in a + b
    ]
    said = profile.biases(pairs(*table))[0]
    assert said.startswith("WARNING: prefer:j preferred the answer shown first in 0.79 of 106 rounds")


# Length


def lengths(a, b, won):
    return pd.DataFrame({"len_a": a, "len_b": b, "preference": won, "sample_id": [f"q{n}" for n in range(len(won))]})


NOT_ESTIMATED = {
    "one length": (lengths([100] * 3, [100] * 3, [1, 0, 1]), "the answers of every pair have one length"),
    "two pairs": (lengths([1, 2], [2, 1], [1, 0]), "fewer than 3 pairs"),
    "all ties": (lengths(range(6), [9] * 6, [0.5] * 6), "no pair has a winner"),
    "nothing": (lengths([], [], []), "fewer than 3 pairs"),
}


@pytest.mark.parametrize("name", NOT_ESTIMATED)
def test_a_length_bias_that_cannot_be_estimated_says_why(name):
    frame, why = NOT_ESTIMATED[name]
    found = stats.length_bias(frame)
    assert (found.pooled, found.paired, found.note) == (None, None, f"cannot be estimated: {why}")
    assert 0 <= found.low <= found.high <= 1 and found.longer_wins <= found.decisive
    controlled = stats.length_controlled(frame)
    assert controlled[:3] == (None, None, None) and controlled.note.startswith("cannot be estimated: ")


def test_the_longer_of_eight_is_a_count_with_its_interval_and_a_warning_and_no_slope():
    frame = lengths([120, 80] * 4, [100] * 8, [1, 0] * 4)
    found = stats.length_bias(frame)
    assert (found.longer_wins, found.decisive, found.high) == (8, 8, 1) and found.low == pytest.approx(0.6756, abs=5e-5)
    assert found.note == "WARNING: the longer answer wins 8 of 8 decisive pairs, more than chance would"
    controlled = stats.length_controlled(frame)
    assert controlled == (None, None, None, "cannot be estimated: the longer answer wins 8 of 8 decisive pairs: "
                                            "length and preference cannot be parted")  # fmt: skip
    other = stats.length_bias(lengths([120, 80] * 4, [100] * 8, [0, 1] * 4))
    assert other.longer_wins == 0 and "the shorter answer wins 8 of 8" in other.note


@pytest.mark.parametrize(
    ("frame", "why"),
    [(lengths([9] * 8, [9] * 8, [1, 0] * 4), "the answers of every pair have one length"),
     (lengths(range(8), [9] * 8, [0.5] * 8), "no pair has a winner"),
     (lengths(range(8), [4] * 8, [1] * 8), "one side wins every pair"),
     (lengths(range(8), [4.5] * 8, [1, 0, 1, 0, 1] + [0.5] * 3), "fewer than 6 pairs with a winner"),
     (lengths([], [], []), "no pair has a winner")],
)  # fmt: skip
def test_a_rate_at_equal_length_that_cannot_be_estimated_says_why(frame, why):
    controlled = stats.length_controlled(frame)
    assert controlled[:3] == (None, None, None) and controlled.note == f"cannot be estimated: {why}"


def drawn(n, seed, at_zero=0.0, slope=2.0):
    """Pairs of a judge whose preference is logistic in tanh(length difference / sd), and at_zero where that is 0."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(500, 4_000, n), rng.integers(500, 4_000, n)
    x = np.tanh((a - b) / (a - b).std())
    return lengths(a, b, (rng.random(n) < 1 / (1 + np.exp(-at_zero - slope * x))).astype(float))


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_goes_by_length_alone_has_one_half_within_its_interval(seed):
    frame = drawn(400, seed)
    found = stats.length_controlled(frame)
    assert found.low <= 0.5 <= found.high and found.high - found.low < 0.15 and found.note == ""
    assert stats.length_bias(frame).low > 0.5 and stats.length_bias(frame).paired > 0.3
    turned = stats.length_controlled(lengths(frame["len_b"], frame["len_a"], 1 - frame["preference"]))
    assert turned.estimate == pytest.approx(1 - found.estimate, abs=1e-6)


def test_a_judge_that_prefers_a_at_equal_length_is_told_from_one_that_goes_by_length():
    found = stats.length_controlled(drawn(600, 1, at_zero=1.0))
    assert found.low > 0.5 and found.low <= 1 / (1 + np.exp(-1)) <= found.high


def test_repeats_of_a_question_are_one_cluster_and_widen_the_interval():
    once = drawn(60, 3)
    often = pd.concat([once] * 4)
    alone = often.assign(sample_id=range(len(often)))
    wide, narrow = stats.length_controlled(often), stats.length_controlled(alone)
    assert wide.estimate == pytest.approx(narrow.estimate)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_rows_without_a_preference_are_left_out():
    frame = drawn(50, 2)
    more = pd.concat([frame, lengths([1] * 9, [9_000] * 9, [np.nan] * 9)])
    assert stats.length_bias(more) == stats.length_bias(frame)
    assert stats.length_controlled(more) == stats.length_controlled(frame)


SIZES = st.integers(0, 5_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES, st.sampled_from([0, 0.5, 1])), max_size=15))
def test_no_pairs_break_the_length_checks(rows):
    frame = lengths(*([row[i] for row in rows] for i in range(3)))
    found, controlled = stats.length_bias(frame), stats.length_controlled(frame)
    assert 0 <= found.low <= found.high <= 1 and 0 <= found.longer_wins <= found.decisive <= len(rows)
    assert all(v is None or -1 <= v <= 1 for v in (found.pooled, found.paired))
    if controlled.estimate is None:
        assert controlled.note.startswith("cannot be estimated") and controlled.low is controlled.high is None
    else:
        assert 0 <= controlled.low <= controlled.estimate <= controlled.high <= 1


# Judges against people


def test_a_seen_rate_is_corrected_by_sensitivity_and_specificity():
    assert stats.rogan_gladen(0.7, 0.9, 0.8) == pytest.approx(0.7143, abs=5e-5)
    assert stats.rogan_gladen(0.1, 0.9, 0.8) == 0 and stats.rogan_gladen(0.95, 0.9, 0.8) == 1
    for se, sp in ((0.5, 0.5), (0.2, 0.8), (0.3, 0.1)):
        with pytest.raises(ValueError, match="no better than chance"):
            stats.rogan_gladen(0.7, se, sp)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0.51, 1), st.floats(0.51, 1))
def test_the_correction_undoes_what_the_judge_did(rate, se, sp):
    assert stats.rogan_gladen(rate * se + (1 - rate) * (1 - sp), se, sp) == pytest.approx(rate, abs=1e-6)


def test_labels_correct_the_mean_of_a_judge_by_hand():
    # mean .75 of eight unlabelled; judge minus people is (1, 0, 0, 0) of four labelled: mean .25, variance .1875
    found = stats.prediction_powered([1, 1, 1, 0] * 2, [1, 1, 0, 1], [0, 1, 0, 1])
    error = 1.96 * (0.1875 / 8 + 0.1875 / 4) ** 0.5
    assert found.estimate == pytest.approx(0.5)
    assert error > 0.5 and (found.low, found.high) == (0, 1)  # shares end at 0 and 1
    scores = stats.prediction_powered([2, 2, 2, 0] * 2, [2, 2, 0, 2], [0, 2, 0, 2])
    assert (scores.low, scores.high) == (pytest.approx(1 - 2 * error), pytest.approx(1 + 2 * error))
    assert stats.prediction_powered([1, 0], [1, 0], [1, 0]).estimate == 0.5
    for wrong in (([1], [1, 0], [1, 0]), ([1, 0], [1], [1]), ([1, 0], [1, 0], [1])):
        with pytest.raises(ValueError, match="labels one to one"):
            stats.prediction_powered(*wrong)


def test_all_of_k_repeats_succeed_as_often_as_can_be_drawn():
    assert [stats.pass_hat(3, 4, k) for k in (1, 2, 3, 4)] == [0.75, 0.5, 0.25, 0]
    assert [stats.pass_hat(1, 1, 2), stats.pass_hat(0, 0, 1), stats.pass_hat(1, 1, 0)] == [None] * 3
    assert (stats.pass_hat(4, 4, 4), stats.pass_hat(0, 4, 1)) == (1, 0)


def test_p_values_are_adjusted_for_exploration_and_for_claims():
    assert stats.benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.benjamini_hochberg([]) == [] and stats.benjamini_hochberg([0.2]) == [0.2]


@pytest.mark.parametrize("n", [2, 3, 9])
def test_adjusted_p_values_are_never_smaller_keep_their_order_and_explore_more_than_they_claim(n):
    p = np.random.default_rng(n).random(n) / 10
    found, claims = stats.benjamini_hochberg(p), stats.holm(p)
    assert all(raw <= bh <= holm <= 1 for raw, bh, holm in zip(p, found, claims, strict=True))
    assert [found[i] for i in np.argsort(p)] == sorted(found) and claims != found


# Consistency, details, effort, the page


def made(condition, repeat=0, model="m", usage=0, seconds=1.0, steps=(), **more):
    key = f"{model}/{condition}/{repeat}"
    return Trace(
        key=key,
        suite="gone",
        sample_id="q1",
        condition=condition,
        model=model,
        repeat=repeat,
        answer="It is.",
        usage=Usage(input=usage),
        usd=0.01,
        seconds=seconds,
        steps=steps,
        stop="answered",
        **more,
    )


@pytest.fixture
def folder(tmp_path):
    """A run of two conditions and a control, with what a judge said of it, one verdict superseded and one failed."""
    rows = [made("grep"), made("grep", 1), made("hybrid"), made("hybrid", 1), made("grep", model="script:oracle")]
    for row in rows:
        grid.append(tmp_path / "traces.jsonl", row)
    notes = {"claims": ["it is fast", "it is\nsmall | cheap"], "paths": ["lib/gone.js"], "ranges": []}
    values = {"grounding": 3.0, "faithfulness": 4.0, "supports": 0.5}
    failed = {"values": dict.fromkeys(values), "failure": Failure(where="judge", kind="unreadable")}
    ground = [
        Verdict(key=f"g{n}", of=(row.key,), by="ground:j", **(failed if n == 3 else {"values": values, "notes": notes}))
        for n, row in enumerate(rows)
    ]
    agree = [({"agreement": 0.1, "similarity": None}, "grep"), ({"agreement": 0.8, "similarity": 0.6}, "grep"),
             ({"agreement": None, "similarity": 0.9}, "hybrid")]  # fmt: skip
    for n, (said, condition) in enumerate(agree):
        of = (f"m/{condition}/0", f"m/{condition}/1")
        ground.append(Verdict(key=f"a{n}", of=of, by="agree:j", values=said))
    for row in ground:
        grid.append(tmp_path / "verdicts.jsonl", row)
    return tmp_path


def test_consistency_is_told_by_condition_and_by_kind_and_the_last_verdict_counts(folder):
    table = profile.consistency([folder]).set_index("condition")
    assert list(table.loc["grep", ["samples", "agreement", "similarity"]]) == [1, 0.8, 0.6]
    assert np.isnan(table.loc["hybrid", "agreement"]) and table.loc["hybrid", "similarity"] == 0.9
    assert set(table["by"]) == {"agree:j"} and len(table) == 2
    nothing = folder / "nothing"
    nothing.mkdir()
    assert profile.consistency([nothing]).empty and profile.consistency([]).empty


def test_details_have_every_answer_but_those_of_the_controls_with_claims_and_paths(folder):
    table = profile.details([folder])
    assert list(zip(table["condition"], table["repeat"], strict=True)) == [
        ("grep", 0), ("grep", 1), ("hybrid", 0), ("hybrid", 1)]  # fmt: skip
    assert list(table["grounding"].fillna(-1)) == [3, 3, 3, -1] and list(table["failure"]) == ["", "", "", "unreadable"]
    assert table["ungrounded_claims"][0] == "it is fast; it is small | cheap"
    assert table["hallucinated_paths"][0] == "lib/gone.js" and table["hallucinated_paths"][3] == ""


def test_effort_is_a_median_a_cell_and_reading_is_no_search():
    search, read = (Step(call=Call(id="", name=n), result="") for n in ("ripgrep", "read_file"))
    unrun = search.model_copy(update={"executed": False})
    rows = [made("grep", 0, usage=100, seconds=1, steps=(search, read, unrun)), made("grep", 1, usage=300, seconds=9),
            made("grep", 2, usage=200, seconds=2, steps=(search, search, unrun, read)),
            made("grep", model="script:oracle", usage=9_000)]  # fmt: skip
    row = only(profile.effort((t, None, {}) for t in rows))
    assert (row["model"], row["condition"], row["usd"]) == ("m", "grep", pytest.approx(0.01))
    assert (row["tokens"], row["searches"], row["calls"], row["seconds"]) == (200, 1, 3, 2)
    assert profile.effort([]).empty and list(profile.effort([]))[:2] == ["model", "condition"]


def test_the_page_is_markdown_with_a_heading_a_part_and_no_cell_breaks_its_row(folder, tmp_path):
    parts = [
        ("The answer", ["It is.", "It was."]),
        ("Details", profile.details([folder])),
        ("None", []),
        ("Repeats", profile.consistency([folder])),
        ("Empty", profile.preferences(report.pairs(folder))),
    ]
    text = profile.markdown(tmp_path / "profile.md", parts).read_text("utf-8")
    heads, bodies = zip(*(part.split("\n\n", 1) for part in text.removeprefix("## ").split("\n## ")), strict=True)
    assert list(heads) == [head for head, _ in parts]
    assert bodies[0].strip() == "- It is.\n- It was." and bodies[2].strip() == bodies[4].strip() == "(nothing)"
    rows = bodies[1].strip().split("\n")
    columns = [row.replace("\\|", "").count("|") for row in rows]
    assert len(rows) == 2 + 4 and len(set(columns)) == 1 and "it is small \\| cheap" in rows[2]
    assert "nan" not in text.lower() and "None |" not in text
