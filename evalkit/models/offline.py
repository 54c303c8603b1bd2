"""Agents without a provider: `extractive:`, an honest baseline that reads with the same tools, and the script: ones.

Only the script: models see the sample: `null` never answers, `oracle` answers with the gold, `random` answers with a
passage drawn by seed, and FILE plays replies from a JSON-lines file: {"text": …, "calls": [{"name", "arguments"}]}.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..records import Call, Message, Reply, Sample
from ..tools import Tool
from . import Model, ProviderError

STOP = set(
    "a about after all also an and any are as at be because been before being but by can could did do does doing for from"
    " get give given had has have how i if in into is it its just like make may me more most must my need no not now of on"
    " one only or other our out own per same say set should so some such than that the their them then there these they"
    " this those through to under until up upon us use used using very was way we were what when where whether which while"
    " who why will with without would you your still yet".split()
)
HIT = re.compile(r"^(https?://\S+) line (\d+)\n(.*?)(?=\n\n\S+ line \d+\n|\Z)", re.M | re.S)


def words(text: str) -> list[str]:
    """Lower-case words of a text; an identifier counts whole and by its parts."""
    found = []
    for word in re.findall(r"[A-Za-z_$][\w$-]*|\d+", text):
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", word)
        found += [word.lower(), *(p.lower() for p in parts if len(parts) > 1)]
    return [w for w in found if w not in STOP and len(w) > 1]


def passages(markdown: str) -> list[str]:
    """Paragraphs, list items and table rows of a page, each under the heading it stands below, links as their text."""
    heading, found = "", []
    markdown = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", markdown)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*+] |\|)", re.sub(r"```.*?```", "", markdown, flags=re.S)):
        text = " ".join(block.split())
        if text.startswith("#"):
            heading = re.sub(r"<[^>]+>", "", text).strip("# ")
        elif len(re.findall(r"\w+", text)) > 3:
            found.append(f"{heading}: {text}" if heading else text)
    return found


def pick(tools: Sequence[Tool], *names: str) -> tuple[Tool, str] | None:
    """The first tool with an argument of one of these names."""
    return next(((t, n) for t in tools for n in names if n in t.schema.get("properties", {})), None)


class Extractive(Model):
    """Searches for the question's words, reads the pages that hold most of them, answers with the best passages."""

    provider = "extractive"
    name = "extractive:"
    options: dict[str, Any] = {}  # noqa: RUF012
    pages, quotes = 3, 2  # pages read, passages quoted

    def ask(
        self, system: str, messages: Sequence[Message], tools: Sequence[Tool] = (), max_tokens: int = 4096, closing: bool = False
    ) -> Reply:
        question = next(m.text for m in messages if m.role == "user")
        query = list(dict.fromkeys(words(question)))
        results = [m.text for m in messages if m.role == "tool" and m.ok]
        turn = sum(m.role == "assistant" for m in messages)
        search, reader = pick(tools, "pattern", "query"), pick(tools, "url")
        if search and turn == 0 and query and not closing:
            pattern = "|".join(rf"\b{re.escape(w)}" for w in query) if search[1] == "pattern" else " ".join(query)
            extra = {"max_results": 12} if "max_results" in search[0].schema["properties"] else {}
            return _reply(calls=[(search[0].name, {search[1]: pattern, **extra})], turn=turn)
        hits = [hit for text in results for hit in HIT.findall(text)]
        if reader and hits and turn == 1 and not closing:
            best: Counter[str] = Counter()
            for url, _, snippet in hits:
                best[url] += len(set(query) & set(words(snippet)))
            urls = [url for url, _ in best.most_common(self.pages)]
            return _reply(calls=[(reader[0].name, {reader[1]: url}) for url in urls], turn=turn)
        read = [(m.text, c.args.get(reader[1], "")) for m, c in _answered(messages) if reader and c.name == reader[0].name]
        pool = [(p, url) for text, url in read for p in passages(text)] or [(text, url) for url, _, text in hits]
        if not pool:
            return _reply("I don't know.")
        top = _best(query, [p for p, _ in pool], self.quotes)
        sources = dict.fromkeys(pool[i][1] for i in top)
        return _reply(" ".join(pool[i][0] for i in top) + "\n\nSources: " + ", ".join(sources))


def _best(query: list[str], texts: list[str], k: int) -> list[int]:
    """Indices of the k texts that BM25 puts first."""
    import bm25s

    index = bm25s.BM25()
    index.index([words(t) or ["-"] for t in texts], show_progress=False)
    scores = index.get_scores([w for w in query if w in index.vocab_dict] or ["-"])
    return sorted(range(len(texts)), key=lambda i: (-scores[i], i))[:k]


def _answered(messages: Sequence[Message]) -> list[tuple[Message, Call]]:
    """Good tool results with the calls they answer."""
    calls = {c.id: c for m in messages for c in m.calls}
    return [(m, calls[m.call_id]) for m in messages if m.role == "tool" and m.ok and m.call_id in calls]


def _reply(text: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = (), turn: int = 0) -> Reply:
    made = tuple(Call(id=f"call-{turn}-{n}", name=name, args=args, raw=json.dumps(args)) for n, (name, args) in enumerate(calls))
    return Reply(text=text, calls=made, stop="tool_use" if calls else "end_turn")


def script(name: str, seed: int = 0) -> Model:
    """script:null, script:oracle, script:random, or script:FILE."""
    if name in ("null", "oracle", "random"):
        return Script(name, seed)
    if not Path(name).is_file():
        raise ValueError(f"script:{name}: no such file; use script:null, script:oracle, script:random or a JSON-lines file")
    return Script(name, seed, [json.loads(line) for line in Path(name).read_text("utf-8").splitlines() if line.strip()])


class Script(Model):
    provider = "script"

    def __init__(self, kind: str, seed: int = 0, lines: list[dict[str, Any]] | None = None, sample: Sample | None = None, repeat: int = 0):
        self.kind, self.seed, self.lines, self.sample, self.repeat = kind, seed, lines, sample, repeat
        self.name, self.options = f"script:{kind}", {"seed": seed} if kind == "random" else {}

    def for_cell(self, sample: Sample, repeat: int) -> Model:
        return Script(self.kind, self.seed, self.lines, sample, repeat)

    def ask(
        self, system: str, messages: Sequence[Message], tools: Sequence[Tool] = (), max_tokens: int = 4096, closing: bool = False
    ) -> Reply:
        turn = sum(m.role == "assistant" for m in messages)
        if self.lines is not None:
            if turn >= len(self.lines):
                raise ProviderError("script_ended", f"{self.kind} holds {len(self.lines)} replies")
            line = self.lines[turn]
            return _reply(line.get("text", ""), [(c["name"], c.get("arguments", {})) for c in line.get("calls", ())], turn)
        assert self.sample is not None
        if self.kind == "oracle":
            return self._oracle(messages, tools, closing)
        return self._random(messages, tools, closing, turn) if self.kind == "random" else _reply("I don't know.")

    def _oracle(self, messages: Sequence[Message], tools: Sequence[Tool], closing: bool) -> Reply:
        """Reads the gold pages where there is a tool for it, then gives the gold answer and cites them."""
        gold, reader = self.sample.gold, pick(tools, "url")  # type: ignore[union-attr]
        urls = gold.get("urls", [])
        if reader and urls and not closing and messages[-1].role == "user":
            return _reply(calls=[(reader[0].name, {reader[1]: url}) for url in urls])
        return _reply(gold["answer"] + ("\n\nSources: " + ", ".join(urls) if urls else ""))

    def _random(self, messages: Sequence[Message], tools: Sequence[Tool], closing: bool, turn: int) -> Reply:
        """Searches for a random pair of letters, reads a random page of the results, quotes a random passage of it."""
        draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}/{turn}")  # type: ignore[union-attr]
        search, reader = pick(tools, "pattern", "query"), pick(tools, "url")
        results = [m.text for m in messages if m.role == "tool" and m.ok]
        hits = HIT.findall(results[0]) if results else []
        if search and turn == 0 and not closing:
            pair = "".join(draw.choices("abcdefghilmnoprstuvw", k=2))
            return _reply(calls=[(search[0].name, {search[1]: pair})], turn=turn)
        if reader and hits and turn == 1 and not closing:
            return _reply(calls=[(reader[0].name, {reader[1]: draw.choice(hits)[0]})], turn=turn)
        pool = passages(results[-1]) if len(results) > 1 else []
        url = next((c.args.get("url") for _, c in _answered(messages) if "url" in c.args), "")
        return _reply(f"{draw.choice(pool)}\n\nSources: {url}" if pool else "I don't know.")
