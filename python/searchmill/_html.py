"""Small tables for notebooks. Everything that comes from a store is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def short(value: object, longest: int = 160) -> str:
    """Returns a value as text of a cell.

    >>> short(0.12345678), short(None), short("x" * 200)[-3:]
    ('0.1235', '', 'xx…')
    """
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= longest else text[:longest] + "…"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Returns an HTML table.

    >>> table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(short(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
