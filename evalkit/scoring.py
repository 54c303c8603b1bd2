"""Rules without a model: citations, declining, key facts. A rule is a function (sample, trace) -> {metric: value}.

The rule of docs_qa, on a sample of its kind:

    question  How many bytes may a request body have before the server refuses it, if nothing is configured?
    gold      key_fact ["1048576", "1 MiB"], urls [".../Reference/Server/"]
    answer    "The default is 1,048,576 bytes. Sources: https://fastify.dev/docs/latest/Reference/Server/"
    values    correct 1, key_fact 1, cited 1, cited_exact 1, cited_host 1, abstained 0

A wrong or declined answer is 0; what a row cannot say (a share of no citations, denies on a real question) is null.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .records import Citation, Sample, Suite, Trace, Verdict, key

Values = dict[str, float | None]

QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']*'(?!\w)")
SENTENCE = re.compile(r"(?<=[.!?;。])\s+|\n+")
SOURCES = re.compile(r"^\W*(sources?|references?|citations?)\W*:.*", re.I | re.M | re.S)


def find_citations(text: str) -> list[Citation]:
    """The URLs an answer names, in order, each once; punctuation and closing brackets of the prose are left out."""
    found = {}
    for match in re.finditer(r"https?://(?:\[[0-9A-Fa-f:.]+\])?[^\s<>\"`|（）【】「」，。、…]*", text):
        url = re.sub(r"\\([_*~#-])", r"\1", match.group())
        before = text[match.start() - 1] if match.start() else ""
        if before == "'":
            url = url.split("'")[0]
        while url:
            last, pair = url[-1], {")": "(", "]": "[", "}": "{"}.get(url[-1])
            if (pair and url.count(last) > url.count(pair)) or last in ".,;:!?'*_~\\":
                url = url[:-1]
            elif "](" in url:
                url = url[: url.index("](")]
            elif (cut := _unbalanced(url)) is not None:
                url = url[:cut]
            else:
                break
        if re.match(r"https?://[^/?#]*\w", url) or url.startswith(("http://[", "https://[")):
            found.setdefault(url, Citation(url=url))
    return list(found.values())


def _unbalanced(url: str) -> int | None:
    """Where a round bracket closes that never opened, as in [text](url)more."""
    depth = 0
    for i, char in enumerate(url):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return i
    return None


def same_page(url: str) -> str:
    """What tells one page from another: host case, `www.`, trailing slash and fragment do not."""
    parts = urlsplit(url)
    return f"{host(url)}{parts.path.rstrip('/')}" + (f"?{parts.query}" if parts.query else "")


def host(url: str) -> str:
    return (urlsplit(url).hostname or "").removeprefix("www.")


# ------------------------------------------------------------------ declining

_I = r"\b(i|we)( am|'m| was| were|'re| are)?( \w+ly)?"
_CANNOT = r"(not able to|unable to|can(no|')?t|can not|could(n't| not)|won't be able to|am not going to)"
_FIND = r"(find|locate|determine|answer|provide|retrieve|tell|say|verify|confirm|access|identify|help|assist|see|share)"
_SOURCES = (
    r"(sources?|documents?|documentation|docs|pages?|context|index|information|text|material|search( results?)?"
    r"|results?|corpus|snapshot|excerpts?|passages?)"
)
_SILENT = (
    r"(do(es)?(n't| not)|did(n't| not)) (\w+ )?(mention|contain|say|state|specify|cover|include|list|describe|give"
    r"|document|provide|discuss|explain|address|define|show|reveal)"
)
DECLINES = [
    re.compile(pattern)
    for pattern in (
        rf"{_I}( do| did)?(n't| not) (really |actually )?(know|have)\b(?!.*\bbut\b.*\d)",
        rf"{_I} {_CANNOT} ({_FIND})",
        rf"{_I} {_CANNOT} \w+ (that|this|the answer|it)\b",
        rf"^(sorry\W+|unfortunately\W+|apologies\W+)*(but )?(unable|not able|cannot|can't|could not|couldn't) (to )?{_FIND}",
        rf"\b{_SOURCES}\b.{{0,40}}? {_SILENT}",
        r"(\bnot|n't) (enough|sufficient)( \w+)? (information|context|evidence|detail|data)|\binsufficient (information|context|evidence)",
        r"\b(can(no|')t|can not|could(n't| not)) be (answered|determined|found)\b",
        r"\bno (relevant |matching )?(results?|information|answer|mention|documentation|pages?) (w(as|ere)|is|are|could be|can be)? ?(found|available|given|provided)",
        r"\b(i|we) (have|found|find) no (answer|information|idea|results?|mention|evidence)",
        r"\bnot (mentioned|documented|specified|stated|described|covered|found|listed) (in|by|on|anywhere)\b",
        r"\bno idea\b|\bunknown to me\b",
        r"^(n/?a|none|unknown|unsure|not sure|no answer|unanswerable|idk|-+|\?+)\W*$",
        r"^(i'm |i am )?not (sure|certain)\W*$",
        # the commonest forms in other languages
        r"\bich wei(ß|ss) (es |das )?(leider )?nicht|\bkann ich nicht (sagen|beantworten)|\bkeine (angaben|information)",
        r"\bno (lo )?s(é|e)\b|\bno (tengo|encuentro|puedo)\b|\bje ne sais pas\b|\bje ne peux pas\b|\bnon (lo )?so\b",
        r"\bn(ã|a)o sei\b|\bik weet het niet\b|\bnie wiem\b|я не знаю|не знаю|知りません|わかりません|分かりません|不知道|无法回答|모르겠",
    )
]
_ASIDE = re.compile(r"[,;:] (but|however|though|yet|still)\b|\b(but|however|although|though|nevertheless|still)[, ]")


def prose(answer: str) -> str:
    """The answer's own words: without its list of sources, lower case, plain apostrophes, single spaces."""
    text = unicodedata.normalize("NFKC", SOURCES.sub("", answer)).replace("’", "'").replace("ʼ", "'")
    return "\n".join(" ".join(line.split()) for line in text.lower().splitlines() if line.strip())


def declined(text: str) -> bool:
    """Does the answer say that it does not know or will not answer? A fact beside the doubt is an answer."""
    plain = prose(text)
    if not plain:
        return True
    sentences = [s for s in SENTENCE.split(plain) if re.search(r"\w|\?", s)]
    said = [_declines(QUOTED.sub(" … ", s)) for s in sentences]
    if not any(said):
        return False
    rest = [s for s, no in zip(sentences, said, strict=True) if not no]
    return not any(_informs(s) for s in rest)


def _declines(sentence: str) -> bool:
    """One sentence declines, unless what follows its `but` tells something."""
    match = next((m for p in DECLINES if (m := p.search(sentence))), None)
    if match is None:
        return False
    aside = _ASIDE.search(sentence, match.end())
    return aside is None or not _informs(sentence[aside.end() :])


def _informs(sentence: str) -> bool:
    """Does it tell something? Offers, advice, apologies, questions, more doubt and how the search went do not."""
    offers = r"\b(recommend|suggest|please|try|check|consult|let me know|happy to|feel free|would you|could you|sorry|you (can|could|may|might|should))\b"
    search = r"\b(search\w*|tools?|pages?|fetch\w*|quer(y|ies)|index|looked|results?)\b.{0,60}\b(fail\w*|return\w*|error\w*|timed? out|nothing|unavailable|relevant)\b"
    empty = re.search(f"{offers}|{search}", sentence) or sentence.endswith("?") or _declines(sentence)
    return not empty and len(re.findall(r"\w+", sentence)) >= 2


# ------------------------------------------------------------------ key facts


def normal(text: str) -> str:
    """For comparing facts: case, spaces, accents, markdown and thousands separators do not count."""
    text = unicodedata.normalize("NFKD", text.replace("’", "'"))
    text = "".join(c for c in text if not unicodedata.combining(c)).lower()
    text = re.sub(r"[`*\"“”]|(?<=\d)[,_\u202f\u00a0' ](?=\d{3}(\D|$))", "", text)
    return " ".join(re.sub(r"[\u2010-\u2015]", "-", text).split())


_NOT = r"(not|never|no longer|isn't|aren't|wasn't|weren't|rather than|instead of|neither|nor|other than|except)"
_NEGATED = re.compile(rf"\b{_NOT}( (a|an|the|by|in|at|to|be|called|named|equal to|set to|actually|simply|just))* ?$")


def states(text: str, forms: list[str]) -> bool:
    """Is any accepted form in the text on word boundaries, and not only negated ("it is not X")?

    A form inside a longer accepted form shares its fate: "not 13-15 July 2011" does not state "July 2011".
    """
    plain = normal(text)
    spans = [
        match.span()
        for form in map(normal, forms)
        if form
        for match in re.finditer(rf"(?<!\w)(?<!\d[.,]){re.escape(form)}(?!\w|[.,]\d)", plain)
    ]
    negated = [(a, b) for a, b in spans if _NEGATED.search(plain[:a].rstrip("'([ ") + " ")]
    return any(not any(a <= start and end <= b for a, b in negated) for start, end in spans)


_ABSENT = re.compile(
    rf"\b(no such|does(n't| not) (exist|have|provide|offer|support|define|include|ship|come with|expose|document|accept|know)"
    rf"|do(n't| not) exist|there(\'s| is| are) (no|not an?y?|n't an?y?)|there isn't|there aren't"
    rf"|(has|have|had|with|offers?|provides?|defines?|documents?|lists?|contains?|ships?|exposes?|supports?|mentions?) no"
    rf"|(is|are|was|were)(n't| not) (an? |any |one of |among |in )?(\S+ )?"
    rf"(exist\w*|documented|mentioned|listed|found|(supported|defined|available|part|option|hook|method|among)"
    rf"(?! (on|for|with|when|if|until|unless|by default|over|during|in (?!(the |this |any |these )?({_SOURCES}|fastify)))))"
    rf"|{_SOURCES}\b.{{0,40}}? {_SILENT}|undocumented|nonexistent|non-existent|not (exist|documented|mentioned|listed)"
    rf"|no (\S+ ){{1,4}}(exists?|is (documented|mentioned|listed|defined|available|provided)|named|called)"
    rf"|none of (the|its) .{{1,60}}|{_CANNOT} find (any|an?|such) .{{1,60}} {_SOURCES})\b"
)


def denies(text: str) -> bool:
    """Does the answer say that the thing asked for does not exist or is not documented?"""
    return bool(_ABSENT.search(QUOTED.sub("x", prose(text))))


# ------------------------------------------------------------------ rules


def docs_qa(sample: Sample, trace: Trace) -> Values:
    """Key fact (for traps: denial), citations against gold URLs and against what was read, abstention."""
    body = SOURCES.sub("", trace.answer)
    trap = bool(sample.gold.get("trap"))
    fact = None if trap else float(states(body, sample.gold["key_fact"]))
    denial = float(denies(body)) if trap else None
    cited = [c.url for c in trace.citations if c.url]
    gold = sample.gold.get("urls", [])
    return {
        "correct": denial if trap else fact,
        "key_fact": fact,
        "denies": denial,
        "cited": float(bool(cited)),
        "cited_exact": _share(cited, {same_page(u) for u in gold}, same_page) if gold else None,
        "cited_host": float(any(host(u) in {host(g) for g in gold} for u in cited)) if gold else None,
        "cited_read": _share(cited, _read(trace), same_page),
        "abstained": float(trace.stop == "abstained"),
    }


VERSION = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]  # a changed rule scores again
RULES: dict[str, Callable[[Sample, Trace], Values]] = {"docs_qa": docs_qa}


def owed(suite: Suite, traces: Sequence[Trace]) -> dict[str, tuple[str, Sample, Trace]]:
    """{verdict key: (rule, sample, trace)} of the rule verdicts that measured traces of a suite should have."""
    samples = {s.id: s for s in suite.samples}
    return {
        key(trace.key, samples[trace.sample_id].gold, rule, VERSION): (rule, samples[trace.sample_id], trace)
        for trace in traces
        if trace.failure is None and trace.suite == suite.name and trace.sample_id in samples
        for rule in suite.rules
    }


def verdict(k: str, cell: tuple[str, Sample, Trace]) -> Verdict:
    """Apply one rule to one trace."""
    rule, sample, trace = cell
    return Verdict(key=k, of=(trace.key,), by=f"rule:{rule}", values=RULES[rule](sample, trace))


def _share(cited: list[str], among: set[str], plain: Callable[[str], str]) -> float | None:
    return sum(plain(u) in among for u in cited) / len(cited) if cited else None


def _read(trace: Trace) -> set[str]:
    """Pages whose text this run's own steps returned, by reading or as a search result."""
    pages: set[Any] = set()
    for step in trace.steps:
        if step.ok and step.executed:
            pages |= {same_page(u) for u in (step.call.args or {}).values() if isinstance(u, str) and "://" in u}
            pages |= {same_page(m) for m in re.findall(r"^(https?://\S+) line \d+$", step.result, re.M)}
    return pages
