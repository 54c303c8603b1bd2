"""Who, what, when, with which versions and hashes: what a reader needs to trust or repeat a run."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import pricing
from .records import EVAL_VERSION, ROOT, Suite

PACKAGES = ("evalkit", "anthropic", "pydantic", "pandas", "scipy", "statsmodels", "bm25s", "google-re2", "papermill")


def describe(suite: Suite) -> dict[str, Any]:
    """The circumstances of a measurement made now."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "eval_version": EVAL_VERSION,
        "suite": suite.name,
        "samples_sha256": suite.sha,
        "corpus": suite.corpus,
        "corpus_sha256": suite.corpus_sha,
        "commit": commit(),
        "prices": pricing.source(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": {name: installed(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit the project stands on, with `+` when files differ from it; "" outside a checkout."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
