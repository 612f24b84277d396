"""A search engine for this example: `/api` answers in JSON, `/page` in HTML. Standard library only."""

import html
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PAGES = [json.loads(line) for line in (Path(__file__).parent / "pages.jsonl").read_text(encoding="utf-8").splitlines()]


def words(text):
    return set(re.findall(r"\w+", text.lower()))


def search(query, count):
    """Returns the pages that share most words with the query."""
    asked = words(query)
    scored = [(len(asked & words(page["title"] + " " + page["text"])), page) for page in PAGES]
    best = sorted((found for found in scored if found[0] > 0), key=lambda found: -found[0])
    return [page | {"url": f"https://example.org/{page['id']}"} for _, page in best[:count]]


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        address = urlsplit(self.path)
        asked = parse_qs(address.query)
        query, count = asked.get("q", [""])[0], int(asked.get("n", ["10"])[0])
        found = search(query, count)
        if address.path == "/api":
            results = [{"url": page["url"], "title": page["title"], "description": page["text"]} for page in found]
            return self.send("application/json", json.dumps({"web": {"results": results}}))
        if address.path == "/page":
            items = "".join(
                f'<li class="result"><h3><a href="{page["url"]}">{html.escape(page["title"])}</a></h3>'
                f"<p>{html.escape(page['text'])}</p></li>\n"
                for page in found
            )
            return self.send("text/html", f"<html><body><h1>Results</h1><ol>\n{items}</ol></body></html>")
        self.send_error(404)

    def send(self, kind, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, form, *values):
        print(self.path, flush=True)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8790), Engine)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
