"""Record and replay: a reader without a key sees the traces of the run that paid for them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from provider import Provider, error, question, says

from evalkit import Budget, Condition, Sample, Suite, agent, fill, grid, open_model, plan, tool
from evalkit.models import Prompt
from evalkit.records import latest

CLOCK = {"run_id", "at", "seconds", "waited"}  # what a replay may give anew


def look(word: str) -> str:
    """Look a word up."""
    return f"{word} is on page 1"


def suite(folder, samples, conditions=("c",)):
    """A suite of these samples under conditions that all ask the same."""
    arms = [Condition(name=n, system="Be brief.", tools=lambda s: (tool(look),), budget=Budget(turns=3))
            for n in conditions]  # fmt: skip
    return Suite(name="mine", kind="docs_qa", path=folder, samples=samples, conditions=arms)


def filled(path, asked, model, repeats=1):
    """The traces of every cell of the suite, by slot, without what the clock put into them."""
    cells = plan(asked, model, repeats=repeats)
    fill(path, cells, grid.tracing(path.stem, asked, model), workers=4)
    rows = latest(grid.read(path)[0])
    assert len(rows) == len(cells)
    plain = {row.slot: row.model_dump(exclude=CLOCK) for row in rows}
    for row in plain.values():
        for step in row["steps"]:
            del step["seconds"]
    return plain


SPECS = {
    "anthropic": ("anthropic:claude-haiku-4-5", "", {}),
    "openai": ("openai:gpt-5.4", "/v1", {}),
    "openai with options": ("openai:gpt-5.4", "/v1", {"effort": "low", "temperature": 0.0}),
    "compat": ("compat:house@{url}/v1", "", {}),
}
SAMPLES = [Sample(id=f"q{n}", prompt=f"How long is number {n}?", gold={"answer": str(n)}) for n in range(6)]


def busy(body, number):
    """A call and an answer; some are rate limited first, one is refused for good, one parameter is unknown."""
    n = question(body).split("number ")[1][0]
    turn = sum(m["role"] == "assistant" for m in body["messages"])
    if "temperature" in body:
        return error(400, "temperature is not supported")
    if n == "3":
        return error(400, "no, never")
    if n in "14" and turn == 0 and number == 0:
        return error(429, after=0.01)
    usage = {"prompt_tokens": 90 + number, "completion_tokens": 9, "input_tokens": 90, "output_tokens": 9}
    call = (f"call-{n}", "look", {"word": n})
    return says("Let me see.", [call], usage=usage) if turn == 0 else says(f"It is {n}, said {number}.", usage=usage)


@pytest.mark.parametrize("name", SPECS)
def test_a_replayed_run_has_the_traces_of_the_recorded_one_without_key_or_server(tmp_path, monkeypatch, key, name):
    spec, path, options = SPECS[name]
    tape, mine = str(tmp_path / "tape.jsonl"), suite(tmp_path, SAMPLES)
    with Provider(busy) as server:
        spec = spec.format(url=server.url)
        base = {} if name == "compat" else {"base_url": server.url + path}
        recorded = filled(tmp_path / "a/traces.jsonl", mine, open_model(spec, record=tape, **base, **options), 2)
    assert {row["stop"] for row in recorded.values()} == {"answered", "failed"}
    assert any(row["api_calls"] > row["turns"] for row in recorded.values() if row["stop"] == "answered")
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable)
    replayed = filled(tmp_path / "b/traces.jsonl", mine, open_model(spec, replay=tape, **options), 2)
    assert replayed == recorded


def test_a_replay_makes_no_call_and_waits_for_nothing(tmp_path, key, monkeypatch):
    tape, mine = str(tmp_path / "tape.jsonl"), suite(tmp_path, SAMPLES[:1])
    with Provider([error(429, after=0.05), says("It is 0.")]) as server:
        model = open_model("anthropic:claude-haiku-4-5", base_url=server.url, record=tape)
        paid = agent.run(SAMPLES[0], model, mine.conditions[0])
        trace = agent.run(SAMPLES[0], open_model("anthropic:claude-haiku-4-5", replay=tape), mine.conditions[0])
        assert len(server.requests) == 2
    assert (paid.waited > 0, trace.waited, trace.api_calls) == (True, 0, 2)
    assert trace.usd == paid.usd > 0  # what the measurement cost, not what the replay costs


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_repeats_do_not_collapse_into_one(tmp_path, key, name):
    spec, path, _ = SPECS[name]
    tape, mine = str(tmp_path / "tape.jsonl"), suite(tmp_path, SAMPLES[:2])
    with Provider(lambda body, number: says(f"Answer {number} to {question(body)}")) as server:
        model = open_model(spec, base_url=server.url + path, record=tape)
        recorded = filled(tmp_path / "a/traces.jsonl", mine, model, repeats=4)
    replayed = filled(tmp_path / "b/traces.jsonl", mine, open_model(spec, replay=tape), repeats=4)
    assert replayed == recorded and len({row["answer"] for row in replayed.values()}) == 8


def twins(kind, folder):
    if kind == "samples":
        return suite(folder, [Sample(id=i, prompt="How long?", gold={"answer": "1"}) for i in "ab"])
    return suite(folder, SAMPLES[:1], conditions=("one", "same"))


@pytest.mark.parametrize("kind", ["samples", "conditions"])
def test_cells_that_ask_the_same_words_keep_their_own_replies(tmp_path, key, kind):
    tape, mine = str(tmp_path / "tape.jsonl"), twins(kind, tmp_path)
    with Provider(lambda body, number: says(f"Answer {number}.")) as server:
        model = open_model("anthropic:claude-haiku-4-5", base_url=server.url, record=tape)
        recorded = filled(tmp_path / "a/traces.jsonl", mine, model)
    replayed = filled(tmp_path / "b/traces.jsonl", mine, open_model("anthropic:claude-haiku-4-5", replay=tape))
    assert len({row["answer"] for row in recorded.values()}) == 2 and replayed == recorded


def test_a_request_asked_twice_gives_its_replies_in_turn(tmp_path, key):
    """As a judge asks again that was not understood."""
    tape, prompt = str(tmp_path / "tape.jsonl"), Prompt("", ["Grade this."])
    with Provider([says("Good."), says('{"correctness": 4}')]) as server:
        model = open_model("anthropic:claude-haiku-4-5", base_url=server.url, record=tape)
        recorded = [model.ask(prompt).text for _ in range(2)]
    replay = open_model("anthropic:claude-haiku-4-5", replay=tape)
    assert [replay.ask(prompt).text for _ in range(2)] == recorded == ["Good.", '{"correctness": 4}']


def changed(**parts):
    cell = {"model": "anthropic:claude-haiku-4-5", "prompt": "How long?", "system": "Be brief.", "repeat": 0} | parts
    arm = Condition(name="c", system=cell["system"], tools=lambda s: (tool(look),) * cell.get("tools", 1))
    return cell, Sample(id="q", prompt=cell["prompt"]), arm


@pytest.mark.parametrize(
    "other",
    [{"prompt": "How wide?"}, {"system": "Be long."}, {"repeat": 1}, {"tools": 0}, {"model": "openai:gpt-5.4"},
     {"effort": "low"}],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_a_request_that_was_not_recorded_is_a_failure(tmp_path, key, other):
    tape = str(tmp_path / "tape.jsonl")
    with Provider([says("It is 30.")]) as server:
        cell, sample, arm = changed()
        agent.run(sample, open_model(cell["model"], base_url=server.url, record=tape), arm)
    again = agent.run(sample, open_model(cell["model"], replay=tape), arm)
    assert (again.stop, again.answer) == ("answered", "It is 30.")
    cell, sample, arm = changed(**other)
    model = open_model(cell["model"], replay=tape, effort=cell.get("effort", ""))
    trace = agent.run(sample, model, arm, repeat=cell["repeat"])
    assert (trace.stop, trace.failure.where, trace.failure.kind) == ("failed", "provider", "not_recorded")
    assert tape in trace.failure.detail


def test_a_recording_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        open_model("anthropic:claude-haiku-4-5", replay=str(tmp_path / "none.jsonl"))


def test_the_last_recording_of_a_request_counts_after_a_fault(tmp_path, key):
    tape, (cell, sample, arm) = str(tmp_path / "tape.jsonl"), changed()
    with Provider([error(400, "not yet"), says("It is 30.")]) as server:
        model = open_model(cell["model"], base_url=server.url, record=tape)
        first, second = (agent.run(sample, model, arm) for _ in range(2))
    assert (first.stop, second.stop) == ("failed", "answered")
    assert agent.run(sample, open_model(cell["model"], replay=tape), arm).answer == "It is 30."


def test_the_recording_holds_neither_key_nor_address_of_the_server(tmp_path, key):
    tape = tmp_path / "tape.jsonl"
    replies = [error(401, f"bad key {key}"), says("It is 30.")]
    with Provider(lambda body, number: replies[len(server.requests) - 1]) as server:
        model = open_model("openai:gpt-5.4", base_url=server.url + "/v1", record=str(tape))
        for n in range(2):
            agent.run(Sample(id=str(n), prompt=f"How long is {n}?"), model, changed()[2])
    text = tape.read_text()
    assert len(text.splitlines()) == 2 and "bad key" in text and key not in text and "127.0.0.1" not in text


def test_many_threads_write_whole_lines(tmp_path, key):
    tape, arm = tmp_path / "tape.jsonl", changed()[2]
    with Provider(lambda body, number: says(question(body) * 500)) as server:
        model = open_model("anthropic:claude-haiku-4-5", base_url=server.url, record=str(tape))
        samples = [Sample(id=str(n), prompt=f"How long is {n}?") for n in range(32)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda s: agent.run(s, model, arm), samples))
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    assert len({line["hash"] for line in lines}) == len(lines) == 32


def test_extractive_and_scripted_models_are_recorded_like_any_other(tmp_path):
    for spec in ("extractive:", "script:null"):
        tape = str(tmp_path / f"{spec[:6]}.jsonl")
        mine = suite(tmp_path, SAMPLES[:2])
        recorded = filled(tmp_path / spec[:6] / "traces.jsonl", mine, open_model(spec, record=tape))
        assert filled(tmp_path / spec[:5] / "traces.jsonl", mine, open_model(spec, replay=tape)) == recorded
