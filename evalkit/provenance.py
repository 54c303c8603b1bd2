"""Who, what, when, with which versions and hashes: what a reader needs to trust or repeat a run."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from . import pricing
from .records import EVAL_VERSION, ROOT, Suite


def describe(suite: Suite) -> dict[str, Any]:
    """The circumstances of a measurement made now; `commit` ends in + when files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    packages = ["anthropic", "pydantic", "pandas", "scipy", "statsmodels", "bm25s", "google-re2", "papermill"]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "eval_version": EVAL_VERSION,
        "suite": suite.name,
        "suite_path": str(suite.path.relative_to(ROOT) if suite.path.is_relative_to(ROOT) else suite.path.resolve()),
        "samples_sha256": suite.sha,
        "corpus": suite.corpus,
        "corpus_sha256": suite.corpus_sha,
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "prices": pricing.source(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in packages},
    }
