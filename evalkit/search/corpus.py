"""Corpora: packages fetched by name into the user's cache, locked by hash, frozen as pages with canonical URLs.

A table of data/corpora.toml: `source` (npm:NAME@VERSION), `sha256` of the package file, `pages` (the folder of
markdown in it), `url` (where that folder stands on the web), `pages_sha256` of the frozen pages, `licence`.
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


def entry(name: str) -> dict[str, str]:
    """The table of data/corpora.toml named `name`."""
    rows = tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8"))
    if name not in rows:
        raise CorpusError(f"data/corpora.toml has no corpus {name!r}; it has: {', '.join(rows)}")
    return rows[name]


def fetch(name: str) -> Path:
    """The locked package file, from the cache (EVALKIT_CACHE, else ~/.cache/evalkit) or fetched by package name."""
    row = entry(name)
    kind, _, spec = row["source"].partition(":")
    cache = Path(os.environ.get("EVALKIT_CACHE") or Path.home() / ".cache" / "evalkit")
    path = cache / (re.sub(r"[^\w.@-]", "_", spec) + ".tgz")
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            if kind != "npm":
                raise CorpusError(f"data/corpora.toml [{name}]: source is {row['source']!r}; write npm:NAME@VERSION")
            if not shutil.which("npm"):
                raise CorpusError(f"{spec} is fetched with npm, which is not on PATH; install Node.js and npm")
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                command = ["npm", "pack", spec, "--silent", "--pack-destination", folder]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
                files = list(Path(folder).glob("*.tgz"))
                if done.returncode or len(files) != 1:
                    raise CorpusError(f"npm could not fetch {spec}: {(done.stderr or done.stdout).strip()[-400:]}")
                files[0].replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != row["sha256"]:
        raise CorpusError(
            f"{path} has sha256 {found}, data/corpora.toml [{name}] locks {row['sha256']}; delete the file"
        )
    return path


def freeze(name: str) -> dict[str, str]:
    """{canonical URL: markdown} of the corpus as locked; links between its pages become canonical URLs."""
    row, pages = entry(name), {}
    with tarfile.open(fetch(name)) as tar:
        for member in tar.getmembers():
            path = member.name.removeprefix(row["pages"])
            if member.name.startswith(row["pages"]) and path.endswith(".md") and (file := tar.extractfile(member)):
                pages[path] = file.read().decode("utf-8").replace("\r\n", "\n")

    def page_url(path: str) -> str:  # no ending, and an index page is its folder
        return urljoin(row["url"], re.sub(r"(^|/)index/$", r"\1", path.removesuffix(".md") + "/", flags=re.I))

    def absolute(path: str, match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({page_url(target)}{match[2] or ''})" if target in pages else match[0]

    link = re.compile(r"\]\(([^()\s:#]+\.md)(#[^()\s]*)?\)")
    frozen = {page_url(p): link.sub(lambda m, p=p: absolute(p, m), pages[p]) for p in sorted(pages)}  # type: ignore[misc]
    found = hashlib.sha256("".join(f"{url}\0{text}\0" for url, text in sorted(frozen.items())).encode()).hexdigest()
    if found != row["pages_sha256"]:
        raise CorpusError(
            f"the frozen pages of {name} have sha256 {found}, data/corpora.toml locks {row['pages_sha256']}"
        )
    return frozen
