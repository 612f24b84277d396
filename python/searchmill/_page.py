"""The page of a store in a browser."""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
from html import escape
from urllib.parse import quote

from ._errors import Diagnostic, failure
from ._program import PathLike, program, where
from ._run import Run


class Link(str):
    """An address; a notebook shows it as a link.

    >>> Link("http://127.0.0.1:8111/r/1")._repr_html_()
    '<a href="http://127.0.0.1:8111/r/1" target="_blank">http://127.0.0.1:8111/r/1</a>'
    """

    def _repr_html_(self) -> str:
        url = escape(self)
        return f'<a href="{url}" target="_blank">{url}</a>'


class Page:
    """The page, as long as it is served: until `stop`, or the end of this process."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self._process = process
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the server."""
        atexit.unregister(self.stop)
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def link(self, run: Run | str, node: str | None = None) -> Link:
        """Returns the address of a run, or of a node of it."""
        name = run if isinstance(run, str) else run.id
        of = "" if node is None else f"/n/{quote(node, safe='')}"
        return Link(f"{self.url}/r/{quote(name, safe='')}{of}")

    def __str__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        return Link(self.url)._repr_html_()


def ui(*, directory: PathLike | None = None, store: PathLike | None = None, listen: str = "127.0.0.1:0") -> Page:
    """Serves the page of a store: runs, rows, conversations. Port 0 picks a free port."""
    arguments = ["ui", "--no-open", "--listen", listen, *where(directory, store), "--json"]
    process = subprocess.Popen(
        [program(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    told = json.loads(line) if line.startswith("{") else {}
    if "address" not in told:
        process.terminate()
        raise failure(process.wait(), [Diagnostic.of(told)] if "message" in told else [])
    return Page(told["address"], process)
