"""Search results out of an HTML page: the adapter of a search engine that has no API. Standard library only.

Check the terms of an engine before you read its pages by a program.
"""

import os
import urllib.parse
import urllib.request
from html.parser import HTMLParser


class Results(HTMLParser):
    """Reads `<li class="result">` with a link as title and a paragraph as text. Change the marks for another page."""

    def __init__(self):
        super().__init__()
        self.found, self.inside = [], None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "li" and "result" in (attributes.get("class") or "").split():
            self.found.append({"id": "", "title": "", "text": ""})
        elif self.found and tag == "a":
            self.found[-1]["id"] = attributes.get("href", "")
            self.inside = "title"
        elif self.found and tag == "p":
            self.inside = "text"

    def handle_endtag(self, tag):
        if tag in ("a", "p"):
            self.inside = None

    def handle_data(self, data):
        if self.found and self.inside:
            self.found[-1][self.inside] += data


def search(query):
    """Returns the results of a query. An exception is told to the model as an error, and nothing is remembered."""
    address = f"{os.environ['SEARCH_ENGINE']}/page?q={urllib.parse.quote(query)}"
    with urllib.request.urlopen(address, timeout=20) as answer:
        page = answer.read().decode(answer.headers.get_content_charset() or "utf-8")
    if "<ol>" not in page:
        # A page of another form (a login, a captcha) is an error, never an empty list.
        raise ValueError("the page has no list of results")
    reader = Results()
    reader.feed(page)
    return reader.found
