"""`grep_index` and `read_page` over a frozen snapshot of markdown pages, held in memory."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from itertools import accumulate
from typing import Annotated

import re2
from pydantic import Field

from ..scoring import same_page
from ..tools import Found, Tool, ToolError, tool

CONTEXT, SNIPPET, PER_PAGE = 2, 240, 3  # lines around a match, characters of a snippet, matches shown of one page


class Pages:
    """A snapshot {canonical URL: markdown}; everything an agent may read of it goes through the two tools."""

    def __init__(self, pages: dict[str, str]):
        self.text = pages
        self.lines = {url: text.split("\n") for url, text in pages.items()}
        self.starts = {
            url: list(accumulate((len(x) + 1 for x in lines), initial=0)) for url, lines in self.lines.items()
        }
        self.urls = {same_page(url): url for url in pages}

    def tools(self, page_limit: int = 30_000, search_limit: int = 6_000) -> tuple[Tool, Tool]:
        """The two tools, bound to this snapshot, with their limits in characters."""

        def grep_index(
            pattern: Annotated[str, Field(description="RE2 pattern, e.g. bodyLimit|maxParamLength; case is ignored")],
            max_results: Annotated[int, Field(ge=1, le=12)] = 8,
            literal: Annotated[bool, Field(description="search the pattern as plain text")] = False,
        ) -> Found:
            """Search the documentation index line by line. Returns matches with page URL, line number and context,
            those with the rarest words first, at most 3 a page."""
            return self.grep(pattern, max_results, literal)

        def read_page(
            url: Annotated[str, Field(description="page URL as grep_index returns it")],
            start_line: Annotated[int, Field(ge=1, description="first line to read")] = 1,
        ) -> Found:
            """Read one documentation page as markdown. A long page is cut; go on from a later start_line."""
            return self.read(url, start_line)

        return tool(grep_index, limit=search_limit), tool(read_page, limit=page_limit)

    def grep(self, pattern: str, max_results: int = 8, literal: bool = False) -> Found:
        """Matching lines as snippets, rarest matched word first; `total` counts all of them, before any cap."""
        options = re2.Options()
        options.case_sensitive, options.literal, options.log_errors, options.never_nl = False, literal, False, True
        try:
            if not pattern.strip():
                raise re2.error(b"it is empty")
            counts = re.findall(r"(?<!\\)\{(\d*),?(\d*)\}", "" if literal else pattern)
            if any(int(n) > 1000 for pair in counts for n in pair if n):  # RE2 would take it as plain text
                raise re2.error(b"repetition over 1000")
            regex = re2.compile(pattern if literal else f"(?m){pattern}", options)
        except re2.error as error:
            why = error.args[0].decode("utf-8", "replace")
            raise ToolError(f"The pattern does not compile ({why}). Mend it, or search it with literal=true.") from None
        found: list[tuple[str, str, int]] = []  # (matched text, url, place in the page)
        for url, text in self.text.items():
            spans = (match.span() for match in regex.finditer(text))
            found += [(text[start:end].lower(), url, start) for start, end in spans if end > start]
        count = Counter(text for text, _, _ in found)
        hits: dict[tuple[str, int], tuple[int, int]] = {}  # (url, line) -> (how often its rarest text matched, place)
        for text, url, start in found:
            at = (url, bisect.bisect_right(self.starts[url], start) - 1)
            if at not in hits or count[text] < hits[at][0]:
                hits[at] = count[text], start
        shown: list[str] = []
        per_page: Counter[str] = Counter()
        for url, line in sorted(hits, key=lambda at: (hits[at][0], *at)):
            if len(shown) < max_results and per_page[url] < PER_PAGE:
                per_page[url] += 1
                shown.append(f"{url} line {line + 1}\n{self._snippet(url, line, hits[url, line][1])}")
        return Found(shown, len(hits))

    def read(self, url: str, start_line: int = 1) -> Found:
        """The lines of one page from `start_line` on; only pages of the snapshot exist."""
        lines = self.lines.get(self.urls.get(same_page(url), ""))
        if lines is None:
            raise ToolError("That is not a page of this snapshot. Use a URL as grep_index returns it.")
        if start_line > len(lines):
            raise ToolError(f"The page has {len(lines)} lines. Give a start_line up to that.")
        return Found(lines[start_line - 1 :], len(lines), start=start_line)

    def _snippet(self, url: str, line: int, place: int) -> str:
        first = max(0, line - CONTEXT)
        text = "\n".join(self.lines[url][first : line + CONTEXT + 1])
        left = min(max(0, place - self.starts[url][first] - SNIPPET // 2), max(0, len(text) - SNIPPET))
        return "…" * (left > 0) + text[left : left + SNIPPET] + "…" * (left + SNIPPET < len(text))
