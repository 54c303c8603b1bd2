"""Which calls gold wants: two independent oracles, an unseen set, and what can never change a verdict."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.scoring import alike, all_served, has_keywords, match_calls

CASES = Path(__file__).parent / "cases"


def cases(name):
    return [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text("utf-8").splitlines() if line.strip()]


def exact(value):
    return {"type": "exact", "value": value}


def words(*value):
    return {"type": "keywords", "value": list(value)}


def call(tool, **args):
    """An expected call whose arguments are exact, unless they say otherwise."""
    return {"tool": tool, "args": {n: v if isinstance(v, dict) and "type" in v else exact(v) for n, v in args.items()}}


def made(name, **arguments):
    return {"name": name, "arguments": arguments}


def tool(name, distractor=False, **properties):
    shape = {"type": "object", "properties": properties}
    return {"name": name, "description": "A tool.", "parameters": shape, "distractor": distractor}


SEARCH = tool("search", query={"type": "string"}, filters={"type": "object"}, top_k={"type": "integer", "default": 5})
TOOLS = [SEARCH, tool("open", doc_id={"type": "string"}), tool("web_search", query={"type": "string"}, distractor=True)]
RENT = {"call": call("search", query="rent")}


def correct(gold, *calls, strict=False, tools=TOOLS):
    return match_calls(gold, calls, tools, strict)["correct"]


def gold_of(task):
    """The gold of samples.jsonl for a task of the oracle."""
    names = {"expected": "call", "expected_alternatives": "alternatives", "expected_parallel": "parallel",
             "expected_no_call": "no_call"}  # fmt: skip
    return {names[name]: value for name, value in task.items()}


@pytest.mark.parametrize(("strict", "right"), [(False, "right"), (True, "right_strict")])
def test_every_row_of_the_leaderboard_is_judged_as_an_independent_implementation_judges_it(strict, right):
    rows = cases("bfcl_oracle")
    assert len(rows) == 169 and 50 <= sum(row[right] for row in rows) <= 100
    judged = {row["id"]: correct(gold_of(row["task"]), *row["model_calls"], strict=strict, tools=row["tools"])
              for row in rows}  # fmt: skip
    assert [row["id"] for row in rows if judged[row["id"]] != row[right]] == []


@pytest.mark.parametrize(("strict", "right"), [(False, "right"), (True, "right_strict")])
def test_calls_that_nobody_had_seen_are_judged_right_99_times_in_100(strict, right):
    rows = cases("tool_calls_unseen")
    assert len(rows) == 178 and 50 <= sum(row[right] for row in rows) <= 100
    missed = [r["id"] for r in rows if correct(r["gold"], *r["calls"], strict=strict, tools=r["tools"]) != r[right]]
    assert len(missed) <= len(rows) / 100, missed


@pytest.mark.parametrize("case", cases("exact_match"), ids=lambda case: f"{case['expected']}~{case['value']}")
def test_values_are_compared_as_json(case):
    assert alike(case["expected"], case["value"]) is alike(case["value"], case["expected"]) is case["right"]


@pytest.mark.parametrize("case", cases("keyword_match"), ids=lambda case: f"{case['keywords']} in {case['value']}")
def test_keywords_begin_at_a_word(case):
    assert has_keywords(case["keywords"], case["value"]) is case["right"]


@pytest.mark.parametrize(
    ("given", "right"),
    [({"top_k": True, "exact": True}, 0), ({"top_k": 1, "exact": 1}, 0), ({"top_k": 1.0, "exact": True}, 1),
     ({"top_k": "1", "exact": True}, 0), ({"top_k": 1}, 0), ({"top_k": 1, "exact": None}, 0)],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_true_is_not_1_and_text_is_no_number_also_inside_an_object(given, right, nested):
    wanted = {"top_k": 1, "exact": True}
    gold = call("search", filters=exact({"in": wanted})) if nested else call("search", **wanted)
    assert correct({"call": gold}, made("search", **({"filters": {"in": given}} if nested else given))) == right


@pytest.mark.parametrize(("times", "right", "over"), [(2, 1, 0), (1, 0, 0), (3, 0, 1)])
def test_equal_expected_calls_are_owed_one_by_one_and_surplus_is_counted(times, right, over):
    gold = {"parallel": [call("search", query="a")] * 2}
    found = match_calls(gold, [made("search", query="a")] * times, TOOLS, strict=True)
    assert (found["correct"], found["over_calls"]) == (right, over)
    assert correct(gold, *[made("search", query="a")] * times) == (times >= 2)


@pytest.mark.parametrize(("given", "right"), [({}, 1), ({"top_k": 5}, 1), ({"top_k": 50}, 0)])
@pytest.mark.parametrize("form", ["ours", "openai", "anthropic"])
def test_an_argument_left_out_equals_one_written_at_its_default(given, right, form):
    shape = {k: v for k, v in SEARCH.items() if k != "parameters"}
    tools = {"ours": SEARCH, "openai": {"type": "function", "function": SEARCH},
             "anthropic": shape | {"input_schema": SEARCH["parameters"]}}  # fmt: skip
    gold = {"call": call("search", query="rent", top_k=5)}
    assert correct(gold, made("search", query="rent", **given), tools=[tools[form]]) == right


def test_unlisted_arguments_are_ignored_and_forbidden_by_strict():
    more = made("search", query="rent", top_k=5)
    assert (correct(RENT, more), correct(RENT, more, strict=True)) == (1, 0)
    assert correct(RENT, made("search", query="rent"), strict=True) == 1


def test_a_greedy_assignment_of_calls_would_be_wrong():
    a, b = call("search", query="a"), call("search", query="b")
    gold = {"parallel": [a | {"alternatives": [b]}, a]}
    assert correct(gold, made("search", query="a"), made("search", query="b")) == 1
    assert correct(gold, made("search", query="b"), made("search", query="b")) == 0


@given(st.integers(0, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n), max_size=4)))
def test_expectations_are_served_when_some_assignment_of_calls_serves_them_all(fits):
    calls = range(len(fits[0]) if fits else 0)
    for least in (1, 2):
        ways = permutations(calls, len(fits))
        served = any(all(row[i] >= least for row, i in zip(fits, way, strict=True)) for way in ways)
        assert all_served(fits, least) == served


LEAVES = st.sampled_from([None, True, False, 0, 1, 2.5, "a", " B ", "1"])
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from("kLm"), v), max_leaves=4
)
ARGUMENTS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)
CALLS = st.tuples(st.sampled_from("fg"), ARGUMENTS)
PLAIN = [tool("f"), tool("g", distractor=True)]


@st.composite
def matches(draw):
    """(gold, calls): about half of the calls are what gold wants."""
    wanted = draw(st.lists(CALLS, min_size=1, max_size=3))
    calls = [one if draw(st.booleans()) else draw(CALLS) for one in wanted] + draw(st.lists(CALLS, max_size=2))
    expected = [call(name) | {"args": {n: exact(v) for n, v in args.items()}} for name, args in wanted]
    others = [expected[0], *draw(st.lists(st.sampled_from(expected), max_size=1))]
    gold = {"call": expected[0], "alternatives": others[1:]} if len(wanted) == 1 else {
        "parallel": [expected[0] | {"alternatives": others[1:]}, *expected[1:]]}  # fmt: skip
    return gold, [{"name": name, "arguments": args} for name, args in calls]


def shuffled(value, random):
    """The same JSON, the items of every list and the keys of every object in another order."""
    if isinstance(value, list):
        return random.sample([shuffled(item, random) for item in value], len(value))
    if isinstance(value, dict):
        return {k: shuffled(value[k], random) for k in random.sample(list(value), len(value))}
    return value


@given(matches(), st.booleans(), st.randoms(use_true_random=False))
def test_no_order_of_expectations_calls_keys_or_list_items_changes_a_verdict(match, strict, random):
    first, second = (match_calls(*pair, PLAIN, strict) for pair in (match, shuffled(match, random)))
    assert {n: v for n, v in first.items() if n != "notes"} == {n: v for n, v in second.items() if n != "notes"}


@given(st.sampled_from("fg"), ARGUMENTS.filter(bool), st.data(), st.booleans())
def test_a_call_without_a_listed_argument_that_has_no_default_is_wrong(name, args, data, strict):
    gold = {"call": call(name) | {"args": {n: exact(v) for n, v in args.items()}}}
    gone = data.draw(st.sampled_from(sorted(args)))
    assert correct(gold, {"name": name, "arguments": args}, strict=strict, tools=PLAIN) == 1
    fewer = {n: v for n, v in args.items() if n != gone}
    assert correct(gold, {"name": name, "arguments": fewer}, strict=strict, tools=PLAIN) == 0


@given(matches(), st.booleans())
def test_what_strict_finds_right_is_right_and_a_right_call_is_of_the_right_tool(match, strict):
    found = match_calls(*match, PLAIN, strict)
    assert found["correct"] <= match_calls(*match, PLAIN)["correct"]
    assert found["correct"] <= (found["args_right"] or 0) <= found["tool_right"]
    assert (found["args_right"] is None) == (not found["tool_right"])


LEASE = {"call": call("search", query="rent", filters=exact({"type": "lease"}))}


@pytest.mark.parametrize(
    ("filters", "right", "unwrapped"),
    [
        ({"type": "lease"}, 1, None),
        ('{"TYPE": " Lease"}', 1, ["filters"]),
        ('"{\\"type\\": \\"lease\\"}"', 0, None),
        ("{type: lease}", 0, None),
        ('["lease"]', 0, None),
        ("{" * 100_000, 0, None),
    ],
    ids=["an object", "its JSON", "JSON of its JSON", "no JSON", "JSON of a list", "hostile"],
)
def test_json_inside_text_is_unwrapped_once_where_the_schema_says_object_and_noted(filters, right, unwrapped):
    found = match_calls(LEASE, [made("search", query="rent", filters=filters)], TOOLS)
    assert (found["correct"], found["notes"].get("unwrapped")) == (right, unwrapped)


def test_json_inside_text_stays_text_where_the_schema_says_so():
    gold = {"call": call("search", query='{"a": 1}')}
    assert correct(gold, made("search", query='{"a": 1}')) == 1
    assert correct(gold, made("search", query={"a": 1})) == 0


def test_arguments_that_came_whole_as_json_text_are_read():
    assert correct(RENT, {"name": "search", "arguments": '{"query": "rent"}'}) == 1


@pytest.mark.parametrize("arguments", [None, "{not json", [1], 7, '"x"', ""])
def test_malformed_arguments_name_a_tool_and_match_nothing(arguments):
    broken = {"name": "search", "arguments": arguments}
    found = match_calls({"call": call("search")}, [broken], TOOLS)
    assert (found["correct"], found["tool_right"], found["args_right"], found["malformed"]) == (0, 1, 0, 1)
    beside = match_calls(RENT, [broken, made("search", query="rent")], TOOLS)
    assert (beside["correct"], beside["malformed"], beside["notes"]["shown"]) == (1, 1, 1)


def test_a_call_without_arguments_at_all_is_malformed_and_an_empty_object_is_not():
    gold = {"call": call("search")}
    assert match_calls(gold, [{"name": "search"}], TOOLS)["malformed"] == 1
    assert (correct(gold, made("search")), match_calls(gold, [made("search")], TOOLS)["malformed"]) == (1, 0)


@pytest.mark.parametrize(
    ("gold", "calls", "values"),
    [
        (RENT, [made("search", query="Rent ")], (1, 1, 1, 0, 0)),
        (RENT, [made("search", query="lease")], (0, 1, 0, 0, 0)),
        (RENT, [made("open", doc_id="C-1")], (0, 0, None, 0, 0)),
        (RENT, [made("nothing", query="rent")], (0, 0, None, 0, 0)),
        (RENT, [], (0, 0, None, 0, 0)),
        (RENT, [made("web_search", query="rent")], (0, 0, None, 0, 1)),
        (RENT, [made("web_search", query="rent"), made("search", query="rent")], (1, 1, 1, 1, 1)),
        ({"no_call": True}, [], (1, 1, None, 0, 0)),
        ({"no_call": True}, [made("search", query="rent")], (0, 0, None, 1, 0)),
        ({"no_call": True}, [made("web_search"), made("open")], (0, 0, None, 2, 1)),
        ({"parallel": [call("open", doc_id="C-1"), call("open", doc_id="C-2")]},
         [made("open", doc_id="c-2"), made("open", doc_id="c-1"), made("search", query="rent")], (1, 1, 1, 1, 0)),
        ({"parallel": [call("open", doc_id="C-1"), call("open", doc_id="C-2")]},
         [made("open", doc_id="C-1")], (0, 0, None, 0, 0)),
        ({"parallel": [call("open", doc_id="C-1"), call("search", query="rent")]},
         [made("open", doc_id="C-1"), made("search", query="lease")], (0, 1, 0, 0, 0)),
    ],
)  # fmt: skip
def test_what_is_said_beside_right_or_wrong(gold, calls, values):
    found = match_calls(gold, calls, TOOLS)
    names = ("correct", "tool_right", "args_right", "over_calls", "distractor")
    assert tuple(found[name] for name in names) == values


@pytest.mark.parametrize("strict", [False, True])
def test_a_surplus_call_is_forbidden_by_strict_alone_and_always_where_no_call_is_right(strict):
    calls = [made("search", query="rent"), made("open", doc_id="C-1")]
    assert correct(RENT, *calls, strict=strict) == (not strict)
    assert correct({"no_call": True}, *calls, strict=strict) == 0


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ([made("search", query="x"), made("search", query="rent")], 1),
        ([made("open"), made("search", query="x"), made("search", query="y")], 1),
        ([made("open"), made("web_search")], 0),
        ([], None),
    ],
)
def test_the_call_to_show_is_the_match_else_the_first_of_the_right_tool_else_the_first(calls, shown):
    assert match_calls(RENT, calls, TOOLS)["notes"]["shown"] == shown


def test_any_alternative_will_do_wherever_it_is_written():
    other = call("open", doc_id="C-1")
    for gold in (RENT | {"alternatives": [other]}, {"call": RENT["call"] | {"alternatives": [other]}}):
        assert correct(gold, made("open", doc_id="C-1")) == correct(gold, made("search", query="rent")) == 1
        assert correct(gold, made("open", doc_id="C-2")) == 0


def test_keywords_are_judged_in_the_argument_that_lists_them_and_null_never_matches():
    gold = {"call": call("search", query=words("escrow", ["code", "source"]))}
    assert correct(gold, made("search", query="Source ESCROW terms")) == 1
    assert correct(gold, made("search", query="escrow terms")) == 0
    assert correct(gold, made("search", query="escrow", filters={"q": "source"})) == 0
    assert correct({"call": call("search", query=words())}, made("search", query=None)) == 0
    assert correct({"call": call("search", query=words("null"))}, made("search", query=None)) == 0
