"""A provider on loopback, a key that opens nothing, and runs that leave nothing behind in results/."""

from __future__ import annotations

import shutil
import uuid

import pytest
from provider import Provider

from evalkit import guards


@pytest.fixture
def provider():
    """A local provider; a test says what it replies with `provider.replies = ...`."""
    with Provider() as server:
        yield server


@pytest.fixture
def key(monkeypatch):
    """A key of a provider's shape in the environment, put together here so that none stands in a file."""
    value = "-".join(["sk", "ant", "marked", uuid.uuid4().hex])
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", value)
    monkeypatch.setenv("OPENAI_API_KEY", value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return value


@pytest.fixture(scope="module")
def run_id():
    """The id of a run of this module's own: notebooks run in another process, so it stands in the real results/."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    shutil.rmtree(guards.run_dir(name), ignore_errors=True)
