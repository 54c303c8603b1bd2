"""Rules without a model: citations, declining, key facts. A rule is a function (sample, trace) -> {metric: value}.

The rule of docs_qa, on a sample of its kind:

    question  How many bytes may a request body have, if nothing is configured?
    gold      key_fact ["1048576", "1 MiB"], urls [".../Reference/Server/"]
    answer    "The default is 1,048,576 bytes. Sources: https://fastify.dev/docs/latest/Reference/Server/"
    values    correct 1, key_fact 1, cited 1, cited_exact 1, cited_host 1, abstained 0

A wrong or declined answer is 0; what a row cannot say (a share of no citations, denies on a real question) is null.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from .records import Citation, Sample, Suite, Trace, Verdict, key

OPENS = {"]": "[", "}": "{"}
Values = dict[str, float | None]
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


def find_citations(text: str) -> list[Citation]:
    """The URLs an answer names, in order, each once; punctuation and closing brackets of the prose are left out."""
    found: dict[str, Citation] = {}
    for match in re.finditer(r"https?://(?:\[[0-9A-Fa-f:.]+\])?[^\s<>\"`|（）【】「」，。、…]*", text):
        url = re.sub(r"\\([_*~#-])", r"\1", match.group()).partition("](")[0]
        url = url.partition("'")[0] if text[: match.start()].endswith("'") else url
        depth = 0
        for i, char in enumerate(url):  # a round bracket that closes what the URL did not open ends it
            depth += (char == "(") - (char == ")")
            if depth < 0:
                url = url[:i]
                break
        while url and (
            url[-1] in ".,;:!?'*_~\\" or (url[-1] in "]}" and url.count(url[-1]) > url.count(OPENS[url[-1]]))
        ):
            url = url[:-1]
        if re.match(r"https?://[^/?#]*[\w\]]", url):
            found.setdefault(url, Citation(url=url))
    return list(found.values())


def same_page(url: str) -> str:
    """What tells one page from another: scheme, case of the host, `www.`, trailing slash and fragment do not."""
    path, _, query = re.sub(r"^[^/]*//[^/?#]*|#.*", "", url.strip()).partition("?")
    port = re.match(r"[^/]*//[^/?#]*(:\d+)(?=[/?#]|$)", url.strip())
    return f"{host(url)}{port[1] if port else ''}{path.rstrip('/')}?{query}"


def host(url: str) -> str:
    try:
        return (urlsplit(url.strip()).hostname or "").removeprefix("www.")
    except ValueError:  # http://[ and the like
        return ""


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
    asked = re.findall(r"[A-Za-z_$]*[a-z][A-Z]\w*|\w*[A-Za-z]\d\w*|\w+_\w+|`[^`]+`", question)
    plain = prose(QUOTED.sub(lambda m: m.group()[1:-1] if " " not in m.group() else "thing", text))
    for name in sorted({a.strip("`").lower() for a in asked}, key=len, reverse=True):
        plain = plain.replace(name, "thing")
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


def docs_qa(sample: Sample, trace: Trace) -> Values:
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


RULES: dict[str, Callable[[Sample, Trace], Values]] = {"docs_qa": docs_qa}
VERSION = key(*(Path(__file__).with_name(name).read_text("utf-8") for name in ("scoring.py", "phrases.toml")))


def owed(suite: Suite, traces: Sequence[Trace]) -> dict[str, tuple[str, Sample, Trace]]:
    """{verdict key: (rule, sample, trace)} of the rule verdicts that measured traces of a suite should have."""
    samples = {s.id: s for s in suite.samples}
    mine = [t for t in traces if t.failure is None and t.suite == suite.name and t.sample_id in samples]
    cells = [(rule, samples[trace.sample_id], trace) for trace in mine for rule in suite.rules]
    return {key(trace.key, sample.gold, rule, VERSION): (rule, sample, trace) for rule, sample, trace in cells}


def verdict(k: str, cell: tuple[str, Sample, Trace]) -> Verdict:
    """Apply one rule to one trace."""
    rule, sample, trace = cell
    return Verdict(key=k, of=(trace.key,), by=f"rule:{rule}", values=RULES[rule](sample, trace))
