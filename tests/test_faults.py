"""What a run is worth when everything around it breaks: faults of the provider, interrupts, kills, and two at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from provider import RESET, Provider, error, question, says

from evalkit import (
    Condition,
    Sample,
    Suite,
    fill,
    grid,
    guards,
    judge,
    load_suite,
    open_model,
    plan,
    records,
    scoring,
    tool,
)
from evalkit.records import CONTROLS, ROOT, Usage, latest

processes = multiprocessing.get_context("forkserver")  # imports once, then starts real processes in milliseconds
processes.set_forkserver_preload(["anthropic", "genai_prices", "hypothesis", "pytest", "evalkit.grid", "evalkit.judge"])

MODELS = ["anthropic:claude-haiku-4-5", "openai:gpt-5-mini"]  # both official SDKs
HAIKU, GPT = MODELS
GOLD = {sample.prompt: sample for sample in load_suite("docs_qa").samples}


def answer(sample):
    """The gold for half of the questions, nonsense for the others."""
    return sample.gold["answer"] if int(records.key(sample.id), 16) % 2 else "It is 17 metres."


def agent(body):
    """An agent's reply: where there are tools it searches once, then it answers."""
    asked = any(message["role"] == "assistant" for message in body["messages"])
    may = body.get("tools") and not asked
    return says(calls=[("call-1", "grep_index", {"pattern": "timeout"})]) if may else says(answer(GOLD[question(body)]))


def malformed(request):
    """A reply whose tool call has arguments that are no JSON object."""
    body = says(calls=[("call-1", "grep_index", {})])(request)
    if request.path == "/v1/messages":
        body["content"][0]["input"] = "timeout"
    else:
        body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"pattern": "time'
    return body


def faulty(seed, dead=()):
    """Replies with seeded faults, each drawn by conversation and number; the questions in `dead` are never answered."""

    def reply(body, number):
        if GOLD[question(body)].id in dead and not body.get("tools"):
            return error(429, "busy", after=0.01) if GOLD[question(body)].id == dead[0] else error(400, "no")
        said = json.dumps([body.get("system"), body["messages"]], sort_keys=True)
        draw = random.Random(f"{seed}/{said}/{number}").random()
        if draw < 0.05:
            return error(429, "busy", after=0.01)
        if draw < 0.07:
            return error(500, "broken")
        if draw < 0.09:
            return RESET
        if draw < 0.29 and body.get("tools"):  # more often than the others: few replies are tool calls
            return malformed
        return agent(body)

    return reply


def measure(folder, model, url, limit=0, **options):
    """Fill the traces of one model over docs_qa in a folder; returns the suite, the cells and the counts."""
    suite, served = load_suite("docs_qa"), open_model(model, base_url=url)
    cells = plan(suite, served, limit=limit)
    work = grid.tracing("r", suite, served)
    return suite, cells, fill(folder / "traces.jsonl", cells, work, who=model, **options)


def score(folder, suite):
    """Fill the rule verdicts of what was measured; returns the verdicts that count."""
    traces = latest(grid.read(folder / "traces.jsonl")[0])
    fill(folder / "verdicts.jsonl", scoring.owed(suite, traces), scoring.verdict, workers=1, who="rules")
    return latest(grid.read(folder / "verdicts.jsonl")[0])


def totals(folder, suite):
    """What a report would add up: usage, money and right answers of the rows that count."""
    rows, verdicts = latest(grid.read(folder / "traces.jsonl")[0]), score(folder, suite)
    usage = sum((row.usage for row in rows), Usage())
    right = sum(verdict.values["correct"] for verdict in verdicts)
    return usage, round(sum(row.usd for row in rows), 9), right, len(rows), len(verdicts)


def conversations(requests):
    """How often each turn of each conversation was asked."""
    return Counter(json.dumps([r.body.get("system"), r.body["messages"]], sort_keys=True) for r in requests)


@pytest.mark.parametrize("model", MODELS)
def test_seeded_faults_of_the_provider_leave_one_row_a_cell_and_never_a_zero(tmp_path, provider, key, model):
    dead = sorted(sample.id for sample in GOLD.values())[:3]
    provider.replies = faulty(7, dead)
    suite, cells, counts = measure(tmp_path, model, provider.url)
    rows, problems = grid.read(tmp_path / "traces.jsonl")
    assert len(cells) >= 60 and problems == []
    assert sorted(row.key for row in rows) == sorted(row.key for row in latest(rows)) == sorted(cells)
    failed = {row.key: row for row in rows if row.failure}
    assert sorted(row.sample_id for row in failed.values()) == dead and counts["failed"] == 3
    assert {row.failure.where for row in failed.values()} == {"provider"}
    assert sorted(row.failure.kind for row in failed.values()) == ["http_400", "http_400", "http_429"]
    assert all(row.stop == "failed" and row.answer == "" and row.usd == 0 for row in failed.values())
    assert any(row.api_calls > row.turns for row in rows if not row.failure), "no fault was retried"
    assert any(step.call.malformed for row in rows for step in row.steps), "no call was malformed"

    verdicts = score(tmp_path, suite)
    assert sorted(v.of[0] for v in verdicts) == sorted(cells.keys() - failed.keys())
    by_trace, named = {v.of[0]: v.values["correct"] for v in verdicts}, {s.id: s for s in suite.samples}
    for row in rows:
        if not row.failure:
            honest = row.model_copy(update={"answer": answer(named[row.sample_id])})
            assert by_trace[row.key] == scoring.docs_qa(named[row.sample_id], honest)["correct"]

    provider.replies = lambda body, number: agent(body)
    before = len(provider.requests)
    assert measure(tmp_path, model, provider.url)[2]["done"] == 3 == len(provider.requests) - before
    rows = grid.read(tmp_path / "traces.jsonl")[0]
    assert sorted(row.key for row in latest(rows)) == sorted(cells) and not any(row.failure for row in latest(rows))
    assert len(rows) == len(cells) + 3 and len(score(tmp_path, suite)) == len(cells)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_interrupted_and_resumed_adds_up_to_what_an_undisturbed_one_does(tmp_path, provider, key, model):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    provider.replies = lambda body, number: agent(body)
    suite, cells, _ = measure(whole, model, provider.url)
    undisturbed = conversations(provider.requests)

    draw, stops = random.Random(11), []
    with Provider() as second:

        def reply(body, number):
            if stops and len(second.requests) >= stops[0]:
                stops.pop()
                os.kill(os.getpid(), signal.SIGINT)
            return agent(body)

        second.replies, second.delay = reply, 0.002
        for _ in range(3):
            stops[:] = [len(second.requests) + draw.randint(5, 20)]
            with pytest.raises(KeyboardInterrupt):
                measure(broken, model, second.url, workers=4)
            assert threading.active_count() < 30 and grid.read(broken / "traces.jsonl")[1] == []
        kept = len(grid.read(broken / "traces.jsonl")[0])
        assert 0 < kept < len(cells)
        assert measure(broken, model, second.url, workers=4)[2]["done_before"] == kept
        assert conversations(second.requests) == undisturbed and set(undisturbed.values()) == {1}
    assert totals(broken, suite) == totals(whole, suite)
    assert 0 < totals(whole, suite)[2] < len(cells) == totals(whole, suite)[3] == totals(whole, suite)[4]


def look(pattern: str) -> str:
    """Look a word up."""
    return f"{pattern} is on page 1"


def asked_of(questions):
    """A suite of so many questions that the rules and a judge can score."""
    gold = {"answer": "It is 30 seconds.", "key_fact": ["30 seconds"], "urls": ["https://example.org/1"]}
    samples = tuple(Sample(id=f"q{n:03}", prompt=f"What is number {n:03}?", gold=gold) for n in range(questions))
    condition = Condition(name="open", tools=lambda sample: (tool(look),))
    return Suite(name="made", kind="docs_qa", path=Path("."), samples=samples, conditions=(condition,),
                 rules=("docs_qa",))  # fmt: skip


def run_and_judge(folder, questions, url, secret):
    """What the killed process does: all of a run, its rules, and the grades of a judge."""
    os.environ.update(ANTHROPIC_API_KEY=secret, NO_PROXY="127.0.0.1")
    folder, suite, model = Path(folder), asked_of(questions), open_model(HAIKU, base_url=url)
    verdicts = folder / "verdicts.jsonl"
    fill(folder / "traces.jsonl", plan(suite, model), grid.tracing("r", suite, model), workers=2, who=HAIKU)
    traces = latest(grid.read(folder / "traces.jsonl")[0])
    fill(verdicts, scoring.owed(suite, traces), scoring.verdict, workers=1, who="rules")
    grader = open_model("anthropic:claude-sonnet-4-5", base_url=url)
    fill(verdicts, judge.owed(suite, traces, grader), judge.grading(grader), workers=2, who="grade")


def until(true, seconds=30):
    """Wait until it is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"nothing happened in {seconds} s"
        time.sleep(0.002)


def test_twenty_kills_across_run_and_judge_lose_nothing_finished_and_ask_nothing_twice(tmp_path, key):
    questions, draw, running = 60, random.Random(20261130), []
    allowed = {"run": 0, "judge": 0}  # how many requests of each may be answered before the next kill
    grade = json.dumps({"correctness": 5, "key_fact_match": True, "hallucinated_specifics": False, "reason": "same"})

    def kind(body):
        return "run" if body.get("tools") else "judge"

    def requests(phase):
        return [request for request in list(provider.requests) if kind(request.body) == phase]

    def asked(phase):
        return Counter(re.search(r"number \d+", question(r.body))[0] for r in requests(phase))

    def reply(body, number):
        phase, asks = kind(body), not any(m["role"] == "assistant" for m in body["messages"])
        place = len(requests(phase))
        until(lambda: place <= allowed[phase])
        if phase == "judge":
            return says(grade)
        return says(calls=[("call-1", "look", {"pattern": "it"})]) if asks else says("It is 30 seconds.")

    def start():
        process = processes.Process(target=run_and_judge, args=(str(tmp_path), questions, provider.url, key))
        process.start()
        running.append(process)
        return process

    def finished():
        """(phase, question) of what has its row."""
        named = {row.key: row.sample_id for row in grid.read(tmp_path / "traces.jsonl")[0]}
        graded = [v.of[0] for v in grid.read(tmp_path / "verdicts.jsonl")[0] if v.by.startswith("grade:")]
        return {("run", s) for s in named.values()} | {("judge", named[k]) for k in graded}

    with Provider(reply, delay=0.003) as provider:
        snapshots, reached = [], Counter()
        try:
            for phase, least, most in [("run", 3, 7)] * 11 + [("judge", 2, 5)] * 9:
                allowed["run"] = allowed["run"] if phase == "run" else 10**6
                enough = len(requests(phase)) + draw.randint(least, most)
                allowed[phase] = enough + 1
                process = start()
                until(lambda phase=phase, enough=enough: len(requests(phase)) >= enough)
                time.sleep(draw.uniform(0, 0.01))
                process.kill()
                process.join(30)
                assert process.exitcode == -signal.SIGKILL
                reached[phase] += 1
                seen = {"run": asked("run"), "judge": asked("judge")}
                snapshots.append({(p, s): seen[p][f"number {s[1:]}"] for p, s in finished()})
            allowed.update(run=10**6, judge=10**6)
            last = start()
            last.join(60)
            assert last.exitcode == 0 and reached == {"run": 11, "judge": 9}
        finally:
            for process in running:
                process.kill()
                process.join(10)
        counted = {"run": asked("run"), "judge": asked("judge")}
    assert 0 < len(snapshots[10]) < questions and questions < len(snapshots[-1]) < 2 * questions
    for then in snapshots:
        assert all(counted[phase][f"number {s[1:]}"] == times for (phase, s), times in then.items())

    suite, model = asked_of(questions), open_model(HAIKU)
    traces, problems = grid.read(tmp_path / "traces.jsonl")
    verdicts, more = grid.read(tmp_path / "verdicts.jsonl")
    assert problems == more == []
    assert sorted(row.key for row in traces) == sorted(plan(suite, model))
    owed = scoring.owed(suite, traces) | judge.owed(suite, traces, open_model("anthropic:claude-sonnet-4-5"))
    assert sorted(verdict.key for verdict in verdicts) == sorted(owed) and len(owed) == 2 * questions
    assert not any(row.failure for row in [*traces, *verdicts])
    assert {v.values["correct"] for v in verdicts if v.by.startswith("rule:")} == {1.0}
    assert {v.values["correctness"] for v in verdicts if v.by.startswith("grade:")} == {5.0}


@pytest.mark.parametrize("status", [401, 402, 403])
@pytest.mark.parametrize("model", MODELS)
def test_a_refused_key_stops_the_run_at_once_and_nothing_is_scored(tmp_path, provider, key, model, status):
    provider.replies, provider.delay = lambda body, number: error(status, "your key is refused"), 0.03
    with pytest.raises(grid.Stopped, match=rf"http_{status}.*your key is refused"):
        measure(tmp_path, model, provider.url, workers=2, watch=guards.watch())
    rows, problems = grid.read(tmp_path / "traces.jsonl")
    assert problems == [] and 1 <= len(rows) == len(provider.requests) <= 6
    assert {row.failure.kind for row in rows} == {f"http_{status}"}
    assert score(tmp_path, load_suite("docs_qa")) == []


def test_a_refused_key_in_the_middle_keeps_what_was_measured_and_the_next_run_goes_on(tmp_path, provider, key):
    provider.replies = lambda body, number: agent(body) if len(provider.requests) <= 30 else error(401, "revoked")
    with pytest.raises(grid.Stopped, match="http_401"):
        measure(tmp_path, HAIKU, provider.url, workers=2, watch=guards.watch())
    measured = [row.key for row in grid.read(tmp_path / "traces.jsonl")[0] if not row.failure]
    assert 10 <= len(measured) <= 30
    suite = load_suite("docs_qa")
    assert sorted(v.of[0] for v in score(tmp_path, suite)) == sorted(measured)
    provider.replies = lambda body, number: agent(body)
    _, cells, counts = measure(tmp_path, HAIKU, provider.url, watch=guards.watch())
    assert counts["done_before"] == len(measured) and len(score(tmp_path, suite)) == len(cells)


def test_more_than_half_of_ten_failing_at_the_provider_stops_and_none_of_them_is_scored(tmp_path, provider, key):
    half = sorted(GOLD[prompt].id for prompt in GOLD)[:20]
    refused = set(half) - set(half[::4])  # fifteen of the first twenty
    provider.delay = 0.01
    provider.replies = lambda body, n: error(400, "no") if GOLD[question(body)].id in refused else agent(body)
    with pytest.raises(grid.Stopped, match=r"\d+ of \d+ cells failed"):
        measure(tmp_path, GPT, provider.url, workers=2, watch=guards.watch())
    rows = grid.read(tmp_path / "traces.jsonl")[0]
    failed = [row.key for row in rows if row.failure]
    assert 10 <= len(rows) <= 20 and len(failed) > len(rows) / 2
    verdicts = score(tmp_path, load_suite("docs_qa"))
    assert {v.of[0] for v in verdicts} == {row.key for row in rows} - set(failed) != set()


def test_half_of_the_cells_failing_at_the_provider_does_not_stop_a_run(tmp_path, provider, key):
    provider.replies = lambda body, n: agent(body) if body.get("tools") else error(400, "no")
    _, cells, counts = measure(tmp_path, GPT, provider.url, workers=1, limit=10,
                               watch=guards.watch(stop_when=0.9))  # fmt: skip
    assert (counts["done"], counts["failed"]) == (10, 10) and len(cells) == 20


def test_a_run_stops_when_its_money_is_spent_and_goes_on_with_more(tmp_path, provider, key):
    provider.replies, provider.delay = lambda body, number: agent(body), 0.01
    limit = 0.004  # a reply costs 0.0002, a cell one or two of them
    with pytest.raises(grid.Stopped, match=rf"USD spent, the limit is {limit}"):
        measure(tmp_path, HAIKU, provider.url, workers=2, watch=guards.watch(limit))
    rows = grid.read(tmp_path / "traces.jsonl")[0]
    spent = sum(row.usd for row in rows)
    assert limit <= spent <= limit + 6 * 0.0004 and spent == pytest.approx(0.0002 * len(provider.requests))
    _, cells, counts = measure(tmp_path, HAIKU, provider.url, watch=guards.watch(1.0))
    assert counts["done_before"] == len(rows) and len(conversations(provider.requests)) == len(provider.requests)
    assert sorted(row.key for row in grid.read(tmp_path / "traces.jsonl")[0]) == sorted(cells)


@pytest.fixture
def papermill(tmp_path, key):
    """papermill(name, output, **parameters) -> the running command, ended at the latest with the test."""
    running = []

    def begin(name, output, **parameters):
        words = [sys.executable, "-m", "papermill", ROOT / "notebooks" / f"{name}.ipynb", tmp_path / output,
                 "--no-progress-bar", "--log-level", "ERROR", "--execution-timeout", "120"]  # fmt: skip
        words += [word for item in parameters.items() for word in ("-p", *map(str, item))]
        running.append(subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True))  # fmt: skip
        return running[-1]

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def test_two_notebooks_fill_one_run_at_once_and_a_second_for_the_same_model_is_refused(papermill, provider, run_id):
    gate, path = threading.Event(), guards.run_dir(run_id) / "traces.jsonl"

    def reply(body, number):
        if body["model"].startswith("claude"):
            gate.wait(60)
        return agent(body)

    provider.replies, same = reply, {"run_id": run_id, "base_url": provider.url, "limit": 8}
    both = [papermill("run", f"{n}.ipynb", model=model, **same) for n, model in enumerate(MODELS)]
    until(lambda: any(r.body["model"].startswith("claude") for r in list(provider.requests)), 60)
    with pytest.raises(grid.Busy, match=r"process \d+ already fills") as refused:
        measure(path.parent, HAIKU, provider.url, limit=8)
    named = psutil.Process(int(re.search(r"process (\d+)", str(refused.value))[1]))
    assert both[0].pid in [parent.pid for parent in named.parents()], "it names the kernel of the first notebook"
    gate.set()
    outputs = [process.communicate(timeout=90)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs

    rows, problems = grid.read(path)
    first = sorted(sample.id for sample in GOLD.values())[:8]
    cells = {(m, c, s) for m in (*MODELS, *CONTROLS) for c in ("closed_book", "index_grep") for s in first}
    assert problems == [] and not any(row.failure for row in rows)
    assert {(row.model, row.condition, row.sample_id) for row in rows} == cells
    assert len(rows) == len({row.key for row in rows}) == len(cells)
    assert len(provider.requests) == 2 * 3 * len(first)  # two models, one turn without tools and two with them
    assert len(json.loads((path.parent / "run.json").read_text())) == 2
