"""What a reader sees: of an HTML page its tags with their attributes and its text, of a figure its words."""

from __future__ import annotations

import html as markup
import io
import re
from html.parser import HTMLParser

import matplotlib as mpl
from matplotlib.figure import Figure


class Seen(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def count(self, name):
        return sum(tag == name for tag, _ in self.tags)


def drawn(plot):
    """What stands in the figure that plot(ax) draws, as a reader sees it; it can be saved as SVG and as PNG."""
    figure = Figure()
    plot(figure.subplots())
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", bbox_inches="tight")
    figure.savefig(io.BytesIO(), format="png")
    return [markup.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", file.getvalue())]
