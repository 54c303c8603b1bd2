"""Tools: the schema is the signature, every fault is an observation, and a long result is cut on whole items."""

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from evalkit.records import Call
from evalkit.tools import Found, ToolError, execute, fit, tool

ran = []


def look_up(
    word: Annotated[str, Field(description="what to look for")],
    most: Annotated[int, Field(ge=1, le=9)] = 3,
    order: Literal["rank", "page"] = "rank",
) -> str:
    """Look a word up.

    Returns one line.
    """
    ran.append((word, most, order))
    return f"{word} {most} {order}"


def broken(word: str) -> str:
    """Always fails."""
    raise KeyError("the index is gone")


def guarded(word: str) -> str:
    """Says what to do."""
    raise ToolError("Use a word as the index lists it.")


def wordless() -> str:
    """Takes nothing."""
    return "here"


TOOLS = (tool(look_up), tool(broken), tool(guarded), tool(wordless))


def ask(name, tools=TOOLS, **call):
    ran.clear()
    return execute(tools, Call(id="c1", name=name, **call), 2)


def test_a_tool_is_named_and_described_by_its_function():
    made = tool(look_up)
    assert (made.name, made.about) == ("look_up", "Look a word up.\n\nReturns one line.")
    assert (made.counts, made.final, made.limit) == (True, False, 6_000)
    assert tool(look_up, counts=False, final=True, limit=9).limit == 9


def test_the_schema_is_the_signature_and_allows_nothing_else():
    assert tool(look_up).schema == {
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "what to look for"},
            "most": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
            "order": {"type": "string", "enum": ["rank", "page"], "default": "rank"},
        },
        "required": ["word"],
        "additionalProperties": False,
    }
    assert tool(wordless).schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_call_runs_once_with_its_arguments_and_defaults():
    step = ask("look_up", args={"word": "fee", "most": 2})
    assert (step.result, step.ok, step.truncated, step.executed) == ("fee 2 rank", True, False, True)
    assert (step.turn, step.call.id, ran) == (2, "c1", [("fee", 2, "rank")])
    assert ask("wordless").result == "here"


def test_an_unknown_tool_is_answered_with_the_tools_there_are():
    step = ask("lookup")
    assert not step.ok
    assert "'lookup'" in step.result and "look_up, broken, guarded, wordless" in step.result
    assert "none" in ask("lookup", tools=()).result


@pytest.mark.parametrize(
    ("args", "culprit"),
    [
        ({}, "word"),
        ({"word": "fee", "wrod": "x"}, "wrod"),
        ({"word": ["fee"]}, "word"),
        ({"word": None}, "word"),
        ({"word": "fee", "most": "many"}, "most"),
        ({"word": "fee", "most": 2.5}, "most"),
        ({"word": "fee", "most": 0}, "most"),
        ({"word": "fee", "most": 10}, "most"),
        ({"word": "fee", "order": "size"}, "order"),
    ],
)
def test_wrong_arguments_are_never_run_and_named_with_what_the_tool_takes(args, culprit):
    step = ask("look_up", args=args)
    assert not step.ok and ran == []
    fault, needs = step.result.split(". Its arguments are ")
    assert culprit in fault
    assert needs == "word (string), most (integer), order (string)."


@pytest.mark.parametrize("args", [["fee"], "fee", 7, None])
def test_arguments_that_are_no_object_are_an_observation_too(args):
    step = ask("look_up", args=args)
    assert not step.ok and ran == [] and step.result


def test_every_wrong_argument_is_named():
    step = ask("look_up", args={"most": 0, "order": "size", "x": 1})
    assert all(name in step.result.split(". Its")[0] for name in ("word", "most", "order", "x"))


def test_an_exception_is_an_observation_with_its_kind_and_a_next_step():
    step = ask("broken", args={"word": "fee"})
    assert not step.ok
    assert step.result.startswith("broken failed (KeyError: 'the index is gone').") and "answer without" in step.result


def test_what_a_tool_says_itself_is_passed_on_word_for_word():
    step = ask("guarded", args={"word": "fee"})
    assert (step.ok, step.result) == (False, "Use a word as the index lists it.")


@pytest.mark.parametrize("name", ["look_up", "wordless"])
def test_a_malformed_call_is_never_run_and_keeps_its_raw_text(name):
    step = ask(name, malformed=True, raw='{"word": "fee"} hope this helps', args={"word": "fee"})
    assert not step.ok and ran == []
    assert "JSON" in step.result and step.call.raw == '{"word": "fee"} hope this helps'


def test_a_long_result_is_cut_at_the_limit_of_its_tool_and_marked():
    def pour(lines: int) -> str:
        """Pours."""
        return "\n".join(["x" * 9] * lines)

    short, long = (execute((tool(pour, limit=50),), Call(id="1", name="pour", args={"lines": n}), 1) for n in (5, 6))
    assert (short.truncated, short.result) == (False, "\n".join(["x" * 9] * 5))
    assert long.truncated and long.ok and "start_line=6" in long.result


LINES = st.lists(
    st.text(st.characters(exclude_characters="\n"), max_size=12) | st.just("👩‍💻" * 9), min_size=1, max_size=20
)
LIMIT = st.integers(1, 60)


@given(LINES, LIMIT)
def test_a_text_is_cut_on_whole_lines_and_says_where_to_go_on(lines, limit):
    text, cut = fit("\n".join(lines), limit)
    if len("\n".join(lines)) <= limit:
        assert (text, cut) == ("\n".join(lines), False)
        return
    assert cut
    body, _, note = text.rpartition("\n")
    kept = body.split("\n")
    assert len(body) <= limit + 1
    if kept == lines[: len(kept)]:
        assert len("\n".join(lines[: len(kept) + 1])) > limit  # not one line more would have fitted
    else:
        assert len(kept) == 1 and kept[0] == lines[0][:limit] + "…"  # a single line that is too long is cut itself
    if len(kept) < len(lines):
        assert note == f"[lines 1-{len(kept)} of {len(lines)}; go on with start_line={len(kept) + 1}]"


@given(LINES, st.integers(30, 80), st.integers(1, 20))
def test_every_line_can_be_reached_by_going_on_as_told(lines, limit, start):
    start = min(start, len(lines))
    got, at = [], start
    while at:
        text, cut = fit(Found(lines[at - 1 :], len(lines), start=at), limit)
        body, _, note = text.rpartition("\n") if cut else (text, "", "")
        got += body.split("\n")
        at = int(note.removesuffix("]").partition("start_line=")[2]) if cut else 0
    assert got == lines[start - 1 :]


@given(st.lists(st.text("ab\n", min_size=1, max_size=12), min_size=1, max_size=20), LIMIT, st.integers(0, 500))
def test_matches_are_cut_whole_and_say_how_many_of_how_many(matches, limit, more):
    total = len(matches) + more
    text, cut = fit(Found(matches, total), limit)
    note, _, body = text.partition("\n\n")
    assert len(body) <= limit + 1
    shown = next((n for n in range(len(matches), 0, -1) if body == "\n\n".join(matches[:n])), 0)
    if not shown:  # a single match that is too long is cut itself
        assert cut and body == matches[0][:limit] + "…"
        assert total == 1 or note == f"showing 1 of {total} matches, narrow the query"
        return
    assert cut == (shown < total)
    assert note == (f"showing {shown} of {total} matches, narrow the query" if cut else f"{total} matches")


def test_many_short_matches_stay_within_the_limit_with_the_lines_between_them():
    text, cut = fit(Found(["a"] * 50, 50), 99)
    assert cut and len(text.partition("\n\n")[2]) <= 99


def test_fifty_thousand_matches_end_in_six_thousand_characters():
    text, cut = fit(Found([f"page {n} line {n}\n{'x' * 100}" for n in range(50_000)], 50_000), 6_000)
    note, *shown = text.split("\n\n")
    assert cut and note == f"showing {len(shown)} of 50000 matches, narrow the query"
    assert 5_800 < len("\n\n".join(shown)) <= 6_000


@pytest.mark.parametrize(
    "result",
    ["x" * 100, Found(["x" * 100], 1), Found(["x" * 100], 7, start=7)],
    ids=["a text", "a match", "the last line of a page"],
)
def test_one_item_longer_than_the_limit_is_cut_and_says_so(result):
    text, cut = fit(result, 50)
    assert cut and "x" * 51 not in text and "x" * 50 + "…" in text


def test_nothing_found_says_what_to_try():
    text, cut = fit(Found([], 0), 100)
    assert "no match" in text and "try" in text and not cut


@given(st.text("a👩‍💻é𝄞\n", max_size=60), LIMIT)
def test_a_cut_never_splits_a_character(text, limit):
    shown, _ = fit(text, limit)
    shown.encode("utf-8")
    assert "\ufffd" not in shown
