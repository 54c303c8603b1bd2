"""Suites: the shipped questions keep their promises, and what is wrong with a folder is said by file and line."""

import json
import re
import tomllib
from collections import Counter

import pytest

from evalkit import plan
from evalkit.agent import run
from evalkit.models import open_model
from evalkit.records import ROOT, Reply, Step
from evalkit.scoring import RULES, match_calls, same_page, states
from evalkit.search import corpus
from evalkit.suites import SuiteError, load_suite

TOML = 'kind = "docs_qa"\nrules = ["docs_qa"]\n[[conditions]]\nname = "closed_book"\ninstructions = "Say so."\n'
GOLD = {"answer": "It is 7.", "key_fact": ["7"], "urls": ["https://docs.example/a/"]}


def row(name=None, **changes):
    return {"question": f"What is {name}?", "gold": GOLD} | ({} if name is None else {"id": name}) | changes


@pytest.fixture
def folder(tmp_path):
    """Write a suite's two files; a sample is a dict or a line of text."""

    def write(*samples, toml=TOML, newline="\n", start=""):
        lines = [sample if isinstance(sample, str) else json.dumps(sample, ensure_ascii=False) for sample in samples]
        (tmp_path / "suite.toml").write_text(toml, "utf-8")
        (tmp_path / "samples.jsonl").write_bytes((start + newline.join(lines) + newline).encode())
        return tmp_path

    return write


def refusal(path):
    with pytest.raises(SuiteError) as error:
        load_suite(path)
    return str(error.value)


@pytest.fixture(scope="module")
def shipped():
    return load_suite("docs_qa")


@pytest.fixture(scope="module")
def pages():
    return {same_page(url): text for url, text in corpus.freeze("fastify-docs").items()}


def test_the_shipped_suite_is_the_frozen_one_and_large_enough(shipped):
    assert shipped.frozen and shipped.name == "docs_qa"
    assert len(shipped.samples) >= 24
    assert sum(bool(sample.gold.get("trap")) for sample in shipped.samples) >= 4
    assert len({sample.tags["use_case"] for sample in shipped.samples}) >= 4
    assert len({sample.tags["type"] for sample in shipped.samples} - {"trap"}) >= 4
    assert all(
        {"use_case", "type", "difficulty", "fresh_sensitive"} <= sample.tags.keys() for sample in shipped.samples
    )


def test_every_gold_url_is_a_page_and_a_gold_page_states_the_key_fact(shipped, pages):
    for sample in (s for s in shipped.samples if not s.gold.get("trap")):
        assert all(same_page(url) in pages for url in sample.gold["urls"]), sample.id
        assert any(states(pages[same_page(url)], sample.gold["key_fact"]) for url in sample.gold["urls"]), sample.id


def test_every_gold_answer_states_its_key_fact_and_no_question_gives_it_away(shipped):
    for sample in (s for s in shipped.samples if not s.gold.get("trap")):
        assert states(sample.gold["answer"], sample.gold["key_fact"]), sample.id
        assert not states(sample.prompt, sample.gold["key_fact"]), sample.id


def test_traps_are_tagged_and_have_neither_key_fact_nor_urls(shipped):
    for sample in shipped.samples:
        trap = bool(sample.gold.get("trap"))
        assert trap == (sample.tags["type"] == "trap"), sample.id
        assert not trap or not (sample.gold.get("key_fact") or sample.gold.get("urls")), sample.id


def test_every_condition_of_the_shipped_suite_asks_the_same_but_for_its_tools(shipped):
    by_name = {condition.name: condition for condition in shipped.conditions}
    assert {"closed_book", "index_grep", "web_fetch"} <= by_name.keys()
    assert len({(c.system, c.budget) for c in shipped.conditions}) == 1
    assert all("one to three sentences" in c.system for c in shipped.conditions)
    for name, tools in {
        "closed_book": [],
        "index_grep": ["grep_index", "read_page"],
        "web_fetch": ["fetch_url"],
    }.items():
        assert [tool.name for tool in by_name[name].tools(shipped.samples[0])] == tools
        assert ("Sources:" in by_name[name].instructions) == bool(tools)


def test_the_shipped_suite_names_the_pages_it_was_frozen_with(shipped):
    locked = tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8"))["fastify-docs"]
    assert (shipped.corpus, shipped.corpus_sha) == ("fastify-docs", locked["pages_sha256"])
    assert load_suite(ROOT / "data" / "docs_qa").sha == shipped.sha


def test_a_changed_question_breaks_the_freeze(folder, shipped):
    lines = (shipped.path / "samples.jsonl").read_text("utf-8").rstrip("\n").split("\n")
    toml = (shipped.path / "suite.toml").read_text("utf-8")
    assert load_suite(folder(*lines, toml=toml)).frozen
    changed = load_suite(folder(lines[0].replace("?", " ?", 1), *lines[1:], toml=toml))
    assert not changed.frozen and changed.sha != shipped.sha


def test_a_folder_of_ones_own_is_a_suite_of_that_name(folder):
    suite = load_suite(folder(row("q1", tags={"type": "value"}), row("q2", cluster="family")))
    assert suite.name == suite.path.name and not suite.frozen
    assert [(s.id, s.prompt, s.cluster) for s in suite.samples] == [
        ("q1", "What is q1?", "q1"),
        ("q2", "What is q2?", "family"),
    ]


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        ({"urls": []}, "gold.urls is empty; a docs_qa sample needs at least one"),
        ({"urls": None}, "gold.urls is empty; a docs_qa sample needs at least one"),
        ({"urls": [" "]}, 'gold.urls is [" "]; write a list of texts'),
        ({"urls": "https://docs.example/a/"}, "gold.urls is"),
        ({"key_fact": []}, "gold.key_fact is empty"),
        ({"key_fact": [7]}, "gold.key_fact is [7]"),
        ({"answer": " "}, "gold.answer is empty"),
        ({"trap": True}, "gold.urls is set; a trap has none"),
        ({"trap": True, "urls": []}, "gold.key_fact is set; a trap has none"),
    ],
)
def test_gold_that_cannot_be_used_is_named_with_file_and_line(folder, gold, fault):
    path = folder(row("q1"), row("q2", gold=GOLD | gold), row("q3"))
    said = refusal(path)
    assert f"{path}/samples.jsonl:2: " in said and fault in said
    assert all(":2: " in line for line in said.split("\n"))


@pytest.mark.parametrize("question", ["", "  "])
def test_an_empty_question_is_named_with_file_and_line(folder, question):
    assert "samples.jsonl:1: the question" in refusal(folder(row("q1", question=question)))


@pytest.mark.parametrize(
    ("first", "second"), [("q1", "q1"), ("q1", " q1 "), (1, "1"), ("q1", "Q1"), (None, None), (0, "0")], ids=repr
)
def test_an_id_that_stands_twice_is_named_with_both_lines(folder, first, second):
    said = refusal(folder(row(first, question="one?"), "", row(second, question="one?" if first is None else "two?")))
    assert "samples.jsonl:3: id " in said and "line 1 too" in said


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id": "q2", "question": ', "Expecting value"),
        ("id,question,gold", "Expecting value"),
        ("[1, 2]", "not a sample"),
        ("7", "not a sample"),
        ('{"id": "q2"}', "prompt"),
        (json.dumps(row("q2", qold={})), "qold: Extra inputs"),
        (json.dumps(row("q2", gold=7)), "gold"),
        (json.dumps(row("q2", tags={"type": [1]})), "tags.type"),
    ],
    ids=["cut off", "CSV", "a list", "a number", "no question", "unknown field", "gold", "tag"],
)
def test_a_line_that_is_no_sample_is_named_with_file_and_line(folder, line, fault):
    path = folder(row("q1"), "", line, row("q3"))
    said = refusal(path)
    assert f"{path}/samples.jsonl:3: not a sample" in said and fault in said


def test_every_fault_is_said_at_once(folder):
    said = refusal(
        folder(row("q1", gold={}), row("q2"), "{", toml=TOML.replace('rules = ["docs_qa"]', 'rules = ["x"]'))
    )
    assert said.count("samples.jsonl:1: ") == 3 and "samples.jsonl:3: " in said and "no rule 'x'" in said


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("rule = []\n" + TOML, "unknown key 'rule'; known: "),
        (TOML.replace('["docs_qa"]', '["docs_qa", "dosc_qa"]'), "no rule 'dosc_qa'; known: docs_qa"),
        (TOML.replace("kind", "budget = 1 kind"), "line 1"),
        (TOML.partition("[[")[0], "no conditions; a suite needs it"),
        (TOML.replace('kind = "docs_qa"\n', ""), "no kind; a suite needs it"),
        (TOML + "[budget]\nturn = 3\n", "turn"),
        (TOML + 'tool = ["grep_index"]\n', "tool"),
        (TOML.replace('name = "closed_book"\n', ""), "name"),
        ('corpus = "fastify-dosc"\n' + TOML, "fastify-dosc"),
    ],
    ids=["key", "rule", "not TOML", "no conditions", "no kind", "budget key", "condition key", "no name", "corpus"],
)
def test_what_is_wrong_in_suite_toml_is_named_with_the_file(folder, toml, fault):
    path = folder(row("q1"), toml=toml)
    said = refusal(path)
    assert f"{path}/suite.toml" in said and fault in said


def test_a_suite_that_is_not_there_is_answered_with_those_there_are():
    said = refusal("dosc_qa")
    assert "dosc_qa/suite.toml does not exist" in said and "docs_qa" in said.partition("are: ")[2]


def test_a_missing_or_empty_samples_file_is_named(folder):
    path = folder()
    assert f"{path}/samples.jsonl" in refusal(path)
    (path / "samples.jsonl").unlink()
    assert f"{path}/samples.jsonl" in refusal(path)


def test_a_samples_file_that_is_not_utf_8_is_named(folder):
    path = folder(row("q1"))
    (path / "samples.jsonl").write_bytes(json.dumps(row("q1", question="é?"), ensure_ascii=False).encode("latin-1"))
    assert f"{path}/samples.jsonl" in refusal(path)


@pytest.mark.parametrize(("newline", "start"), [("\n", ""), ("\r\n", ""), ("\n\n", "\n"), ("\n  \n", "\ufeff")])
def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_tolerated(folder, newline, start):
    suite = load_suite(folder(row("001"), row("q2"), newline=newline, start=start))
    assert [sample.id for sample in suite.samples] == ["001", "q2"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_line_separator_inside_a_question_does_not_split_its_line(folder, separator):
    suite = load_suite(folder(row("q1", question=f"one{separator}two"), row("q2")))
    assert [sample.prompt for sample in suite.samples] == [f"one{separator}two", "What is q2?"]


@pytest.mark.parametrize("absent", [{}, {"id": None}, {"id": ""}, {"id": "  "}], ids=repr)
def test_a_missing_id_is_made_from_the_content_and_not_from_the_place(folder, absent):
    plain = {"gold": GOLD, "question": "one?"} | absent
    alone = load_suite(folder(plain)).samples[0].id
    after = load_suite(folder(row("new"), {"gold": GOLD, "question": "two?"}, plain)).samples
    assert alone and after[2].id == alone
    assert after[1].id != alone
    assert after[2].cluster == alone


def test_an_id_that_is_a_number_stays_that_number_as_text(folder):
    assert [s.id for s in load_suite(folder(row(7), row(0), row("001"))).samples] == ["7", "0", "001"]


CALLS = 'kind = "tool_choice"\nrules = ["tool_choice"]\ntools = "tools.json"\n[[conditions]]\nname = "all"\n'
OFFERED = [
    {"name": "search", "description": "Search.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string"}, "top_k": {"type": "integer", "default": 5}}}},
    {"name": "open", "description": "Open.", "parameters": {"type": "object", "properties": {"id": {}}}},
]  # fmt: skip
RENT = {"tool": "search", "args": {"query": {"type": "keywords", "value": ["rent", ["old", "new"]]}}}


@pytest.fixture
def choices(folder):
    """Write a suite of tool_choice with tools of its own; a sample is a dict, whose parts are filled in."""

    def write(*samples, toml=CALLS, tools=OFFERED):
        filled = [{"id": f"q{n}", "prompt": "Rent?", "gold": {"call": RENT}} | s for n, s in enumerate(samples, 1)]
        path = folder(*filled, toml=toml)
        if tools is not None:
            (path / "tools.json").write_text(tools if isinstance(tools, str) else json.dumps(tools))
        return path

    return write


def argument(**rule):
    return {"call": {"tool": "search", "args": {"query": rule}}}


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        ({"call": RENT, "no_call": True}, "gold has ['call', 'no_call']; write exactly one of"),
        ({"call": RENT, "parallel": [RENT, RENT]}, "gold has ['call', 'parallel']; write exactly one of"),
        ({"parallel": [RENT, RENT], "alternatives": [RENT]}, "write exactly one of"),
        ({}, "gold has []; write exactly one of"),
        ({"answer": "search"}, "gold has ['answer']; write exactly one of"),
        ({"no_call": False}, "gold.no_call is false; write true"),
        ({"no_call": 1}, "gold.no_call is 1; write true"),
        ({"parallel": [RENT]}, "gold.parallel needs two calls or more; write one as call"),
        ({"parallel": []}, "gold.parallel needs two calls or more"),
        ({"call": RENT | {"tool": "serch"}}, "names the tool 'serch', which is not offered; there are: search, open"),
        ({"call": RENT, "alternatives": [RENT | {"tool": "x"}]}, "names the tool 'x'"),
        ({"parallel": [RENT, RENT | {"alternatives": [RENT | {"tool": "x"}]}]}, "names the tool 'x'"),
        ({"call": RENT | {"tool": "open"}}, "gold: open has no argument 'query'; it has: id"),
        ({"parallel": [RENT, RENT | {"tool": "open"}]}, "gold: open has no argument 'query'"),
        (argument(type="keywords", value="rent"), "query.keywords.value: Input should be a valid list"),
        (argument(type="keywords", value=[""]), "at least 1 character"),
        (argument(type="keywords", value=["rent", []]), "at least 1 item"),
        (argument(type="keywords", value=[7]), "query.keywords.value.0"),
        (argument(type="keyword", value=["rent"]), "'exact', 'keywords'"),
        (argument(type="exact"), "query.exact.value: Field required"),
        (argument(type="exact", value=1, strict=True), "strict: Extra inputs"),
        ({"call": {"tool": "search", "arguments": {}}}, "arguments: Extra inputs"),
        ({"call": {"args": {}}}, "tool: Field required"),
        ({"call": "search"}, "not a sample"),
        ({"parallel": 2}, "not a sample"),
    ],
)
def test_a_choice_that_cannot_be_judged_is_named_with_file_and_line(choices, gold, fault):
    path = choices({}, {"gold": gold}, {})
    said = refusal(path)
    assert said.startswith(f"{path}/samples.jsonl:2: ") and fault in said and "\n" not in said


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({}, "history[1] is {}; write text, or an object of text and calls"),
        ({"role": "assistant", "content": "Hi"}, "history[1] is"),
        ({"text": "Hi", "call": {}}, "history[1] is"),
        (7, "history[1] is 7"),
        (["Hi"], "history[1] is"),
        (None, "history[1] is null"),
        ({"calls": [{"name": "search", "args": {}, "result": ""}]}, "history[1].calls[0] needs name, arguments"),
        ({"calls": [{"name": "search", "arguments": "{}", "result": ""}]}, "history[1].calls[0] needs name, arguments"),
        ({"text": 7}, "text"),
        ({"calls": [{"name": "search", "arguments": {}}]}, "result"),
        ({"calls": [{"name": "search", "arguments": {}, "result": {"n": 1}}]}, "result"),
        ({"calls": [{"arguments": {}, "result": ""}]}, "name"),
        ({"calls": "search"}, "not a sample"),
    ],
)
def test_a_history_of_a_wrong_shape_is_named_with_file_and_line(choices, entry, fault):
    path = choices({}, {"history": ["Hello", entry]})
    said = refusal(path)
    assert said.startswith(f"{path}/samples.jsonl:2: not a sample: ") and fault in said


@pytest.mark.parametrize("tools", [None, "[{", "\udcff"])
def test_tools_that_cannot_be_read_are_named_with_the_file(choices, tools):
    path = choices({}, tools=tools and tools.encode("utf-8", "surrogatepass").decode("latin-1"))
    assert refusal(path).startswith(f"{path}/suite.toml: tools = 'tools.json' cannot be read: ")


@pytest.mark.parametrize("tools", [[{"name": "search"}], {"name": "search"}, [OFFERED[0], {"parameters": {}}]])
def test_tools_of_a_wrong_shape_are_refused_for_every_sample(choices, tools):
    said = refusal(choices({}, {}, tools=tools)).split("\n")
    assert [re.search(r"samples\.jsonl:(\d): (?:not a sample|tools\[\d\] needs)", line)[1] for line in said] == [
        "1",
        "2",
    ]


def test_without_tools_a_choice_is_refused_and_a_sample_may_bring_its_own(choices):
    bare = CALLS.replace('tools = "tools.json"\n', "")
    assert "samples.jsonl:1: no tools are offered; name a file of tools" in refusal(choices({}, toml=bare))
    own = {"tools": OFFERED[:1]}
    (sample,) = load_suite(choices(own, toml=bare)).samples
    assert [tool["name"] for tool in sample.tools] == ["search"]
    assert "names the tool 'search', which is not offered" in refusal(choices({"tools": OFFERED[1:]}))


def test_the_scenario_is_the_cluster_and_the_step_is_a_tag(choices):
    samples = load_suite(
        choices({"scenario": "talk", "step": 2, "tags": {"type": "chain"}}, {}, {"cluster": "c"})
    ).samples
    assert [s.cluster for s in samples] == ["talk", "q2", "c"]
    assert [s.tags for s in samples] == [{"type": "chain", "step": 2}, {}, {}]


def test_a_history_is_text_of_the_user_and_turns_of_the_model_with_calls_and_their_results(choices):
    turn = {"text": "Let me look.", "calls": [{"name": "search", "arguments": {"query": q}, "result": q} for q in "ab"]}
    first, follows = load_suite(choices({"history": ["Hi", turn]}, {"history": [turn]})).samples
    user, reply, *steps = first.history
    assert (user, type(reply), reply.text) == ("Hi", Reply, "Let me look.")
    assert [call.args for call in reply.calls] == [{"query": "a"}, {"query": "b"}]
    assert [(type(s), s.call, s.result) for s in steps] == [(Step, c, c.args["query"]) for c in reply.calls]
    assert len({call.id for call in reply.calls}) == 2
    assert (first.said[-1], follows.said[0]) == ("Rent?", "Rent?")


@pytest.fixture(scope="module")
def choosing():
    return load_suite("tool_choice")


def golds(sample):
    """Every call that a gold accepts."""
    calls = [*sample.gold.get("parallel", ()), *([sample.gold["call"]] if "call" in sample.gold else [])]
    return [one for call in calls for one in (call, *call.get("alternatives", ()))] + sample.gold.get(
        "alternatives", []
    )


def test_the_shipped_choices_are_the_frozen_ones_and_of_the_composition_they_promise(choosing):
    assert choosing.frozen and len(choosing.samples) >= 29
    types = Counter(sample.tags["type"] for sample in choosing.samples)
    least = {"parallel": 2, "filters": 3, "relative_date": 1, "easy": 6, "no_call": 4}
    assert all(types[name] >= count for name, count in least.items()) and set(types) == {*least, "chain"}
    chained = [s for s in choosing.samples if s.tags["type"] == "chain"]
    steps = {name: [s.tags["step"] for s in chained if s.cluster == name] for name in {s.cluster for s in chained}}
    assert sorted(steps.values()) == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert len({s.cluster for s in choosing.samples}) == len(choosing.samples) - len(chained) + 3
    for sample in choosing.samples:
        kind = {"parallel": "parallel", "no_call": "no_call"}.get(sample.tags["type"], "call")
        assert kind in sample.gold, sample.id


def test_what_is_offered_on_every_sample_is_four_search_tools_and_five_distractors_that_are_never_right(choosing):
    tools = {tool["name"]: bool(tool.get("distractor")) for tool in choosing.samples[0].tools}
    right = {"search", "get_document", "list_documents", "query_decompose"}
    assert {name for name, is_distractor in tools.items() if not is_distractor} == right and len(tools) == 9
    assert all(sample.tools == choosing.samples[0].tools for sample in choosing.samples)
    used = {call["tool"] for sample in choosing.samples for call in golds(sample)}
    assert used == right


def test_every_contract_that_is_named_stands_in_the_repository(choosing):
    contracts = json.loads((choosing.path / "repository.json").read_text("utf-8"))["contracts"]
    known = {contract["id"] for contract in contracts}
    named = [set(re.findall(r"C-\d+", sample.model_dump_json(exclude={"tools"}))) for sample in choosing.samples]
    assert len(known) == len(contracts) and set().union(*named) <= known
    opened = {c["args"]["doc_id"]["value"] for s in choosing.samples for c in golds(s) if "doc_id" in c.get("args", {})}
    assert len(opened) >= 5 and opened <= known
    results = [e for s in choosing.samples for e in s.history if isinstance(e, Step) and e.call.name == "get_document"]
    assert results and all(e.result.startswith(e.call.args["doc_id"]) for e in results)


def test_tools_are_offered_in_an_order_drawn_by_seed_and_sample_that_the_trace_keeps(choosing):
    (condition,) = choosing.conditions

    def orders(condition):
        return [[tool.name for tool in condition.tools(sample)] for sample in choosing.samples]

    assert orders(condition) == orders(load_suite("tool_choice").conditions[0])
    assert (
        len({tuple(order) for order in orders(condition)}) > 30 and len({order[0] for order in orders(condition)}) == 9
    )
    traces = [run(sample, open_model("script:null"), condition) for sample in choosing.samples]
    assert [trace.notes["offered"] for trace in traces] == orders(condition)


def test_another_seed_draws_another_order_and_a_condition_may_offer_fewer_tools(choices, choosing):
    rows = [{"id": sample.id} for sample in choosing.samples]
    tools = [OFFERED[0] | {"name": name} for name in ("search", *"abcdef")]
    names = {}
    for seed in (0, 1):
        suite = load_suite(choices(*rows, toml=CALLS + f"[settings]\nseed = {seed}\n", tools=tools))
        names[seed] = [[tool.name for tool in suite.conditions[0].tools(sample)] for sample in suite.samples]
    assert sum(a != b for a, b in zip(names[0], names[1], strict=True)) > 30
    few = load_suite(choices({}, toml=CALLS + 'tools = ["open"]\n'))
    assert [tool.name for tool in few.conditions[0].tools(few.samples[0])] == ["open"]
    assert "condition 1: no tool 'opn'" in refusal(choices({}, toml=CALLS + 'tools = ["opn"]\n'))


def test_the_order_of_the_tools_is_part_of_the_measurement_and_gold_is_not(choices):
    def keys(toml=CALLS, **sample):
        return set(plan(load_suite(choices(sample, toml=toml)), open_model("script:null")))

    first = keys()
    assert first == keys(gold={"no_call": True})
    assert first.isdisjoint(keys(history=["Hi", {"text": "Hello."}]))
    seeds = {frozenset(keys(CALLS + f"[settings]\nseed = {seed}\n")) for seed in range(8)}
    assert len(seeds) == 2  # two tools have two orders


def rate(suite, spec, metric="correct", **options):
    """The ids of the samples on which a script: model has the metric."""
    model, found = open_model(spec, **options), []
    for sample in suite.samples:
        trace = run(sample, model, suite.conditions[0])
        assert trace.failure is None and trace.api_calls == trace.turns == 1
        found += [sample.id] * int(RULES["tool_choice"](sample, trace, suite)[metric])
    return found


def test_the_oracle_is_right_on_every_choice_strictly_too_and_makes_no_call_too_many(choosing):
    strict = choosing.model_copy(update={"settings": choosing.settings | {"strict": True}})
    assert len(rate(choosing, "script:oracle")) == len(rate(strict, "script:oracle")) == 37
    assert rate(choosing, "script:oracle", "over_calls") == rate(choosing, "script:oracle", "distractor") == []


def test_who_does_nothing_is_right_exactly_where_no_call_is(choosing):
    silent = [sample.id for sample in choosing.samples if "no_call" in sample.gold]
    assert rate(choosing, "script:null") == silent and len(silent) == 7


def test_who_draws_a_tool_has_the_right_one_about_once_in_nine(choosing):
    found = [
        len(rate(choosing, "script:random", "tool_right", seed=seed)) / len(choosing.samples) for seed in range(20)
    ]
    one = [len({c["tool"] for c in golds(s)}) / 9 for s in choosing.samples if "call" in s.gold]  # else never right
    assert abs(sum(found) / 20 - sum(one) / len(choosing.samples)) < 0.03 and len({*found}) > 1


def test_no_gold_is_met_by_a_distractor(choosing):
    tools = choosing.samples[0].tools
    for sample in choosing.samples:
        for bad in (tool["name"] for tool in tools if tool.get("distractor")):
            found = match_calls(sample.gold, [{"name": bad, "arguments": {}}], tools)
            assert (found["correct"], found["distractor"]) == (0, 1), sample.id
