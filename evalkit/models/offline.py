"""Agents without a provider: `extractive:`, an honest baseline that reads with the same tools, and the script: ones.

Only the script: models see the sample: `null` never answers, `oracle` answers with the gold, `random` with a passage or
a tool drawn by seed; FILE plays replies from a JSON-lines file, {"text": …, "calls": [{"name", "arguments"}]} a turn.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..records import Call, Reply, Said, Sample, Step
from ..tools import Tool
from . import Model, Prompt, ProviderError

HIT = re.compile(r"^(https?://\S+) line \d+\n(.*?)(?=\n\n\S+ line \d+\n|\Z)", re.M | re.S)


def words(text: str) -> list[str]:
    """Lower-case words of a text without stop words; an identifier counts whole and by its parts."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    found: list[str] = []
    for word in re.findall(r"[A-Za-z_$][\w$-]*|\d+", text):
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", word)
        found += dict.fromkeys(w.lower() for w in (word, *parts))
    return [w for w in found if w not in STOPWORDS_EN_PLUS and len(w) > 1]


def passages(markdown: str) -> list[str]:
    """Paragraphs, list items and table rows of a page, each under the heading it stands below, links as their text."""
    heading, found = "", []
    plain = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", re.sub(r"```.*?```", "", markdown, flags=re.S))
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*+] |\|)", plain):
        text = " ".join(block.split())
        if text.startswith("#"):
            heading = re.sub(r"<[^>]+>", "", text).strip("# ") + ": "
        elif len(re.findall(r"\w+", text)) > 3:
            found.append(heading + text)
    return found


def pick(tools: Sequence[Tool], *names: str) -> tuple[Tool, str] | None:
    """The first tool that takes an argument of one of these names."""
    return next(((t, n) for t in tools for n in names if n in t.schema.get("properties", {})), None)


def asked(prompt: Prompt) -> tuple[str, Sequence[Said]]:
    """The question, which is the last thing the user said but for a closing word, and what came after it."""
    users = [i for i, entry in enumerate(prompt.said) if isinstance(entry, str)]
    at = users[-2] if prompt.closing and len(users) > 1 else users[-1]
    return str(prompt.said[at]), prompt.said[at + 1 :]


def reply(text: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = (), turn: int = 0) -> Reply:
    made = [Call(id=f"call-{turn}-{n}", name=name, args=args) for n, (name, args) in enumerate(calls)]
    return Reply(text=text, calls=tuple(made), stop="tool_use" if made else "end_turn")


class Extractive(Model):
    """Searches for the question's words, reads the pages that hold most of them, answers with the best passages."""

    name = "extractive:"
    pages, quotes = 3, 2  # pages read, passages quoted

    def ask(self, prompt: Prompt) -> Reply:
        tools, closing = prompt.tools, prompt.closing
        question, said = asked(prompt)
        query = list(dict.fromkeys(words(question)))
        if tools and not any(t.run for t in tools):  # the tool whose description is nearest, asked in the user's words
            nearest = tools[rank(query, [f"{t.name} {t.about}" for t in tools])[0]]
            return reply(calls=[(nearest.name, arguments(nearest, question))])
        turn, steps = sum(isinstance(s, Reply) for s in said), [s for s in said if isinstance(s, Step) and s.ok]
        search, reader = pick(tools, "pattern", "query"), pick(tools, "url")
        if search and turn == 0 and query and not closing:
            pattern = "|".join(rf"\b{re.escape(w)}" for w in query) if search[1] == "pattern" else " ".join(query)
            return reply(calls=[(search[0].name, {search[1]: pattern})])
        hits = [hit for step in steps for hit in HIT.findall(step.result)]
        if reader and hits and turn == 1 and not closing:
            shared: Counter[str] = Counter()
            for url, snippet in hits:
                shared[url] += len(set(query) & set(words(snippet)))
            urls = [url for url, _ in shared.most_common(self.pages)]
            return reply(calls=[(reader[0].name, {reader[1]: url}) for url in urls], turn=1)
        read = [s for s in steps if reader and s.call.name == reader[0].name]
        pool = [(p, s.call.args[reader[1]]) for s in read if reader for p in passages(s.result)]
        pool = pool or [(snippet, url) for url, snippet in hits]
        if not pool:
            return reply("I don't know.")
        best = [pool[i] for i in rank(query, [text for text, _ in pool])[: self.quotes]]
        sources = ", ".join(dict.fromkeys(url for _, url in best))
        return reply(" ".join(text for text, _ in best) + f"\n\nSources: {sources}")


def arguments(tool: Tool, text: str) -> dict[str, Any]:
    """The required arguments of a tool: every text is `text`, the rest the least its type allows."""
    least: dict[str, Any] = {"object": {}, "array": [], "integer": 1, "number": 1, "boolean": False}
    parts = {n: tool.schema.get("properties", {}).get(n, {}) for n in tool.schema.get("required", ())}
    return {n: p["enum"][0] if "enum" in p else least.get(str(p.get("type")), text) for n, p in parts.items()}


def expected(gold: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The calls a tool_choice gold wants, with the first wording of every keyword."""
    calls = gold.get("parallel") or ([gold["call"]] if "call" in gold else [])
    return [(c["tool"], {n: a["value"] if a["type"] == "exact" else
             " ".join(k[0] if isinstance(k, list) else k for k in a["value"])
             for n, a in c.get("args", {}).items()}) for c in calls]  # fmt: skip


def rank(query: list[str], texts: list[str]) -> list[int]:
    """Indices of the texts, best first by BM25, ties in order."""
    import bm25s

    index = bm25s.BM25()
    index.index([words(text) or ["-"] for text in texts], show_progress=False)
    scores = index.get_scores([w for w in query if w in index.vocab_dict] or ["-"])
    return sorted(range(len(texts)), key=lambda i: (-scores[i], i))


class Script(Model):
    """script:null, script:oracle, script:random or script:FILE."""

    def __init__(self, kind: str, seed: int = 0, sample: Sample | None = None, repeat: int = 0):
        if kind not in ("null", "oracle", "random") and not Path(kind).is_file():
            raise ValueError(f"script:{kind}: no such file; or use script:null, script:oracle, script:random")
        self.kind, self.seed, self.sample, self.repeat = kind, seed, sample, repeat
        self.name, self.options = f"script:{kind}", {"seed": seed} if kind == "random" else {}

    def for_cell(self, sample: Sample, repeat: int, condition: str = "") -> Model:
        return Script(self.kind, self.seed, sample, repeat)

    def ask(self, prompt: Prompt) -> Reply:
        assert self.sample is not None
        said, tools, closing = asked(prompt)[1], prompt.tools, prompt.closing
        turn, steps = sum(isinstance(s, Reply) for s in said), [s for s in said if isinstance(s, Step) and s.ok]
        search, reader = pick(tools, "pattern", "query"), None if closing else pick(tools, "url")
        if self.kind == "null":
            return reply("I don't know.")
        if self.kind in ("oracle", "random") and tools and not any(t.run for t in tools):
            draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}")
            drawn = draw.choice(list(tools))
            one = (drawn.name, arguments(drawn, draw.choice(words(self.sample.prompt) or ["-"])))
            calls = expected(self.sample.gold) if self.kind == "oracle" else [one]
            return reply("" if calls else "None of these tools is needed.", calls)
        if self.kind == "oracle":  # reads the gold pages where it can, then says the gold and cites them
            urls = self.sample.gold.get("urls", [])
            if reader and urls and turn == 0:
                return reply(calls=[(reader[0].name, {reader[1]: url}) for url in urls])
            return reply(self.sample.gold["answer"] + ("\n\nSources: " + ", ".join(urls)) * bool(urls))
        if self.kind == "random":  # searches a random pair of letters, quotes a random passage of a random page found
            draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}/{turn}")
            if reader and search and turn == 0:
                return reply(calls=[(search[0].name, {search[1]: "".join(draw.choices("acdehilmnoprstu", k=2))})])
            if reader and turn == 1 and (hits := HIT.findall(steps[0].result if steps else "")):
                return reply(calls=[(reader[0].name, {reader[1]: draw.choice(hits)[0]})], turn=1)
            pool = passages(steps[-1].result) if len(steps) > 1 else []
            return reply(f"{draw.choice(pool)}\n\nSources: {steps[-1].call.args['url']}" if pool else "I don't know.")
        lines = [json.loads(line) for line in Path(self.kind).read_text("utf-8").splitlines() if line.strip()]
        if turn >= len(lines):
            raise ProviderError("script_ended", f"{self.kind} holds {len(lines)} replies")
        calls = [(c["name"], c.get("arguments", {})) for c in lines[turn].get("calls", ())]
        return reply(lines[turn].get("text", ""), calls, turn)
