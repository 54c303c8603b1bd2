"""Agents without a provider: `extractive:`, an honest baseline that reads with the same tools, and the script: ones.

Only the script: models see the sample: `null` never answers, `oracle` answers with the gold, `random` with a passage or
a tool drawn by seed; FILE plays replies from a JSON-lines file, {"text": …, "calls": [{"name", "arguments"}]} a turn.
A scenario's sample brings its own plays: those of `oracle` and of `gap`, which is imperfect on purpose.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..records import Call, Reply, Said, Sample, Step
from ..tools import Tool
from . import Model, Prompt, ProviderError

HIT = re.compile(r"^(https?://\S+) line \d+\n(.*?)(?=\n\n\S+ line \d+\n|\Z)", re.M | re.S)
PLACE = re.compile(r"^([^\s:]+:\d+(?:-\d+)?)(?=[: ])(.*?)(?=\n\n\S+:\d|\Z)", re.M | re.S)
WINDOW = 40  # lines of a file that are read at once


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


def hits(result: str) -> list[tuple[str, str]]:
    """(place, snippet) of a search result: a URL, or a window of a file as path:start-end around what was found."""
    found = list(HIT.findall(result))
    for place, snippet in PLACE.findall(result):
        path, _, lines = place.rpartition(":")
        middle = sum(map(int, (lines.split("-") * 2)[:2])) // 2
        start = max(1, middle - middle % WINDOW - WINDOW // 4)
        found.append((f"{path}:{start}-{start + WINDOW + WINDOW // 2}", snippet))
    return found


def opened(argument: str, place: str) -> dict[str, Any]:
    """The arguments that read a place: a page by its `url`, lines of a file by its `path`."""
    if argument == "url":
        return {"url": place}
    path, _, lines = place.rpartition(":")
    start, end = map(int, lines.split("-"))
    return {"path": path, "start_line": start, "end_line": end}


def pieces(step: Step) -> list[tuple[str, str]]:
    """(passage, where it stands) of a page or of the lines of a file that a step has read."""
    if "url" in step.call.args:
        return [(passage, step.call.args["url"]) for passage in passages(step.result)]
    found: list[list[tuple[int, str]]] = [[]]
    for number, text in re.findall(r"^(\d+): ?(.*)$", step.result, re.M):
        found[-1].append((int(number), text))
        if not text.strip() or len(found[-1]) == 12:
            found.append([])
    blocks = [block for block in found if sum(len(words(text)) for _, text in block) > 2]
    path = step.call.args["path"]
    return [("\n".join(text for _, text in block), f"{path}:{block[0][0]}-{block[-1][0]}") for block in blocks]


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
        search, reader = pick(tools, "pattern", "query"), pick(tools, "url", "path")
        if search and turn == 0 and query and not closing:
            pattern, (tool, argument) = "|".join(rf"\b{re.escape(w)}" for w in query), search
            if argument == "query":
                return reply(calls=[(tool.name, {argument: " ".join(query)})])
            if reader and reader[1] == "path":  # lines come by path, so each of the longest words is searched alone
                longest = sorted(query, key=len, reverse=True)[:5]
                return reply(calls=[(tool.name, {argument: rf"(?i)\b{re.escape(w)}"}) for w in longest])
            return reply(calls=[(tool.name, {argument: pattern})])
        found = [hits(step.result) for step in steps]
        if reader and any(found) and turn == 1 and not closing:
            shared: defaultdict[str, float] = defaultdict(float)
            for places in found:
                for place, snippet in places:  # a hit among many says little
                    shared[place] += len(set(query) & set(words(snippet))) / (len(places) if len(found) > 1 else 1)
            best = sorted(shared, key=lambda place: -shared[place])[: self.pages]
            return reply(calls=[(reader[0].name, opened(reader[1], place)) for place in best], turn=1)
        pool = [piece for s in steps if reader and s.call.name == reader[0].name for piece in pieces(s)]
        pool = pool or [(snippet, place) for places in found for place, snippet in places]
        if not pool:
            return reply("I don't know.")
        quoted = [pool[i] for i in rank(query, [text for text, _ in pool])[: self.quotes]]
        sources = ", ".join(dict.fromkeys(place for _, place in quoted))
        return reply(" ".join(text for text, _ in quoted) + f"\n\nSources: {sources}")


def arguments(tool: Tool, text: str) -> dict[str, Any]:
    """The required arguments of a tool: every text is `text`, the rest the least its type allows."""
    least: dict[str, Any] = {"object": {}, "array": [], "integer": 1, "number": 1, "boolean": False}
    parts = {n: tool.schema.get("properties", {}).get(n, {}) for n in tool.schema.get("required", ())}
    return {n: p["enum"][0] if "enum" in p else least.get(str(p.get("type")), text) for n, p in parts.items()}


def guess(part: dict[str, Any], draw: random.Random) -> Any:
    """A value of a schema: one of its codes, nothing in a list, a word for text."""
    if "enum" in part or "const" in part:
        return draw.choice(part.get("enum", [part.get("const")]))
    return {"array": [], "object": {}, "integer": 1, "boolean": False}.get(str(part.get("type")), "done")


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
    """script:null, script:oracle, script:random, script:gap or script:FILE."""

    def __init__(self, kind: str, seed: int = 0, sample: Sample | None = None, repeat: int = 0):
        if kind not in ("null", "oracle", "random", "gap") and not Path(kind).is_file():
            raise ValueError(f"script:{kind}: no such file; or use script:null, :oracle, :random, :gap")
        self.kind, self.seed, self.sample, self.repeat = kind, seed, sample, repeat
        self.name, self.options = f"script:{kind}", {"seed": seed} if kind == "random" else {}

    def for_cell(self, sample: Sample, repeat: int, condition: str = "") -> Model:
        return Script(self.kind, self.seed, sample, repeat)

    def ask(self, prompt: Prompt) -> Reply:
        assert self.sample is not None
        said, tools, closing = asked(prompt)[1], prompt.tools, prompt.closing
        turn, steps = sum(isinstance(s, Reply) for s in said), [s for s in said if isinstance(s, Step) and s.ok]
        search, reader = pick(tools, "pattern", "query"), None if closing else pick(tools, "url", "path")
        if plays := self.sample.gold.get("plays", {}).get(self.kind):
            return reply("" if turn < len(plays) else "That is all.", plays[turn] if turn < len(plays) else (), turn)
        if self.kind == "gap":
            raise ProviderError("no_script", "only a scenario's samples bring a script:gap")
        if self.kind == "null":
            return reply("I don't know.")
        if self.kind == "random" and any(t.final for t in tools):  # one action and a submission, both drawn by code
            draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}")
            acts = [t for t in tools if t.final or t.name == "take_action"]
            return reply(calls=[(t.name, {n: guess(p, draw) for n, p in t.schema["properties"].items()}) for t in acts])
        if self.kind in ("oracle", "random") and tools and not any(t.run for t in tools):
            draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}")
            drawn = draw.choice(list(tools))
            one = (drawn.name, arguments(drawn, draw.choice(words(self.sample.prompt) or ["-"])))
            calls = expected(self.sample.gold) if self.kind == "oracle" else [one]
            return reply("" if calls else "None of these tools is needed.", calls)
        if self.kind == "oracle":  # reads the gold places where it can, then says the gold and cites them
            gold = self.sample.gold
            places = gold.get("urls") or [f"{c['path']}:{c['start']}-{c['end']}" for c in gold.get("citations", ())]
            if reader and places and turn == 0:
                return reply(calls=[(reader[0].name, opened(reader[1], place)) for place in places])
            return reply(gold["answer"] + ("\n\nSources: " + ", ".join(places)) * bool(places))
        if self.kind == "random":  # searches a random pair of letters, quotes a random passage of a random place found
            draw = random.Random(f"{self.seed}/{self.sample.id}/{self.repeat}/{turn}")
            if reader and search and turn == 0:
                return reply(calls=[(search[0].name, {search[1]: "".join(draw.choices("acdehilmnoprstu", k=2))})])
            if reader and turn == 1 and (found := hits(steps[0].result if steps else "")):
                return reply(calls=[(reader[0].name, opened(reader[1], draw.choice(found)[0]))], turn=1)
            pool = pieces(steps[-1]) if len(steps) > 1 else []
            text, place = draw.choice(pool) if pool else ("", "")
            return reply(f"{text}\n\nSources: {place}" if pool else "I don't know.")
        lines = [json.loads(line) for line in Path(self.kind).read_text("utf-8").splitlines() if line.strip()]
        if turn >= len(lines):
            raise ProviderError("script_ended", f"{self.kind} holds {len(lines)} replies")
        calls = [(c["name"], c.get("arguments", {})) for c in lines[turn].get("calls", ())]
        return reply(lines[turn].get("text", ""), calls, turn)
