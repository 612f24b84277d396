"""Small tables and conversations for notebooks. Everything that comes from a store is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

#: Characters of a cell, and of a message: a notebook keeps what it shows.
LONGEST = 80
LONGEST_MESSAGE = 4000
TEXT = "text-align:left;white-space:nowrap"
WRAPPED = "white-space:pre-wrap;margin:0.2em 0 0.8em 1em"


def short(value: object, longest: int = LONGEST) -> str:
    """Returns a value as text of a cell.

    >>> short(0.12345678), short(None), short(["a", "b"]), short([{"x": 1}]), short("x" * 200)[-3:]
    ('0.1235', '', 'a | b', '1 item', 'xx…')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return f"{len(value)} item{'s' * (len(value) != 1)}"
    text = " | ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= longest else text[:longest] + "…"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Returns an HTML table. Numbers stand at the right.

    >>> table(["a"], [["<b>"], [1]]).count("&lt;b&gt;</td></tr><tr><td>1</td></tr></tbody></table>")
    1
    """
    head = "".join(f'<th style="{TEXT}">{escape(name)}</th>' for name in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(value: object) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    style = "" if is_number else f' style="{TEXT}"'
    return f"<td{style}>{escape(short(value))}</td>"


def conversation(row: Mapping[str, Any]) -> str:
    """Returns the messages of a trajectory, folded.

    >>> conversation({"id": "q", "messages": [{"role": "user", "content": "<b>?"}]}).count("&lt;b&gt;?</pre></details>")
    1
    """
    parts = []
    for message in row["messages"]:
        lines = [message["content"] or ""]
        lines += [f"→ {call['name']} {call['arguments']}" for call in message.get("tool_calls") or []]
        lines += [f"★ {seen['title']} ({seen['chunk_id']})" for seen in message.get("observations") or []]
        text = "\n".join(line for line in lines if line)
        if len(text) > LONGEST_MESSAGE:
            text = f"{text[:LONGEST_MESSAGE]}… ({len(text)} characters)"
        parts.append(f'<b>{escape(message["role"])}</b><pre style="{WRAPPED}">{escape(text)}</pre>')
    said = f"{row['id']}: {short(row.get('prediction'))}"
    return f"<details><summary>{escape(said)}</summary>{''.join(parts)}</details>"
