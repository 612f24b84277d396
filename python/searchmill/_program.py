"""Finds and calls the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from ._errors import Diagnostic, failure

#: A path as people write it.
PathLike = Union[str, "os.PathLike[str]"]


def program() -> str:
    """Returns the path of the program: `SEARCHMILL`, the one of this package, or the one on the search path."""
    named = os.environ.get("SEARCHMILL")
    if named:
        return named
    name = "searchmill"
    # `pip install`, and `pip install --user`, put it into one of these.
    folders = [sysconfig.get_path("scripts"), str(Path.home() / ".local" / "bin")]
    found = shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            "the program `searchmill` is not here: `pip install searchmill`, or name it in SEARCHMILL"
        )
    return found


def value(given: object) -> str:
    """Returns a param's value as YAML, of which JSON is a part. `${params.x}` in a text is a reference, as in a file.

    >>> value(True), value([1, "a"]), value("x: y")
    ('true', '[1, "a"]', '"x: y"')
    >>> value(Path("data") / "q.csv")
    '"data/q.csv"'
    """
    # Without `allow_nan`, NaN would become a text.
    return json.dumps(given, ensure_ascii=False, allow_nan=False, default=os.fspath)


def settings(set: Mapping[str, object] | None, params: Sequence[PathLike]) -> list[str]:
    """Returns the options for params."""
    options: list[str] = []
    for file in params:
        options += ["--params", os.fspath(file)]
    for name, given in (set or {}).items():
        options += ["--set", f"{name}={value(given)}"]
    return options


def where(directory: PathLike | None, store: PathLike | None) -> list[str]:
    """Returns the options for the working directory and the store."""
    options: list[str] = []
    if directory is not None:
        options += ["-C", os.fspath(directory)]
    if store is not None:
        options += ["--store", os.fspath(store)]
    return options


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Reads one JSON object per line."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def ask(arguments: Sequence[str], fine: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Runs a command to its end and returns what it printed.

    Raises the exception of its exit code unless that is `fine`.
    """
    done = subprocess.run(
        [program(), *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8"
    )
    told = list(objects(done.stdout))
    if done.returncode in fine:
        return told
    wrong = [Diagnostic.of(line) for line in told if "severity" in line and "message" in line]
    if not wrong and done.stderr.strip():
        wrong = [Diagnostic(done.stderr.strip())]
    raise failure(done.returncode, wrong)
