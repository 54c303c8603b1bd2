"""Planning, filling and resuming: the key of a cell, and what of a file survives whatever happens to its writer."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from provider import Provider, question, tool_loop

from evalkit import Condition, Sample, Suite, fill, grid, load_suite, open_model, plan, records, tool
from evalkit.records import Failure, latest

processes = multiprocessing.get_context("forkserver")  # imports once, then starts real processes in milliseconds
processes.set_forkserver_preload(["anthropic", "hypothesis", "pytest", "evalkit.grid"])

SUITE = """
kind = "docs_qa"
corpus = "fastify-docs"
system = "Answer in one sentence."
[budget]
turns = 4
tool_calls = 5
reply_tokens = 600
[settings]
search_limit = 6000
[[conditions]]
name = "closed"
instructions = "From memory."
[[conditions]]
name = "search"
tools = ["grep_index"]
instructions = "Search first."
"""
SAMPLES = [
    {"id": f"q{n}", "question": f"What is {n}?", "gold": {"answer": f"It is {n}.", "key_fact": [str(n)], "urls": ["u"]}}
    for n in (3, 1, 2)
]


@pytest.fixture
def keys(tmp_path):
    """keys(toml, samples, model, **options) -> {(sample, condition, repeat): key} of a suite written to a folder."""

    def made(toml=SUITE, samples=SAMPLES, model="script:null", **options):
        folder = tmp_path / "asked"
        folder.mkdir(exist_ok=True)
        (folder / "suite.toml").write_text(toml)
        (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)))
        suite = load_suite(folder).model_copy(update=options.pop("suite", {}))
        cells = plan(suite, open_model(model, **options), repeats=2)
        return {(cell.sample.id, cell.condition.name, cell.repeat): k for k, cell in cells.items()}

    return made


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("system", "Answer in one sentence.", "Answer in one sentence!"),
        ("instructions", "Search first.", "Search twice."),
        ("tools", '["grep_index"]', '["grep_index", "read_page"]'),
        ("tool limits", "search_limit = 6000", "search_limit = 6001"),
        ("turns", "turns = 4", "turns = 3"),
        ("tool calls", "tool_calls = 5", "tool_calls = 4"),
        ("reply tokens", "reply_tokens = 600", "reply_tokens = 601"),
        ("condition", 'name = "search"', 'name = "searching"'),
    ],
)
def test_a_change_of_what_a_condition_is_changes_its_keys(keys, part, old, new):
    assert SUITE.count(old) == 1
    before = {k for (_, condition, _), k in keys().items() if condition == "search"}
    after = {k for (_, condition, _), k in keys(SUITE.replace(old, new)).items() if condition.startswith("search")}
    assert len(before) == len(after) == 6 and not before & after


def test_a_change_of_one_condition_leaves_the_keys_of_another(keys):
    before, after = keys(), keys(SUITE.replace("Search first.", "Search twice."))
    assert all((before[cell] == after[cell]) == (cell[1] == "closed") for cell in before)


def test_a_change_of_a_prompt_changes_the_keys_of_that_sample_alone(keys):
    before, after = keys(), keys(samples=[SAMPLES[0] | {"question": "What is three?"}, *SAMPLES[1:]])
    assert all((before[cell] == after[cell]) == (cell[0] != "q3") for cell in before)


def test_a_history_a_corpus_a_model_and_its_options_change_every_key(keys):
    versions = [
        keys(),
        keys(samples=[row | {"history": ["Hello"]} for row in SAMPLES]),
        keys(suite={"corpus_sha": "0" * 64}),
        keys(suite={"name": "other"}),
        keys(model="script:random"),
        keys(model="script:random", seed=1),
        keys(model="extractive:"),
    ]
    every = [k for version in versions for k in version.values()]
    assert len(set(every)) == len(every) == 12 * len(versions)


def test_effort_changes_every_key(keys, key):
    low, high, none = (keys(model="anthropic:claude-haiku-4-5", effort=effort) for effort in ("low", "high", ""))
    assert not set(low.values()) & set(high.values()) and not set(low.values()) & set(none.values())


def test_gold_and_tags_are_no_part_of_the_key_but_gold_is_for_the_oracle(keys):
    mended = [row | {"gold": row["gold"] | {"answer": "Mended."}, "tags": {"type": "new"}} for row in SAMPLES]
    assert keys(samples=mended) == keys()
    assert not set(keys(samples=mended, model="script:oracle").values()) & set(keys(model="script:oracle").values())


def test_the_same_suite_read_again_gives_the_same_keys_in_the_same_order(keys):
    assert list(keys().items()) == list(keys().items())


def look(word: str) -> str:
    """Look a word up."""
    return f"{word} is on page 1"


def made(questions=6, *tools):
    samples = tuple(Sample(id=f"q{n:03}", prompt=f"What is number {n}?") for n in reversed(range(questions)))
    return Suite(name="made", kind="made", path=Path("."), samples=samples,
                 conditions=(Condition(name="closed"), Condition(name="open", tools=lambda sample: tools)))  # fmt: skip


NULL = open_model("script:null")
CELLS = plan(made(), NULL, ["closed"])


class Work:
    """Real work that keeps what it did, and fails or breaks for some samples."""

    def __init__(self, fails=(), breaks=(), seconds=0.0, suite=None, model=NULL):
        self.done, self.fails, self.breaks, self.seconds = [], fails, breaks, seconds
        self.trace = grid.tracing("r", suite or made(), model)

    def __call__(self, k, cell):
        self.done.append(cell.sample.id)
        time.sleep(self.seconds)
        if cell.sample.id in self.breaks:
            raise ZeroDivisionError(cell.sample.id)
        trace = self.trace(k, cell)
        failure = Failure(where="provider", kind="http_529") if cell.sample.id in self.fails else None
        return trace.model_copy(update={"failure": failure, "stop": "failed"} if failure else {})


def counting(path):
    """The keys of the rows that count and were measured; every line must be readable."""
    rows, problems = grid.read(path)
    assert problems == []
    return sorted(row.key for row in latest(rows) if row.failure is None)


def test_conditions_limit_and_repeats_choose_the_cells():
    suite = made(4)
    assert len(plan(suite, NULL)) == 8 and len(plan(suite, NULL, repeats=3)) == 24
    chosen = plan(suite, NULL, ["open"], limit=2).values()
    assert [(cell.sample.id, cell.condition.name) for cell in chosen] == [("q000", "open"), ("q001", "open")]


def test_an_unknown_condition_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"opne.*closed.*open"):
        plan(made(), NULL, ["opne"])


def test_a_second_fill_does_nothing(tmp_path):
    path, work = tmp_path / "traces.jsonl", Work()
    first = fill(path, CELLS, work)
    before = path.read_bytes()
    second = fill(path, CELLS, work)
    assert (first["done"], second["done"], second["done_before"], len(work.done)) == (6, 0, 6, 6)
    assert path.read_bytes() == before and counting(path) == sorted(CELLS)


def test_a_failed_row_is_owed_again_and_the_last_row_of_a_slot_counts(tmp_path):
    path, again = tmp_path / "traces.jsonl", Work()
    counts = fill(path, CELLS, Work(fails=["q001", "q004"]))
    assert (counts["done"], counts["failed"], len(counting(path))) == (4, 2, 4)
    fill(path, CELLS, again)
    assert sorted(again.done) == ["q001", "q004"] and counting(path) == sorted(CELLS)
    assert len(grid.read(path)[0]) == 8


def test_a_wrong_answer_is_never_owed_again(tmp_path):
    path, work = tmp_path / "traces.jsonl", Work()
    fill(path, CELLS, Work())
    assert {row.stop for row in grid.read(path)[0]} == {"abstained"}
    fill(path, CELLS, work)
    assert work.done == []


def test_a_changed_prompt_supersedes_a_row_of_a_control_in_its_slot(tmp_path):
    path, suite = tmp_path / "traces.jsonl", made()
    fill(path, CELLS, Work())
    changed = (suite.samples[0].model_copy(update={"prompt": "What is it?"}), *suite.samples[1:])
    cells, work = plan(suite.model_copy(update={"samples": changed}), NULL, ["closed"]), Work()
    fill(path, cells, work)
    assert work.done == ["q005"] and counting(path) == sorted(cells) and len(grid.read(path)[0]) == 7


def test_measurements_of_one_model_under_two_setups_are_never_mixed_in_a_file(tmp_path):
    path, suite, model, work = tmp_path / "traces.jsonl", made(), open_model("extractive:"), Work()
    fill(path, plan(suite, model, ["closed"]), Work(model=model))
    before = path.read_bytes()
    changed = (suite.samples[0].model_copy(update={"prompt": "What is it?"}), *suite.samples[1:])
    cells = plan(suite.model_copy(update={"samples": changed}), model, ["closed"])
    with pytest.raises(grid.SetupChanged, match=r"prompt.*run_id"):
        fill(path, cells, work)
    assert work.done == [] and path.read_bytes() == before


def test_a_watch_stops_the_run_and_what_was_measured_is_safe(tmp_path):
    path, work = tmp_path / "traces.jsonl", Work()
    with pytest.raises(grid.Stopped, match="enough"):
        fill(path, CELLS, work, workers=1, watch=lambda row: "enough" if row.sample_id == "q001" else "")
    kept = counting(path)
    assert len(kept) == len(work.done) and {"q000", "q001"} <= set(work.done)
    assert fill(path, CELLS, Work())["done_before"] == len(kept)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_torn_last_line_is_moved_aside_before_anything_is_appended(tmp_path, rows):
    path, torn = tmp_path / "traces.jsonl", b'{"key": "0123", "answer": "half of it is '
    fill(path, dict(list(CELLS.items())[:rows]), Work())
    with open(path, "ab") as file:
        file.write(torn)
    assert len(grid.read(path)[0]) == rows and len(grid.read(path)[1]) == 1
    fill(path, CELLS, Work())
    assert counting(path) == sorted(CELLS) and len(path.read_bytes().splitlines()) == 6
    assert torn in [file.read_bytes() for file in tmp_path.iterdir() if file.is_file()]


def test_an_unreadable_line_in_the_middle_is_named_and_its_cell_is_owed_again(tmp_path):
    path = tmp_path / "traces.jsonl"
    fill(path, CELLS, Work(), workers=1)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "not a row", *lines[3:]]) + "\n")
    work = Work()
    fill(path, CELLS, work)
    rows, problems = grid.read(path)
    assert len(work.done) == 1 and len(problems) == 1 and f"{path}:3" in problems[0]
    assert sorted(row.key for row in latest(rows)) == sorted(CELLS)


@pytest.mark.parametrize("workers", [1, 4])
def test_an_exception_in_the_work_stops_the_workers_and_leaves_a_store_to_go_on_with(tmp_path, workers):
    path, before, cells = tmp_path / "traces.jsonl", threading.active_count(), plan(made(100), NULL, ["closed"])
    broken, work = Work(breaks=["q002"], seconds=0.01), Work()
    with pytest.raises(ZeroDivisionError, match="q002"):
        fill(path, cells, broken, workers=workers)
    kept = counting(path)
    assert len(kept) == len(broken.done) - 1 < 99
    until(lambda: threading.active_count() <= before)
    assert fill(path, cells, work)["done_before"] == len(kept) and len(work.done) == 100 - len(kept)
    assert counting(path) == sorted(cells) and len(grid.read(path)[0]) == 100


def test_an_executor_may_be_passed_in_and_is_left_running(tmp_path):
    names = set()

    def work(k, cell, trace=grid.tracing("r", made(), NULL)):  # noqa: B008
        names.add(threading.current_thread().name.split("_")[0])
        return trace(k, cell)

    with ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
        fill(tmp_path / "traces.jsonl", CELLS, work, executor=pool)
        assert pool.submit(lambda: 1).result(timeout=10) == 1
    assert names == {"mine"} and counting(tmp_path / "traces.jsonl") == sorted(CELLS)


def test_two_threads_fill_one_file_for_two_models_without_loss(tmp_path):
    path, suite = tmp_path / "traces.jsonl", made(40)
    models = [open_model("script:null"), open_model("script:random")]
    plans = [plan(suite, model) for model in models]

    def one(model, cells):
        return fill(path, cells, grid.tracing("r", suite, model), workers=4, who=model.name)["done"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, models, plans)) == [80, 80]
    assert counting(path) == sorted(k for cells in plans for k in cells) and len(grid.read(path)[0]) == 160


def fill_alone(path, name, questions, url="", secret="", started="", go=""):
    """What a process of its own does: fills one file for one model; with `go` each cell waits for that file."""
    os.environ["ANTHROPIC_API_KEY"] = secret
    os.environ["NO_PROXY"] = "127.0.0.1"
    suite, model = made(questions, tool(look)), open_model(name, base_url=url)
    trace = grid.tracing("r", suite, model)

    def work(k, cell):
        if go:
            Path(started).touch()
            until(lambda: Path(go).exists())
        return trace(k, cell)

    fill(Path(path), plan(suite, model, ["open"]), work, workers=2, who=name)


def until(true, seconds=30):
    """Wait until it is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"nothing happened in {seconds} s"
        time.sleep(0.002)


@pytest.fixture
def start():
    """start(*args, **kwargs) -> a running process of fill_alone, ended at the latest with the test."""
    running = []

    def begin(*args, **kwargs):
        process = processes.Process(target=fill_alone, args=tuple(map(str, args[:2])) + args[2:], kwargs=kwargs)
        process.start()
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.join(10)


def test_two_processes_fill_one_file_for_two_models_without_loss(tmp_path, start):
    path, names = tmp_path / "traces.jsonl", ["script:null", "script:random"]
    both = [start(path, name, 150) for name in names]
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    cells = [k for name in names for k in plan(made(150, tool(look)), open_model(name), ["open"])]
    assert counting(path) == sorted(cells) and len(grid.read(path)[0]) == 300


def test_a_second_process_for_the_same_model_is_refused_by_the_number_of_the_first(tmp_path, start):
    path, go = tmp_path / "traces.jsonl", tmp_path / "go"
    first = start(path, "script:null", 6, started=str(tmp_path / "started"), go=str(go))
    until((tmp_path / "started").exists)
    cells = plan(made(6, tool(look)), NULL, ["open"])
    work = Work()
    with pytest.raises(grid.Busy, match=rf"\b{first.pid}\b"):
        fill(path, cells, work, who="script:null")
    fill(path, plan(made(6), open_model("script:random"), ["open"]), Work(model=open_model("script:random")),
         who="script:random")  # fmt: skip
    go.touch()
    first.join(30)
    assert first.exitcode == 0 and work.done == [] and len(counting(path)) == 12
    assert fill(path, cells, work, who="script:null")["done_before"] == 6


def test_a_run_killed_ten_times_loses_no_finished_cell_and_pays_none_twice(tmp_path, start, key):
    path, name, questions, draw = tmp_path / "traces.jsonl", "anthropic:claude-haiku-4-5", 60, random.Random(20261130)
    suite, most = made(questions, tool(look)), 0  # most: how many requests may be answered before the next kill

    def reply(body, number):
        place = len(provider.requests)
        until(lambda: place <= most)
        return tool_loop(2)(body, number)

    def asked():
        return Counter(question(request.body) for request in list(provider.requests))

    def again():
        return start(path, name, questions, url=provider.url, secret=key)

    with Provider(reply, delay=0.005) as provider:
        finished = []  # at each kill: how often each finished question had been asked
        for _ in range(10):
            enough = len(provider.requests) + draw.randint(4, 12)
            most, process = enough + 4, again()
            until(lambda enough=enough: len(provider.requests) >= enough)
            time.sleep(draw.uniform(0, 0.01))
            process.kill()
            process.join(30)
            assert process.exitcode == -9
            done = {row.sample_id for row in grid.read(path)[0]}
            finished.append({s.prompt: asked()[s.prompt] for s in suite.samples if s.id in done})
        most, last = 10**6, again()
        last.join(60)
        assert last.exitcode == 0 and 0 < len(finished[-1]) < questions
        assert all(then.items() <= asked().items() for then in finished)
    assert sorted(row.key for row in grid.read(path)[0]) == counting(path)
    assert counting(path) == sorted(plan(suite, open_model(name), ["open"]))


def test_the_notes_of_a_run_are_added_to_those_that_stand_there(tmp_path):
    fill(tmp_path / "traces.jsonl", {}, Work())
    grid.note(tmp_path, "one", {"seed": 1})
    grid.note(tmp_path, "two", {"seed": 2})
    grid.note(tmp_path, "one", {"seed": 3})
    assert json.loads((tmp_path / "run.json").read_text()) == {"one": {"seed": 3}, "two": {"seed": 2}}


def test_a_key_is_the_same_whatever_the_order_of_a_dict():
    one, two, three = (records.key(part) for part in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}))
    assert one == two != three
