"""Suites: the shipped questions keep their promises, and what is wrong with a folder is said by file and line."""

import json
import tomllib

import pytest

from evalkit.records import ROOT
from evalkit.scoring import same_page, states
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
