"""The suite code_search: what is asked, what is right, two equal arms, and an index that is sound or stops the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from scripted import Scripted, indexed

from evalkit import Budget, Trace, agent, grid, guards, load_suite, open_model, report, scoring, stats
from evalkit.citations import find_citations
from evalkit.records import Call, Step
from evalkit.scoring import code_search
from evalkit.search import code, index
from evalkit.suites import SuiteError

SUITE = load_suite("code_search")
BY_ID = {sample.id: sample for sample in SUITE.samples}
REAL = [sample for sample in SUITE.samples if not sample.gold["trap"]]
TRAPS = [sample for sample in SUITE.samples if sample.gold["trap"]]


def scored(sample, answer, *steps, suite=SUITE):
    trace = Trace(key="k", answer=answer, citations=find_citations(answer), steps=steps, stop="answered")
    return code_search(sample, trace, suite)


# What is asked


def test_the_suite_is_as_it_was_frozen_and_of_the_kind_the_brief_wants():
    assert SUITE.frozen and SUITE.kind == "code_search" and SUITE.rules == ("code_search",)
    assert len(SUITE.samples) >= 20 and len(TRAPS) >= 4
    counts = {tag: Counter(sample.tags[tag] for sample in SUITE.samples) for tag in ("type", "stratum", "difficulty")}
    assert set(counts["type"]) == {"locate", "reasoning", "aggregation", "trap"} and counts["type"]["trap"] == len(
        TRAPS
    )
    assert set(counts["stratum"]) == {"single-hop", "multi-hop"}
    assert set(counts["difficulty"]) == {"easy", "medium", "hard"}
    assert min(n for count in counts.values() for n in count.values()) >= 4
    assert all(sample.tags["type"] == "trap" for sample in TRAPS) and {s.tags["type"] for s in REAL} <= set(
        counts["type"]
    )


@pytest.mark.parametrize("sample", REAL, ids=lambda sample: sample.id)
def test_every_gold_place_is_in_the_corpus_and_holds_its_anchor(sample):
    texts, places = SUITE.texts(), sample.gold["citations"]
    for place in places:
        rows = code.lines(texts[place["path"]])
        assert 1 <= place["start"] <= place["end"] <= len(rows)
        assert place["anchor"].strip() and place["anchor"] in "\n".join(rows[place["start"] - 1 : place["end"]])
    several = len({place["path"] for place in places}) > 1
    assert several == (sample.tags["stratum"] == "multi-hop")


@pytest.mark.parametrize("sample", SUITE.samples, ids=lambda sample: sample.id)
def test_the_gold_answer_is_right_and_the_question_and_another_answer_are_not(sample):
    places = "".join(f" {p['path']}:{p['start']}-{p['end']}" for p in sample.gold["citations"])
    values = scored(sample, sample.gold["answer"] + places)
    assert values["correct"] == 1 and values["gold_recall"] == (None if sample.gold["trap"] else 1)
    assert (values["key_fact"], values["denies"]) == ((None, 1) if sample.gold["trap"] else (1, None))
    for wrong in (sample.prompt, "It is done by the scheduler, after the start.", "I don't know.", "", places):
        assert scored(sample, wrong)["correct"] == 0


# The rule


HOOKS = BY_ID["c03"]  # sixteen names; lib/hooks.js:3-23


@pytest.mark.parametrize(
    ("answer", "stated"),
    [("There are 16, see lib/hooks.js:3-23.", 1), ("Sixteen.", 1), ("See lib/hooks.js:16.", 0),
     ("lib/hooks.js, line 16", 0),
     ("`lib/hooks.js` (lines 10–16) lists them.", 0), ("lib/hooks.js#L16-L18 lists them.", 0), ("lib/hooks.js:3-16", 0),
     ("lib/hooks.js:3-12, 16-23", 0), ("There are 17 (lib/hooks.js:16).", 0), ("There are not 16.", 0),
     ("Sources: https://example.com/16", 0), ("16 (lib/hooks.js:16)", 1)],
)  # fmt: skip
def test_a_fact_that_only_a_line_number_holds_is_not_stated(answer, stated):
    assert scored(HOOKS, answer)["correct"] == stated


def searched(*lines):
    return Step(call=Call(id="1", name="ripgrep", args={"pattern": "x"}), result="2 matches\n\n" + "\n\n".join(lines))


def read(path, start, end, **more):
    text = "\n".join(f"{n}: text" for n in range(start, end + 1))
    return Step(call=Call(id="2", name="read_file", args={"path": path}), result=text, **more)


LADDER = ("exists", "in_range", "retrieved", "gold_recall", "steps_to_gold")
FOUND, ELSEWHERE = searched("lib/hooks.js:5: 'onRequest',"), searched("lib/reply.js:5: x", "test/hooks.test.js:9: y")
CLIMBS = [
    ("16, lib/hooks.js:3-23", [FOUND], (1, 1, 1, 1, 1)),
    ("16, lib/hooks.js:3-23", [], (1, 1, 0, 1, None)),
    ("16, /srv/package/lib/hooks.js:3-23", [read("./lib/hooks.js", 1, 30)], (1, 1, 1, 1, 1)),
    ("16, hooks.js:3-23", [FOUND], (0, 0, 0, 0, 1)),  # there are two of this name
    ("16, lib/hooks.js:23", [ELSEWHERE, read("lib/hooks.js", 1, 9), FOUND], (1, 1, 0, 1, 2)),
    ("16, lib/hooks.js:9000", [FOUND], (1, 0, 0, 0, 1)),
    ("16, lib/hooks.js:0", [FOUND], (1, 0, 0, 0, 1)),
    ("16, lib/nowhere.js:3", [FOUND], (0, 0, 0, 0, 1)),
    ("16, lib/hooks.js:3, lib/nowhere.js:3, lib/hooks.js:9000, lib/reply.js:5", [FOUND, ELSEWHERE],
     (3 / 4, 2 / 4, 1 / 4, 1, 1)),
    ("16, lib/reply.js:5", [ELSEWHERE], (1, 1, 1, 0, None)),
    ("16.", [FOUND], (None, None, None, 0, 1)),
    ("16, https://fastify.dev/docs/", [], (None, None, None, 0, None)),
    ("16, lib/hooks.js:5", [FOUND.model_copy(update={"ok": False})], (1, 1, 0, 1, None)),
    ("16, lib/hooks.js:5", [read("lib/hooks.js", 1, 9, executed=False)], (1, 1, 0, 1, None)),
    ("16, lib/hooks.js:5", [searched("lib/hooks.js:1-40 (list)\n1: text"), FOUND], (1, 1, 1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "steps", "rungs"), CLIMBS)
def test_the_ladder_is_a_share_of_what_was_cited_and_null_where_nothing_was(answer, steps, rungs):
    values = scored(HOOKS, answer, *steps)
    assert tuple(values[name] for name in LADDER) == rungs and values["correct"] == 1
    assert values["cited"] == float(rungs[0] is not None)


def test_half_of_the_gold_places_cited_is_half_recalled_and_a_trap_has_none_to_recall():
    one, *others = (f"{p['path']}:{p['end']}" for p in BY_ID["c05"].gold["citations"])
    assert len(others) == 1 and scored(BY_ID["c05"], f"routeHandler, {one}, {one}")["gold_recall"] == 0.5
    values = scored(TRAPS[0], TRAPS[0].gold["answer"] + " lib/reply.js:5", ELSEWHERE)
    assert (values["correct"], values["retrieved"], values["gold_recall"], values["steps_to_gold"]) == (
        1,
        1,
        None,
        None,
    )


# Two arms


def played(model, samples, conditions=("grep", "hybrid")):
    """{condition: values} of a control on some samples."""
    suite, found = SUITE.model_copy(update={"samples": tuple(samples)}), {name: [] for name in conditions}
    for k, cell in grid.plan(suite, model, conditions).items():
        trace = agent.run(cell.sample, model, cell.condition, k)
        assert trace.failure is None
        found[cell.condition.name].append(code_search(cell.sample, trace, suite))
    return found


@pytest.mark.parametrize(("name", "right"), [("script:oracle", 1), ("script:null", 0)])
def test_oracle_and_null_agent_are_ceiling_and_floor_of_both_arms(name, right):
    for values in played(open_model(name), SUITE.samples).values():
        assert len(values) == len(SUITE.samples) and {v["correct"] for v in values} == {right}
        assert {v["abstained"] for v in values} == {1 - right}
        ladder = {n: {v[n] for v in values} - {None} for n in LADDER}
        assert ladder["gold_recall"] == {right} and all(ladder[n] == ({1} if right else set()) for n in LADDER[:3])


def test_the_random_agent_is_hardly_ever_right_in_either_arm():
    indexed()
    for values in played(open_model("script:random"), SUITE.samples[::3]).values():
        assert sum(v["correct"] for v in values) <= 0.1 * len(values)


def arms(**changed):
    """The suite with grep and hybrid alone, hybrid changed."""
    one, two = (c for c in SUITE.conditions if c.name in ("grep", "hybrid"))
    return SUITE.model_copy(update={"conditions": (one, two.model_copy(update=changed))})


def test_grep_and_hybrid_differ_in_their_search_tool_alone():
    assert guards.differences(SUITE) == guards.differences(arms()) == []
    grep, hybrid = ([t.name for t in c.tools(SUITE.samples[0])] for c in arms().conditions)
    assert (grep, hybrid) == (["ripgrep", "read_file"], ["search_code", "read_file"])
    readers = [next(t for t in c.tools(SUITE.samples[0]) if t.name == "read_file") for c in SUITE.conditions]
    assert len({(t.about, json.dumps(t.schema), t.limit, t.counts) for t in readers}) == 1
    assert len({c.instructions.replace("`ripgrep`, a line search by regular expression", "X").replace(
        "`search_code`, a search by meaning, words and structure", "X") for c in SUITE.conditions}) == 1  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"system": "Answer well."}, ["system"]), ({"budget": Budget(tool_calls=7)}, ["budget"]),
     ({"system": "", "budget": Budget()}, ["system", "budget"]), ({"instructions": "Search."}, [])],
)  # fmt: skip
def test_what_else_differs_is_named_before_anything_is_asked(changed, named, tmp_path):
    suite, model = arms(**changed), open_model("extractive:")
    assert guards.differences(suite) == named
    table = guards.preflight(suite, model, tmp_path / "traces.jsonl", grid.plan(suite, model, ["grep"]))
    said = table.loc["conditions", ""]
    assert said == f"NOT EQUAL in {', '.join(named)}" if named else said.startswith("equal but for tools")


def test_six_searches_may_be_made_and_reading_is_not_counted(tmp_path):
    search = {"name": "ripgrep", "arguments": {"pattern": "supportedHooks"}}
    read_one = {"name": "read_file", "arguments": {"path": "lib/hooks.js", "end_line": 3}}
    turns = [{"calls": [search] * 4 + [read_one] * 5}, {"calls": [read_one, *[search] * 4, read_one]},
             {"calls": [search, read_one]}, {"text": "16, lib/hooks.js:3-23"}]  # fmt: skip
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, turns)))
    trace = agent.run(HOOKS, open_model(f"script:{tmp_path / 'replies.jsonl'}"), arms().conditions[0])
    assert all(c.budget.tool_calls == 6 for c in SUITE.conditions)
    ran = Counter((step.call.name, step.executed) for step in trace.steps)
    assert ran == {("ripgrep", True): 6, ("ripgrep", False): 3, ("read_file", True): 8}
    assert trace.stop == "answered" and trace.answer.startswith("16")


def test_the_legs_of_the_search_are_part_of_what_was_measured():
    model, names = open_model("extractive:"), [c.name for c in SUITE.conditions if c.name != "grep"]
    suite, one = SUITE.model_copy(update={"samples": SUITE.samples[:1]}), SUITE.conditions[1]
    assert len({json.dumps(c.settings) for c in SUITE.conditions}) == len(SUITE.conditions)
    cells = [*grid.plan(suite, model, names).values()]
    parts = [{n for n in cell.setup if cell.setup[n] != cells[0].setup[n]} for cell in cells[1:]]
    assert parts == [{"condition", "settings"}] * 3
    for settings in ({"legs": ["vector"]}, {"embedder": "m@http://h/v1"}, {"store": "chroma"}):
        changed = suite.model_copy(
            update={"conditions": (one.model_copy(update={"settings": one.settings | settings}),)}
        )
        assert grid.plan(changed, model).keys().isdisjoint(grid.plan(suite, model, ["hybrid"]))
    assert "settings" not in grid.setup(suite, next(iter(grid.plan(suite, model, ["grep"]).values())), model)


@pytest.mark.parametrize("name", [c.name for c in SUITE.conditions if c.name != "grep"])
def test_every_arm_searches_with_its_own_legs(name, monkeypatch):
    used = []
    monkeypatch.setattr(index, "search", lambda corpus, query, top_k, legs: used.append((corpus, list(legs))) or [])
    condition = next(c for c in SUITE.conditions if c.name == name)
    next(t for t in condition.tools(HOOKS) if t.name == "search_code").run(query="hooks")
    left_out = name.removeprefix("hybrid").removeprefix("_no_")
    assert used == [("fastify", [leg for leg in code.LEGS if leg != left_out])]


# A suite that cannot be used


GOLD = {"answer": "It is 16.", "key_fact": ["16"], "citations": [{"path": "a.js", "start": 1, "end": 2}]}
TOML = """kind = "code_search"
corpus = "{corpus}"
rules = ["code_search"]
{settings}
[[conditions]]
name = "grep"
tools = ["ripgrep", "read_file"]
[[conditions]]
name = "hybrid"
tools = ["search_code", "read_file"]
"""


def write(folder, *golds, corpus="fastify", settings=""):
    folder.mkdir(exist_ok=True)
    (folder / "suite.toml").write_text(TOML.format(corpus=corpus, settings=settings))
    rows = [{"id": f"q{n}", "prompt": "How many?", "gold": gold} for n, gold in enumerate(golds)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


FAULTS = [
    (GOLD | {"answer": " "}, "gold.answer is empty"),
    (GOLD | {"key_fact": []}, "gold.key_fact or gold.citations is empty"),
    (GOLD | {"citations": []}, "gold.key_fact or gold.citations is empty"),
    (GOLD | {"key_fact": "16"}, "write a list of texts"),
    (GOLD | {"key_fact": ["16", ""]}, "write a list of texts"),
    (GOLD | {"urls": ["https://a.b/"]}, "gold.urls is unknown; known: answer, key_fact, citations, trap"),
    (GOLD | {"citations": ["a.js:1"]}, 'write {"path"'),
    (GOLD | {"citations": [{"path": "a.js", "start": 1}]}, 'write {"path"'),
    (GOLD | {"citations": [{"path": "a.js", "start": "1", "end": 2}]}, 'write {"path"'),
    (GOLD | {"citations": [{"path": "a.js", "start": 3, "end": 2}]}, "has lines 3-2; write 1 <= start <= end"),
    (GOLD | {"citations": [{"path": "a.js", "start": 0, "end": 2}]}, "has lines 0-2; write 1 <= start <= end"),
]


@pytest.mark.parametrize(("gold", "said"), FAULTS)
def test_a_row_that_cannot_be_scored_is_named_by_file_and_line(gold, said, tmp_path):
    with pytest.raises(SuiteError) as error:
        load_suite(write(tmp_path / "mine", GOLD, gold, GOLD))
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{tmp_path}/mine/samples.jsonl:2: ") and said in line


def test_every_fault_is_said_at_once_and_a_sound_suite_has_none(tmp_path):
    with pytest.raises(SuiteError) as error:
        load_suite(write(tmp_path / "mine", *(gold for gold, _ in FAULTS)))
    assert len({line.split(": ")[0] for line in str(error.value).splitlines()}) == len(FAULTS)
    trap = {"answer": "There is none.", "trap": True}
    assert len(load_suite(write(tmp_path / "mine", GOLD, trap)).samples) == 2


@pytest.mark.parametrize(("corpus", "said"), [("dir:/no/such/folder", "there is no folder"), ("no-such", "no-such")])
def test_a_corpus_that_is_not_there_is_named(corpus, said, tmp_path):
    with pytest.raises(SuiteError, match=said):
        load_suite(write(tmp_path / "mine", GOLD, corpus=corpus))


# An index that is sound, or nothing is asked


@pytest.fixture(scope="module")
def weights():
    """The packaged embeddings, read before a test turns to a cache of its own."""
    return index.embedding("wordllama")


@pytest.fixture
def house(tmp_path, monkeypatch, weights):
    """A folder of code large enough to be an index, and a cache of the test's own."""
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "a.js").write_text("".join(f"function step{n} () {{\n  return {n}\n}}\n\n" for n in range(205)))
    (folder / "b.ts").write_text("export interface Step {\n  run(): number\n}\n")
    return folder


def asked(house, settings='[settings]\nrequired = ["a.js"]', **more):
    """(suite, a model that must not be asked, where its rows would stand, its cells)."""
    suite = load_suite(write(house.parent / "suite", GOLD, corpus=f"dir:{house}", settings=settings))
    model = Scripted(lambda prompt, n: AssertionError("asked"))
    return suite, model, house.parent / "traces.jsonl", grid.plan(suite, model, **more)


def stopped(*given):
    with pytest.raises(ValueError, match="nothing was asked") as error:
        guards.preflight(*given)
    assert given[1].asked == [] and not given[2].exists()
    lines = str(error.value).splitlines()[1:]
    assert all(line.endswith(f"; python -m evalkit corpus build dir:{given[0].corpus[4:]}") for line in lines)
    return lines


def test_a_fault_of_the_index_stops_the_run_and_its_command_mends_it(house):
    given = asked(house)
    assert len(stopped(*given)) == 1 and "there is no index" in stopped(*given)[0]
    index.build(given[0].corpus)
    assert guards.preflight(*given).loc["index", ""].startswith("sound")
    (house / "a.js").write_text((house / "a.js").read_text() + "function more () {}\n")
    assert "not the one that was indexed" in stopped(*asked(house))[0]
    index.build(given[0].corpus)
    assert guards.health(*asked(house)[::3]) == []


def test_required_files_and_enough_chunks_are_part_of_health(house):
    (house / "a.js").write_text("function one () {}\n")
    index.build(f"dir:{house}")
    lines = stopped(*asked(house, '[settings]\nrequired = ["a.js", "lib/gone.js"]'))
    assert any("fewer than 200" in line for line in lines) and any("lacks lib/gone.js" in line for line in lines)
    (house / "b.ts").unlink()
    index.build(f"dir:{house}")
    assert any("lacks *.ts" in line for line in stopped(*asked(house)))


def test_an_index_that_is_not_sound_may_be_used_when_one_says_so_and_it_is_shown(house):
    given = asked(house)
    assert "there is no index" in guards.preflight(*given, skip_health=True).loc["index", ""]


def test_an_arm_without_the_index_needs_none(house):
    given = asked(house, conditions=["grep"])
    assert guards.preflight(*given).loc["index", ""] == "sound, or none is needed"


def test_the_embedder_and_the_store_a_suite_names_are_those_that_are_checked(house):
    index.build(f"dir:{house}")
    suite, _, _, cells = asked(house, '[settings]\nstore = "chroma"')
    (fault,) = guards.health(suite, cells)
    assert "the store numpy, not chroma" in fault and fault.endswith(f"corpus build dir:{house} --store chroma")


# Search without an agent


def test_retrieval_counts_gold_places_found_and_the_rank_of_the_first(monkeypatch):
    hits = [code.Hit("b.js", 1, 5, "", ""), code.Hit("a.js", 3, 4, "", ""), code.Hit("a.js", 4, 4, "", "")]
    monkeypatch.setattr(index, "search", lambda name, query, top_k, legs: hits[:top_k] if "bm25" in legs else hits[:1])
    monkeypatch.setattr(index, "rg_keywords", lambda name, query, top_k: [])
    gold = {"citations": [{"path": "a.js", "start": 4, "end": 9}, {"path": "c.js", "start": 1, "end": 2}]}
    samples = [HOOKS.model_copy(update={"gold": gold}), TRAPS[0]]
    found = {(r["condition"], r["metric"]): r["value"] for r in index.retrieval("x", samples)}
    missed = dict.fromkeys(("rg keywords", "vector", "graph"), (0, None))
    wanted = missed | {"bm25": (0.5, 2), "hybrid": (0.5, 2)}
    assert found == {(s, m): v[i] for s, v in wanted.items() for i, m in enumerate(("recall", "rank"))}
    assert {r["value"] for r in index.retrieval("x", samples, top_k=1) if r["metric"] == "recall"} == {0}


def test_retrieval_over_the_corpus_gives_rows_that_can_be_compared():
    indexed()
    rows = index.retrieval("fastify", [BY_ID["c03"], BY_ID["c05"], TRAPS[0]])
    systems = {"rg keywords", "bm25", "vector", "graph", "hybrid"}
    assert {(r["sample_id"], r["condition"], r["metric"]) for r in rows} == {
        (s, c, m) for s in ("c03", "c05") for c in systems for m in ("recall", "rank")
    }
    value = {(r["sample_id"], r["condition"], r["metric"]): r["value"] for r in rows}
    for (sample, system, metric), recall in value.items():
        rank = value[sample, system, "rank"]
        assert metric == "rank" or (0 <= recall <= 1 and (rank is None) == (recall == 0))
        assert rank is None or 1 <= rank <= 10
    assert stats.paired_gap(pd.DataFrame(rows), "recall", "hybrid", "bm25").n == 2


def test_the_verdicts_of_both_arms_reach_the_frame_with_the_tags_of_the_suite(tmp_path):
    path = tmp_path / "traces.jsonl"
    suite = SUITE.model_copy(update={"samples": SUITE.samples[:3]})
    for name in ("script:oracle", "script:null"):
        model = open_model(name)
        grid.fill(path, grid.plan(suite, model, ["grep", "hybrid"]), grid.tracing("r", suite, model), who=name)
    rows = grid.read(path)[0]
    grid.fill(tmp_path / "verdicts.jsonl", scoring.owed(suite, rows), scoring.verdict, workers=1)
    tidy = report.frame(tmp_path)
    assert set(tidy.columns) >= {"type", "stratum", "difficulty"} and len(tidy["key"].unique()) == 12
    assert "in order" in report.controls(tidy, "correct")


def test_the_folder_of_the_suite_says_how_gold_was_settled_for_every_row():
    text = Path(SUITE.path / "README.md").read_text("utf-8")
    assert all(f"| {sample.id} |" in text for sample in SUITE.samples)
