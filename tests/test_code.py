"""Corpora of code, the tools over them and their index: what may be seen, what is found, what a fault says."""

import hashlib
import io
import json
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit import fetch
from evalkit.fetch import CorpusError
from evalkit.records import Call
from evalkit.search import code, index
from evalkit.tools import execute

ROUTER = """'use strict'

const { compile } = require('./lib/compile')

// Adds a route to the table.
function addRoute (table, path) {
  return table.set(path, compile(path))
}

module.exports = { addRoute }
"""
COMPILE = """'use strict'

function compile (path) {
  return new RegExp(path)
}

Table.prototype.find = function (path) {
  throw new Error('no route')
}

module.exports = { compile }
"""
TYPES = "export interface Table {\n  find(path: string): void\n}\n\nexport type Path = string\n"


@pytest.fixture(scope="session", autouse=True)
def weights():
    """The packaged embeddings, out of the user's own cache."""
    return index.embedding("wordllama")


@pytest.fixture
def corpus(tmp_path, monkeypatch, weights):
    """The name of a little folder of code, with a cache of the test's own."""
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path / "cache"))
    for variable in ("CHROMA_HOST", "CHROMA_PORT"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "house"
    (folder / "lib").mkdir(parents=True)
    for path, text in {"router.js": ROUTER, "lib/compile.js": COMPILE, "types.d.ts": TYPES, "a.md": "# A\n"}.items():
        (folder / path).write_text(text)
    return f"dir:{folder}"


def folder_of(name):
    return Path(name.removeprefix("dir:"))


class Embeddings:
    """An embeddings endpoint on loopback: vectors of `dim` numbers by the letters of a text, sent in reverse order."""

    def __init__(self, dim=8):
        self.dim, self.seen, self.short, outer = dim, [], 0, self
        self.stuck, self.held, self.release = "", threading.Event(), threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.seen += body["input"]
                if outer.stuck and any(outer.stuck in text for text in body["input"]):
                    outer.held.set()
                    outer.release.wait(60)
                rows = [
                    {
                        "object": "embedding",
                        "index": i,
                        "embedding": [text.count(chr(97 + n)) for n in range(outer.dim)],
                    }
                    for i, text in enumerate(body["input"])
                ][outer.short * (len(body["input"]) > 1) :]
                usage = {"prompt_tokens": 1, "total_tokens": 1}
                data = {"object": "list", "model": body["model"], "usage": usage, "data": rows[::-1]}
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(data).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.name = f"letters@http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def letters(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Embeddings()
    yield server
    server.release.set()
    server.server.shutdown()
    server.server.server_close()


def call(tools, name, **args):
    return execute(tools, Call(id="1", name=name, args=args), 0)


# What a corpus is


def test_the_package_is_the_one_that_was_counted():
    census = json.loads((Path(__file__).parent / "cases" / "fastify_inventory.json").read_text())
    texts = code.files("fastify")
    assert list(texts) == sorted(texts)
    for row in census["files"]:
        text = texts[row["path"]]
        assert hashlib.sha256(text.encode()).hexdigest() == row["sha256"]
        assert len(code.lines(text)) == row["lines"]
    assert code.corpus_sha("fastify") != code.corpus_sha("fastify-5.8.5")


def test_a_package_is_unpacked_once():
    folder = code.root("fastify")
    made = folder.stat().st_ctime_ns
    assert (code.root("fastify"), folder.stat().st_ctime_ns) == (folder, made)


@pytest.mark.parametrize("kind", ["npm", "pypi"])
def test_only_regular_files_inside_the_archive_are_unpacked(kind, tmp_path, monkeypatch):
    (tmp_path / "secret.js").write_text("SECRET")
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "ROOT", tmp_path)
    package = fetch.cache() / f"house{'@' if kind == 'npm' else '=='}1.0.package"
    texts = {"package/a.js": "a", "package/lib/b.js": "b", "other/c.js": "c", "package/../../out.js": "x",
             "package//etc/out.js": "x", "/out.js": "x"}  # fmt: skip
    if kind == "npm":
        with tarfile.open(package, "w:gz") as tar:
            for target in (str(tmp_path / "secret.js"), "../../secret.js"):
                for way in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                    link = tarfile.TarInfo(f"package/link{len(tar.getnames())}.js")
                    link.type, link.linkname = way, target
                    tar.addfile(link)
            door = tarfile.TarInfo("package/door")
            door.type, door.linkname = tarfile.SYMTYPE, str(tmp_path)
            tar.addfile(door)
            for name, text in (*texts.items(), ("package/door/d.js", "d")):
                info = tarfile.TarInfo(name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    else:
        with zipfile.ZipFile(package, "w") as wheel:
            for name, text in (*texts.items(), ("package/door/d.js", "d")):
                wheel.writestr(name, text)
    lock = hashlib.sha256(package.read_bytes()).hexdigest()
    source = {"npm": "npm:house@1.0", "pypi": "pypi:house==1.0"}[kind]
    (tmp_path / "data").mkdir()
    row = f'[house]\nsource = "{source}"\nsha256 = "{lock}"\n'
    (tmp_path / "data" / "corpora.toml").write_text(f'{row}code = "package/"\n[pages]\nsource = "npm:pages@1.0"\n')
    draft = fetch.cache() / "code" / f"house-{lock[:12]}.draft"
    draft.mkdir(parents=True)
    (draft / "half.js").write_text("left by a process that was killed")
    assert code.files("house") == {"a.js": "a", "door/d.js": "d", "lib/b.js": "b"}
    assert [path for path in tmp_path.rglob("*.js") if path.name in ("out.js", "half.js")] == []
    assert not (tmp_path / "d.js").exists() and not draft.exists()
    assert {path.stat().st_mode & 0o222 for path in (code.root("house"), *code.root("house").rglob("*"))} == {0}
    with pytest.raises(CorpusError, match=r"\[pages\].*code ="):
        code.files("pages")


def test_what_a_folder_leaves_out_is_out_of_reach_of_every_tool(corpus, tmp_path):
    folder, left_out = folder_of(corpus), [".env", "built.js", "node_modules/m.js", "binary.js", "huge.js", "link.js"]
    before = code.corpus_sha(corpus)
    (tmp_path / "secret.js").write_text("SECRET")
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    (folder / "door").symlink_to(tmp_path)
    (folder / "node_modules").mkdir()
    for path in (".env", "built.js", "node_modules/m.js"):
        (folder / path).write_text("SECRET")
    (folder / ".gitignore").write_text("built.js\n")
    (folder / "binary.js").write_bytes(b"SECRET\0")
    (folder / "latin.js").write_bytes("SECRET é".encode("latin-1"))
    (folder / "huge.js").write_text("SECRET\n" * 400_000)
    assert list(code.files(corpus)) == ["a.md", "lib/compile.js", "router.js", "types.d.ts"]
    assert code.corpus_sha(corpus) == before
    tools = code.Code(corpus).tools()
    for path in [*left_out, "latin.js", "door/secret.js", "../secret.js", str(tmp_path / "secret.js")]:
        for glob in ("", path, "*", "!x"):
            assert call(tools, "ripgrep", pattern="SECRET", glob=glob).result.startswith("no match")
        assert "SECRET" not in call(tools, "read_file", path=path).result


def test_the_hash_of_a_folder_is_that_of_its_paths_and_texts(corpus):
    folder, seen = folder_of(corpus), {code.corpus_sha(corpus)}
    (folder / "a.md").write_text("# B\n")
    seen.add(code.corpus_sha(corpus))
    (folder / "a.md").rename(folder / "b.md")
    seen.add(code.corpus_sha(corpus))
    assert len(seen) == 3
    with pytest.raises(CorpusError, match="no folder"):
        code.files(f"{corpus}-gone")


# ripgrep and read_file


def test_a_pattern_that_does_not_compile_is_an_error_unlike_no_match(corpus):
    tools = code.Code(corpus).tools()
    for pattern in ("total(", "[q-b]", "+rent", "a{99999999999}", "a\0b"):
        step = call(tools, "ripgrep", pattern=pattern)
        assert not step.ok and "no match;" not in step.result
    step = call(tools, "ripgrep", pattern="nowhere")
    assert step.ok and step.result.startswith("no match")
    assert not call(tools, "ripgrep", pattern="").ok
    assert call(tools, "ripgrep", pattern="a", glob="[").ok is False


def test_a_literal_pattern_is_found_as_it_stands(corpus):
    (folder_of(corpus) / "f.py").write_text("total(rent)\n")
    found = code.Code(corpus).ripgrep("total(", literal=True)
    assert found == (["f.py:1: total(rent)"], 1, 0)


@pytest.mark.parametrize("pattern", ["-42", "-e", "--no-cache", "--pre=MARKER", "--files", "--"])
def test_neither_pattern_nor_glob_is_ever_an_option(pattern, corpus, tmp_path):
    marker = tmp_path / "marker.sh"
    marker.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    marker.chmod(0o755)
    pattern = pattern.replace("MARKER", str(marker))
    (folder_of(corpus) / "a.txt").write_text(f"opt -42 -e --no-cache --files --pre={marker}\n")
    tools = code.Code(corpus)
    assert [hit[:2] for hit in tools.matches("-e", pattern)] == [("a.txt", 1)]
    assert tools.ripgrep(pattern, glob="*.txt").total == 1
    assert tools.ripgrep("opt", glob=pattern).total == 0
    assert not (tmp_path / "ran").exists()


def test_a_configuration_of_ripgrep_changes_nothing(corpus, tmp_path, monkeypatch):
    (tmp_path / "rc").write_text("--max-count=0\n--ignore-case\n")
    (tmp_path / ".ignore").write_text("*.js\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    house = code.Code(corpus)
    assert house.ripgrep("addRoute").total == 2
    assert house.ripgrep("ADDROUTE").total == 0


def test_matches_are_counted_before_the_cap_and_long_lines_are_cut(corpus):
    (folder_of(corpus) / "long.txt").write_text(f"needle {'x' * 5_000}\r\n" + "needle\n" * 30)
    found = code.Code(corpus).ripgrep("needle", max_results=2)
    assert found.total == 31 and found.items[1] == "long.txt:2: needle"
    assert len(found.items[0]) < 400 and found.items[0].endswith("…")
    assert "showing 20 of 31" in call(code.Code(corpus).tools(), "ripgrep", pattern="needle").result


def test_a_search_that_takes_too_long_says_so(corpus, monkeypatch):
    tools = code.Code(corpus).tools()
    monkeypatch.setattr(code, "SECONDS", 1e-6)
    step = call(tools, "ripgrep", pattern="x")
    assert not step.ok and "Narrow" in step.result


def test_a_file_is_read_with_its_line_numbers(corpus):
    house = code.Code(corpus)
    assert house.read_file("lib/compile.js", 3, 4).items == [
        "3: function compile (path) {",
        "4:   return new RegExp(path)",
    ]
    assert house.read_file(".\\lib\\compile.js").items == house.read_file("lib/compile.js").items
    assert len(house.read_file("router.js").items) == ROUTER.count("\n")
    _, _, reader = tools = house.tools(page_limit=60)
    assert not reader.counts and "go on with start_line=3" in call(tools, "read_file", path="router.js").result
    for start, end in ((99, 0), (3, 2)):
        assert "11 lines" in call(tools, "read_file", path="lib/compile.js", start_line=start, end_line=end).result


def test_what_is_outside_is_refused_in_the_same_words_as_what_does_not_exist(corpus, tmp_path):
    beside = tmp_path / "house-private"
    beside.mkdir()
    (beside / "keys.txt").write_text("SECRET")
    tools = code.Code(corpus).tools()
    asked = ["../house-private/keys.txt", "lib/../../house-private/keys.txt", "/etc/hostname", str(beside / "keys.txt"),
             "lib/%2e%2e/x", "a\0b", "lib", "", "nowhere.js"]  # fmt: skip
    steps = [call(tools, "read_file", path=path) for path in asked]
    assert len({step.result for step in steps}) == 1 and not any(step.ok for step in steps)


# Chunks and the graph


def test_chunks_follow_definitions_and_a_comment_goes_with_what_it_is_about():
    found = [(c.start, c.end, c.name) for c in index.chunks("router.js", ROUTER)]
    assert found == [(1, 3, ""), (4, 8, "function addRoute"), (9, 10, "")]
    found = [(c.start, c.end, c.name) for c in index.chunks("lib/compile.js", COMPILE)]
    assert found == [(1, 1, ""), (2, 5, "function compile"), (6, 9, "function Table.prototype.find"), (10, 11, "")]
    found = [(c.start, c.end, c.name) for c in index.chunks("types.d.ts", TYPES)]
    assert found == [(1, 3, "interface Table"), (4, 5, "type Path")]


def test_a_long_definition_is_split_inside_and_keeps_its_name():
    body = "\n".join(f"  step{n}({n}, '{'x' * 60}')" for n in range(40))
    made = index.chunks("a.js", f"class Big {{\n  run () {{\n{body}\n  }}\n\n  stop () {{}}\n}}\n")
    assert [c.name for c in made] == ["class Big", *["method run"] * 3, "method stop"]
    assert (made[0].start, made[-1].end) == (1, 45)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a.js", "a.ts", "a.tsx", "a.mjs", "a.md", "a.py"]),
    st.lists(
        st.sampled_from([*ROUTER.split("\n"), *TYPES.split("\n"), "x" * 3_000, "é" * 700, "`", "/*", "\t", "\f y"])
    ),
)
def test_chunks_hold_every_line_that_has_a_word_once_and_in_order(path, rows):
    text = "\n".join(rows)
    made = index.chunks(path, text)
    covered = [n for c in made for n in range(c.start, c.end + 1)]
    assert covered == sorted(set(covered))
    assert {n for n, row in enumerate(code.lines(text), 1) if re.search(r"\w", row)} <= set(covered)
    assert all(len(c.snippet) <= index.SIZE and c.snippet.count("\n") == c.end - c.start for c in made)
    assert max(covered, default=0) <= len(code.lines(text))


def test_the_graph_joins_by_import_by_file_and_by_a_call_of_a_name_defined_once():
    texts = {"router.js": ROUTER, "lib/compile.js": COMPILE, "user.js": "table.find('/')\ncompile()\n",
             "other.js": "function compile () {}\n", "said.js": "// find it\n"}  # fmt: skip
    made = [c for path, text in texts.items() for c in index.chunks(path, text)]
    names = [c.name.split(" ")[-1] if c.name else f"{c.path}:{c.start}" for c in made]
    joined = {name: {names[j] for j in others} for name, others in zip(names, index.graph(made), strict=True)}
    assert joined["addRoute"] == {"router.js:9", "compile"}
    assert "compile" in joined["router.js:1"]
    assert joined["Table.prototype.find"] == {"user.js:1"}  # compile is defined twice, and user.js imports neither
    assert joined["said.js:1"] == set()


def test_ranks_are_fused_by_their_reciprocals():
    assert index.fuse([[7, 8], [8]]) == {7: 1 / 61, 8: 1 / 62 + 1 / 61}


# Searching


def test_each_leg_finds_by_itself_what_is_its_own(corpus):
    (folder_of(corpus) / "cook.md").write_text("Boil the pasta, then drain the water.\n")
    index.build(corpus)
    assert index.search(corpus, "how do I prepare noodles for dinner", 1, ["vector"])[0].path == "cook.md"
    (hit,) = index.search(corpus, "adds a route to the table", 1, ["bm25"])
    assert hit[:4] == ("router.js", 4, 8, "function addRoute")
    assert index.search(corpus, "noodles", 5, ["bm25"]) == []
    hit = index.search(corpus, "drain", 5, ["bm25"])[0]
    assert (hit.snippet, hit.score) == ("1: Boil the pasta, then drain the water.", 1 / 61)
    plain, joined = (index.search(corpus, "addRoute", 5, legs) for legs in (["bm25"], ["bm25", "graph"]))
    assert "function compile" not in [h.name for h in plain]
    assert "function compile" in [h.name for h in joined]
    with pytest.raises(ValueError, match="vector, bm25, graph"):
        index.search(corpus, "x", 5, ["vectors"])


def test_the_tool_shows_places_with_their_definition_and_lines(corpus):
    index.build(corpus)
    step = call(
        code.Code(corpus, legs=["bm25"]).tools(), "search_code", query="error of a table without that route", top_k=1
    )
    assert "lib/compile.js:6-9 (function Table.prototype.find)\n" in step.result
    assert "8:   throw new Error('no route')" in step.result


def test_without_an_index_the_tool_fails_as_an_observation(corpus):
    step = call(code.Code(corpus).tools(), "search_code", query="x")
    assert not step.ok and "no index" in step.result


def test_the_baseline_puts_the_window_with_the_most_distinct_words_first(corpus):
    text = ["route route route"] * 3 + ["x"] * 60 + ["table", "", "the route compiles"]
    (folder_of(corpus) / "b.txt").write_text("\n".join(text))
    first, *others = code.rg_keywords(corpus, "Which table compiles the route?", 3)
    assert (first.path, first.start, first.end, first.score) == ("b.txt", 64, 66, 3)
    assert all(hit.score <= 3 for hit in others) and len({(h.path, h.start) for h in others}) == 2
    assert code.rg_keywords(corpus, "the of -- ?") == []


def test_threads_that_search_at_once_load_the_index_once(corpus, monkeypatch):
    index.build(corpus)
    made, real = [], index.Index
    monkeypatch.setattr(index, "Index", lambda name: made.append(name) or time.sleep(0.05) or real(name))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: index.search(corpus, "addRoute"), range(32)))
    assert len(made) == 1 and all(hits == found[0] for hits in found)


# Building


def test_only_what_changed_is_embedded_again_and_the_old_is_gone(corpus):
    folder = folder_of(corpus)
    first = index.build(corpus)
    assert first["files"] == 4 and first["embedded"] == first["chunks"]
    assert index.build(corpus)["embedded"] == 0
    reader, before = index.place(corpus).open("rb"), index.place(corpus).read_bytes()
    (folder / "lib" / "compile.js").write_text("\n\n" + COMPILE.replace("no route", "there is no route"))
    assert index.build(corpus)["embedded"] == 2  # the lines at the top, and the function; all others have only moved
    with reader:
        assert reader.read() == before  # whoever is reading the old index reads on
    (folder / "router.js").unlink()
    assert index.build(corpus)["embedded"] == 0
    assert "router.js" not in {h.path for h in index.search(corpus, "addRoute route table", 50)}
    assert index.build(corpus, rebuild=True) == {"files": 3, "chunks": 7, "embedded": 7}


def test_an_index_made_in_steps_is_the_index_made_at_once(corpus):
    index.build(corpus)
    (folder_of(corpus) / "router.js").write_text(COMPILE)
    index.build(corpus)
    stepwise = index.search(corpus, "compile a path")
    index.build(corpus, rebuild=True)
    assert index.search(corpus, "compile a path") == stepwise


def test_an_endpoint_embeds_and_only_what_changed_is_sent(corpus, letters):
    index.build(corpus, letters.name)
    assert len([text for text in letters.seen if text != "-"]) == index.build(corpus, letters.name)["chunks"]
    made = index.load(corpus).chunks  # the reply's order is not the request's
    assert [index.search(corpus, index.said(c), 1, ["vector"])[0][:4] for c in made] == [c[:4] for c in made]
    (folder_of(corpus) / "a.md").write_text("zzz aaa\n")
    letters.seen.clear()
    index.build(corpus, letters.name)
    assert [text for text in letters.seen if text != "-"] == ["a.md \nzzz aaa"]
    assert index.search(corpus, "aaa aaa", 1, ["vector"])[0].path == "a.md"
    assert index.health(corpus, letters.name, min_chunks=1) == []


def test_a_service_that_fails_leaves_the_old_index(corpus, letters):
    index.build(corpus)
    before = index.place(corpus).read_bytes()
    letters.short = 1
    with pytest.raises(CorpusError, match="one vector for each text"):
        index.build(corpus, letters.name)
    with pytest.raises(CorpusError, match="gives no vectors"):
        index.build(corpus, f"x@http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(CorpusError, match="MODEL@URL"):
        index.build(corpus, "bge-m3")
    assert index.place(corpus).read_bytes() == before


def building(name, *embedder):
    """A process that builds the index anew."""
    script = f"from evalkit.search import index; index.build(*{(name, *embedder)!r}, rebuild=True)"
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)


def test_a_build_killed_while_it_embeds_leaves_the_old_index_and_the_next_build_works(corpus, letters):
    index.build(corpus, letters.name)
    before = index.search(corpus, "route")
    (folder_of(corpus) / "new.js").write_text("function brandNew () {}\n")
    letters.stuck = "brandNew"
    process = building(corpus, letters.name)
    held = letters.held.wait(60)
    process.kill()
    process.wait()
    letters.stuck = ""
    letters.release.set()
    assert held and index.search(corpus, "route") == before
    assert any("not the one that was indexed" in fault for fault in index.health(corpus, letters.name, min_chunks=1))
    index.build(corpus, letters.name)
    assert "new.js" in {h.path for h in index.search(corpus, "brandNew", 50)}


@pytest.mark.slow
def test_a_build_killed_at_any_of_ten_moments_leaves_the_old_index(tmp_path, monkeypatch, weights):
    name, package = f"dir:{code.root('fastify')}", fetch.fetch("wordllama")
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path))
    (tmp_path / package.name).symlink_to(package)
    started = time.monotonic()
    assert building(name).wait() == 0
    seconds, before = time.monotonic() - started, index.search(name, "bodyLimit")
    ended = []
    for tenth in range(10):
        process = building(name)
        time.sleep(seconds * (0.4 + 0.07 * tenth))  # from the reading of files to the last write
        ended.append(process.poll())
        process.kill()
        process.wait()
        assert index.health(name) == []
        assert index.search(name, "bodyLimit") == before
    assert None in ended
    index.build(name, rebuild=True)
    assert [path.name for path in index.place(name).parent.iterdir() if "draft" in path.name] == []


# Health


def faults(name, *settings, **options):
    return index.health(name, *settings, **{"min_chunks": 1} | options)


def test_a_sound_index_has_no_fault_and_a_missing_one_names_the_command(corpus):
    command = f"python -m evalkit corpus build {corpus}"
    (fault,) = faults(corpus)
    assert "no index" in fault and fault.endswith(command)
    index.build(corpus)
    assert faults(corpus, required=["router.js"]) == []
    (fault,) = index.health(corpus)
    assert "7 chunks, fewer than 200" in fault.replace(str(index.build(corpus)["chunks"]), "7") and fault.endswith(
        command
    )


def test_a_changed_corpus_is_a_fault_until_it_is_built_again(corpus):
    index.build(corpus)
    (folder_of(corpus) / "old.js").write_text("let old")
    (fault,) = faults(corpus)
    assert "not the one that was indexed" in fault and "corpus build" in fault
    index.build(corpus)
    assert faults(corpus) == []


def test_another_embedder_is_a_fault_also_when_its_vectors_have_as_many_numbers(corpus, letters):
    index.build(corpus)
    letters.dim = 256
    (fault,) = faults(corpus, letters.name)
    assert f"embedder wordllama, not {letters.name}" in fault and fault.endswith(f"--embedder {letters.name}")
    index.build(corpus, letters.name)
    assert faults(corpus, letters.name) == []
    letters.dim = 16
    (fault,) = faults(corpus, letters.name)
    assert "vectors of 256 numbers" in fault and "gives 16" in fault
    assert index.build(corpus, letters.name)["embedded"] == index.build(corpus, letters.name, rebuild=True)["chunks"]


def test_another_chunker_another_store_and_absent_files_are_faults(corpus, monkeypatch):
    index.build(corpus)
    (fault,) = faults(corpus, required=["router.js", "lib/gone.js"], suffixes=[".ts", ".py"])
    assert "lib/gone.js, *.py" in fault
    (fault,) = faults(corpus, store="chroma")
    assert "store numpy, not chroma" in fault and fault.endswith("--store chroma")
    monkeypatch.setattr(index, "VERSION", "next")
    (fault,) = faults(corpus)
    assert "chunker" in fault and "not next" in fault


def test_chunks_and_vectors_that_disagree_and_a_damaged_file_are_faults(corpus):
    index.build(corpus)
    path = index.place(corpus)
    with index.np.load(path) as data:
        index.np.savez(path, vectors=data["vectors"][1:], meta=data["meta"])
    (fault,) = faults(corpus)
    assert re.search(r"(\d+) chunks, but (\d+) vectors", fault)
    path.write_bytes(path.read_bytes()[:500])
    (fault,) = faults(corpus)
    assert "no index that can be read" in fault
    index.build(corpus)
    assert faults(corpus) == []


def test_every_fault_is_reported_at_once(corpus, letters):
    index.build(corpus)
    (folder_of(corpus) / "router.js").unlink()
    found = index.health(corpus, letters.name, "chroma", required=["router.js"])
    assert len(found) == 6 and all("python -m evalkit corpus build" in fault for fault in found)


# Chroma


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_a_chroma_server_that_is_down_is_a_fault_and_stops_a_build(corpus, monkeypatch):
    pytest.importorskip("chromadb")
    index.build(corpus)
    before, port = index.place(corpus).read_bytes(), free_port()
    monkeypatch.setenv("CHROMA_PORT", str(port))
    with pytest.raises(CorpusError, match=f"chroma run --host 127.0.0.1 --port {port}"):
        index.build(corpus, store="chroma")
    assert index.place(corpus).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False], ids=["server", "embedded"])
def test_chroma_finds_what_the_exact_store_finds(served, corpus, tmp_path, monkeypatch):
    pytest.importorskip("chromadb")
    index.build(corpus)
    exact = index.search(corpus, "compile a path", 3, ["vector"])
    port, server = free_port(), None
    if served:
        command = [Path(sys.executable).with_name("chroma"), "run", "--path", tmp_path / "db", "--port", str(port)]
        server = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, cwd=tmp_path)
        monkeypatch.setenv("CHROMA_HOST", "127.0.0.1")
        monkeypatch.setenv("CHROMA_PORT", str(port))
    try:
        deadline = time.monotonic() + 60
        while served and time.monotonic() < deadline and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.1)
        assert index.build(corpus, store="chroma")["embedded"] == 0
        assert faults(corpus, store="chroma") == []
        assert index.search(corpus, "compile a path", 3, ["vector"]) == exact
        (folder_of(corpus) / "router.js").unlink()
        assert index.build(corpus, store="chroma")["embedded"] == 0
        assert "router.js" not in {h.path for h in index.search(corpus, "addRoute", 50)}
        assert len(index.chroma().list_collections()) == 1
        collection = index.load(corpus).collection
        collection.delete(collection.get(limit=1)["ids"])
        (fault,) = faults(corpus, store="chroma")
        assert re.search(r"chunks, but \d+ vectors", fault)
        if server:
            server.terminate()
            server.wait()
            (fault,) = faults(corpus, store="chroma")
            assert f"chroma run --host 127.0.0.1 --port {port}" in fault
    finally:
        if server:
            server.kill()
            server.wait()
