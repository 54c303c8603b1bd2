"""Statistics: the worked values of the intervals, and the paired gap from a frame a reader can add up."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from evalkit.stats import (
    agreement,
    cost_per_correct,
    detectable_gap,
    efficient,
    holm,
    mcnemar,
    newcombe,
    paired_gap,
    samples_needed,
    wilson,
)

TABLE = json.loads((Path(__file__).parent / "cases" / "wilson_table.json").read_text())
SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def tidy(a, b, clusters=None, metric="correct"):
    """The tidy frame of two lists of values a sample: a number, a list of repeats, or None for not measured."""
    rows = []
    for condition, values in (("a", a), ("b", b)):
        for i, value in enumerate(values):
            cluster = clusters[i] if clusters else f"q{i}"
            for repeat, one in enumerate(value if isinstance(value, list) else [value]):
                rows.append((f"q{i}", cluster, condition, repeat, metric, one))
    frame = pd.DataFrame(rows, columns=["sample_id", "cluster", "condition", "repeat", "metric", "value"])
    return frame.astype({"value": float})


def gap(a, b, clusters=None, **options):
    return paired_gap(tidy(a, b, clusters), "correct", "a", "b", **options)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['k']}/{row['n']}")
def test_wilson_agrees_with_the_table(row):
    assert wilson(row["k"], row["n"]) == pytest.approx((row["low"], row["high"]), abs=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(5, 10, 0.2366, 0.7634), (0, 10, 0, 0.2775), (10, 10, 0.7225, 1), (77, 100, 0.6785, 0.8416), (1, 1, 0.2065, 1),
     (0, 1, 0, 0.7935), (1, 30, 0.0059, 0.1667), (29, 30, 0.8333, 0.9941), (3, 7, 0.1582, 0.7495)],
)  # fmt: skip
def test_wilson_gives_the_worked_values(k, n, low, high):
    assert wilson(k, n) == pytest.approx((low, high), abs=5.1e-5)


def test_no_data_is_the_whole_interval():
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_stays_in_bounds_and_mirrors(of):
    k, n = of
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1 and low < high
    assert (low == 0) == (k == 0) and (high == 1) == (k == n)
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize("n", [10, 20, 50, 100])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_wilson_holds_the_true_rate_at_least_nine_times_in_ten(n, rate):
    intervals = [wilson(k, n) for k in range(n + 1)]
    assert sum(binom.pmf(k, n, rate) for k, (low, high) in enumerate(intervals) if low <= rate <= high) >= 0.90


@pytest.mark.parametrize(("k", "n"), [(2, 1), (-1, 3), (1, 0), (float("nan"), 3)])
def test_wilson_refuses_what_is_no_count_and_says_which(k, n):
    with pytest.raises(ValueError, match=f"{k} successes of {n}"):
        wilson(k, n)


def test_newcombe_gives_the_worked_value():
    assert newcombe(36, 12, 2, 0) == pytest.approx((0.20, 0.0569, 0.3404), abs=5.1e-5)


CELLS = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


@given(CELLS)
def test_newcombe_holds_the_difference_stays_in_bounds_and_mirrors(cells):
    a, b, c, d = cells
    difference, low, high = newcombe(a, b, c, d)
    assert difference == pytest.approx((b - c) / sum(cells), abs=1e-12)
    assert -1 <= low <= difference <= high <= 1 and low < high
    assert newcombe(a, c, b, d) == pytest.approx((-difference, -high, -low), abs=1e-12)


def test_newcombe_of_no_pairs_is_an_error():
    with pytest.raises(ValueError, match="no pairs"):
        newcombe(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("b", "c", "exact", "midp"), [(4, 1, 0.375, 0.2188), (6, 0, 0.03125, 0.0156), (9, 1, 0.0215, 0.0117), (0, 0, 1, 1)]
)
def test_mcnemar_gives_the_worked_values_either_way_round(b, c, exact, midp):
    assert mcnemar(b, c) == pytest.approx((exact, midp), abs=5.1e-5)
    assert mcnemar(c, b) == pytest.approx(mcnemar(b, c))


@pytest.mark.parametrize("pairs", [5, 6, 10, 25, 60])
def test_mcnemar_raises_a_false_alarm_in_one_of_twenty_at_most(pairs):
    assert sum(binom.pmf(b, pairs, 0.5) for b in range(pairs + 1) if mcnemar(b, pairs - b)[0] <= 0.05) <= 0.05


def test_holm_gives_the_worked_values_in_the_order_asked():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_agreement_and_kappa_give_the_worked_values():
    judge, people = [1] * 90 + [0] * 10, [1] * 85 + [0] * 5 + [1] * 5 + [0] * 5
    found = agreement(judge, people)
    assert (found.agreement, found.kappa) == pytest.approx((0.90, 0.444), abs=5e-4)
    assert (found.n, found.judge_rate, found.people_rate, found.confusion) == (100, 0.9, 0.9, (85, 5, 5, 5))


def test_agreement_without_items_or_without_variety_has_no_kappa():
    assert agreement([], [])[:3] == (None, None, 0)
    assert agreement([1, 1], [1, 1])[:3] == (1.0, None, 2)
    with pytest.raises(ValueError, match="2 judgements and 1 label"):
        agreement([1, 0], [1])


def test_the_power_of_a_run_gives_the_worked_values():
    assert samples_needed(1 / 9, 0.03) == 969
    assert detectable_gap(1 / 9, 198) == pytest.approx(0.0664, abs=5.1e-5)
    assert detectable_gap(1 / 9, 969) <= 0.03 < detectable_gap(1 / 9, 968)


def test_the_gap_of_a_small_frame_is_the_mean_of_its_differences():
    found = gap([1, 1, 0, 1], [0, 1, 0, 0])
    assert (found.estimate, found.n, found.clusters, found.unmatched) == (0.5, 4, 4, ())
    assert found.low < 0.5 < found.high


def test_repeats_are_averaged_first_so_four_samples_of_five_repeats_are_four():
    found = gap([[1, 1, 1, 1, 0], [0] * 5, [1] * 5, [1, 0, 0, 0, 0]], [[0] * 5, [0] * 5, [1] * 5, [0] * 5])
    assert (found.n, found.clusters) == (4, 4)
    assert found.estimate == pytest.approx((0.8 + 0 + 0 + 0.2) / 4)
    once = gap([0.8, 0, 1, 0.2], [0, 0, 1, 0])
    assert found[:3] == pytest.approx(once[:3])


def test_a_sample_with_many_repeats_weighs_no_more_than_one_with_few():
    assert gap([[1] * 9, 0], [[0], [0, 0, 1]]).estimate == pytest.approx((1 - 1 / 3) / 2)


def test_a_missing_value_is_no_zero():
    assert gap([[1, None], 1], [[0, 0], 1]).estimate == 0.5


def test_samples_measured_on_one_side_are_listed_and_left_out():
    found = gap([1, 1, None, 1], [0, None, 1, 0])
    assert (found.n, found.estimate, found.unmatched) == (2, 1.0, ("q1", "q2"))


def test_other_metrics_and_conditions_do_not_count():
    other = tidy([0, 0], [1, 1], metric="cited")
    third = tidy([0, 0], [0, 0]).assign(condition="c")
    assert paired_gap(pd.concat([tidy([1, 1], [0, 1]), other, third]), "correct", "a", "b").estimate == 0.5


def test_any_column_can_be_the_comparison_and_any_the_cluster():
    frame = tidy([1, 0, 1], [0, 0, 0]).rename(columns={"condition": "model"}).assign(family=["x", "x", "y"] * 2)
    found = paired_gap(frame, "correct", "a", "b", cluster="family", by="model")
    assert (found.estimate, found.n, found.clusters) == (pytest.approx(2 / 3), 3, 2)


@pytest.mark.parametrize(("a", "b"), [([1, None], [None, 1]), ([1, 1], [None, None]), ([], [])])
def test_no_overlap_is_an_error_that_names_metric_and_conditions(a, b):
    with pytest.raises(ValueError, match="'correct' under both 'a' and 'b'"):
        gap(a, b)


PAIRS = st.lists(st.tuples(SCORES, SCORES, st.sampled_from("xyz")), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.integers(0, 9))
def test_the_same_seed_gives_the_same_figures_and_swapping_mirrors_them(pairs, seed):
    frame = tidy([a for a, _, _ in pairs], [b for _, b, _ in pairs], [c for _, _, c in pairs])
    found = paired_gap(frame, "correct", "a", "b", seed=seed)
    swapped = paired_gap(frame, "correct", "b", "a", seed=seed)
    assert paired_gap(frame, "correct", "a", "b", seed=seed) == found
    assert (swapped.estimate, swapped.low, swapped.high) == pytest.approx((-found.estimate, -found.high, -found.low))
    assert swapped[3:] == found[3:]


@settings(max_examples=40, deadline=None)
@given(PAIRS)
def test_the_interval_has_a_width_and_holds_the_gap(pairs):
    frame = tidy([a for a, _, _ in pairs], [b for _, b, _ in pairs], [c for _, _, c in pairs])
    found = paired_gap(frame, "correct", "a", "b")
    assert -1 <= found.low <= found.estimate + 1e-9 and found.estimate - 1e-9 <= found.high <= 1
    assert found.high - found.low > 0.005


def test_the_seed_decides_the_draws():
    a, b = list(np.linspace(0, 1, 20)), list(np.linspace(1, 0, 20) ** 2)
    assert gap(a, b, seed=1)[1:3] != gap(a, b, seed=2)[1:3]


@pytest.mark.parametrize(
    ("a", "b"),
    [([1] * 6, [1] * 6), ([1] * 6, [0] * 6), ([0.75] * 6, [0.5] * 6), ([0.3, 0.4, 0.5], [0.2, 0.3, 0.4])],
    ids=["all right", "always better", "a constant share", "constant but for rounding"],
)
def test_a_constant_difference_gives_an_interval_with_a_width(a, b):
    found = gap(a, b)
    assert found.low <= found.estimate <= found.high
    assert found.high - found.low > 0.05


def test_clusters_with_the_same_mean_difference_give_an_interval_with_a_width():
    found = gap([1, 0] * 3, [0, 0] * 3, ["x", "x", "y", "y", "z", "z"])
    assert found.estimate == 0.5
    assert found.low < 0.49 and found.high > 0.51


def test_one_cluster_still_gives_a_stated_interval():
    found = gap([1, 0.5, 0], [0, 0.5, 0.25], ["x"] * 3)
    assert (found.n, found.clusters, found.estimate) == (3, 1, 0.25)
    assert found.low <= -0.25 and found.high >= 0.75


@pytest.mark.parametrize(
    ("a", "b"), [([5, 4, 5, 3, 5], [1, 2, 1, 1, 3]), ([5, 5, 5], [2, 2, 2])], ids=["varied", "constant"]
)
def test_a_metric_on_another_scale_keeps_its_interval_around_the_gap(a, b):
    found = gap(a, b)
    assert found.low < found.estimate < found.high


def test_cost_per_correct_gives_the_worked_values():
    failed, right, wrong = (0.04, np.nan), (0.06, 1), (0.10, 0)
    cost, correct = zip(failed, right, wrong, strict=True)
    assert cost_per_correct(cost, correct, ["A", "A", "B"]).estimate == pytest.approx(0.20)
    many = cost_per_correct([0.0861 / 25] * 25, [1] * 21 + [0] * 4, range(25))
    assert many.estimate == pytest.approx(0.0041) and many.low < 0.0041 < many.high and many.note == ""


@pytest.mark.parametrize(
    ("cost", "correct", "cluster", "found"),
    [
        ([0.1, 0.1], [0, 0], "ab", (None, None, None, "none right")),
        ([0.1, 0.1], [np.nan, np.nan], "ab", (None, None, None, "none right")),
        ([], [], [], (None, None, None, "none right")),
        ([0, 0], [0, 0], "ab", (None, None, None, "none right")),
        ([0, 0], [1, 0], "ab", (0, None, None, "not priced")),
        ([0.1, 0.3], [1, 1], "aa", (0.2, None, None, "one cluster, no interval")),
    ],
)
def test_where_there_is_no_interval_the_note_says_why(cost, correct, cluster, found):
    assert cost_per_correct(cost, correct, list(cluster)) == pytest.approx(found)


def test_a_missing_measurement_costs_and_is_not_right():
    assert cost_per_correct([1, 1, 1], [1, np.nan, 1], "abc").estimate == 1.5


@pytest.mark.parametrize("sizes", [(2, 3, 3), (3, 2, 3), (3, 3, 2)])
def test_costs_results_and_clusters_must_be_alike(sizes):
    with pytest.raises(ValueError, match="{} costs, {} results, {} clusters".format(*sizes)):
        cost_per_correct(*(list(range(size)) for size in sizes))


def test_the_pair_of_cost_and_result_is_drawn_together_and_whole_clusters_are():
    rng = np.random.default_rng(1)
    right = rng.integers(0, 4, 30)
    together = cost_per_correct(0.5 * right, right, range(30))
    assert (together.low, together.estimate, together.high) == (0.5, 0.5, 0.5)
    apart = cost_per_correct(0.5 * rng.permutation(right), right, range(30))
    assert apart.low < 0.45 and apart.high > 0.55
    once = cost_per_correct(right, right > 1, range(30))
    assert cost_per_correct(np.tile(right, 4), np.tile(right > 1, 4), [*range(30)] * 4)[:3] == pytest.approx(once[:3])


def test_few_right_have_no_upper_bound_and_it_is_said():
    found = cost_per_correct([1.0] * 10, [1] + [0] * 9, range(10))
    assert found.estimate == 10 and 0 < found.low < 10 and found.high is None and "no upper bound" in found.note


PRICES = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=12)


@settings(max_examples=30, deadline=None)
@given(PRICES, st.integers(0, 9))
def test_the_same_seed_gives_the_same_interval_in_any_order_and_any_currency(rows, seed):
    cost, correct, cluster = zip(*rows, strict=True)
    found = cost_per_correct(cost, correct, cluster, seed=seed)
    assert cost_per_correct(*zip(*rows[::-1], strict=True), seed=seed) == found
    double = cost_per_correct([2 * c for c in cost], correct, cluster, seed=seed)
    assert double == (*(v if v is None else 2 * v for v in found[:3]), found.note)
    assert found.low is None or found.high is None or found.low <= found.high


def test_another_seed_draws_another_interval():
    rows = list(range(1, 21)), [n % 2 for n in range(20)], range(20)
    assert cost_per_correct(*rows, seed=1)[1:3] != cost_per_correct(*rows, seed=2)[1:3]


UNITS = st.sampled_from([0.0, 0.5, 1.0, 2.0, np.nan])


@given(st.lists(st.tuples(UNITS, UNITS), min_size=1, max_size=6))
def test_efficient_is_who_nobody_beats_and_never_who_has_no_number(arms):
    def beats(one, other):
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    cost, quality = np.array(arms).T
    wanted = [not np.isnan(arm).any() and not any(beats(other, arm) for other in arms) for arm in arms]
    assert efficient(cost, quality).tolist() == wanted
    assert efficient([cost, cost[::-1]], [quality, quality[::-1]]).tolist() == [wanted, wanted[::-1]]


def test_one_arm_is_efficient_and_so_are_two_alike():
    assert efficient([3.0], [0.1]).tolist() == [True]
    assert efficient([3.0, 3.0], [0.1, 0.1]).tolist() == [True, True]


def coverage(draw, truth, trials, seed):
    """Share of trials whose interval holds the truth; draw(rng) gives a, b and clusters."""
    rng = np.random.default_rng(seed)
    held = 0
    for trial in range(trials):
        found = gap(*draw(rng), seed=trial)
        held += found.low <= truth <= found.high
    return held / trials


def graded(rng):
    ability = rng.uniform(0.2, 0.6, 40)
    return list(ability + rng.uniform(-0.1, 0.4, 40)), list(ability + rng.uniform(-0.2, 0.2, 40)), None


def right_or_wrong(rng):
    ease = rng.uniform(0, 1, 60)
    return list(1.0 * (rng.uniform(size=60) < 0.2 + 0.8 * ease)), list(1.0 * (rng.uniform(size=60) < 0.8 * ease)), None


def in_families(rng):
    family = np.repeat(np.arange(30), 4)
    shared, own = rng.uniform(-0.2, 0.4, 30)[family], rng.uniform(-0.1, 0.1, 120)
    return list(0.5 + shared + own), [0.5] * 120, [f"f{i}" for i in family]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "truth"),
    [(graded, 0.15), (right_or_wrong, 0.2), (in_families, 0.1)],
    ids=["graded", "right or wrong", "in families"],
)
def test_the_interval_of_the_gap_holds_the_truth_as_often_as_it_says(draw, truth):
    assert 0.93 <= coverage(draw, truth, trials=300, seed=1) <= 0.97


@pytest.mark.slow
def test_taking_families_for_independent_would_hold_the_truth_too_seldom():
    assert coverage(lambda rng: (*in_families(rng)[:2], None), truth=0.1, trials=100, seed=1) < 0.85


def priced(rng):
    """Families of up to three questions whose cost falls as they get easier."""
    family = np.repeat(np.arange(40), rng.integers(1, 4, 40))
    ease = rng.uniform(0.2, 0.9, 40)[family]
    cost = rng.gamma(4, 0.25, len(family)) * (1.5 - ease)
    return cost, rng.uniform(size=len(family)) < ease, family


@pytest.mark.slow
def test_the_interval_of_cost_per_correct_holds_the_truth_as_often_as_it_says():
    ease = 0.55  # of the mean family; cost and result depend on it and on nothing else of each other
    truth, rng, held = (1.5 - ease) / ease, np.random.default_rng(1), 0
    for trial in range(400):
        found = cost_per_correct(*priced(rng), seed=trial)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 400 <= 0.97
