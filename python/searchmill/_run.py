"""Runs of pipelines, with their progress."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _html
from ._errors import Diagnostic, SearchmillError, failure
from ._program import PathLike, objects, program, settings, where
from ._rows import Rows, load

#: Seconds between two pictures of the progress.
PERIOD = 0.25
#: Nodes that a notebook shows: those that run or failed, then the newest.
SHOWN = 30
#: The exit code of a run that completed, and lost rows or held outputs back.
LOST_ROWS = 3


@dataclass
class Node:
    """A node of a run."""

    name: str
    #: `running`, `waiting`, `cached`, `ran`, `failed`, `interrupted`, `skipped` or `ended`
    state: str
    operator: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    #: What it made: `question rows`, `index`, `files` …
    output: str = ""
    rows: int = 0
    rejects: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    message: str = ""

    def _cells(self) -> list[object]:
        progress = ""
        if self.state in ("running", "interrupted"):
            progress = f"{self.done}/{self.total} {self.unit}" if self.total else f"{self.done} {self.unit}".strip()
        elif self.state in ("ran", "cached"):
            made = f"{self.rows} {self.output}" if self.output.endswith(" rows") else self.output
            progress = made + (f", {self.rejects} rejects" if self.rejects else "")
        seconds = f"{self.seconds:.1f}" if self.seconds else ""
        return [self.state, self.name, self.operator, progress, seconds, self.message]


@dataclass
class Run:
    """A run: what it did, and what it made."""

    pipeline: str = ""
    id: str = ""
    exit_code: int | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    #: Number of nodes that the run was asked for.
    asked: int = 0
    #: The last event: numbers of nodes, calls, tokens, cost.
    summary: dict[str, Any] = field(default_factory=dict)
    #: Files that were written: node and path.
    delivered: list[tuple[str, str]] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    directory: PathLike | None = None
    store: PathLike | None = None

    def load(self, what: str) -> Rows:
        """Returns a table that this run made or found."""
        return load(what, run=self.id, directory=self.directory, store=self.store)

    @property
    def ran(self) -> list[str]:
        """The nodes that were computed."""
        return [node.name for node in self._nodes() if node.state == "ran"]

    @property
    def cached(self) -> list[str]:
        """The nodes that were known."""
        return [node.name for node in self._nodes() if node.state == "cached"]

    def _nodes(self) -> list[Node]:
        # Taken at once: while the run goes on, another thread adds nodes.
        return list(self.nodes.values())

    def note(self, event: dict[str, Any]) -> None:
        """Adds an event."""
        kind = event.get("event")
        if kind is None:
            if "message" in event and "severity" in event:
                self.diagnostics.append(Diagnostic.of(event))
        elif kind == "run_started":
            self.id, self.pipeline, self.asked = event["run"], event["pipeline"], event["nodes"]
        elif kind == "run_finished":
            self.summary = event
        elif kind == "delivered":
            self.delivered.append((event["node"], event["destination"]))
        elif "node" in event:
            self._note_node(kind, event)

    def _note_node(self, kind: str, event: dict[str, Any]) -> None:
        states = {
            "node_started": "running",
            "node_progress": "running",
            "node_waiting": "waiting",
            "node_cached": "cached",
            "node_finished": "ran",
            "node_failed": "failed",
            "node_skipped": "skipped",
            "node_ended": "ended",
        }
        if kind not in states:
            return
        node = self.nodes.setdefault(event["node"], Node(event["node"], ""))
        # A report of progress may come after the end.
        if kind == "node_progress" and node.state not in ("running", ""):
            return
        # What it has done is kept: the next run goes on there.
        was_stopped = kind == "node_skipped" and node.state == "running"
        node.state = "interrupted" if was_stopped else states[kind]
        for name in ("operator", "done", "total", "unit", "output", "rows", "rejects", "seconds", "cost", "message"):
            if name in event:
                setattr(node, name, event[name])
        if kind == "node_failed":
            self.diagnostics.append(Diagnostic(f"{event['node']}: {event['message']}", event.get("help")))

    def line(self) -> str:
        """Returns the state of the run in one line."""
        nodes = self._nodes()
        states = [node.state for node in nodes]
        counts = [
            f"{states.count(state)} {state}"
            for state in ("cached", "ran", "failed", "interrupted", "running")
            if state in states
        ]
        cost = sum(node.cost for node in nodes)
        paid = f" · {cost:.2f}" if cost else ""
        return f"{self.pipeline or 'run'} {self.id}: {' · '.join(counts) or 'starts'} of {self.asked}{paid}"

    def __str__(self) -> str:
        return self.line()

    def _repr_html_(self) -> str:
        first = {"failed": 0, "interrupted": 1, "running": 1, "waiting": 2}
        nodes = sorted(reversed(self._nodes()), key=lambda node: first.get(node.state, 3))
        left = f" · {len(nodes) - SHOWN} more nodes" if len(nodes) > SHOWN else ""
        columns = ["state", "node", "operator", "output", "seconds", ""]
        return _html.table(columns, [node._cells() for node in nodes[:SHOWN]], self.line() + left)


class Running:
    """A run that goes on while Python does. `wait` returns it once it has ended; leaving a `with` block stops it."""

    def __init__(self, arguments: Sequence[str], run: Run) -> None:
        self.run = run
        self._errors: list[str] = []
        self._unreadable: list[Diagnostic] = []
        # Its own group: Ctrl-C in a terminal reaches it once, through `cancel`.
        self._process = subprocess.Popen(
            [program(), *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        # To the end, whatever it writes: a program whose output nobody reads would wait.
        for line in self._process.stdout:
            try:
                for event in objects(line):
                    self.run.note(event)
            except (ValueError, LookupError) as wrong:
                self._unreadable.append(Diagnostic(f"the program wrote what is no event: {line.strip()[:80]}: {wrong}"))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = list(self._process.stderr)

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_at_most(self, seconds: float) -> bool:
        """Waits for its end, but not longer than this. Returns whether it has ended; raises nothing."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def cancel(self) -> None:
        """Asks it to stop: what is in flight is finished and kept. A second call stops at once."""
        if self.is_running:
            self._process.send_signal(signal.SIGINT)

    def wait(self, timeout: float | None = None) -> Run:
        """Waits for its end. Raises what went wrong; a run that only lost rows warns.

        Raises `subprocess.TimeoutExpired` if it still runs after `timeout` seconds.
        """
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join()
        self.run.exit_code = code
        wrong = self.run.diagnostics + self._unreadable
        said = "".join(self._errors).strip()
        if code not in (0, LOST_ROWS) and not wrong and said:
            wrong = [Diagnostic(said)]
        if code not in (0, LOST_ROWS) or self._unreadable:
            raise failure(code, wrong)
        if code == LOST_ROWS:
            warnings.warn(f"{self.run.line()}: rows were lost or outputs held back (exit code 3)", stacklevel=3)
        return self.run

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._process.wait()

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


class _Shown:
    """Shows the progress: a table in a notebook, one line in a terminal, nothing elsewhere."""

    def __init__(self, run: Run, progress: bool) -> None:
        self.run = run
        self.handle: Any = None
        self.is_terminal = progress and sys.stderr.isatty()
        if progress and _in_notebook():
            from IPython.display import HTML, display

            self.handle = display(HTML(run._repr_html_()), display_id=True)
            self.is_terminal = False

    def show(self, is_last: bool = False) -> None:
        if self.handle is not None:
            from IPython.display import HTML

            self.handle.update(HTML(self.run._repr_html_()))
        elif self.is_terminal:
            end = "\n" if is_last else ""
            print(f"\r\x1b[K{self.run.line()}", end=end, file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def start(
    file: PathLike,
    *,
    set: Mapping[str, object] | None = None,
    params: Sequence[PathLike] = (),
    targets: Sequence[str] = (),
    options: Sequence[str] = (),
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Running:
    """Starts a pipeline and returns at once.

    `set` are params by name (`{"teacher.model": "qwen3"}`; `${params.x}` in a text is a reference), `params` files
    with params, `targets` the nodes to run, `options` more words of the command line (`["--budget", "cost=2.5"]`).
    """
    arguments = ["run", str(file), *targets, *settings(set, params), *options, *where(directory, store)]
    return Running(arguments, Run(directory=directory, store=store))


def run(
    file: PathLike,
    *,
    set: Mapping[str, object] | None = None,
    params: Sequence[PathLike] = (),
    targets: Sequence[str] = (),
    options: Sequence[str] = (),
    directory: PathLike | None = None,
    store: PathLike | None = None,
    progress: bool = True,
) -> Run:
    """Runs a pipeline to its end, as `start` does, and shows its progress.

    Ctrl-C, or the button that interrupts a notebook, finishes what is in flight and raises `KeyboardInterrupt`; a
    second one stops at once. The next run goes on there.
    """
    running = start(file, set=set, params=params, targets=targets, options=options, directory=directory, store=store)
    shown = _Shown(running.run, progress)
    interrupted: KeyboardInterrupt | None = None
    while running.is_running:
        try:
            running.wait_at_most(PERIOD)
            shown.show()
        except KeyboardInterrupt as pressed:
            interrupted = pressed
            running.cancel()
    try:
        return running.wait()
    except SearchmillError:
        if interrupted is not None:
            raise interrupted from None
        raise
    finally:
        shown.show(is_last=True)
