"""Models: what goes over the wire and what comes back, through the official SDKs against a local provider."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from provider import CUT, RESET, error, question, says, tool_loop

from evalkit import Budget, Condition, Sample, agent, open_model, tool
from evalkit.models import ProviderError
from evalkit.search.pages import Pages

WIRES = {"anthropic": ("claude-haiku-4-5", ""), "openai": ("gpt-5.4", "/v1")}
PAGES = Pages({
    "https://docs.example/timeouts/": "# Timeouts\n\nLong ago somebody painted this whole page green.\n\n"
    "The default timeout is 30 seconds, and `idle` overrides it.\n\nA timeout may be turned off by a caller.\n\n"
    "Nobody has counted how many birds sit on the roof.\n",
    "https://docs.example/hooks/": "# Hooks\n\nA hook runs before the handler is called by the router.\n",
    "https://docs.example/other/": "# Other\n\nThe router matches a path against the table of all routes.\n",
})  # fmt: skip
QUESTION = Sample(id="s1", prompt="What is the default timeout?", gold={"answer": "It is 30 seconds."})


def grep_index(pattern: str) -> str:
    """Search the index."""
    return "timeouts: 30 seconds"


def grep_other(query: str) -> str:
    """Search another index."""
    return "nothing"


def arm(*tools, system="Answer in one sentence.", **budget):
    return Condition(
        name="c", system=system, instructions="Search first.", tools=lambda s: tools, budget=Budget(**budget)
    )


@pytest.fixture
def opened(provider, key):
    """open(wire) -> Model of that provider, pointed at the local one."""
    return lambda wire="anthropic", **options: open_model(
        f"{wire}:{WIRES[wire][0]}", base_url=provider.url + WIRES[wire][1], **options
    )


def asked(provider, *replies, model, tools=(), sample=QUESTION, **budget):
    """A cell in which the provider says the replies in turn."""
    provider.replies = list(replies)
    return agent.run(sample, model, arm(*tools, **budget))


def test_the_system_text_is_one_cached_block_and_the_last_tool_carries_a_cache_mark(provider, opened):
    asked(provider, says("It is 30."), model=opened(), tools=(tool(grep_index), tool(grep_other)))
    body, mark = provider.requests[0].body, {"type": "ephemeral"}
    text = "Answer in one sentence.\n\nSearch first."
    assert body["system"] == [{"type": "text", "text": text, "cache_control": mark}]
    assert [t.get("cache_control") for t in body["tools"]] == [None, mark]
    assert body["tools"][0]["name"] == "grep_index" and body["tools"][0]["description"] == "Search the index."
    assert body["tools"][0]["input_schema"]["required"] == ["pattern"]
    assert body["tool_choice"] == {"type": "auto"} and body["model"] == "claude-haiku-4-5"
    assert not {"temperature", "top_p", "top_k", "thinking", "output_config", "stream"} & body.keys()


def test_the_system_text_and_the_tools_are_the_same_bytes_for_every_sample(provider, opened):
    model = opened()
    for name in ("one", "two"):
        sample = Sample(id=name, prompt=f"What is {name}?")
        asked(provider, says("It is 30."), model=model, tools=(tool(grep_index),), sample=sample)
    one, two = (json.dumps([r.body["system"], r.body["tools"]]) for r in provider.requests)
    assert one == two


def test_a_condition_without_tools_sends_none(provider, opened):
    asked(provider, says("It is 30."), model=opened(), reply_tokens=77)
    body = provider.requests[0].body
    assert not {"tools", "tool_choice"} & body.keys() and body["max_tokens"] == 77


def test_effort_is_sent_and_is_part_of_the_options(provider, opened):
    model = opened(effort="low")
    asked(provider, says("It is 30."), model=model)
    assert provider.requests[0].body["output_config"] == {"effort": "low"} and model.options == {"effort": "low"}


def test_an_earlier_turn_goes_back_whole_and_its_results_stand_in_one_user_message(provider, opened):
    thinking = {"type": "thinking", "thinking": "Two searches.", "signature": "c2lnbmVk"}
    calls = [("t1", "grep_index", {"pattern": "a"}), ("t2", "missing", {"x": 1})]
    asked(provider, says("Let me see.", calls, before=[thinking]), says("It is 30."), model=opened(),
          tools=(tool(grep_index),), turns=1)  # fmt: skip
    first, second = (r.body for r in provider.requests)
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == {"role": "assistant", "content": [
        thinking, {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "grep_index", "input": {"pattern": "a"}},
        {"type": "tool_use", "id": "t2", "name": "missing", "input": {"x": 1}}]}  # fmt: skip
    results = second["messages"][2]
    assert results["role"] == "user" and len(second["messages"]) == 3
    assert [b.get("tool_use_id") for b in results["content"]] == ["t1", "t2", None]
    assert [b.get("is_error") for b in results["content"]] == [None, True, None]
    assert second["tool_choice"] == {"type": "none"} and second["tools"] == first["tools"]


def test_the_history_of_a_sample_comes_before_its_prompt(provider, opened):
    turn = {"text": "I look.", "calls": [{"id": "h1", "name": "grep_index", "args": {"pattern": "a"}}]}
    step = {"call": turn["calls"][0], "result": "timeouts: 30 seconds"}
    history = ["How long is it?", turn, step, {"text": "It is 30."}]
    sample = Sample.model_validate({"id": "s2", "prompt": "And now?", "history": history})
    asked(provider, says("Still 30."), model=opened(), tools=(tool(grep_index),), sample=sample)
    messages = provider.requests[0].body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "h1", "name": "grep_index", "input": {"pattern": "a"}},
    ]
    assert messages[2]["content"][0] == {"type": "tool_result", "tool_use_id": "h1", "content": "timeouts: 30 seconds"}
    assert messages[4]["content"] == [{"type": "text", "text": "And now?"}]


@pytest.mark.parametrize("empty", [says(""), says("", before=[{"type": "text", "text": ""}]), says("  \n")])
def test_no_empty_text_block_is_ever_sent_because_the_api_refuses_it(provider, opened, empty):
    trace = asked(provider, empty, says("It is 30."), model=opened())
    blocks = [b for m in provider.requests[1].body["messages"] for b in m["content"]]
    assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    assert all(m["content"] for m in provider.requests[1].body["messages"]) and trace.answer == "It is 30."


def test_usage_is_mapped_to_one_meaning_and_priced(provider, opened):
    usage = {"input_tokens": 1000, "cache_read_input_tokens": 2000, "cache_creation_input_tokens": 3000,
             "output_tokens": 500, "output_tokens_details": {"thinking_tokens": 40}}  # fmt: skip
    trace = asked(provider, says("It is 30.", usage=usage, model="claude-sonnet-4-5"), model=opened())
    assert trace.usage.model_dump() == {
        "input": 1000, "cache_read": 2000, "cache_write": 3000, "output": 500, "reasoning": 40}  # fmt: skip
    assert trace.usd == pytest.approx(0.02235)


def test_null_fields_of_usage_count_nothing(provider, opened):
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens_details")
    usage = dict.fromkeys(names) | {"output_tokens": 7}
    trace = asked(provider, says("It is 30.", usage=usage), model=opened())
    assert (trace.usage.total, trace.usage.output, trace.stop) == (7, 7, "answered")


def test_cost_is_that_of_the_served_model_and_both_names_are_stored(provider, opened):
    model = opened()
    cheap = asked(provider, says("It is 30.", model="claude-haiku-4-5-20251001"), model=model)
    dear = asked(provider, says("It is 30.", model="claude-opus-4-5-20251101"), model=model,
                 sample=Sample(id="s2", prompt="Once more?"))  # fmt: skip
    assert (dear.model, dear.served) == ("anthropic:claude-haiku-4-5", "claude-opus-4-5-20251101")
    assert dear.usd == pytest.approx(5 * cheap.usd) and cheap.usd == pytest.approx((100 * 1 + 20 * 5) / 1e6)


def test_a_served_model_without_a_price_is_priced_as_requested_and_noted(provider, opened):
    trace = asked(provider, says("It is 30.", model="mystery-1"), model=opened())
    assert trace.usd == pytest.approx((100 * 1 + 20 * 5) / 1e6) and trace.failure is None
    assert "mystery-1" in json.dumps(trace.notes) and trace.served == "mystery-1"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
def test_a_passing_fault_is_retried_and_its_attempts_and_waiting_are_recorded(provider, opened, status, wire):
    fault = error(status, after=0.01)
    trace = asked(provider, fault, fault, says("It is 30."), model=opened(wire))
    assert (trace.stop, trace.api_calls, trace.turns, len(provider.requests)) == ("answered", 3, 1, 3)
    assert trace.waited == pytest.approx(0.02, abs=0.005)


@pytest.mark.parametrize("fault", [RESET, CUT])
def test_a_broken_connection_is_retried(provider, opened, fault):
    trace = asked(provider, fault, says("It is 30."), model=opened())
    assert (trace.stop, trace.answer, trace.api_calls, len(provider.requests)) == ("answered", "It is 30.", 2, 2)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_lasting_fault_is_not_retried(provider, opened, status, wire):
    trace = asked(provider, error(status, "no, never"), says("It is 30."), model=opened(wire))
    assert (trace.failure.where, trace.api_calls, len(provider.requests)) == ("provider", 1, 1)
    assert str(status) in trace.failure.kind and "no, never" in trace.failure.detail


def test_retries_are_bounded_in_number(provider, opened):
    trace = asked(provider, *[error(529, "overloaded", after=0)] * 9, model=opened())
    assert (trace.failure.where, trace.api_calls, len(provider.requests)) == ("provider", 5, 5)


def test_a_retry_after_of_an_hour_is_not_waited_for(provider, opened):
    trace = asked(provider, error(429, "come back", after=3600), says("It is 30."), model=opened())
    assert (trace.failure.where, trace.api_calls, trace.waited) == ("provider", 1, 0)


@pytest.mark.parametrize(
    ("then", "stop", "wanted"), [(says("It is 30."), "answered", 1100), (error(400), "failed", 1000)]
)
def test_a_reply_that_was_billed_but_could_not_be_read_is_charged(provider, opened, then, stop, wanted):
    unreadable = {"model": "claude-haiku-4-5", "content": "text instead of blocks", "stop_reason": "end_turn",
                  "usage": {"input_tokens": 1000, "output_tokens": 100}}  # fmt: skip
    trace = asked(provider, unreadable, then, model=opened())
    assert (trace.stop, trace.api_calls, trace.usage.input) == (stop, 2, wanted)
    assert trace.usd == pytest.approx((trace.usage.input * 1 + trace.usage.output * 5) / 1e6)


@pytest.mark.parametrize(("wire", "variable"), [("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_key_is_refused_at_open_by_the_name_of_its_variable(monkeypatch, wire, variable, value):
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=variable):
        open_model(f"{wire}:{WIRES[wire][0]}")


@pytest.mark.parametrize("wire", WIRES)
def test_the_key_is_sent_and_never_kept_when_an_error_repeats_it(provider, opened, key, wire):
    trace = asked(provider, error(401, f"invalid key {key} in Bearer {key}"), model=opened(wire))
    assert provider.requests[0].headers["authorization"] == f"Bearer {key}"
    assert "invalid key" in trace.failure.detail and key not in trace.model_dump_json()


def test_a_key_of_no_known_shape_is_never_kept_either(provider, opened, monkeypatch, key):
    monkeypatch.setenv("ANTHROPIC_API_KEY", plain := "".join(reversed(key.replace("-", ""))))
    trace = asked(provider, error(400, f"invalid key {plain}"), model=opened())
    assert "invalid key" in trace.failure.detail and plain not in trace.model_dump_json()


def test_a_key_with_a_line_end_is_not_kept_when_the_http_client_quotes_the_header(monkeypatch, key):
    plain = "".join(reversed(key.replace("-", "")))
    monkeypatch.setenv("ANTHROPIC_API_KEY", plain + "\n")
    quoted = f"Illegal header value {(f'Bearer {plain}' + chr(10)).encode()!r}"  # as httpx2 says it
    assert plain in quoted and plain not in ProviderError("connection", quoted).detail


def test_an_unknown_model_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"gpt4.*anthropic:.*extractive:.*script:"):
        open_model("gpt4:best")
    with pytest.raises(ValueError, match="script:null"):
        open_model("script:no-such-file")
    with pytest.raises(ValueError, match="name the model"):
        open_model("anthropic:")


@pytest.mark.parametrize("wire", WIRES)
def test_one_model_answers_sixteen_threads_each_its_own_question_over_one_pool(provider, opened, wire):
    def reply(body, number):
        return tool_loop(2, answer=f"You asked: {question(body)}")(body, number)

    provider.replies, provider.delay, model = reply, 0.002, opened(wire)
    samples = [Sample(id=str(n), prompt=f"What is number {n}?") for n in range(48)]
    with ThreadPoolExecutor(16) as pool:
        traces = list(pool.map(lambda s: agent.run(s, model, arm(tool(grep_index))), samples))
    assert [t.answer for t in traces] == [f"You asked: {s.prompt}" for s in samples]
    assert all(len(t.steps) == 2 for t in traces) and len(provider.requests) == 3 * 48
    assert provider.connections <= 16


def test_the_extractive_agent_answers_from_the_pages_it_read_and_cites_them():
    trace = agent.run(QUESTION, open_model("extractive:"), arm(*PAGES.tools()))
    assert (trace.stop, trace.usd) == ("answered", 0) and trace.answer.startswith(
        "Timeouts: The default timeout is 30 seconds"
    )
    assert "green" not in trace.answer and "birds" not in trace.answer
    assert trace.citations[0].url == "https://docs.example/timeouts/"
    assert [step.call.name for step in trace.steps][:2] == ["grep_index", "read_page"]


def test_the_extractive_agent_is_deterministic():
    one, two = (agent.run(QUESTION, open_model("extractive:"), arm(*PAGES.tools())) for _ in range(2))
    assert (one.answer, [s.call for s in one.steps]) == (two.answer, [s.call for s in two.steps])


def test_the_extractive_agent_abstains_without_tools():
    trace = agent.run(QUESTION, open_model("extractive:"), arm())
    assert (trace.stop, trace.steps) == ("abstained", ())


def test_the_extractive_agent_uses_only_the_tools_it_is_given():
    search, read = PAGES.tools()
    only_search = agent.run(QUESTION, open_model("extractive:"), arm(search))
    assert {step.call.name for step in only_search.steps} == {"grep_index"} and "30 seconds" in only_search.answer
    assert agent.run(QUESTION, open_model("extractive:"), arm(read)).stop == "abstained"
    queries = []

    def find(query: str) -> str:
        """Search by words."""
        queries.append(query)
        return "https://elsewhere.example/a/ line 3\nThe default timeout is 99 seconds here."

    elsewhere = agent.run(QUESTION, open_model("extractive:"), arm(tool(find)))
    assert "99 seconds" in elsewhere.answer and "30 seconds" not in elsewhere.answer
    assert "timeout" in queries[0] and [step.call.name for step in elsewhere.steps] == ["find"]


def test_the_extractive_agent_asks_about_the_prompt_and_not_about_the_history():
    history = ["What does a hook run before?", {"text": "Before the handler."}]
    sample = Sample(id="s2", prompt=QUESTION.prompt, history=history)
    trace = agent.run(sample, open_model("extractive:"), arm(*PAGES.tools()))
    assert "30 seconds" in trace.answer and "timeout" in trace.steps[0].call.args["pattern"]


def test_the_extractive_agent_survives_a_question_without_a_word_to_search():
    trace = agent.run(Sample(id="s3", prompt="？"), open_model("extractive:"), arm(*PAGES.tools()))
    assert (trace.stop, trace.failure) == ("abstained", None)


def test_the_null_script_abstains_and_calls_nothing():
    trace = agent.run(QUESTION, open_model("script:null"), arm(*PAGES.tools()))
    assert (trace.stop, trace.steps) == ("abstained", ())


def test_the_oracle_reads_the_gold_pages_and_answers_with_gold_and_its_citations():
    gold = {"answer": "It is 30 seconds.", "urls": ["https://docs.example/timeouts/"]}
    trace = agent.run(QUESTION.model_copy(update={"gold": gold}), open_model("script:oracle"), arm(*PAGES.tools()))
    assert (trace.stop, trace.answer.splitlines()[0]) == ("answered", gold["answer"])
    assert [c.url for c in trace.citations] == gold["urls"]
    assert [(s.call.name, s.ok) for s in trace.steps] == [("read_page", True)]


def test_the_random_script_draws_by_seed_and_repeat():
    def answers(seed):
        model = open_model("script:random", seed=seed)
        return [agent.run(QUESTION, model, arm(*PAGES.tools()), repeat=r).answer for r in range(8)]

    assert answers(1) == answers(1) and answers(1) != answers(2) and len(set(answers(1))) > 1
