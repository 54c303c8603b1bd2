"""Places in files: found as prose means them, resolved as the corpus has them, in range or not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import Sample, Suite, Trace
from evalkit.citations import find_citations, overlap, resolve, shown, without_places
from evalkit.records import Call, Citation, Step
from evalkit.scoring import code_search
from evalkit.search import code

CASES = Path(__file__).parent / "cases"
FILES = {"lib/reply.js": "a\nb\nc\n", "lib/route.js": "a", "test/route.js": "a\n", "docs/Guide.md": "\n\n"}


def rows(name):
    return [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text("utf-8").splitlines()]


def places(text):
    return [(c.path, c.start, c.end) for c in find_citations(text) if c.path]


def wanted(row):
    return [c.get("url") or (c["path"], c["start"], c["end"]) for c in row["expected"]]


def found(row):
    return [c.url or (c.path, c.start, c.end) for c in find_citations(row["text"])]


@pytest.mark.parametrize("row", rows("citation_places"), ids=lambda row: row["form"])
def test_a_place_is_found_as_the_prose_means_it(row):
    assert found(row) == wanted(row)


@pytest.mark.parametrize("name", ["citations_unseen", "citations_unseen2"])
def test_unseen_answers_are_read_nineteen_times_in_twenty(name):
    wrong = [row["id"] for row in rows(name) if found(row) != wanted(row)]
    assert len(wrong) <= 0.05 * len(rows(name)), wrong


@pytest.fixture(scope="module")
def published():
    return code.files("fastify-5.8.5")


@pytest.mark.parametrize("row", rows("citations_real_answers"), ids=lambda row: row["id"])
def test_every_place_of_a_real_answer_is_found_in_order_and_its_file_resolves(row, published):
    assert places(row["answer"]) == [(c["path"], c["start"], c["end"]) for c in row["citations"]]
    assert [resolve(c["path"], published) for c in row["citations"]] == [c["resolves_to"] for c in row["citations"]]


# The answers were written over another tree, whose files are a little longer than those of the npm package.
LAST = {"lib/handle-request.js": 195, "lib/schemas.js": 207, "lib/reply.js": 1030, "lib/four-oh-four.js": 190}
BEYOND = {
    "ck-03-grep": ["lib/handle-request.js:155-198"], "ck-03-hybrid": ["lib/handle-request.js:155-198"],
    "ck-05-grep": ["lib/schemas.js:145-208"], "ck-05-hybrid": ["lib/schemas.js:145-208"],
    "ck-09-grep": ["lib/reply.js:1032-1032", "lib/reply.js:1034-1035", "lib/reply.js:1039-1039",
                   "lib/four-oh-four.js:175-191"],
    "ck-09-hybrid": ["lib/reply.js:1032-1052", "lib/reply.js:1033-1036"],
}  # fmt: skip


@pytest.mark.parametrize("row", rows("citations_real_answers"), ids=lambda row: row["id"])
def test_lines_of_a_real_answer_are_in_range_but_for_the_ten_that_this_package_does_not_have(row, published):
    assert {path: published[path].count("\n") for path in LAST} == LAST
    beyond = BEYOND.get(row["id"], [])
    for c in row["citations"]:
        name = f"{c['path']}:{c['start']}-{c['end']}"
        assert ladder(published, name)["in_range"] == float(c["in_range"] and name not in beyond), name
    assert {name for name in beyond if int(name.rpartition("-")[2]) > LAST[name.partition(":")[0]]} == set(beyond)


def ladder(files, answer, *steps):
    """The values of the rule for an answer over these files; its gold is line 2 of lib/reply.js."""
    gold = {"answer": "b", "key_fact": ["b"], "citations": [{"path": "lib/reply.js", "start": 2, "end": 2}]}
    suite = Suite(name="s", kind="code_search", path=Path("."), samples=(), conditions=(), texts=lambda: files)
    trace = Trace(key="k", answer=answer, citations=find_citations(answer), steps=steps, stop="answered")
    return code_search(Sample(id="q", prompt="Which?", gold=gold), trace, suite)


RESOLVED = {
    "lib/reply.js": "lib/reply.js", "reply.js": "lib/reply.js", "Guide.md": "docs/Guide.md", "route.js": "",
    "/srv/corpus/lib/reply.js": "lib/reply.js", "C:/work/fastify/lib/route.js": "lib/route.js",
    "package/lib/reply.js": "lib/reply.js", "node_modules/fastify/lib/reply.js": "lib/reply.js",
    "../../node_modules/fastify/test/route.js": "test/route.js", "src/lib/reply.js": "", "lib/Reply.js": "",
    "ply.js": "", "lib": "", "": "", "/etc/passwd": "", "../lib/reply.js": "",
}  # fmt: skip


@pytest.mark.parametrize(("path", "file"), RESOLVED.items())
def test_a_path_resolves_when_it_can_mean_one_file_only(path, file):
    assert resolve(path, FILES) == file


IN_RANGE = {"lib/reply.js:1": 1, "lib/reply.js:3": 1, "lib/reply.js:1-3": 1, "reply.js:2": 1, "lib/reply.js:4": 0,
            "lib/reply.js:3-4": 0, "lib/reply.js:0": 0, "lib/reply.js:0-2": 0, "lib/reply.js:3-2": 0,
            "lib/route.js:1": 1, "lib/route.js:2": 0, "lib/gone.js:1": 0, "route.js:1": 0,
            "docs/Guide.md:2": 1, "docs/Guide.md:3": 0, "lib/reply.js:9999999": 0}  # fmt: skip


@pytest.mark.parametrize(("place", "right"), IN_RANGE.items())
def test_lines_are_in_range_from_the_first_to_the_last_of_the_file(place, right):
    values = ladder(FILES, place)
    assert (values["cited"], values["in_range"]) == (1, right)
    assert values["exists"] == float(not place.startswith(("lib/gone", "route")))


WORDS = st.lists(
    st.sampled_from(["the", "handler", "is", "it", "and", "runs,", "once.", "See", "(also)", "that:", "no;"])
)
NAME = st.text("abXY09_-", min_size=1, max_size=6).map("f{}".format)
PATHS = st.tuples(
    st.lists(NAME, min_size=1, max_size=3), NAME, st.sampled_from(["js", "d.ts", "py", "go", "rs", "md"])
).map(lambda parts: "/".join([*parts[0], f"{parts[1]}z.{parts[2]}"]))
LINES = st.tuples(st.integers(1, 9999), st.integers(0, 200))
FORMS = st.sampled_from(["{p}:{a}-{b}", "`{p}:{a}-{b}`", "({p}:{a}-{b})", "[{p}:{a}–{b}]", "{p}#L{a}-L{b}",
                         "`{p}` (lines {a}-{b})", "{p}, lines {a}–{b}", "**{p}:{a}-{b}**"])  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(WORDS, PATHS, LINES, FORMS, WORDS)
def test_a_place_planted_between_words_is_found_and_nothing_else(before, path, lines, form, after):
    a, b = lines[0], sum(lines)
    text = " ".join([*before, form.format(p=path, a=a, b=b), *after])
    assert places(text) == [(path, a, b)]
    assert places(" ".join([*before, f"{path}:{a}", *after])) == [(path, a, a)]


@settings(max_examples=60, deadline=None)
@given(WORDS, PATHS, LINES)
def test_what_is_left_without_its_places_names_none_and_keeps_the_words(words, path, lines):
    left = without_places(" ".join([*words, f"`{path}:{lines[0]}-{sum(lines)}`", "the end"]))
    assert path not in left and find_citations(left) == [] and left.endswith(" the end")
    assert left.split()[: len(words)] == words


@settings(deadline=None)
@given(st.text(st.sampled_from("a/.:-#L1(),[]`\\ \n–jsht")))
def test_no_text_breaks_the_search_and_every_place_found_has_a_path_and_lines(text):
    for c in find_citations(text):
        assert c.url or (c.path and c.start >= 0 and c.end >= 0)


HOSTILE = [
    "a/" * 50_000,
    "a." * 50_000,
    "./" * 50_000,
    "[a]/" * 25_000,
    "a.js:" * 20_000,
    "a.js:1," * 15_000,
    "a.js:1-" * 15_000,
    "lib/a.js:" + "1" * 100_000,
    "lib/a.js:" + "1, " * 30_000,
    "lib/a.js lines 1" + " " * 99_999,
    "\\" * 100_000,
    "(" * 100_000,
    "a.js (" * 15_000,
    "`" * 100_000,
    "a/[" * 30_000,
    "x" * 100_000 + ".js:1",
    "https://" * 12_000,
    "https://a.b/" + "(" * 50_000 + ")" * 50_000,
    "@$+~-" * 20_000,
    "a-" * 50_000 + ".js",
    "../" * 30_000 + "node_modules/",
    "lib/a.js" + "'\"*_" * 25_000 + "1",
    "C:/" * 30_000,
    "a.js and " * 12_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_long_hostile_text_is_read_to_its_end(text):
    def late(*_):
        raise TimeoutError("100,000 characters took more than a minute")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        resolve(text[:4_000], FILES)
        assert isinstance(without_places(text), str) and isinstance(find_citations(text), list)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def step(result, ok=True, executed=True, **args):
    return Step(call=Call(id="1", name="t", args=args), result=result, ok=ok, executed=executed)


def test_a_search_has_shown_the_lines_that_begin_with_a_place_and_a_reader_those_it_numbers():
    search = step("2 matches\n\nlib/reply.js:2: b\n\nlib/route.js:1-1 (function go)\n1: see lib/x.js:9", query="b")
    assert shown(search) == [
        Citation(path="lib/reply.js", start=2, end=2),
        Citation(path="lib/route.js", start=1, end=1),
    ]
    assert shown(step("2: b\n3: c\n[lines 2-3 of 9; go on]", path=".\\lib\\reply.js")) == [
        Citation(path="lib/reply.js", start=2, end=3)
    ]
    assert (
        shown(step("lib/reply.js:2: b", ok=False, query="b")) == shown(step("2: b", executed=False, path="a.js")) == []
    )
    assert shown(step("no match; try another word", path="lib/reply.js")) == shown(step("", query="")) == []


@pytest.mark.parametrize(
    ("other", "meets"), [((1, 2), 1), ((4, 9), 1), ((2, 3), 1), ((1, 9), 1), ((1, 1), 0), ((5, 9), 0)]
)
def test_places_overlap_when_they_share_a_line_of_one_file(other, meets):
    one, two = Citation(path="a.js", start=2, end=4), Citation(path="a.js", start=other[0], end=other[1])
    assert overlap(one, two) == overlap(two, one) == bool(meets)
    assert not overlap(one, two.model_copy(update={"path": "b.js"}))
