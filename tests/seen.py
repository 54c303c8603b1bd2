"""What a reader of an HTML page sees: its tags with their attributes, and its text."""

from __future__ import annotations

from html.parser import HTMLParser


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
