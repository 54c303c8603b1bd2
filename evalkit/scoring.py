"""Rules without a model: tool calls, key facts, declining. A rule gives {metric: value} of a sample and its trace.

The rule of docs_qa, on a sample of its kind:

    question  How many bytes may a request body have, if nothing is configured?
    gold      key_fact ["1048576", "1 MiB"], urls [".../Reference/Server/"]
    answer    "The default is 1,048,576 bytes. Sources: https://fastify.dev/docs/latest/Reference/Server/"
    values    correct 1, key_fact 1, cited 1, cited_exact 1, cited_host 1, abstained 0

A wrong or declined answer is 0; what a row cannot say (a share of no citations, denies on a real question) is null.
"""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .citations import find_citations as find_citations
from .citations import host, line_count, overlap, resolve, same_page, shown, without_places
from .records import Citation, Failure, Sample, Suite, Trace, Verdict, key

Values = dict[str, Any]  # {metric: number or null}, and under "notes" named facts
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']*'(?!\w)")
SENTENCE = re.compile(r"(?<=[.!?;。])\s+|\n+")
HEADER = re.compile(r"(?:^|(?<=[.!?] ))[^\w\n]{0,6}(?:sources?|references?|citations?)[^\w\n]{0,4}:", re.I | re.M)
LISTED = re.compile(r"(?:[^\n]*https?://\S+)?(?:\s{0,4}\n[ \t]*(?:[-*•>]|\d+[.)]|\[|<|https?:)[^\n]*)*")


def _phrases() -> dict[str, re.Pattern[str]]:
    tables = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text("utf-8"))
    words = tables.pop("words")
    spelled = {name: "|".join(table["patterns"]) for name, table in tables.items()}
    fill = re.compile(r"\{([a-z]+)\}")

    def spell(text: str) -> str:
        return fill.sub(lambda match: spell(words[match[1]]), text)

    return {name: re.compile(spell(text)) for name, text in spelled.items()}


PHRASES = _phrases()


def without_sources(answer: str) -> str:
    """The answer without its lists of sources: a "Sources:" with the addresses behind it, not what follows them."""
    kept, at = [], 0
    for header in HEADER.finditer(answer):
        listed = LISTED.match(answer, header.end())
        if header.start() >= at and listed and "://" in listed.group():
            kept.append(answer[at : header.start()])
            at = listed.end()
    return "".join(kept) + answer[at:]


def prose(answer: str) -> str:
    """The answer's own words: without its list of sources, lower case, plain apostrophes, single spaces."""
    text = unicodedata.normalize("NFKC", without_sources(answer)).replace("’", "'").replace("ʼ", "'")
    text = re.sub(r"\*\*|__|^[ \t]*(?:#+|[-*+>]|\d+\.)[ \t]+", "", text.lower(), flags=re.M)  # markdown
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def declined(text: str) -> bool:
    """Does the answer say that it does not know or will not answer? A fact beside the doubt is an answer."""
    sentences = [s for s in SENTENCE.split(QUOTED.sub(" … ", prose(text))) if re.search(r"\w|\?|…", s)]
    return not sentences or (any(map(_declines, sentences)) and not any(map(_informs, sentences)))


def _declines(sentence: str) -> bool:
    """One sentence declines, unless what stands on the other side of its `but` tells something."""
    sentence = re.sub(r"^(?:although|though|while|even though|even if)\b[^,]*,\s*", "", sentence)
    match = PHRASES["declines"].search(sentence)
    if match is None:
        return False
    before = PHRASES["aside"].search(sentence, 0, match.start())
    after = PHRASES["aside"].search(sentence, match.end())
    told = (before and _informs(sentence[: before.start()])) or (after and _informs(sentence[after.end() :]))
    return not told


def _informs(sentence: str) -> bool:
    return not PHRASES["empty"].search(sentence) and not _declines(sentence) and len(re.findall(r"\w+|…", sentence)) > 1


def denies(text: str, question: str = "") -> bool:
    """Does the answer say that the thing asked for does not exist or is not documented?

    An identifier of the question counts as a thing, so "there is no FSTDEP026" denies and "there is no need" does not.
    """
    asked = re.findall(
        r"[A-Za-z]\w+(?:\.[A-Za-z]\w+)+(?:\(\))?|[A-Za-z_$]*[a-z][A-Z]\w*|\w*[A-Za-z]\d\w*|\w+_\w+|`[^`]+`", question
    )
    plain = prose(QUOTED.sub(lambda m: m.group()[1:-1] if " " not in m.group() else "thing", text))
    for name in sorted({a.strip("`").lower() for a in asked}, key=len, reverse=True):
        plain = plain.replace(name, "thing")
    plain = re.sub(
        r"\b(?:not|n't|false|untrue|wrong) (?:true |the case |to say )?that\b[^.;\n]*", "…", plain
    )  # denied denials
    return bool(PHRASES["denies"].search(plain))


def normal(text: str) -> str:
    """For comparing facts: case, spaces, accents, markdown and thousands separators do not count."""
    text = unicodedata.normalize("NFKD", text.replace("’", "'"))
    text = "".join(c for c in text if not unicodedata.combining(c)).lower()
    text = re.sub(r"[`*\"“”]", "", text)
    text = re.sub(r"(?<![\d.,])\d{1,3}(?:[,_' ]\d{3})+(?!\d)", lambda m: re.sub(r"\D", "", m.group()), text)
    text = re.sub(r"(?<=\d)(?=(ms|s|sec|min|h|[kmgt]i?b|bytes?)\b)", " ", text)  # 5000ms is 5000 ms
    return " ".join(re.sub(r"[\u2010-\u2015]", "-", text).split())


def states(text: str, forms: list[str]) -> bool:
    """Is any accepted form in the text on word boundaries, and not only negated ("it is not X")?

    A form inside a longer accepted form shares its fate: "not 13-15 July 2011" does not state "July 2011".
    """
    plain = normal(text)
    pattern = r"(?<!\w)(?<!\d[.,])(?<!\s-){}(?!\w|[.,]\d)"
    known = [re.escape(form) for form in map(normal, forms) if form]
    spans = [match.span() for form in known for match in re.finditer(pattern.format(form), plain)]
    negated = [(a, b) for a, b in spans if PHRASES["negates"].search(plain[:a].rstrip("'([ ") + " ")]
    return any(not any(a <= start and end <= b for a, b in negated) for start, end in spans)


def docs_qa(sample: Sample, trace: Trace, suite: Suite | None = None) -> Values:
    """Key fact (for traps: denial), citations against gold URLs and against what was read, abstention."""
    body, gold = without_sources(trace.answer), [same_page(u) for u in sample.gold.get("urls", [])]
    trap = bool(sample.gold.get("trap"))
    right = denies(body, sample.prompt) if trap else states(body, sample.gold["key_fact"])
    cited = [same_page(c.url) for c in trace.citations if c.url]
    hosts = {host(url) for url in sample.gold.get("urls", [])}
    return {
        "correct": float(right),
        "key_fact": None if trap else float(right),
        "denies": float(right) if trap else None,
        "cited": float(bool(cited)),
        "cited_exact": _share(cited, gold) if gold else None,
        "cited_host": float(any(host(c.url) in hosts for c in trace.citations)) if gold else None,
        "cited_read": _share(cited, _read(trace)),
        "abstained": float(trace.stop == "abstained"),
    }


def _share(cited: list[str], among: Sequence[str]) -> float | None:
    return sum(page in among for page in cited) / len(cited) if cited else None


def _read(trace: Trace) -> list[str]:
    """Pages that this run's own steps read; a search result shows a page and does not read it."""
    steps = [s for s in trace.steps if s.ok and s.executed]
    return [same_page(s.call.args["url"]) for s in steps if isinstance(s.call.args.get("url"), str)]


def match_calls(
    gold: dict[str, Any], calls: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), strict: bool = False
) -> dict[str, Any]:
    """Are these the calls that gold wants? correct, tool_right, args_right, over_calls, distractor, malformed, notes.

    gold as in samples.jsonl, calls [{"name", "arguments"}], tools a list of JSON-schema tools, for their defaults.
    args_right is null where the tool is wrong; over_calls counts calls beyond the needed. `strict` forbids arguments
    that gold does not list, and surplus calls. `shown` is the index of the call to show, `unwrapped` names arguments
    that came as JSON inside text.
    """
    known = {t["name"]: t for t in (t.get("function", t) for t in tools)}
    unwrapped: list[str] = []
    made = [_called(call, known, unwrapped) for call in calls]
    wanted = list(gold.get("parallel", ()))
    if "call" in gold:
        wanted = [
            gold["call"] | {"alternatives": [*gold["call"].get("alternatives", ()), *gold.get("alternatives", ())]}
        ]
    fits = [[max(_fit(option, call, known, strict) for option in (want, *want.get("alternatives", ())))
             for call in made] for want in wanted]  # fmt: skip
    over = max(0, len(calls) - len(wanted))
    right = all_served(fits, 2) and not (over and (strict or not wanted))
    named = all_served(fits, 1) if wanted else not calls
    best = max(range(len(made)), key=lambda i: (fits[0][i], -i), default=None) if len(fits) == 1 else None
    return {
        "correct": int(right),
        "tool_right": int(named),
        "args_right": int(all_served(fits, 2)) if wanted and named else None,
        "over_calls": over,
        "distractor": int(any(known.get(call.name, {}).get("distractor") for call in made)),
        "malformed": int(any(call.args is None for call in made)),
        "notes": {"shown": best} | ({"unwrapped": unwrapped} if unwrapped else {}),
    }


def all_served(fits: Sequence[Sequence[int]], least: int) -> bool:
    """Can every expectation have a call of its own that fits it? Maximum bipartite matching (scipy)."""
    if len(fits) < 2 or not fits[0]:
        return all(any(fit >= least for fit in row) for row in fits)
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    graph = csr_array([[int(fit >= least) for fit in row] for row in fits])
    return bool((maximum_bipartite_matching(graph, perm_type="column") >= 0).all())


class Called(NamedTuple):
    """A call with its tool's defaults filled in; `args` is None where the arguments are no object."""

    name: str
    args: dict[str, Any] | None
    written: frozenset[str] = frozenset()  # the arguments that stood in the call itself


def _called(call: dict[str, Any], known: dict[str, Any], unwrapped: list[str]) -> Called:
    args = _filled(call.get("arguments"), {"type": "object"}, unwrapped, "arguments")
    if not isinstance(args, dict):
        return Called(call["name"], None)
    return Called(call["name"], _filled(args, _schema(known.get(call["name"], {})), unwrapped), frozenset(args))


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    return tool.get("parameters") or tool.get("input_schema") or {}


def _filled(value: Any, schema: dict[str, Any], unwrapped: list[str], name: str = "") -> Any:
    """A value with the schema's defaults for what it leaves out; text that holds the object asked for is unwrapped."""
    options = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    kinds = [kind for o in options for kind in (o["type"] if isinstance(o.get("type"), list) else [o.get("type")])]
    if isinstance(value, str) and "object" in kinds:
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            unwrapped.append(name)
            value = inner
    if isinstance(value, dict):
        parts = {n: p for n, p in (schema.get("properties") or {}).items() if isinstance(p, dict)}
        lower = {n.casefold() for n in value}
        given = {n: _filled(v, parts.get(n, {}), unwrapped, n) for n, v in value.items()}
        return {n: p["default"] for n, p in parts.items() if "default" in p and n.casefold() not in lower} | given
    return value


def _fit(want: dict[str, Any], call: Called, known: dict[str, Any], strict: bool) -> int:
    """2: the tool and every listed argument; 1: the tool; 0: neither."""
    if call.name != want["tool"]:
        return 0
    args, listed = call.args, want.get("args", {})
    if args is None or (strict and call.written - listed.keys()):
        return 1
    parts = {
        n: p for n, p in (_schema(known.get(call.name, {})).get("properties") or {}).items() if isinstance(p, dict)
    }
    return 1 + all(n in args and _matches(rule, args[n], parts.get(n, {})) for n, rule in listed.items())


def _matches(rule: dict[str, Any], value: Any, schema: dict[str, Any]) -> bool:
    if rule["type"] == "exact":
        return alike(_filled(rule["value"], schema, []), value)
    return value is not None and has_keywords(rule["value"], value)


def alike(expected: Any, value: Any) -> bool:
    """Equal as JSON: true is not 1, 1 is 1.0; text trimmed and case folded, keys case folded, lists as multisets."""
    return _canonical(expected) == _canonical(value)


def _canonical(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value.strip().casefold())
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{json.dumps(k.casefold())}:{_canonical(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(sorted(map(_canonical, value))) + "]"
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value)


def has_keywords(keywords: Sequence[Any], value: Any) -> bool:
    """Does every element occur in the value from a word boundary on? An element that is a list means any of these."""
    if isinstance(value, (list, tuple)):
        value = " ".join(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in value)
    text = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).casefold()

    def occurs(word: Any) -> bool:
        word = str(word).casefold()
        return bool(re.search((r"(?<!\w)" if word[:1].isalnum() else "") + re.escape(word), text))

    return all(any(map(occurs, k)) if isinstance(k, list) else occurs(k) for k in keywords)


def tool_choice(sample: Sample, trace: Trace, suite: Suite | None = None) -> Values:
    """match_calls on what the model called; a reply that was cut off says nothing, so all is null."""
    calls = [{"name": s.call.name, "arguments": None if s.call.malformed else s.call.args} for s in trace.steps]
    found = match_calls(sample.gold, calls, sample.tools, bool(suite and suite.settings.get("strict")))
    if trace.stop in ("truncated", "output_tokens"):
        return dict.fromkeys(n for n in found if n != "notes")
    if "no_call" in sample.gold and (trace.stop == "refused" or not trace.answer.strip()):  # no call, and no words
        found |= {"correct": 0, "tool_right": 0}
    return found


def code_search(sample: Sample, trace: Trace, suite: Suite | None = None) -> Values:
    """Key fact or denial, and the ladder of citations: do they exist, in range, and were they read in this run?"""
    files, gold = suite.texts() if suite else {}, sample.gold
    trap = bool(gold.get("trap"))
    body = without_places(without_sources(trace.answer))
    right = denies(body, sample.prompt) if trap else states(body, gold["key_fact"])
    cited = [c.model_copy(update={"path": resolve(c.path, files)}) for c in trace.citations if c.path]
    valid = [c for c in cited if c.path and 1 <= c.start <= c.end <= line_count(files[c.path])]
    seen = [shown(step) for step in trace.steps]
    wanted = [Citation(path=p["path"], start=p["start"], end=p["end"]) for p in gold.get("citations", ())]
    recalled = [any(overlap(place, c) for c in valid) for place in wanted]
    first = next((n for n, found in enumerate(seen, 1) if any(overlap(w, f) for w in wanted for f in found)), None)

    def share(hits: int) -> float | None:
        return hits / len(cited) if cited else None

    return {
        "correct": float(right),
        "key_fact": None if trap else float(right),
        "denies": float(right) if trap else None,
        "cited": float(bool(cited)),
        "exists": share(sum(bool(c.path) for c in cited)),
        "in_range": share(len(valid)),
        "retrieved": share(sum(any(overlap(c, f) for found in seen for f in found) for c in valid)),
        "gold_recall": sum(recalled) / len(wanted) if wanted else None,
        "steps_to_gold": first,
        "abstained": float(trace.stop == "abstained"),
    }


RULES: dict[str, Callable[[Sample, Trace, Suite | None], Values]] = {
    "docs_qa": docs_qa,
    "tool_choice": tool_choice,
    "code_search": code_search,
}


def is_right(values: Values) -> bool:
    """Do a rule's values say right? `correct`, or the conjunction of a scenario (`…_exact`)."""
    return values.get("correct", next((v for n, v in values.items() if n.endswith("_exact")), None)) == 1


VERSION = key(
    *(Path(__file__).with_name(name).read_text("utf-8") for name in ("scoring.py", "citations.py", "phrases.toml"))
)


def owed(suite: Suite, traces: Sequence[Trace]) -> dict[str, tuple[str, Sample, Trace, Suite]]:
    """{verdict key: (rule, sample, trace, suite)} of the rule verdicts that measured traces of a suite should have."""
    samples = {s.id: s for s in suite.samples}
    mine = [t for t in traces if t.failure is None and t.suite == suite.name and t.sample_id in samples]
    cells = [(rule, samples[trace.sample_id], trace, suite) for trace in mine for rule in suite.rules]
    return {key(c[2].key, c[1].gold, c[1].tools, suite.settings, c[0], VERSION): c for c in cells}


def verdict(k: str, cell: tuple[str, Sample, Trace, Suite]) -> Verdict:
    """Apply one rule to one trace."""
    rule, sample, trace, suite = cell
    known: dict[str, Any] = {"key": k, "of": (trace.key,), "by": f"rule:{rule}"}
    try:
        values = RULES[rule](sample, trace, suite)
    except Exception as error:  # a rule that fails says nothing, and ends nothing
        return Verdict(**known, failure=Failure(where="scorer", kind=type(error).__name__, detail=str(error)[:300]))
    notes = values.pop("notes", {})
    return Verdict(**known, values=values, notes=notes)
