"""Outputs of nodes: tables, and folders such as models, indexes and reports."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _html
from ._errors import Diagnostic, NotFound, UsageFailed
from ._program import PathLike, ask, where

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow

#: Rows that a notebook shows.
SHOWN = 10
#: Columns of conversations that it shows beside them.
TOLD = ("id", "question", "golden_answers", "prediction", "question_type", "turns", "tool_calls", "finish_reason")


@dataclass(frozen=True)
class Output:
    """An output of a node that is a folder: a model, an index, a report."""

    path: Path
    kind: str
    files: tuple[str, ...]

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = self.path / "report.html"
        if not page.is_file():
            return _html.table([self.kind], [[name] for name in self.files], str(self.path))
        # A frame without rights of its own: what a model wrote is in it.
        return f'<iframe sandbox srcdoc="{escape(page.read_text("utf-8"))}" width="100%" height="600"></iframe>'


@dataclass(frozen=True)
class Rows:
    """An output of a node that is a table. Its files are read when they are asked for, and never copied."""

    path: Path
    #: `trajectory`, `question`, `table` …: `searchmill kinds` lists them.
    kind: str
    files: tuple[str, ...]
    count: int

    def __len__(self) -> int:
        return self.count

    def __fspath__(self) -> str:
        return str(self.path)

    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """Returns the rows in their order. Only the `columns` are read. A table without rows has no columns."""
        import pyarrow
        import pyarrow.dataset
        import pyarrow.fs

        # It has no files either.
        if not self.files:
            return pyarrow.table({})
        # Side by side: a table of a million rows has tens of files.
        paths = [str(self.path / name) for name in self.files]
        local = pyarrow.fs.LocalFileSystem(use_mmap=True)
        return pyarrow.dataset.dataset(paths, format="parquet", filesystem=local).to_table(columns)

    def to_pandas(self, columns: list[str] | None = None) -> pandas.DataFrame:
        """Returns the rows as a data frame."""
        frame: pandas.DataFrame = self.to_arrow(columns).to_pandas()
        return frame

    def to_polars(self, columns: list[str] | None = None) -> polars.DataFrame:
        """Returns the rows as a data frame of Polars."""
        import polars

        frame = polars.from_arrow(self.to_arrow(columns))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_dataset(self, columns: list[str] | None = None) -> datasets.Dataset:
        """Returns the rows as a data set of `datasets`."""
        import datasets

        return datasets.Dataset(self.to_arrow(columns))

    def head(self, rows: int = SHOWN) -> list[dict[str, Any]]:
        """Returns the first rows as dicts."""
        import pyarrow.parquet

        found: list[dict[str, Any]] = []
        for name in self.files:
            file = pyarrow.parquet.ParquetFile(self.path / name, memory_map=True)
            for batch in file.iter_batches(batch_size=rows):
                found += batch.to_pylist()
                if len(found) >= rows:
                    return found[:rows]
        return found

    def _repr_html_(self) -> str:
        rows = self.head()
        columns = list(rows[0]) if rows else []
        is_conversations = self.kind == "trajectory" and "messages" in columns
        if is_conversations:
            columns = [name for name in TOLD if name in columns]
        note = f"{self.count} {self.kind} rows" + (f", the first {len(rows)}" if len(rows) < self.count else "")
        shown = _html.table(columns, [[row[name] for name in columns] for row in rows], note)
        return shown + "".join(map(_html.conversation, rows)) if is_conversations else shown


def load(
    what: str,
    *,
    run: str | None = None,
    file: PathLike | None = None,
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Rows:
    """Returns a table of the store.

    `what`: `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), a pin, or the beginning of an artifact's id. `run`:
    of this run; `file`: of the newest run of this pipeline. Default: the newest run, if no other pipeline has one too.

    Raises `NotFound` if the store has no such output, or not yet, or several. `output` returns models and reports, too.
    """
    found = output(what, run=run, file=file, directory=directory, store=store)
    if isinstance(found, Rows):
        return found
    advice = f"its folder: `searchmill.output({what!r}).path`"
    raise UsageFailed(2, [Diagnostic(f"`{what}` is no table but a folder of the kind `{found.kind}`", advice)])


def output(
    what: str,
    *,
    run: str | None = None,
    file: PathLike | None = None,
    directory: PathLike | None = None,
    store: PathLike | None = None,
) -> Rows | Output:
    """Returns an output of any kind, named as for `load`."""
    arguments = ["path", what, *where(directory, store)]
    if run is not None:
        arguments += ["--run", run]
    if file is not None:
        arguments += ["--file", str(file)]
    try:
        (told,) = ask(arguments)
    except UsageFailed as wrong:
        raise NotFound(wrong.exit_code, wrong.diagnostics) from None
    files = tuple(told["files"])
    if told["rows"] is None:
        return Output(Path(told["path"]), told["kind"], files)
    return Rows(Path(told["path"]), told["kind"], files, told["rows"])
