"""The loop: what it sends, runs, counts and stops at. Most tests talk to a local provider over a real connection."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from provider import error, says

from evalkit import Budget, Condition, Model, Sample, Tool, Trace, agent, open_model, tool
from evalkit.records import Stop
from evalkit.tools import ToolError

SAMPLE = Sample(id="s1", prompt="How long is the timeout?", gold={"answer": "30 seconds"})
CALL = ("a", "look", {"word": "timeout"})


def look(word: str) -> str:
    """Look a word up."""
    return f"{word} is on page 1"


def submit(answer: str) -> str:
    """Hand the answer in."""
    return "handed in"


LOOK, SUBMIT = tool(look), tool(submit, final=True)


def condition(*tools, **budget):
    return Condition(name="c", tools=lambda sample: tools, budget=Budget(**budget))


@pytest.fixture
def played(provider, key):
    """run(replies, *tools, **budget) -> Trace of a conversation in which the provider says the replies."""

    def run(replies, *tools, sample=SAMPLE, **budget):
        provider.replies = replies
        model = open_model("anthropic:claude-haiku-4-5", base_url=provider.url)
        return agent.run(sample, model, condition(*tools, **budget))

    return run


def script(folder, *turns):
    """A script: model that plays the turns, one line each."""
    path = folder / "script.jsonl"
    path.write_text("\n".join(json.dumps(turn) for turn in turns))
    return open_model(f"script:{path}")


def until_closed(body, number):
    """Calls until tools are taken away, then answers."""
    return says("It is 30.") if body["tool_choice"]["type"] == "none" else says(calls=[(f"{number}", *CALL[1:])])


def test_a_script_file_plays_a_whole_cell(tmp_path):
    model = script(tmp_path, {"calls": [{"name": "look", "arguments": {"word": "a"}}] * 2}, {"text": "It is 30."})
    trace = agent.run(SAMPLE, model, condition(LOOK), key="k", repeat=2)
    assert [step.result for step in trace.steps] == ["a is on page 1"] * 2
    assert (trace.stop, trace.answer, trace.turns, trace.key, trace.repeat) == ("answered", "It is 30.", 2, "k", 2)


def test_a_script_file_begins_at_its_first_line_though_the_sample_has_a_history(tmp_path):
    sample = Sample(id="s2", prompt="And now?", history=["Hello", {"text": "Hello yourself."}])
    assert agent.run(sample, script(tmp_path, {"text": "It is 30."}), condition()).answer == "It is 30."


def test_a_script_file_that_ends_too_early_is_a_missing_measurement(tmp_path):
    model = script(tmp_path, {"calls": [{"name": "look", "arguments": {"word": "a"}}]})
    trace = agent.run(SAMPLE, model, condition(LOOK))
    assert (trace.stop, trace.failure.where, len(trace.steps)) == ("failed", "provider", 1)


@pytest.mark.parametrize("stop", ["end_turn", "stop", "stop_sequence", "tool_use", "a_new_word"])
def test_calls_are_run_beside_any_stop_word(played, stop):
    trace = played([says("Let me look.", calls=[CALL], stop=stop), says("It is 30.", stop=stop)], LOOK)
    assert [step.result for step in trace.steps] == ["timeout is on page 1"]
    assert (trace.stop, trace.answer, trace.provider_stop) == ("answered", "It is 30.", stop)


@pytest.mark.parametrize("ids", [["a", "a"], ["", ""], ["a", "a-1", "a"], ["a", "a-2", "a"], ["", "call-2", ""]])
def test_every_call_of_a_turn_gets_one_result_under_an_id_of_its_own(played, provider, ids):
    words = [f"word{n}" for n in range(len(ids))]
    calls = [(i, "look", {"word": word}) for i, word in zip(ids, words, strict=True)]
    trace = played([says(calls=calls), says("It is 30.")], LOOK)
    assert [step.result for step in trace.steps] == [f"{word} is on page 1" for word in words]
    sent = [step.call.id for step in trace.steps]
    assert len(set(sent)) == len(ids) and all(sent)
    _, assistant, results = provider.requests[1].body["messages"]
    assert [block["id"] for block in assistant["content"]] == sent
    assert [block["tool_use_id"] for block in results["content"]] == sent
    assert [block["content"] for block in results["content"]] == [step.result for step in trace.steps]


def test_an_id_used_in_an_earlier_turn_is_made_another(played, provider):
    trace = played([says(calls=[CALL]), says(calls=[CALL]), says("It is 30.")], LOOK)
    first, second = (step.call.id for step in trace.steps)
    assert first != second
    results = [m["content"][0] for m in provider.requests[2].body["messages"] if m["role"] == "user"][1:]
    assert [block["tool_use_id"] for block in results] == [first, second]


@pytest.mark.parametrize(
    ("name", "args", "says_what"),
    [
        ("lok", {"word": "x"}, "look"),
        ("", {"word": "x"}, "look"),
        ("look", {}, "word"),
        ("look", {"word": "x", "depth": 1}, "depth"),
        ("look", {"word": ["x"]}, "word"),
        ("look", "{not json", "JSON"),
        ("look", None, "JSON"),
    ],
)
def test_a_call_that_cannot_be_run_is_an_observation(played, provider, name, args, says_what):
    trace = played([says(calls=[("a", name, args)]), says("It is 30.")], LOOK)
    assert (trace.stop, trace.failure, trace.steps[0].ok) == ("answered", None, False)
    assert says_what in trace.steps[0].result and "is on page" not in trace.steps[0].result
    assert provider.requests[1].body["messages"][2]["content"][0]["is_error"] is True


def test_malformed_arguments_are_kept_and_never_become_an_empty_object(played):
    def anything(word: str = "nothing") -> str:
        """Look anything up."""
        return f"{word} is on page 1"

    trace = played([says(calls=[("a", "anything", "{not json")]), says("It is 30.")], tool(anything))
    call = trace.steps[0].call
    assert call.malformed and "{not json" in call.raw and "on page" not in trace.steps[0].result


FAULTS = [ValueError("broken"), TimeoutError("too slow"), ToolError("Try another word."), SystemExit("left")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_exception_in_a_tool_is_an_observation(played, fault):
    def breaks(word: str) -> str:
        """Break."""
        raise fault

    trace = played([says(calls=[("a", "breaks", {"word": "x"})]), says("It is 30.")], tool(breaks))
    assert (trace.stop, trace.failure, trace.steps[0].ok) == ("answered", None, False)
    assert str(fault) in trace.steps[0].result


BUDGETS = [{"turns": 1}, {"tool_calls": 1}, {"output_tokens": 20}, {"usd": 1e-6}, {"seconds": 1e-9}]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: next(iter(budget)))
def test_a_spent_budget_ends_in_an_answer_that_counts(played, provider, budget):
    trace = played(until_closed, LOOK, **budget)
    assert (trace.stop, trace.answer, trace.failure) == (next(iter(budget)), "It is 30.", None)
    last = provider.requests[-1].body
    assert last["tool_choice"] == {"type": "none"} and last["messages"][-1]["role"] == "user"
    assert len(provider.requests) == trace.turns <= 2


@pytest.mark.parametrize("last", ["", "I don't know."])
def test_a_spent_budget_is_named_also_when_the_last_reply_says_nothing(played, last):
    trace = played([says(calls=[CALL]), says(last)], LOOK, turns=1)
    assert (trace.stop, trace.answer, trace.turns) == ("turns", last, 2)


def test_an_empty_reply_on_the_last_turn_is_a_spent_budget(played):
    trace = played([says(""), says("It is 30.")], LOOK, turns=1)
    assert (trace.stop, trace.answer, trace.turns) == ("turns", "It is 30.", 2)


def test_calls_over_the_budget_inside_one_turn_get_a_result_and_are_stored_as_not_executed(played, provider):
    calls = [(str(n), "look", {"word": str(n)}) for n in range(5)]
    trace = played([says(calls=calls), says("It is 30.")], LOOK, tool_calls=3)
    assert [step.executed for step in trace.steps] == [True, True, True, False, False]
    assert all("udget" in step.result and not step.ok for step in trace.steps[3:])
    results = provider.requests[1].body["messages"][2]["content"]
    assert [b["tool_use_id"] for b in results if b["type"] == "tool_result"] == ["0", "1", "2", "3", "4"]
    assert trace.stop == "tool_calls"


def test_a_call_made_after_tools_were_taken_away_is_stored_as_not_executed(played):
    trace = played([says(calls=[CALL]), says("It is 30.", calls=[("b", "look", {"word": "more"})])], LOOK, turns=1)
    assert [step.executed for step in trace.steps] == [True, False]
    assert (trace.stop, trace.answer) == ("turns", "It is 30.")


def test_a_tool_that_does_not_count_outlives_the_tool_call_budget(played):
    def read(word: str) -> str:
        """Read a page."""
        return "page 1"

    calls = [("look", True), ("look", False), ("read", True)]
    turns = [says(calls=[(str(n), name, {"word": "x"})]) for n, (name, _) in enumerate(calls)]
    trace = played([*turns, says("It is 30.")], LOOK, tool(read, counts=False), tool_calls=1)
    assert [(step.call.name, step.executed) for step in trace.steps] == calls
    assert trace.stop == "answered"


def test_an_empty_reply_is_asked_once_more_without_tools_and_noted(played, provider):
    trace = played([says(calls=[CALL]), says(""), says("It is 30.")], LOOK)
    assert (trace.stop, trace.answer) == ("answered", "It is 30.")
    assert "empty" in json.dumps(trace.notes)
    assert [r.body["tool_choice"]["type"] for r in provider.requests] == ["auto", "auto", "none"]


def test_two_empty_replies_are_an_abstention(played, provider):
    trace = played([says(""), says("  \n")], LOOK)
    assert (trace.stop, trace.answer, len(provider.requests)) == ("abstained", "", 2)


def test_a_reply_with_text_is_not_noted(played):
    assert played([says("It is 30.")], LOOK).notes == {}


def test_the_submit_tool_ends_the_run_and_later_calls_of_the_turn_are_not_executed(played, provider):
    calls = [
        CALL,
        ("b", "submit", {"answer": "30"}),
        ("c", "look", {"word": "more"}),
        ("d", "submit", {"answer": "31"}),
    ]
    trace = played([says(calls=calls)], LOOK, SUBMIT)
    assert (trace.stop, trace.submission, len(provider.requests)) == ("submitted", {"answer": "30"}, 1)
    assert [step.executed for step in trace.steps] == [True, True, False, False]


def test_a_submission_that_does_not_fit_its_tool_does_not_end_the_run(played):
    turns = [says(calls=[("a", "submit", {})]), says(calls=[("b", "submit", {"answer": "30"})])]
    trace = played(turns, SUBMIT)
    assert (trace.stop, trace.submission, trace.turns) == ("submitted", {"answer": "30"}, 2)


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (says("The default is 30 seconds."), "answered"),
        (says("I don't know, but the page on timeouts says 30 seconds."), "answered"),
        (says("I couldn’t find it in the documentation."), "abstained"),
        (says("I will not help.", stop="refusal"), "refused"),
        (says("", stop="refusal"), "refused"),
        (says("The default is", stop="max_tokens"), "truncated"),
        (says("The default is", stop="model_context_window_exceeded"), "truncated"),
    ],
)
def test_how_a_reply_without_calls_ends_a_cell(played, provider, reply, stop):
    trace = played([reply], LOOK)
    assert (trace.stop, trace.failure, len(provider.requests)) == (stop, None, 1)


def test_reasoning_that_used_the_whole_output_limit_is_truncated_with_its_tokens_shown(played, provider):
    usage = {"input_tokens": 9, "output_tokens": 4096, "output_tokens_details": {"thinking_tokens": 4096}}
    trace = played([says("", stop="max_tokens", usage=usage)], LOOK)
    assert (trace.stop, trace.usage.reasoning, len(provider.requests)) == ("truncated", 4096, 1)


def test_a_reply_cut_off_by_the_allowance_of_the_cell_stops_with_output_tokens(played):
    trace = played([says("The default is", stop="max_tokens")], LOOK, output_tokens=20)
    assert (trace.stop, trace.answer) == ("output_tokens", "The default is")


def test_a_call_in_a_truncated_reply_is_never_run(played):
    ran = []

    def note(word: str) -> str:
        """Note that it ran."""
        ran.append(word)
        return word

    trace = played([says(calls=[("a", "note", {"word": "half"})], stop="max_tokens")], tool(note))
    assert (trace.stop, ran) == ("truncated", [])
    assert not any(step.executed for step in trace.steps)


def test_a_provider_error_is_a_missing_measurement_that_keeps_what_was_paid(played):
    trace = played([says(calls=[CALL]), error(400, "no such model")], LOOK)
    assert (trace.stop, trace.failure.where, trace.answer) == ("failed", "provider", "")
    assert "400" in trace.failure.kind and "no such model" in trace.failure.detail
    assert (trace.usage.input, trace.api_calls, len(trace.steps)) == (100, 2, 1) and trace.usd > 0


def test_a_provider_error_of_a_model_without_a_price_is_a_missing_measurement_too(provider, key):
    provider.replies = [error(400, "no such model")]
    model = open_model("anthropic:nobody-1", base_url=provider.url)
    trace = agent.run(SAMPLE, model, condition())
    assert (trace.stop, trace.failure.where) == ("failed", "provider") and "no such model" in trace.failure.detail


def test_tokens_and_cost_of_all_turns_are_added(played):
    one = played([says("It is 30.")], LOOK)
    two = played([says(calls=[CALL]), says("Again, it is 30.")], LOOK, sample=Sample(id="s3", prompt="Once more?"))
    assert (two.usage.input, two.usage.output, two.turns) == (200, 40, 2)
    assert two.usd == pytest.approx(2 * one.usd) and one.usd > 0


class Broken(Model):
    """A model with a fault of ours in it."""

    name = "broken"

    def __init__(self, fault):
        self.fault = fault

    def ask(self, *prompt):
        raise self.fault


def test_an_exception_in_our_code_is_a_failure_of_the_agent():
    trace = agent.run(SAMPLE, Broken(KeyError("lost")), condition(LOOK))
    assert (trace.stop, trace.failure.where, trace.failure.kind) == ("failed", "agent", "KeyError")
    assert "lost" in trace.failure.detail


def test_an_exception_while_tools_are_made_is_a_failure_of_the_agent(tmp_path):
    broken = Condition(name="c", tools=lambda sample: {}["index"])
    trace = agent.run(SAMPLE, script(tmp_path, {"text": "It is 30."}), broken)
    assert (trace.stop, trace.failure.where) == ("failed", "agent")


def test_a_key_in_an_exception_of_ours_does_not_reach_the_row(key):
    trace = agent.run(SAMPLE, Broken(RuntimeError(f"Illegal header Bearer {key}")), condition())
    assert "Illegal header" in trace.failure.detail and key not in trace.model_dump_json()


def test_a_key_in_an_exception_of_a_tool_does_not_reach_the_row(played, key):
    def fetch(word: str) -> str:
        """Fetch a page."""
        raise OSError(f"cannot open http://127.0.0.1/?key={key}")

    trace = played([says(calls=[("a", "fetch", {"word": "x"})]), says("It is 30.")], tool(fetch))
    assert "cannot open" in trace.steps[0].result and key not in trace.model_dump_json()


OFFERED = [Tool(name, f"To {name}.", {"type": "object", "properties": {}}, run=None) for name in ("look", "open")]


@pytest.mark.parametrize(
    ("reply", "stop", "calls"),
    [
        (says("Let me look.", calls=[CALL]), "answered", [("look", {"word": "timeout"})]),
        (says(calls=[CALL, ("b", "open", {}), ("c", "nothing", {"x": 1})]), "answered",
         [("look", {"word": "timeout"}), ("open", {}), ("nothing", {"x": 1})]),
        (says(calls=[("a", "look", "{not json")]), "answered", [("look", {})]),
        (says("It stands above."), "answered", []),
        (says("I don't know."), "abstained", []),
        (says(""), "abstained", []),
        (says("I will not help.", stop="refusal"), "refused", []),
        (says("Let me", stop="max_tokens"), "truncated", []),
        (says(calls=[CALL], stop="max_tokens"), "truncated", []),
    ],
)  # fmt: skip
def test_where_tools_are_offered_and_not_run_one_reply_is_the_whole_cell(played, provider, reply, stop, calls):
    trace = played([reply], *OFFERED)
    assert (trace.stop, trace.failure, trace.turns, len(provider.requests)) == (stop, None, 1, 1)
    assert [(step.call.name, step.call.args) for step in trace.steps] == calls
    assert not any(step.executed or step.ok or step.result for step in trace.steps)
    assert provider.requests[0].body["tool_choice"]["type"] == "auto"
    assert trace.usage.output == 20 and trace.usd > 0


def test_a_choice_keeps_malformed_arguments_as_they_came_and_the_order_of_the_tools(played):
    trace = played([says(calls=[("a", "look", "{not json")])], *OFFERED)
    assert trace.steps[0].call.malformed and "{not json" in trace.steps[0].call.raw
    assert trace.notes["offered"] == ["look", "open"]
    assert "offered" not in played([says("It is 30.")], LOOK, sample=Sample(id="s3", prompt="Run?")).notes


def test_a_choice_that_the_provider_does_not_answer_is_a_missing_measurement(played):
    trace = played([error(400, "no such model")], *OFFERED)
    assert (trace.stop, trace.failure.where, trace.steps) == ("failed", "provider", ())


ids = st.sampled_from(["", "a", "b", "a-1", "a-2", "call-1"])
names = st.sampled_from(["look", "read", "submit", "nothing"])
arguments = st.sampled_from([{"word": "x"}, {"answer": "30"}, {}, "{not json"])
turns = st.tuples(
    st.sampled_from(["", "It is 30.", "I don't know."]), st.lists(st.tuples(ids, names, arguments), max_size=4)
)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(turns, max_size=5), st.integers(0, 4), st.integers(0, 5))
@example([("", [("a", "look", {"word": "x"})] * 3)], 4, 2)
@example([("", [CALL]), ("It is 30.", [CALL])], 1, 5)
def test_any_conversation_gives_each_call_one_result_in_order_and_ends_in_a_word_of_ours(
    played, provider, said, most_turns, most_calls
):
    provider.requests.clear()
    read = tool(look, counts=False)
    tools = LOOK, type(read)(**(vars(read) | {"name": "read"})), SUBMIT

    def reply(body, number):
        text, calls = said[number] if number < len(said) else ("Enough: it is 30.", ())
        return says(text, calls=calls)

    trace = played(reply, *tools, turns=most_turns, tool_calls=most_calls)
    asked = [call for _, calls in said[: len(provider.requests)] for call in calls]
    assert [(s.call.name, s.call.args or {}) for s in trace.steps] == [
        (name, args if isinstance(args, dict) else {}) for _, name, args in asked
    ]
    assert len({step.call.id for step in trace.steps} | {""}) == len(trace.steps) + 1
    assert trace.stop in set(get_args(Stop)) - {"failed"} and trace.failure is None
    assert sum(step.executed for step in trace.steps if step.call.name == "look") <= most_calls
    assert trace.turns == len(provider.requests) <= most_turns + 2
    messages = provider.requests[-1].body["messages"]
    for turn, after in zip(messages[1::2], messages[2::2], strict=False):
        used = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        assert [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"] == used
    assert Trace.model_validate_json(trace.model_dump_json()) == trace
