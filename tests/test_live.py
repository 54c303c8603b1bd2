"""One tool call and one judgement over the network, by the model that EVALKIT_LIVE names; skipped without its key."""

import os

import pytest

from evalkit import open_model
from evalkit.judge import SCHEMA, read_grade
from evalkit.models import Prompt, ProviderError
from evalkit.tools import tool

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def model():
    spec = os.environ.get("EVALKIT_LIVE", "")
    if not spec or spec.startswith(("extractive:", "script:")):
        pytest.skip("name a model: make test-live MODEL=anthropic:claude-haiku-4-5")
    try:
        found = open_model(spec)
        found.ask(Prompt("", ["Say yes."], max_tokens=16))
    except (ValueError, ProviderError) as error:
        pytest.skip(f"{spec} cannot be asked from here: {error}")
    return found


def lookup(word: str) -> str:
    """Look a word up in the glossary. Always use it before answering."""
    return f"{word}: a small boat"


def test_the_model_calls_the_tool_it_is_told_to_call(model):
    reply = model.ask(Prompt("Use the tool.", ["What is a coracle? Look it up."], (tool(lookup),), 512))
    assert [call.name for call in reply.calls][:1] == ["lookup"] and not reply.calls[0].malformed


def test_the_model_gives_a_structured_judgement(model):
    text = "Grade the answer '4' to 'What is 2 + 2?'; the right answer is 4."
    reply = model.ask(Prompt("", [text], max_tokens=512, schema=SCHEMA))
    assert read_grade(reply.text).correctness in range(1, 6)
