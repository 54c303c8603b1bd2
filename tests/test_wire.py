"""The wire: recorded bodies in both formats, what the OpenAI adapter sends and reads, dropped parameters, one slot."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from provider import error, says

from evalkit import Budget, Condition, Sample, agent, load_suite, open_model, tool
from evalkit.models import SERVERS, Prompt, ProviderError, parse_reply
from evalkit.models.openai import OpenAI
from evalkit.records import Call, Reply, Step, Usage
from evalkit.suites import conversation

ROWS = [json.loads(x) for x in (Path(__file__).parent / "cases/api_responses.jsonl").read_text("utf-8").splitlines()]
WIRE = {"anthropic_messages": "anthropic", "openai_chat": "openai"}
BODIES = [row for row in ROWS if row["format"] in WIRE]
ERRORS = [row for row in ROWS if row["format"] == "error"]
SAMPLE = Sample(id="s1", prompt="How long is the timeout?", gold={"answer": "30 seconds"})
SPECS = {"anthropic": "anthropic:claude-haiku-4-5", "openai": "openai:gpt-5.4"}
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def by_id(row):
    return row["id"]


@pytest.mark.parametrize("row", BODIES, ids=by_id)
def test_a_recorded_body_is_read_as_its_people_meant_it(row):
    reply, wanted = parse_reply(row["body"], WIRE[row["format"]]), row["expected"]
    assert reply.text == wanted["text"] and reply.served == wanted["served"]
    assert reply.refused is wanted["refused"] and reply.truncated is False
    assert reply.stop == wanted["stop"]  # the provider's word, verbatim, also an empty one


@pytest.mark.parametrize("row", BODIES, ids=by_id)
def test_the_calls_of_a_recorded_body_keep_id_name_and_arguments(row):
    reply, wanted = parse_reply(row["body"], WIRE[row["format"]]), row["expected"]["calls"]
    assert [(c.id, c.name, c.malformed) for c in reply.calls] == [(c["id"], c["name"], c["malformed"]) for c in wanted]
    assert [c.args for c in reply.calls] == [c["args"] or {} for c in wanted]


@pytest.mark.parametrize("row", BODIES, ids=by_id)
def test_the_usage_of_a_recorded_body_has_one_meaning(row):
    reply, wanted = parse_reply(row["body"], WIRE[row["format"]]), row["expected"]
    assert reply.usage.model_dump() == wanted["usage"]
    usage = reply.usage
    assert usage.input + usage.cache_read + usage.cache_write == wanted["input_total"]


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
@pytest.mark.parametrize("row", ERRORS, ids=by_id)
def test_an_error_body_is_a_provider_error_with_its_words(row, wire):
    with pytest.raises(ProviderError) as caught:
        parse_reply(row["body"], wire)
    assert (caught.value.kind, caught.value.detail) == (row["expected"]["kind"], row["expected"]["message"])


def test_there_are_as_many_recorded_bodies_as_were_copied():
    assert (len(BODIES), len(ERRORS)) == (13, 2)


def test_an_unknown_wire_format_is_refused_by_name():
    with pytest.raises(ValueError, match="gemini"):
        parse_reply({}, "gemini")


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
@pytest.mark.parametrize("body", [{}, {"ok": True}])
def test_a_body_that_is_no_reply_at_all_is_a_failure_and_not_an_empty_answer(wire, body):
    with pytest.raises(ProviderError):
        parse_reply(body, wire)


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
@pytest.mark.parametrize("body", [{"content": None, "choices": None, "usage": None}, {"choices": [{}]}])
def test_a_body_with_nothing_in_it_is_an_empty_reply(wire, body):
    reply = parse_reply(body, wire)
    assert (reply.text, reply.calls, reply.stop, reply.usage) == ("", (), None, Usage())


def test_cached_tokens_are_part_of_prompt_tokens_and_no_part_of_our_input():
    usage = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens": 200}
    read = parse_reply({"choices": [{"message": {}}], "usage": usage}, "openai").usage
    assert read == Usage(input=400, cache_read=600, output=200)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_null_counts_of_cached_and_reasoning_tokens_are_nothing(details):
    usage = {"prompt_tokens": 9, "completion_tokens": None, "prompt_tokens_details": details,
             "completion_tokens_details": details}  # fmt: skip
    assert parse_reply({"choices": [{"message": {}}], "usage": usage}, "openai").usage == Usage(input=9)


def look(word: str) -> str:
    """Look a word up."""
    return f"{word} is on page 1"


def pages() -> str:
    """List all pages."""
    return "page 1, page 2"


LOOK, PAGES = tool(look), tool(pages)


def arm(*tools, system="Cite sources.", instructions="Answer in one line.", **budget):
    return Condition(name="c", system=system, instructions=instructions, tools=lambda s: tools, budget=Budget(**budget))


def chat(content=None, calls=(), stop="stop", usage=None, **message):
    """A chat completion; calls are (id, name, arguments as text) and go out as they are."""
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": content, **message} | ({"tool_calls": made} if made else {})
    counts = usage or {"prompt_tokens": 10, "completion_tokens": 5}
    return {"model": "gpt-5.4", "choices": [{"message": message, "finish_reason": stop}], "usage": counts}


@pytest.fixture
def opened(provider, key):
    """opened(spec, **options) -> Model, pointed at the local provider."""

    def model(spec=SPECS["openai"], **options):
        path = "" if spec.startswith("anthropic:") else "/v1"
        return open_model(spec, base_url=provider.url + path, **options)

    return model


@pytest.fixture
def played(provider, opened):
    """played(replies, *tools, **budget) -> Trace of a conversation with openai:gpt-5.4 that says the replies."""

    def run(replies, *tools, **budget):
        provider.replies = replies
        return agent.run(SAMPLE, opened(), arm(*tools, **budget))

    return run


def test_a_request_is_system_text_question_and_tools_and_nothing_else(provider, played):
    played([says("It is 30.")], LOOK, reply_tokens=77)
    assert provider.requests[0].path == "/v1/chat/completions"
    function = {"name": "look", "description": "Look a word up.", "parameters": LOOK.schema}
    assert provider.requests[0].body == {
        "model": "gpt-5.4", "max_completion_tokens": 77, "tool_choice": "auto",
        "messages": [{"role": "system", "content": "Cite sources.\n\nAnswer in one line."},
                     {"role": "user", "content": "How long is the timeout?"}],
        "tools": [{"type": "function", "function": function}]}  # fmt: skip


@pytest.mark.parametrize("wire", SPECS)
def test_both_system_texts_reach_the_server_once_in_order_and_stand_nowhere_else(provider, opened, wire):
    provider.replies = [says("It is 30.")]
    agent.run(SAMPLE, opened(SPECS[wire]), arm())
    body = provider.requests[0].body
    system = [m for m in body["messages"] if m["role"] == "system"] if wire == "openai" else body["system"]
    text = system[0]["content" if wire == "openai" else "text"]
    assert len(system) == 1 and text.index("Cite sources.") < text.index("Answer in one line.")
    rest = [m for m in body["messages"] if m["role"] != "system"]
    assert [m["role"] for m in rest] == ["user"] and "Cite sources." not in json.dumps(rest)


def test_without_a_system_text_no_system_message_is_sent(provider, opened):
    provider.replies = [says("It is 30.")]
    agent.run(SAMPLE, opened(), arm(system="", instructions=""))
    assert [m["role"] for m in provider.requests[0].body["messages"]] == ["user"]


def test_without_tools_neither_tools_nor_a_choice_are_sent(provider, played):
    played([says("It is 30.")])
    assert not {"tools", "tool_choice"} & provider.requests[0].body.keys()


def test_the_closing_request_offers_no_tool(provider, played):
    trace = played([says(calls=[("a", "look", {"word": "x"})]), says("It is 30.")], LOOK, turns=1)
    first, last = (request.body for request in provider.requests)
    assert "tools" in first and not {"tools", "tool_choice"} & last.keys()
    assert last["messages"][-1]["role"] == "user" and (trace.stop, trace.answer) == ("turns", "It is 30.")


def test_calls_over_the_budget_get_a_result_each_before_the_closing_request(provider, played):
    calls = [(n, "look", {"word": n}) for n in "abc"]
    trace = played([says(calls=calls), says("It is 30.")], LOOK, tool_calls=2)
    assert [step.executed for step in trace.steps] == [True, True, False]
    results = [m for m in provider.requests[1].body["messages"] if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in results] == ["a", "b", "c"]
    assert "udget" in results[2]["content"] and len(provider.requests) == 2


@pytest.mark.parametrize("spec", ["openai:m", "mistral:m", "compat:m@http://127.0.0.1:1/v1", "ollama:m"])
def test_only_openai_itself_is_told_the_limit_by_its_new_name(monkeypatch, key, spec):
    monkeypatch.setenv("MISTRAL_API_KEY", key)
    request = open_model(spec).request(Prompt("", ["Hello"], max_tokens=55))
    name = "max_completion_tokens" if spec.startswith("openai:") else "max_tokens"
    assert {n: v for n, v in request.items() if "max" in n} == {name: 55}


def test_effort_temperature_and_a_schema_are_sent_by_their_names(opened):
    request = opened(effort="low", temperature=0.0).request(Prompt("", ["Hello"], schema=SCHEMA))
    assert (request["reasoning_effort"], request["temperature"]) == ("low", 0)
    assert request["response_format"]["type"] == "json_schema"
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert request["response_format"]["json_schema"]["name"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning_details"])
def test_what_a_server_thought_beside_a_call_goes_back_with_it(provider, played, name):
    thought = [{"type": "reasoning.text", "text": "Two."}] if name == "reasoning_details" else "Two searches."
    played([chat("Let me see.", [("a", "look", '{"word": "x"}')], **{name: thought}), says("It is 30.")], LOOK)
    assert provider.requests[1].body["messages"][2:] == [
        {"role": "assistant", "content": "Let me see.", name: thought, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"word": "x"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "x is on page 1"}]  # fmt: skip


def test_the_history_of_a_sample_is_sent_as_messages(provider, opened):
    turn = {"text": "", "calls": [{"id": "h1", "name": "look", "args": {"word": "é"}}]}
    history = ["How long?", turn, {"call": turn["calls"][0], "result": "30"}, {"text": "It is 30."}]
    provider.replies = [says("Still 30.")]
    sample = Sample.model_validate({"id": "s", "prompt": "And now?", "history": history})
    agent.run(sample, opened(), arm(LOOK))
    messages = provider.requests[0].body["messages"][1:]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"word": "é"}
    assert messages[2] == {"role": "tool", "tool_call_id": "h1", "content": "30"}


@pytest.mark.parametrize("raw", ["", " ", "\n\t "])
def test_blank_arguments_are_an_empty_object_and_the_tool_runs_once(played, raw):
    trace = played([chat(calls=[("a", "pages", raw)], stop="tool_calls"), says("It is 30.")], PAGES)
    (step,) = trace.steps
    assert (step.ok, step.result, step.call.args, step.call.raw) == (True, "page 1, page 2", {}, raw)
    assert not step.call.malformed


def test_blank_arguments_of_a_tool_that_needs_some_are_told_as_missing(played):
    trace = played([chat(calls=[("a", "look", "")]), says("It is 30.")], LOOK)
    (step,) = trace.steps
    assert (step.ok, step.call.malformed, trace.stop) == (False, False, "answered") and "word" in step.result


MALFORMED = [
    '{"word": "x", "path": ',
    '{"word": "lease"} hope this helps',
    "[1]",
    '"x"',
    "null",
    "3",
    "{",
    None,
    "True",
]


@pytest.mark.parametrize("raw", MALFORMED)
def test_arguments_that_are_no_object_are_never_run_and_never_an_empty_object(provider, played, raw):
    trace = played([chat(calls=[("a", "pages", raw), ("b", "look", '{"word": "x"}')]), says("It is 30.")], PAGES, LOOK)
    one, two = trace.steps
    assert one.call.malformed and not one.ok and "page 1" not in one.result and one.call.raw == (raw or "")
    assert two.ok and two.result == "x is on page 1" and trace.stop == "answered"


def test_a_call_without_an_arguments_field_is_malformed(played):
    body = chat(calls=[("a", "pages", "")])
    del body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    trace = played([body, says("It is 30.")], PAGES)
    assert trace.steps[0].call.malformed and not trace.steps[0].ok


def test_malformed_calls_are_answered_under_their_own_ids_and_go_back_as_valid_json(provider, played):
    played([chat(calls=[("c1", "look", MALFORMED[0]), ("c2", "look", MALFORMED[1])]), says("It is 30.")], LOOK)
    _, _, turn, *results = provider.requests[1].body["messages"]
    assert [c["id"] for c in turn["tool_calls"]] == [m["tool_call_id"] for m in results] == ["c1", "c2"]
    assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in turn["tool_calls"])
    assert all("JSON" in m["content"] for m in results)


def test_arguments_that_come_as_an_object_are_taken_as_they_are(played):
    body = chat(calls=[("a", "look", {"word": "x"})])
    assert played([body, says("It is 30.")], LOOK).steps[0].result == "x is on page 1"


def test_calls_with_one_id_or_none_run_in_order_under_ids_of_their_own(provider, played):
    asked = [("c1", "alpha"), ("c1", "beta"), ("", "gamma")]
    trace = played([chat(calls=[(i, "look", json.dumps({"word": w})) for i, w in asked]), says("It is 30.")], LOOK)
    assert [step.result for step in trace.steps] == [f"{word} is on page 1" for _, word in asked]
    _, _, turn, *results = provider.requests[1].body["messages"]
    ids = [c["id"] for c in turn["tool_calls"]]
    assert len(set(ids)) == 3 and all(ids) and ids == [m["tool_call_id"] for m in results]
    assert [m["content"].split()[0] for m in results] == ["alpha", "beta", "gamma"]
    assert trace.notes["call_ids_renamed"] == ["c1", ""]  # the provider's own stay on the row


WORDS = [
    "tool_calls",
    "stop",
    "tool_call",
    "max_tokens",
    "pause_turn",
    "model_context_window_exceeded",
    "",
    None,
    "new",
]


@pytest.mark.parametrize("word", WORDS)
def test_any_stop_word_is_kept_verbatim_and_calls_decide(played, word):
    trace = played([chat(calls=[("a", "look", '{"word": "x"}')], stop=word), chat("It is 30.", stop=word)], LOOK)
    assert len(trace.steps) == 1 and (trace.failure, trace.provider_stop) == (None, word)


@pytest.mark.parametrize(
    ("body", "stop", "answer"),
    [
        (chat(None, stop="content_filter", refusal="I can't help with that."), "refused", "I can't help with that."),
        (chat(None, stop="stop", refusal="I can't help with that."), "refused", "I can't help with that."),
        (chat(None, stop="content_filter"), "refused", ""),
        (chat("I don't know."), "abstained", "I don't know."),
        (chat("It is", stop="length"), "truncated", "It is"),
        (chat("It is 30."), "answered", "It is 30."),
    ],
)
def test_refused_abstained_truncated_and_answered_are_four_ends(provider, played, body, stop, answer):
    trace = played([body], LOOK)
    assert (trace.stop, trace.answer, trace.failure, len(provider.requests)) == (stop, answer, None, 1)


def test_reasoning_that_used_the_whole_limit_is_truncated_with_its_tokens(provider, played):
    usage = {"prompt_tokens": 9, "completion_tokens": 512, "completion_tokens_details": {"reasoning_tokens": 511}}
    trace = played([chat("", stop="length", usage=usage, reasoning_content="(long)")], LOOK)
    assert (trace.stop, trace.usage.output, trace.usage.reasoning) == ("truncated", 512, 511)
    assert len(provider.requests) == 1


def test_a_call_in_a_reply_cut_off_by_its_limit_is_never_run(played):
    trace = played([chat(calls=[("a", "pages", "{}")], stop="length")], PAGES)
    assert trace.stop == "truncated" and not any(step.executed for step in trace.steps)


def test_content_in_parts_is_one_text(played):
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "It "}, {"type": "text", "text": "is."}]
    assert played([chat(parts)]).answer == "It is."


DROPS = [
    ("openai", {"temperature": 0.0}, "temperature"), ("openai", {"effort": "low"}, "reasoning_effort"),
    ("anthropic", {"temperature": 0.0}, "temperature"), ("anthropic", {"effort": "low"}, "output_config"),
]  # fmt: skip


def refuses(name, body):
    """A server that knows no parameter of this name, and else says the body."""
    unsupported = {"type": "invalid_request_error", "param": name, "code": "unsupported_value",
                   "message": f"Unsupported value: '{name}' is not supported with this model"}  # fmt: skip
    return lambda request, number: (400, {"error": unsupported}, {}) if name in request else body


@pytest.mark.parametrize(("wire", "options", "name"), DROPS)
def test_a_parameter_the_model_does_not_take_is_dropped_once_for_all_and_noted_on_every_row(
    provider, opened, wire, options, name
):
    provider.replies, model = refuses(name, says("It is 30.")), opened(SPECS[wire], **options)
    traces = [agent.run(Sample(id=str(n), prompt=f"How long is {n}?"), model, arm(LOOK)) for n in range(3)]
    assert [t.stop for t in traces] == ["answered"] * 3
    assert [name in request.body for request in provider.requests] == [True, False, False, False]
    assert [t.notes["dropped"] for t in traces] == [[name]] * 3
    assert all(t.options == options for t in traces)  # what was asked for stays on the row


def test_two_parameters_are_dropped_one_by_one(provider, opened):
    both = refuses("temperature", None), refuses("reasoning_effort", says("It is 30."))
    provider.replies = lambda body, number: both[0](body, number) or both[1](body, number)
    trace = agent.run(SAMPLE, opened(temperature=0.0, effort="low"), arm())
    assert (trace.stop, trace.notes["dropped"]) == ("answered", ["reasoning_effort", "temperature"])
    assert len(provider.requests) == 3


@pytest.mark.parametrize("wire", SPECS)
def test_a_400_that_names_a_parameter_we_do_not_send_is_a_failure(provider, opened, wire):
    provider.replies = [error(400, "temperature is not supported"), says("It is 30.")]
    trace = agent.run(SAMPLE, opened(SPECS[wire]), arm())
    assert (trace.failure.kind, len(provider.requests)) == ("http_400", 1)


def test_another_model_of_the_same_provider_still_gets_the_parameter(provider, opened):
    provider.replies = refuses("temperature", says("It is 30."))
    agent.run(SAMPLE, opened(temperature=0.0), arm())
    agent.run(SAMPLE, opened("openai:gpt-5-mini", temperature=0.0), arm())
    sent = [(r.body["model"], "temperature" in r.body) for r in provider.requests]
    assert sent == [(m, had) for m in ("gpt-5.4", "gpt-5-mini") for had in (True, False)]


def test_dropping_effort_keeps_the_schema_beside_it(provider, opened):
    def reply(body, number):
        known = "effort" not in body.get("output_config", {})
        return says('{"score": 3}') if known else error(400, "output_config.effort is not supported by this model")

    provider.replies = reply
    opened(SPECS["anthropic"], effort="low").ask(Prompt("", ["Grade this."], schema=SCHEMA))
    assert provider.requests[-1].body["output_config"]["format"]["schema"] == SCHEMA


def test_what_was_waited_before_a_parameter_was_dropped_is_no_working_time(provider, opened):
    replies = [error(429, after=0.05), error(400, "temperature is not supported"), says("It is 30.")]
    provider.replies = lambda body, number: replies[len(provider.requests) - 1]
    trace = agent.run(SAMPLE, opened(temperature=0.0), arm())
    assert (trace.stop, trace.api_calls) == ("answered", 3) and trace.waited >= 0.05


NAMED = {name: variable for name, (_, variable) in SERVERS.items() if variable}


def test_the_named_servers_are_those_the_documentation_lists():
    known = "mistral groq gemini cerebras deepseek together fireworks openrouter ollama llamacpp"
    assert set(SERVERS) == set(known.split())


@pytest.mark.parametrize("name", NAMED)
def test_a_named_server_refuses_a_missing_key_by_the_name_of_its_variable(monkeypatch, name):
    monkeypatch.delenv(NAMED[name], raising=False)
    with pytest.raises(ValueError, match=NAMED[name]):
        open_model(f"{name}:m")


@pytest.mark.parametrize("name", NAMED)
def test_a_named_server_is_sent_its_own_key_and_no_other(monkeypatch, provider, key, name):
    monkeypatch.setenv(NAMED[name], "its-own-key-of-no-shape")
    provider.replies = [says("It is 30.")]
    open_model(f"{name}:m", base_url=f"{provider.url}/v1").ask(Prompt("", ["Hello"]))
    request = provider.requests[0]
    assert request.headers["authorization"] == "Bearer its-own-key-of-no-shape" and request.body["model"] == "m"
    assert key not in str(request.headers)


def test_any_other_server_is_named_with_its_url_and_needs_no_key(provider, key, monkeypatch):
    monkeypatch.delenv("COMPAT_API_KEY", raising=False)
    provider.replies = [says("It is 30.", model="house/llm")]
    model = open_model(f"compat:house/llm@{provider.url}/v1")
    trace = agent.run(SAMPLE, model, arm())
    request = provider.requests[0]
    assert (request.path, request.body["model"]) == ("/v1/chat/completions", "house/llm")
    assert key not in str(request.headers) and (trace.answer, trace.usd) == ("It is 30.", 0)


def test_another_server_is_sent_the_key_that_was_set_for_it(provider, key, monkeypatch):
    monkeypatch.setenv("COMPAT_API_KEY", "a-key-of-its-own")
    provider.replies = [says("It is 30.")]
    open_model(f"compat:m@{provider.url}/v1").ask(Prompt("", ["Hello"]))
    assert provider.requests[0].headers["authorization"] == "Bearer a-key-of-its-own"


@pytest.mark.parametrize("spec", ["compat:m", "compat:m@", "compat:m@host:80", "compat:@http://127.0.0.1:1", "compat:"])
def test_another_server_without_a_name_or_a_url_is_refused_with_what_to_write(spec):
    with pytest.raises(ValueError, match="compat:"):
        open_model(spec)


class OneSlot(OpenAI):
    at_once = 1


def crowd(provider, model, size=6):
    """Replies of `size` threads that ask at the same moment, and the most requests that were in flight at once."""
    inside, most, gate, start = [0], [0], threading.Lock(), threading.Barrier(size)

    def reply(body, number):
        with gate:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        with gate:
            inside[0] -= 1
        return says("It is 30.")

    def ask(number):
        start.wait(10)
        return model.ask(Prompt("", [f"How long is {number}?"]))

    provider.replies = reply
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(ask, range(size))), most[0]


def test_a_model_with_one_slot_never_has_two_requests_in_flight_and_queueing_counts_as_waited(provider, key):
    replies, most = crowd(provider, OneSlot("openai", "gpt-5.4", {}, f"{provider.url}/v1"))
    assert most == 1 and len(provider.requests) == 6
    assert max(reply.waited for reply in replies) >= 0.02  # the last stood behind at least one other


def test_a_model_without_a_limit_is_asked_at_once_and_waits_for_nothing(provider, opened):
    replies, most = crowd(provider, opened())
    assert most > 1 and all(reply.waited == 0 for reply in replies)


def test_a_request_that_fails_gives_its_slot_back(provider, key):
    model = OneSlot("openai", "gpt-5.4", {}, f"{provider.url}/v1")
    provider.replies = lambda body, number: error(400) if "bad" in json.dumps(body) else says("It is 30.")
    with pytest.raises(ProviderError):
        model.ask(Prompt("", ["bad"]))
    assert model.ask(Prompt("", ["good"])).text == "It is 30."


def test_a_reply_of_ours_is_written_as_the_server_would_have(opened):
    said = ["Hello", Reply(text="Look.", calls=(Call(id="a", name="look", args={"word": "x"}),))]
    message = opened().request(Prompt("", said))["messages"][1]
    assert message["content"] == "Look." and json.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "word": "x"
    }


CHOICES = load_suite("tool_choice")
CHAINS = [sample for sample in CHOICES.samples if sample.tags["type"] == "chain" and sample.history]
BOTH = [{"name": "get_document", "arguments": {"doc_id": i}, "result": f"{i} é"} for i in ("C-1001", "C-1002")]
TURNS = conversation([{"text": "Both at once.", "calls": BOTH}, {"calls": BOTH[:1]}])
CHAINS.append(CHAINS[0].model_copy(update={"id": "two_calls_in_a_turn", "history": tuple(TURNS)}))


def results(sample):
    """The calls that were made before, with what they gave, in order: [(name, arguments, result)]."""
    return [(e.call.name, e.call.args, e.result) for e in sample.history if isinstance(e, Step)]


def chosen(provider, opened, wire, sample):
    """The body of the one request that a choice takes."""
    provider.replies = [says(calls=[("a", "search", {"query": "rent"}), ("b", "web_search", {"query": "rent"})])]
    trace = agent.run(sample, opened(SPECS[wire]), CHOICES.conditions[0])
    assert (trace.stop, trace.failure, trace.turns) == ("answered", None, 1) and len(provider.requests) == 1
    assert [(s.call.name, s.call.args, s.executed) for s in trace.steps] == [
        ("search", {"query": "rent"}, False), ("web_search", {"query": "rent"}, False)]  # fmt: skip
    return provider.requests[0].body, trace


@pytest.mark.parametrize("wire", SPECS)
def test_a_choice_offers_its_tools_freely_and_never_says_which_are_distractors(provider, opened, wire):
    body, trace = chosen(provider, opened, wire, CHAINS[0])
    assert body["tool_choice"] == ("auto" if wire == "openai" else {"type": "auto"})
    tools = [tool["function"] for tool in body["tools"]] if wire == "openai" else body["tools"]
    assert [tool["name"] for tool in tools] == trace.notes["offered"] and len(tools) == 9
    known = {tool["name"]: tool for tool in CHAINS[0].tools}
    for sent in tools:
        shape = sent["parameters" if wire == "openai" else "input_schema"]
        assert (sent["description"], shape) == (known[sent["name"]]["description"], known[sent["name"]]["parameters"])
    assert any(tool.get("distractor") for tool in known.values()) and "distractor" not in json.dumps(body)
    assert CHAINS[0].cluster not in json.dumps(body)


@pytest.mark.parametrize("sample", CHAINS, ids=[sample.id for sample in CHAINS])
def test_a_chain_reaches_anthropic_as_real_turns_with_results_under_their_ids(provider, opened, sample):
    body, _ = chosen(provider, opened, "anthropic", sample)
    blocks = [(m["role"], block) for m in body["messages"] for block in m["content"]]
    uses = [(role, b["id"], b["name"], b["input"]) for role, b in blocks if b["type"] == "tool_use"]
    given = [(role, b["tool_use_id"], b["content"]) for role, b in blocks if b["type"] == "tool_result"]
    assert [(name, args) for _, _, name, args in uses] == [(name, args) for name, args, _ in results(sample)]
    assert [text for _, _, text in given] == [text for _, _, text in results(sample)]
    assert [i for _, i, _, _ in uses] == [i for _, i, _ in given] and len({i for _, i, _ in given}) == len(given)
    assert {role for role, *_ in uses} == {"assistant"} and {role for role, *_ in given} == {"user"}
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    texts = [b["text"] for role, b in blocks if role == "user" and b["type"] == "text"]
    assert texts == [entry for entry in sample.said if isinstance(entry, str)] and sample.prompt in texts


@pytest.mark.parametrize("sample", CHAINS, ids=[sample.id for sample in CHAINS])
def test_a_chain_reaches_openai_as_real_turns_with_results_under_their_ids(provider, opened, sample):
    body, _ = chosen(provider, opened, "openai", sample)
    system, *messages = body["messages"]
    assert system == {"role": "system", "content": CHOICES.system} and "2025-03-14" in CHOICES.system
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    given = [message for message in messages if message["role"] == "tool"]
    made = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    assert made == [(name, args) for name, args, _ in results(sample)]
    assert [message["content"] for message in given] == [text for _, _, text in results(sample)]
    assert [call["id"] for call in calls] == [message["tool_call_id"] for message in given]
    assert len({call["id"] for call in calls}) == len(calls)
    for at, message in enumerate(messages):  # every call of a turn is answered right after it
        owed = [call["id"] for call in message.get("tool_calls", ())]
        assert [m.get("tool_call_id") for m in messages[at + 1 : at + 1 + len(owed)]] == owed
    said = [message["content"] for message in messages if message["role"] == "user"]
    assert said == [entry for entry in sample.said if isinstance(entry, str)] and sample.prompt in said
