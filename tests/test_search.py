"""What agents search: a corpus locked by hash and frozen from a hostile or honest archive, and the tools over it."""

import hashlib
import io
import re
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import fetch
from evalkit.fetch import CorpusError
from evalkit.records import Call
from evalkit.search import corpus
from evalkit.search.pages import Pages
from evalkit.tools import ToolError, execute

BASE = "https://docs.example/latest/"


def digest(pages):
    return hashlib.sha256("".join(f"{url}\0{text}\0" for url, text in sorted(pages.items())).encode()).hexdigest()


def member(name, text="", kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(text.encode())
    return info, io.BytesIO(text.encode())


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Put an archive into a cache of the test's own and lock it; returns the path of the archive."""
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(fetch, "ROOT", tmp_path / "project")
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path / "cache"))

    def put(members, pages, **changes):
        archive = tmp_path / "cache" / "house@1.0.0.package"
        with tarfile.open(archive, "w:gz") as tar:
            for info, content in members:
                tar.addfile(info, content)
        row = {
            "source": "npm:house@1.0.0",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "pages": "package/docs/",
            "url": BASE,
            "pages_sha256": digest(pages),
        } | changes
        text = "[house]\n" + "".join(f'{name} = "{value}"\n' for name, value in row.items())
        (tmp_path / "project" / "data" / "corpora.toml").write_text(text + '[garden]\nsource = "npm:garden@2.0.0"\n')
        return archive

    return put


def test_pages_have_canonical_urls_and_other_files_are_no_pages(lock):
    pages = {
        BASE: "# Start",
        f"{BASE}Guides/": "# Guides",
        f"{BASE}Guides/Testing/": "# Testing é",
        f"{BASE}Reference/Server/": "one\ntwo",
    }
    archive = lock(
        [
            member("package/docs/index.md", "# Start"),
            member("package/docs/Guides/Index.md", "# Guides"),
            member("package/docs/Guides/Testing.md", "# Testing é"),
            member("package/docs/Reference/Server.md", "one\r\ntwo"),
            member("package/docs/logo.png", "png"),
            member("package/docs", kind=tarfile.DIRTYPE),
            member("package/docs-private/keys.md", "keys"),
            member("package/README.md", "readme"),
        ],
        pages,
    )
    assert fetch.fetch("house") == archive
    assert corpus.freeze("house") == pages


def test_links_between_pages_become_canonical_urls_and_others_stay(lock):
    text = "[s](./Server.md) [h](Hooks.md#on-close) [g](../Guides/Index.md) [self](Reply.md) "
    kept = "[gone](./Gone.md) [out](../../secret.md) [web](https://x.example/Server.md) [part](#here) [code](../a.js)"
    server, hooks, reply = (f"{BASE}Reference/{name}/" for name in ("Server", "Hooks", "Reply"))
    linked = f"[s]({server}) [h]({hooks}#on-close) [g]({BASE}Guides/) [self]({reply}) "
    members = [member("package/docs/Reference/Reply.md", text + kept), member("package/docs/Guides/Index.md", "g")]
    members += [member(f"package/docs/Reference/{name}.md", name) for name in ("Server", "Hooks")]
    pages = {reply: linked + kept, f"{BASE}Guides/": "g", server: "Server", hooks: "Hooks"}
    lock(members, pages)
    assert corpus.freeze("house") == pages


def test_a_package_that_is_not_the_locked_one_is_an_error_that_names_the_file_and_both_hashes(lock):
    archive = lock([member("package/docs/a.md", "a")], {f"{BASE}a/": "a"}, sha256="0" * 64)
    with pytest.raises(CorpusError) as error:
        corpus.freeze("house")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert all(part in str(error.value) for part in (str(archive), found, "0" * 64, "corpora.toml", "delete"))


def test_pages_that_are_not_the_locked_ones_are_an_error_with_both_hashes(lock):
    lock([member("package/docs/a.md", "a")], {f"{BASE}a/": "another a"})
    with pytest.raises(CorpusError) as error:
        corpus.freeze("house")
    assert digest({f"{BASE}a/": "a"}) in str(error.value) and digest({f"{BASE}a/": "another a"}) in str(error.value)


def test_an_unknown_corpus_is_an_error_that_lists_the_known_ones(lock):
    lock([], {})
    with pytest.raises(CorpusError, match=r"'hosue'.*house, garden"):
        corpus.freeze("hosue")


def test_a_source_that_is_no_package_is_refused_before_anything_is_fetched(lock):
    lock([], {}, source="https://evil.test/x@1.tgz")
    with pytest.raises(CorpusError, match=r"\[house\].*npm:"):
        fetch.fetch("house")


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("package/docs/../../../secret.md", tarfile.REGTYPE, ""),
        ("package/docs/a/../../../../secret.md", tarfile.REGTYPE, ""),
        ("{tmp}/secret.md", tarfile.REGTYPE, ""),
        ("package/docs/link.md", tarfile.SYMTYPE, "{tmp}/secret.md"),
        ("package/docs/link.md", tarfile.SYMTYPE, "../../../secret.md"),
        ("package/docs/link.md", tarfile.LNKTYPE, "{tmp}/secret.md"),
        ("package/docs/folder", tarfile.SYMTYPE, "{tmp}"),
        ("package/docs/link.md", tarfile.SYMTYPE, "link.md"),
        ("package/docs/pipe.md", tarfile.FIFOTYPE, ""),
        ("package/docs/device.md", tarfile.CHRTYPE, ""),
    ],
)
def test_a_hostile_member_is_never_read_from_outside_and_is_no_page(lock, tmp_path, name, kind, target):
    (tmp_path / "secret.md").write_text("SECRET")
    before = set(tmp_path.rglob("*"))
    hostile = member(
        name.format(tmp=tmp_path), "in the archive" * (kind == tarfile.REGTYPE), kind, target.format(tmp=tmp_path)
    )
    honest = {f"{BASE}a/": "an honest page"}
    archive = lock([hostile, member("package/docs/a.md", "an honest page")], honest)
    assert corpus.freeze("house") == honest
    made = set(tmp_path.rglob("*")) - before
    assert {path.name.removesuffix(".lock") for path in made} == {archive.name, "corpora.toml"}


def test_a_link_out_of_the_pages_folder_never_shows_another_file_of_the_archive(lock):
    members = [
        member("package/keys.txt", "KEYS"),
        member("package/docs/a.md", "an honest page"),
        member("package/docs/link.md", kind=tarfile.SYMTYPE, target="../keys.txt"),
    ]
    lock(members, {f"{BASE}a/": "an honest page"})
    assert corpus.freeze("house") == {f"{BASE}a/": "an honest page"}


@pytest.fixture(scope="module")
def fastify():
    return corpus.freeze("fastify-docs")


def test_the_locked_corpus_freezes_to_its_41_pages(fastify):
    assert len(fastify) == 41
    assert all(re.fullmatch(r"https://fastify\.dev/docs/latest/([\w-]+/)*", url) for url in fastify)
    assert "`bodyLimit`" in fastify["https://fastify.dev/docs/latest/Reference/Server/"]
    assert not any("\r" in text for text in fastify.values())


def test_links_of_the_locked_corpus_lead_to_its_pages(fastify):
    linked = {
        url for text in fastify.values() for url in re.findall(r"\]\((https://fastify\.dev/docs/latest/[^)#]*)", text)
    }
    assert len(linked & fastify.keys()) > 20


def hits(found):
    """[(url, line number, snippet)] of a grep result."""
    parsed = (re.fullmatch(r"(\S+) line (\d+)\n(.*)", item, re.S) for item in found.items)
    return [(match[1], int(match[2]), match[3]) for match in parsed]


WORDS = st.sampled_from(["alpha", "Beta", "gamma", "délta", "ALPHA", "日本", "👩‍💻", "x" * 300, "", "-42", "a.b"])
LINES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=1, max_size=25)
PAGES = st.dictionaries(st.sampled_from([f"{BASE}{name}/" for name in "abcdef"]), LINES.map("\n".join), min_size=1)


@settings(max_examples=150)
@given(PAGES, st.sampled_from(["alpha", "beta", "délta", "日本", "👩", "a.b", "xxx"]), st.integers(1, 12))
def test_grep_finds_what_a_plain_loop_finds(pages, word, most):
    right = {
        (url, number)
        for url, text in pages.items()
        for number, line in enumerate(text.split("\n"), 1)
        if word in line.lower()
    }
    found = Pages(pages).grep(word, most, literal=True)
    shown = hits(found)
    assert found.total == len(right)
    assert {(url, number) for url, number, _ in shown} <= right and len(set(shown)) == len(shown)
    per_page = [sum(url == hit[0] for hit in shown) for url in pages]
    expected = [min(3, sum(url == one for one, _ in right)) for url in pages]
    assert len(shown) == min(most, sum(expected)) and all(map(int.__le__, per_page, expected))
    for url, number, snippet in shown:
        around = "\n".join(pages[url].split("\n")[max(0, number - 3) : number + 2])
        core = snippet.removeprefix("…").removesuffix("…")
        assert core in around and word in core.lower() and len(core) <= 240
        assert len(core) == min(240, len(around))


@given(PAGES, st.sampled_from(["a", "(a|g)+", "^", "$", ".*", "x*", r"\s", r"\w+", "[^a]+", "(?s).+", r"\n", "^$"]))
def test_a_match_never_leaves_its_line(pages, pattern):
    found = Pages(pages).grep(pattern, 12)
    lines = {(url, number): line for url, text in pages.items() for number, line in enumerate(text.split("\n"), 1)}
    assert found.total <= sum(bool(line) for line in lines.values())
    assert all(lines[url, number] for url, number, _ in hits(found))


def test_the_total_is_counted_before_the_caps():
    pages = Pages({f"{BASE}{name}/": "\n".join(["fee"] * 50) for name in "abcdef"})
    assert (pages.grep("fee").total, len(pages.grep("fee").items)) == (300, 8)
    assert len(pages.grep("fee", 12).items) == 12
    assert len(Pages({f"{BASE}a/": "fee\n" * 50}).grep("fee", 12).items) == 3
    assert Pages({f"{BASE}a/": "fee fee fee"}).grep("fee").total == 1


def test_lines_with_the_rarest_matched_word_come_first_then_by_page_and_line():
    pages = Pages(
        {f"{BASE}a/": "common\nother\ncommon", f"{BASE}b/": "common\nrare", f"{BASE}c/": "common rare\nunique"}
    )
    where = [(url[-2], number) for url, number, _ in hits(pages.grep("common|rare|unique", 12))]
    assert where == [("c", 2), ("b", 2), ("c", 1), ("a", 1), ("a", 3), ("b", 1)]


def test_a_part_of_a_common_word_is_as_common_as_the_word():
    pages = Pages({f"{BASE}a/": "\n".join(["configure"] * 3), f"{BASE}b/": "zebra"})
    assert hits(pages.grep("onfigur|zebra"))[0][0] == f"{BASE}b/"
    assert hits(pages.grep(r"\bconfig|zebra"))[0][0] == f"{BASE}b/"


def test_case_is_ignored_in_patterns_and_in_plain_text():
    pages = Pages({f"{BASE}a/": "Total(Rent)\nÉCOLE"})
    assert pages.grep("TOTAL").total == pages.grep("total(", literal=True).total == pages.grep("école").total == 1


def test_a_plain_search_finds_signs_of_a_pattern_once():
    pages = Pages({f"{BASE}a/": "total(rent)\ntotal rent\na{99999999999}"})
    assert [number for _, number, _ in hits(pages.grep("total(", literal=True))] == [1]
    assert pages.grep("a{99999999999}", literal=True).total == 1
    assert pages.grep(".", literal=True).total == 0


BAD = [
    "total(",
    "[q-b]",
    "+rent",
    "a{99999999999}",
    "a{1,99999999999}",
    "a{1001}",
    "*",
    "(?P<x",
    "(a))",
    r"\8",
    r"(?=a)",
]
BOMBS = ["((a{0,1000}){0,1000}){0,1000}", "(x{1000}){1000}", "((((((a{100}){100}){100}){100}){100}){100})"]


@pytest.mark.parametrize("pattern", BAD + BOMBS)
def test_a_pattern_that_cannot_be_used_ends_in_what_to_do(pattern):
    pages = Pages({f"{BASE}a/": "total(rent)\na{1,99999999999}"})
    with pytest.raises(ToolError, match=r"does not compile.*literal=true"):
        pages.grep(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*b", "(a|aa)+$", "(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_explodes_elsewhere_is_simply_searched(pattern):
    assert Pages({f"{BASE}a/": "a" * 50_000 + "!"}).grep(pattern).total in (0, 1)


@pytest.mark.parametrize("pattern", ["", " ", "\t\n"])
@pytest.mark.parametrize("literal", [False, True])
def test_an_empty_pattern_is_refused(pattern, literal):
    with pytest.raises(ToolError, match="empty"):
        Pages({f"{BASE}a/": "a b"}).grep(pattern, literal=literal)


@pytest.mark.parametrize("pattern", ["-42", "-e", "--no-cache", "--pre=/srv/k/marker.sh"])
def test_a_pattern_that_starts_with_a_dash_is_searched_like_any_other(pattern):
    pages = Pages({f"{BASE}a/": "nothing\nopt -42 -e --no-cache --pre=/srv/k/marker.sh"})
    assert [number for _, number, _ in hits(pages.grep(pattern))] == [2]


@pytest.mark.parametrize("pattern", [r"port \{3000\}", r"x{1000}", r"\x{1F4BB}"])
def test_a_pattern_with_braces_that_is_sound_is_searched(pattern):
    assert Pages({f"{BASE}a/": "port {3000} 💻 " + "x" * 1000}).grep(pattern).total == 1


SITE = "https://docs.example/latest/Reference/Server/"


def call(name, pages=None, **args):
    grep_index, read_page = Pages(pages or {SITE: "one\ntwo\nthree"}).tools()
    return execute((grep_index, read_page), Call(id="1", name=name, args=args), 1)


def test_the_tools_refuse_numbers_out_of_range_and_say_how_many_there_are():
    for most in (0, 13, "many"):
        assert not call("grep_index", pattern="one", max_results=most).ok
    assert call("grep_index", pattern="one").result == f"1 matches\n\n{SITE} line 1\none\ntwo\nthree"
    assert "no match" in call("grep_index", pattern="four").result
    many = call("grep_index", {SITE: "fee\n" * 9}, pattern="fee")
    assert many.truncated and many.result.startswith("showing 3 of 9 matches, narrow the query")


def test_the_tools_answer_a_bad_pattern_with_a_sentence_that_is_no_empty_result():
    step = call("grep_index", pattern="total(")
    assert not step.ok and "literal=true" in step.result and "no match" not in step.result


@pytest.mark.parametrize(
    "url",
    [
        SITE,
        SITE.rstrip("/"),
        SITE + "#body-limit",
        SITE.rstrip("/") + "#body-limit",
        SITE.replace("docs.example", "DOCS.Example"),
        f"  {SITE}\n",
    ],
)
def test_a_page_is_found_whatever_the_case_of_its_host_its_last_slash_and_its_fragment(url):
    step = call("read_page", url=url)
    assert (step.ok, step.result) == (True, "one\ntwo\nthree")


OUTSIDE = [
    "../corpus-private/keys.txt",
    "docs/../../corpus-private/keys.txt",
    "/etc/hostname",
    "/srv/k/corpus-private/keys.txt",
    "docs/%2e%2e/x",
    "a\\x00b",
    "a\x00b",
    "file:///etc/hostname",
    "",
    "http://[",
    "https://docs.example/latest/Reference/../Reference/Server/",
    "https://docs.example/latest/Reference/%2e%2e/Reference/Server/",
    "https://docs.example/latest/Reference/Server-private/",
    "https://docs.example/latest/reference/server/",
    "https://docs.example.evil.test/latest/Reference/Server/",
    "https://docs.example/latest/Reference/Server/?x=1",
    "https://docs.example@evil.test/latest/Reference/Server/",
    "latest/Reference/Server/",
]


@pytest.mark.parametrize("request_", OUTSIDE)
def test_what_is_no_page_of_the_snapshot_is_refused_with_one_and_the_same_sentence(request_):
    refused = call("read_page", url=request_)
    assert not refused.ok
    assert refused.result == call("read_page", url="https://docs.example/latest/Gone/").result
    assert "grep_index" in refused.result


def test_a_start_line_out_of_range_is_refused_with_the_last_one():
    assert call("read_page", url=SITE, start_line=3).result == "three"
    assert "3 lines" in call("read_page", url=SITE, start_line=4).result
    assert not call("read_page", url=SITE, start_line=0).ok


@settings(max_examples=50)
@given(LINES, st.integers(350, 900))
def test_a_long_page_can_be_read_to_its_last_line_by_going_on_as_told(lines, limit):
    lines = [line[:300] for line in lines]
    _, read_page = Pages({SITE: "\n".join(lines)}).tools(page_limit=limit)
    got, start = [], 1
    while start:
        step = execute((read_page,), Call(id="1", name="read_page", args={"url": SITE, "start_line": start}), 1)
        body, _, note = step.result.rpartition("\n") if step.truncated else (step.result, "", "")
        assert step.ok and len(body) <= limit
        got += body.split("\n")
        start = int(re.search(r"start_line=(\d+)", note)[1]) if step.truncated else 0
    assert got == lines


def test_every_page_of_the_locked_corpus_can_be_read_whole(fastify):
    _, read_page = Pages(fastify).tools(page_limit=5_000)
    for url, text in fastify.items():
        got, start = [], 1
        while start:
            step = execute((read_page,), Call(id="1", name="read_page", args={"url": url, "start_line": start}), 1)
            body, _, note = step.result.rpartition("\n") if step.truncated else (step.result, "", "")
            got += body.split("\n")
            start = int(re.search(r"start_line=(\d+)", note)[1]) if step.truncated else 0
        assert "\n".join(got) == text, url
