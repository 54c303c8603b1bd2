"""Corpora: packages fetched by name into the user's cache, locked by hash, frozen as pages with canonical URLs.

`data/corpora.toml` holds one table a corpus:

    [fastify-docs]
    source = "npm:fastify@5.12.8"
    sha256 = "…"                      # of the package file
    pages = "package/docs/"           # the folder of markdown files inside it
    url = "https://fastify.dev/docs/latest/"
    pages_sha256 = "…"                # of the frozen pages: every URL with its text
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path
from urllib.parse import urljoin

from filelock import FileLock

from ..records import ROOT


class CorpusError(RuntimeError):
    """The corpus is not to be had, or is not the one that was locked."""


def cache_dir() -> Path:
    """Where fetched packages are kept: EVALKIT_CACHE, else the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EVALKIT_CACHE") or Path(home) / "evalkit")


def entry(name: str) -> dict[str, str]:
    """The row of data/corpora.toml named `name`."""
    rows = tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8"))
    if name not in rows:
        raise CorpusError(f"data/corpora.toml has no corpus {name!r}; it has: {', '.join(rows)}")
    return rows[name]


def fetch(name: str) -> Path:
    """The locked package file, from the cache or fetched by package name; raises CorpusError."""
    row = entry(name)
    kind, _, spec = row["source"].partition(":")
    path = cache_dir() / "packages" / (re.sub(r"[^\w.@-]", "_", spec) + ".tgz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            if kind != "npm":
                raise CorpusError(f"data/corpora.toml [{name}]: source {row['source']!r}; it must be npm:NAME@VERSION")
            if not shutil.which("npm"):
                raise CorpusError(f"the corpus {spec} is fetched with npm, which is not on PATH; install Node.js and npm")
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                done = subprocess.run(
                    ["npm", "pack", spec, "--silent", "--pack-destination", folder],
                    capture_output=True, text=True, timeout=300, cwd=folder,
                )  # fmt: skip
                files = list(Path(folder).glob("*.tgz"))
                if done.returncode or len(files) != 1:
                    raise CorpusError(f"npm could not fetch {spec}: {(done.stderr or done.stdout).strip()[-400:]}")
                files[0].replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != row["sha256"]:
        raise CorpusError(
            f"{path} has sha256 {found}, but data/corpora.toml [{name}] locks {row['sha256']}; "
            f"delete that file to fetch it again"
        )
    return path


def freeze(name: str) -> dict[str, str]:
    """{canonical URL: markdown} of the corpus as locked; links between its pages become canonical URLs."""
    row = entry(name)
    base, folder = row["url"], row["pages"]
    pages = {}
    with tarfile.open(fetch(name)) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            path = member.name.removeprefix(folder)
            if member.isfile() and member.name.startswith(folder) and path.endswith(".md"):
                file = tar.extractfile(member)
                assert file is not None
                pages[path] = file.read().decode("utf-8").replace("\r\n", "\n")
    frozen = {page_url(base, path): _absolute(text, path, base, pages) for path, text in pages.items()}
    found = pages_sha256(frozen)
    if found != row["pages_sha256"]:
        raise CorpusError(
            f"the frozen pages of {name} have sha256 {found}, but data/corpora.toml locks {row['pages_sha256']}; "
            f"if the way pages are frozen has changed, old runs are not comparable: lock the new hash and run again"
        )
    return frozen


def page_url(base: str, path: str) -> str:
    """The canonical URL of a markdown file: no ending, and an index page is its folder."""
    return urljoin(base, re.sub(r"(^|/)index/$", r"\1", path.removesuffix(".md") + "/", flags=re.I))


def pages_sha256(pages: dict[str, str]) -> str:
    return hashlib.sha256("".join(f"{url}\0{text}\0" for url, text in sorted(pages.items())).encode()).hexdigest()


def _absolute(text: str, path: str, base: str, pages: dict[str, str]) -> str:
    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({page_url(base, target)}{match[2] or ''})" if target in pages else match[0]

    return re.sub(r"\]\(([^()\s:#]+\.md)(#[^()\s]*)?\)", link, text)
