"""A judge whose every word a test decides, and the index of the corpus that code_search asks about."""

from __future__ import annotations

import re

from evalkit import Usage
from evalkit.models import Model
from evalkit.records import Reply
from evalkit.search import index


class Scripted(Model):
    """A model that says what `says(prompt text, number of the request)` returns, and keeps what it was asked."""

    name, served = "scripted:judge", "scripted-1"

    def __init__(self, says):
        self.says, self.asked = says, []

    def ask(self, prompt):
        self.asked.append(prompt)
        text = self.says(prompt.said[0], len(self.asked) - 1)
        if isinstance(text, Exception):
            raise text
        return Reply(text=text, usage=Usage(input=100, output=10), served=self.served, stop="end_turn")


def part(prompt, fence):
    """What stands between <fence> and </fence> in a prompt."""
    return re.search(rf"^<{fence}>\n(.*?)\n</{fence}>$", prompt, re.M | re.S)[1]


def indexed(name="fastify"):
    """The index of a corpus in the user's cache, built where it is not sound."""
    if index.health(name):
        index.build(name)
    return index.load(name)
