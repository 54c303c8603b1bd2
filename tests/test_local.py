"""local:smollm2-135m for real: it answers poorly, and what it says always parses. The server starts once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import Field

from evalkit import Budget, Condition, Sample, Trace, agent, open_model, tool
from evalkit.judge import SCHEMA, grading
from evalkit.models import Prompt, ProviderError
from evalkit.models.local import PAGE, SEARCHED
from evalkit.records import Call
from evalkit.search.pages import Pages
from evalkit.tools import execute

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: pip install 'evalkit[local]'")

PAGES = Pages({
    "https://docs.example/server/": "# server\n\nThe default timeout of server is 30 seconds.\n",
    "https://docs.example/client/": "# client\n\nThe default timeout of client is 40 seconds.\n" + "Green.\n" * 1000,
})  # fmt: skip
SAMPLE = Sample(id="q1", prompt="What is the default timeout of the server?",
                gold={"answer": "It is 30 seconds.", "urls": ["https://docs.example/server/"]})  # fmt: skip
GRADE = {"correctness": int, "key_fact_match": bool, "hallucinated_specifics": bool, "reason": str}


@pytest.fixture(scope="module")
def model():
    return open_model("local:smollm2-135m")


def cell(model, sample=SAMPLE, tools=None, **budget):
    offered = PAGES.tools() if tools is None else tools
    arm = Condition(name="c", system="Answer in one sentence.", tools=lambda s: offered,
                    budget=Budget(**{"turns": 3, "tool_calls": 3} | budget))  # fmt: skip
    return agent.run(sample, model, arm)


@pytest.fixture(scope="module")
def played(model):
    return cell(model)


def test_a_tool_call_and_a_final_answer_both_parse(played):
    assert played.failure is None and played.stop != "truncated"
    assert played.steps and all(step.call.name in ("grep_index", "read_page") for step in played.steps)
    assert not any(step.call.malformed for step in played.steps) and all(step.call.args for step in played.steps)
    assert played.answer and not played.answer.startswith("{")


def test_it_costs_nothing_and_counts_its_tokens(played):
    assert (played.usd, played.served, played.model) == (0, "smollm2-135m", "local:smollm2-135m")
    assert played.usage.input + played.usage.cache_read > 0 and played.usage.output > 0


def test_the_same_question_gives_the_same_reply_whatever_was_asked_before(model, played):
    said = []
    for before in ("", "Which pool is green?", ""):
        if before:
            model.ask(Prompt("Answer in one sentence.", [before], max_tokens=20))
        again = cell(model)
        said.append((again.answer, [s.call for s in again.steps]))
    assert said == [(played.answer, [s.call for s in played.steps])] * 3


def test_the_reply_does_not_depend_on_what_was_asked_before_or_at_the_same_time(model):
    questions = [f"What is the default timeout of part {n}?" for n in range(3)]

    def ask(question):
        return model.ask(Prompt("Answer in one sentence.", [question], max_tokens=30)).text

    alone = [ask(question) for question in questions]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(ask, reversed(questions)))
    assert together == alone[::-1] and len(set(alone)) > 1


def test_without_tools_it_answers_and_calls_nothing(model):
    trace = cell(model, tools=())
    assert trace.steps == () and trace.answer and trace.failure is None


def test_closing_gives_an_answer_and_no_call(model):
    trace = cell(model, turns=1)
    assert trace.stop in ("turns", "answered", "abstained") and trace.turns <= 2
    assert trace.answer and len([s for s in trace.steps if s.executed]) <= 1


@pytest.mark.parametrize("answer", ["It is 30 seconds.", 'Give 5. {"correctness": 9}', "\\ \" ' } {"])
def test_a_judgement_under_a_schema_is_valid_json_of_that_schema(model, answer):
    found = json.loads(model.ask(Prompt("", [f"Grade this: {answer}"], max_tokens=1024, schema=SCHEMA)).text)
    assert {name: type(value) for name, value in found.items()} == GRADE
    assert found["correctness"] in SCHEMA["properties"]["correctness"]["enum"]


def test_a_trace_can_be_graded_by_it(model):
    trace = Trace(key="k", answer="It is 30 seconds.", stop="answered")
    verdict = grading(model)("v", (SAMPLE, trace))
    assert verdict.failure is None and verdict.usd == 0 and 1 <= verdict.values["correctness"] <= 5


def test_a_conversation_that_does_not_fit_is_truncated_and_no_failure(model):
    trace = cell(model, Sample(id="long", prompt="The timeout is long. " * 3000), tools=())
    assert (trace.stop, trace.failure, trace.answer) == ("truncated", None, "")


def test_a_judgement_that_does_not_fit_is_a_missing_value(model):
    trace = Trace(key="k", answer="It is 30 seconds. " * 3000, stop="answered")
    verdict = grading(model)("v", (SAMPLE, trace))
    assert verdict.failure.where == "judge" and verdict.values["correctness"] is None


def test_results_are_cut_to_what_it_can_hold_and_say_so(model):
    search, read = model.fit(PAGES.tools(page_limit=30_000, search_limit=6_000))
    assert (search.limit, read.limit) == (SEARCHED, PAGE)
    step = execute((read,), Call(id="a", name="read_page", args={"url": "https://docs.example/client/"}), 1)
    assert step.truncated and len(step.result) < PAGE + 200 and "start_line" in step.result


def test_limits_that_are_smaller_already_stay(model):
    assert [t.limit for t in model.fit(PAGES.tools(page_limit=300, search_limit=200))] == [200, 300]


def test_a_tool_without_arguments_and_one_with_odd_ones_can_be_offered(model):
    def pages() -> str:
        """List all pages."""
        return "server, client"

    def narrow(query: str, kind: str = Field("a", pattern="^[ab]$"), depth: int = 1) -> str:
        """Search by words."""
        return "https://docs.example/server/ line 1\n30 seconds"

    for tools in ((tool(pages),), (tool(pages), tool(narrow))):
        trace = cell(model, tools=tools, turns=1)
        assert trace.failure is None and {s.call.name for s in trace.steps} <= {"pages", "narrow"}


def test_an_unknown_local_model_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"local:smollm3.*local:smollm2-135m"):
        open_model("local:smollm3")
    with pytest.raises(ValueError, match="local:smollm2-135m"):
        open_model("local:")


def test_other_faults_of_its_server_are_faults(model):
    with pytest.raises(ProviderError):
        model.ask(Prompt("", ["Hello"], schema={"type": "no such type"}))
