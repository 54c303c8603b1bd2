"""A corpus of pages: the markdown files of a locked package, frozen under canonical URLs.

Its table in data/corpora.toml has also `pages` (the folder of markdown in the package), `url` (where that folder stands
on the web) and `pages_sha256` of the frozen pages.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from urllib.parse import urljoin

from ..fetch import CorpusError, contents, entry


def freeze(name: str) -> dict[str, str]:
    """{canonical URL: markdown} of the corpus as locked; links between its pages become canonical URLs."""
    row = entry(name)
    archive = contents(name, row["pages"]).items()
    pages = {path: text.decode("utf-8").replace("\r\n", "\n") for path, text in archive if path.endswith(".md")}

    def page_url(path: str) -> str:  # no ending, and an index page is its folder
        return urljoin(row["url"], re.sub(r"(^|/)index/$", r"\1", path.removesuffix(".md") + "/", flags=re.I))

    def absolute(path: str, match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({page_url(target)}{match[2] or ''})" if target in pages else match[0]

    link = re.compile(r"\]\(([^()\s:#]+\.md)(#[^()\s]*)?\)")
    frozen = {page_url(p): link.sub(lambda m, p=p: absolute(p, m), pages[p]) for p in sorted(pages)}  # type: ignore[misc]
    found = hashlib.sha256("".join(f"{url}\0{text}\0" for url, text in sorted(frozen.items())).encode()).hexdigest()
    if found != row["pages_sha256"]:
        raise CorpusError(
            f"the frozen pages of {name} have sha256 {found}, data/corpora.toml locks {row['pages_sha256']}"
        )
    return frozen
