"""What an answer names: URLs, and places in files such as lib/reply.js:120-134; and what a run has shown of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from .records import Citation, Step

OPENS = {"]": "[", "}": "{"}
# A place: lib/reply.js:120-134, reply.js#L12-L20, `lib/route.js` (lines 10–20), and more ranges behind one path.
LINE = r"L?(\d{1,7})(?!\d)(?:C\d{1,5})?"
UPTO = rf"\s{{0,3}}(?:-|–|—|‑|\.\.+|\bto\b|\bthrough\b)\s{{0,3}}{LINE}"
PART = r"(?:[\w.@$+~-]+|\[[\w.]+\]|\(\w+\))"
ENDINGS = (
    r"[mc]?jsx?|[mc]?tsx?|vue|svelte|astro|pyi?|pyx|ipynb|go|rs|java|kts?|scala|rb|erb|php|c|h|cc|cpp|cxx|hpp|cs|fs|swift"
    r"|mm?|sh|bash|zsh|ps1|bat|sql|html?|css|scss|sass|less|mdx?|rst|txt|jsonl?|json5|ya?ml|toml|ini|cfg|conf|properties"
    r"|xml|lock|gradle|proto|graphql|tf|lua|r|jl|exs?|erl|hs|ml|clj|dart|zig|nim|pl|pm|csv|tsv|log|env|tmpl|tpl|jinja"
    r"|ejs|hbs|wat|snap|patch|diff|cmake|mk"
)
FILE = (
    rf"(?:(?:[A-Za-z]:[/\\]|\.{{0,2}}[/\\])?[\w.@$+~-]+[/\\](?:{PART}[/\\])*(?:[\w@$+~.-]|\[[\w.]+\])*(?:\w|\[[\w.]+\])\.[A-Za-z]\w{{0,9}}"
    + (rf"|(?:[A-Za-z]:[/\\]|\.{{0,2}}[/\\])?(?:[\w@$+~.-]*\w\.(?:{ENDINGS})(?!\w)|Makefile|Dockerfile|LICENSE))")
)
WORDED = r"[`'\"*_\])]{0,6}[\s,]{0,4}[(\[]?\s{0,3}(?:(?:at|on|in)\s{1,3})?lines?\s{1,3}|[`'\"*_]{0,6}\s{1,3}\(?(?=L\d)"
ALONE = r"(?!\.?\d|\s*(?!and\b|or\b)[A-Za-z%$])"  # "lib/a.js:10, 20 items" names one line, "lines 10, 20 do" two
PLACE = re.compile(
    rf"(?<![\w/\\@.$+~-])({FILE})(?:[#:](?=L?\d)|:\s(?=L?\d{{1,7}}(?:\s?[-–—]\s?\d|{ALONE}))|{WORDED}){LINE}(?:{UPTO})?(?::\d{{1,5}}\b)?"
)
AND = rf"\s{{0,3}}(?:,\s*and\b|,|;|&|\band\b)\s{{0,3}}(?:lines?\s{{1,3}})?{LINE}"
MORE = {False: re.compile(rf"{AND}(?:{UPTO}|{ALONE})"), True: re.compile(rf"{AND}(?:{UPTO}|(?!\.?\d|\s?%))")}


def find_citations(text: str) -> list[Citation]:
    """The URLs and places in files that an answer names, in order, each once."""
    urls = [(start, Citation(url=url)) for start, url in _urls(text)]
    return list(dict.fromkeys(cited for _, cited in sorted([*urls, *_places(text)], key=lambda found: found[0])))


def _urls(text: str) -> list[tuple[int, str]]:
    """URLs with where they begin; punctuation and closing brackets of the prose are left out."""
    found = []
    for match in re.finditer(r"https?://(?:\[[0-9A-Fa-f:.]+\])?[^\s<>\"`|（）【】「」，。、…]*", text):
        url = re.sub(r"\\([_*~#-])", r"\1", match.group()).partition("](")[0]
        url = url.partition("'")[0] if text[: match.start()].endswith("'") else url
        depth = 0
        for i, char in enumerate(url):  # a round bracket that closes what the URL did not open ends it
            depth += (char == "(") - (char == ")")
            if depth < 0:
                url = url[:i]
                break
        over = {close: url.count(close) - url.count(opens) for close, opens in OPENS.items()}
        end = len(url)
        while end and (url[end - 1] in ".,;:!?'*_~\\" or over.get(url[end - 1], 0) > 0):
            end -= 1
            over[url[end]] = over.get(url[end], 0) - 1
        url = url[:end]
        if re.match(r"https?://[^/?#]*[\w\]]", url):
            found.append((match.start(), url))
    return found


def _places(text: str) -> list[tuple[int, Citation]]:
    """Places in files with where they begin; a path without a line is none, nor is what only looks like one."""
    return [(start, cited) for start, _, places in _spans(text) for cited in places]


def _spans(text: str) -> list[tuple[int, int, list[Citation]]]:
    """Where a path with its lines begins and ends in a text, and the places it names."""
    text, found = re.sub(r"https?://[^\s<>)\]]*", lambda url: " " * len(url.group()), text), []
    for match in PLACE.finditer(text):
        path = re.sub(r"^(\./)+", "", match[1].replace("\\", "/"))
        if path.lower() == "node.js":
            continue
        end, lines, worded = match.end(), [(match[2], match[3])], "lines" in match.group()[len(match[1]) :]
        while more := MORE[worded].match(text, end):
            lines.append((more[1], more[2]))
            end = more.end()
        found.append((match.start(), end, [Citation(path=path, start=int(a), end=int(b or a)) for a, b in lines]))
    return found


def without_places(answer: str) -> str:
    """The answer without the places in files it names: a line number states no fact."""
    for start, end, _ in reversed(_spans(answer)):
        answer = f"{answer[:start]} … {answer[end:]}"
    return answer


def resolve(path: str, files: Mapping[str, str]) -> str:
    """The file of a corpus that a path means, or "": the path itself, a file name that is unique, an absolute path."""
    if path in files:
        return path
    if "/" not in path:
        same = [name for name in files if name.rpartition("/")[2] == path]
        return same[0] if len(same) == 1 else ""
    absolute = re.match(r"/|[A-Za-z]:/|package/|(?:\.\./)*node_modules/", path)
    parts = path.split("/")[-40:]
    tails = ("/".join(parts[i:]) for i in range(1, len(parts))) if absolute else ()
    return next((tail for tail in tails if tail in files), "")


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


def line_count(text: str) -> int:
    """The lines of a file, a last one without its newline included."""
    return text.removesuffix("\n").count("\n") + 1


def overlap(a: Citation, b: Citation) -> bool:
    return a.path == b.path and a.start <= b.end and b.start <= a.end


def shown(step: Step) -> list[Citation]:
    """The places that a step has shown: lines that begin with path:line or path:start-end, or a file read."""
    if not (step.ok and step.executed):
        return []
    if isinstance(path := step.call.args.get("path"), str):
        numbers = [int(n) for n in re.findall(r"^(\d+): ?", step.result, re.M)]
        path = path.replace("\\", "/").removeprefix("./")
        return [Citation(path=path, start=numbers[0], end=numbers[-1])] if numbers else []
    lines = re.findall(r"^([^\s:]+):(\d+)(?:-(\d+))?(?=[:\s]|$)", step.result, re.M)
    return [Citation(path=path, start=int(start), end=int(end or start)) for path, start, end in lines]
