"""What a run would do and why, the runs of a store, what differs, and where things come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from . import _html
from ._program import PathLike, ask, settings, where


class Plan(list[dict[str, Any]]):
    """What a run would do: one dict per node, with `node`, `operator`, `status` and `detail`."""

    @property
    def to_run(self) -> list[str]:
        """The nodes that would run, as far as that is known now."""
        return [node["node"] for node in self if node["status"] == "run"]

    def _repr_html_(self) -> str:
        names = ["node", "operator", "status", "detail"]
        return _html.table([*names, "rows"], [[*(node.get(name) for name in names), _rows(node)] for node in self])


def _rows(node: Mapping[str, Any]) -> str:
    """Returns how many rows of a node are known, and how many are not."""
    rows = node.get("rows")
    return f"{rows['known']} known, {rows['to_compute']} to compute" if rows else ""


class Why(dict[str, Any]):
    """Why a node would run: `node`, `status`, `reasons`, `detail`."""

    def _repr_html_(self) -> str:
        said = self["reasons"] or [self.get("detail")]
        return _html.table([f"{self['node']}: {self['status']}"], [[reason] for reason in said])


class Runs(list[dict[str, Any]]):
    """The runs of a store, newest last: `id`, `pipeline`, `file`, `started`, `finished`, `exit`, `params` …"""

    def _repr_html_(self) -> str:
        def at(seconds: float | None) -> str:
            return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""

        rows = [
            [run["id"], run["pipeline"], at(run["started"]), at(run.get("finished")), run.get("exit")] for run in self
        ]
        return _html.table(["run", "pipeline", "started", "finished", "exit code"], rows)


class Difference(dict[str, Any]):
    """What differs between two runs: `params`, `nodes`, `metrics` …"""

    def _repr_html_(self) -> str:
        params = [["param", each["name"], each.get("from"), each.get("to")] for each in self.get("params", [])]
        nodes = [
            [node["node"], each["name"], each.get("from"), each.get("to")]
            for node in self.get("nodes", [])
            for each in [*node.get("rows", []), *node.get("figures", [])]
        ]
        return _html.table(["where", "what", "before", "after"], params + nodes, " → ".join(self.get("runs", [])))


class Trace(dict[str, Any]):
    """Where an artifact or a row comes from: `steps`, each with `node`, `operator`, `inputs` and `outputs`."""

    def _repr_html_(self) -> str:
        rows = [
            [step.get("node"), step.get("operator"), ", ".join(output["port"] for output in step.get("outputs", []))]
            for step in self.get("steps", [])
        ]
        return _html.table(["node", "operator", "outputs"], rows)


def plan(
    file: PathLike,
    *,
    set: Mapping[str, object] | None = None,
    params: Sequence[PathLike] = (),
    targets: Sequence[str] = (),
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Plan:
    """Returns what `run` would do with the same arguments. Runs nothing."""
    return Plan(ask(["plan", str(file), *targets, *settings(set, params), *where(directory, store)]))


def why(
    node: str,
    *,
    file: PathLike | None = None,
    set: Mapping[str, object] | None = None,
    params: Sequence[PathLike] = (),
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Why:
    """Explains why a node would run. Without `file`: of the last run, with its params."""
    of = [] if file is None else ["--file", str(file)]
    (told,) = ask(["why", node, *of, *settings(set, params), *where(directory, store)])
    return Why(told)


def runs(count: int = 20, *, directory: PathLike | None = None, store: PathLike | None = None) -> Runs:
    """Lists the newest runs."""
    return Runs(ask(["runs", "-n", str(count), *where(directory, store)]))


def diff(
    one: str = "previous",
    other: str = "latest",
    *,
    node: str | None = None,
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Difference:
    """Compares two runs."""
    only = [] if node is None else ["--node", node]
    (told,) = ask(["diff", one, other, *only, *where(directory, store)])
    return Difference(told)


def trace(
    what: str, *, row: str | None = None, directory: PathLike | None = None, store: PathLike | None = None
) -> Trace:
    """Follows an artifact, or the row of it with an id, to its sources; or a source to what was made of it."""
    of = [] if row is None else ["--row", row]
    (told,) = ask(["trace", what, *of, *where(directory, store)])
    return Trace(told)
