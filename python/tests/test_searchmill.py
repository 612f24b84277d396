"""The package against the real program, on a small pipeline."""

from __future__ import annotations

import doctest
import importlib
import os
import sys
import time
import urllib.request
import warnings
from pathlib import Path

import pytest

import searchmill as sm
from searchmill import _html

PIPELINE = """\
name: small
params: {documents: 140, pause: 0}
nodes:
  world: {op: generate-world, with: {documents: "${params.documents}", questions: 20}, seed: 1}
  chunks: {op: chunk, from: world, with: {size: 40, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
  slow:
    op: exec
    from: {rows: world.questions}
    with: {command: [/bin/sh, -c, "sleep $0; cp $1 $2", "${params.pause}", "{rows}", "{copy}"], folders: [copy]}
"""

TYPED = """\
name: typed
params: {text: x}
nodes:
  one:
    op: exec
    with:
      command: [/bin/sh, -c, "printf %s \\"$0\\" > $1/text", "${params.text}", "{made}"]
      folders: [made]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE, "utf-8")
    return tmp_path


def test_a_table_is_read_in_four_ways(place: Path) -> None:
    ran = sm.run("pipeline.yaml", targets=["bm25"], directory=place, progress=False)
    assert ran.ran == ["world", "chunks", "bm25"] and ran.exit_code == 0
    again = sm.run("pipeline.yaml", targets=["bm25"], directory=place, progress=False)
    assert again.cached == ["world", "chunks", "bm25"]
    rows = sm.load("world", directory=place)
    assert (len(rows), rows.kind) == (140, "document")
    assert rows.to_arrow(["id"]).column_names == ["id"]
    pytest.importorskip("pandas")
    assert list(rows.to_pandas()["id"]) == rows.to_arrow()["id"].to_pylist()
    pytest.importorskip("polars")
    assert rows.to_polars().height == 140
    assert rows.head(3) == rows.to_arrow().slice(0, 3).to_pylist()
    assert ran.load("world.questions").count == 20
    assert len(sm.load("world.rejects", directory=place).to_arrow()) == 0
    index = sm.output("bm25", directory=place)
    assert isinstance(index, sm.Output) and index.files
    with pytest.raises(sm.UsageFailed, match="is no table but a folder of the kind"):
        sm.load("bm25", directory=place)


def test_rows_of_many_files_stand_in_their_order(place: Path) -> None:
    query = "select value as n, 't' || value as t from range(0, 200000) where exists (select * from w)"
    (place / "many.yaml").write_text(
        "name: many\nnodes:\n  world: {op: generate-world, with: {documents: 100, questions: 0}}\n"
        f'  many: {{op: sql, from: {{w: world}}, with: {{query: "{query}"}}}}\n',
        "utf-8",
    )
    rows = sm.run("many.yaml", directory=place, progress=False).load("many")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    one_by_one = [parquet.read_table(rows.path / name) for name in rows.files]
    assert len(one_by_one) > 5 and rows.to_arrow().equals(pyarrow.concat_tables(one_by_one))
    assert rows.to_arrow(["t"])["t"].to_pylist() == [f"t{n}" for n in rows.to_arrow(["n"])["n"].to_pylist()]
    with pytest.raises(Exception, match="no_such"):
        rows.to_arrow(["no_such"])


def test_what_is_wrong_is_an_exception_with_its_place(place: Path) -> None:
    (place / "wrong.yaml").write_text(PIPELINE.replace("op: chunk", "op: chnk"), "utf-8")
    with pytest.raises(sm.UsageFailed) as told:
        sm.run("wrong.yaml", directory=place)
    assert str(told.value) == "wrong.yaml:5:16: there is no operator `chnk`\n  help: did you mean `chunk`?"
    assert told.value.exit_code == 2
    sm.run("pipeline.yaml", targets=["world"], directory=place, progress=False)
    with pytest.raises(sm.NotFound, match="there is no node and no artifact `nothing`"):
        sm.load("nothing", directory=place)
    failing = PIPELINE.replace("sleep $0;", "echo no luck >&2; exit 3;")
    (place / "failing.yaml").write_text(failing, "utf-8")
    with pytest.raises(sm.NodeFailed, match="slow: `/bin/sh` ended with exit code 3"):
        sm.run("failing.yaml", directory=place)
    with pytest.raises(sm.UsageFailed, match="unknown param `no`"):
        sm.plan("pipeline.yaml", set={"no": 1}, directory=place)


def test_values_of_params_keep_their_type(place: Path) -> None:
    hard = 'a: #b $${x} "c" ä'
    (place / "typed.yaml").write_text(TYPED, "utf-8")
    sm.run("typed.yaml", set={"text": hard}, directory=place, progress=False)
    made = sm.output("one", directory=place)
    assert (made.path / "text").read_text("utf-8") == hard.replace("$$", "$")


def test_plan_why_runs_diff_and_trace(place: Path) -> None:
    assert sm.plan("pipeline.yaml", directory=place).to_run == ["world"]
    sm.run("pipeline.yaml", directory=place, progress=False)
    assert sm.plan("pipeline.yaml", directory=place).to_run == []
    why = sm.why("world", set={"documents": 150}, directory=place)
    assert why["reasons"] == ["param `documents` changed from 140 to 150"]
    sm.run("pipeline.yaml", set={"documents": 150}, directory=place, progress=False)
    assert [run["exit"] for run in sm.runs(directory=place)] == [0, 0]
    difference = sm.diff(directory=place)
    assert difference["params"] == [{"name": "documents", "from": 140, "to": 150}]
    trace = sm.trace("chunks", directory=place)
    assert [step["node"] for step in trace["steps"]] == ["world", "chunks"]
    for shown in (why, sm.runs(directory=place), difference, trace, sm.plan("pipeline.yaml", directory=place)):
        assert shown._repr_html_().startswith("<table>")


def test_a_run_can_be_stopped_and_goes_on(place: Path) -> None:
    with sm.start("pipeline.yaml", set={"pause": 300}, directory=place) as running:
        node = running.run.nodes
        for _ in range(600):
            if "slow" in node and node["slow"].state == "running":
                break
            time.sleep(0.05)
        assert node["slow"].state == "running"
        with pytest.raises(sm.NotFound, match="has not ended yet in run"):
            sm.load("slow", directory=place)
        began = time.monotonic()
        running.cancel()
        # Signals that come together are one.
        time.sleep(1)
        running.cancel()
        with pytest.raises(sm.Interrupted):
            running.wait(60)
        assert time.monotonic() - began < 60
        assert node["slow"].state == "interrupted" and "1 interrupted of" in running.run.line()
    assert "world" in sm.run("pipeline.yaml", directory=place, progress=False).cached


def test_a_run_is_looked_at_while_it_grows(place: Path) -> None:
    many = "".join(
        f'  n{place}: {{op: sql, from: {{t: world}}, with: {{query: "select id, {place} as x from t"}}}}\n'
        for place in range(300)
    )
    (place / "many.yaml").write_text(PIPELINE + many, "utf-8")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = sm.start("many.yaml", directory=place)
        while not running.wait_at_most(0):
            running.run.line()
            running.run._repr_html_()
        assert len(running.wait().ran) == 304
    finally:
        sys.setswitchinterval(before)


def test_a_program_that_writes_no_events_is_read_to_its_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = place / "program"
    program.write_text("#!/bin/sh\necho '{broken'\nhead -c 300000 /dev/zero | tr '\\0' x\necho\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("SEARCHMILL", str(program))
    with pytest.raises(sm.SearchmillError, match=r"wrote what is no event: \{broken"):
        sm.start("pipeline.yaml", directory=place).wait(60)


def test_lost_rows_are_a_warning(place: Path) -> None:
    (place / "step.py").write_text("def step(id):\n    raise ValueError(id)\n", "utf-8")
    more = "  mapped: {op: map, from: world.questions, with: {python: step.py:step}}\n"
    (place / "pipeline.yaml").write_text(PIPELINE + more, "utf-8")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            ran = sm.run("pipeline.yaml", targets=["mapped"], directory=place, progress=False)
        except sm.NodeFailed:
            return
    assert ran.exit_code in (0, 3) and (ran.exit_code == 0) == (not told)


def test_what_a_store_holds_is_escaped(place: Path) -> None:
    (place / "rows.jsonl").write_text('{"id": "1", "text": "<script>alert(1)</script>"}\n', "utf-8")
    (place / "evil.yaml").write_text(
        "name: evil\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: document}}\n", "utf-8"
    )
    ran = sm.run("evil.yaml", directory=place, progress=False)
    assert "<script>" not in ran.load("rows")._repr_html_()


def test_the_page_is_served_until_it_is_stopped(place: Path) -> None:
    ran = sm.run("pipeline.yaml", targets=["world"], directory=place, progress=False)
    page = sm.ui(directory=place)
    link = page.link(ran, "world")
    assert link == f"{page.url}/r/{ran.id}/n/world" and f'href="{link}"' in link._repr_html_()
    with urllib.request.urlopen(link.replace("/r/", "/api/runs/").replace("/n/", "/nodes/")) as answer:
        assert answer.status == 200
    assert page.url.startswith("http://127.0.0.1:") and page.url in page._repr_html_()
    page.stop()
    with pytest.raises(sm.SearchmillError):
        sm.ui(directory=place, listen="nowhere:1")


@pytest.mark.parametrize("name", ["_errors", "_html", "_map", "_page", "_program"])
def test_the_examples_of_the_texts_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"searchmill.{name}")).failed == 0


STEP = """
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Optional, TypedDict

import searchmill as sm


class Place(TypedDict):
    start: int
    words: list[str]


class Counted(TypedDict, total=False):
    text: str
    length: int
    share: Optional[float]
    kind: "Literal['long', 'short']"
    places: list[Place]
    raw: dict[str, Any]


@sm.map
def count(text: str, *, most: int = 30) -> Iterator[Counted]:
    words = text.split()
    kind = "long" if len(words) > most else "short"
    row: Counted = {"text": text, "length": len(words), "kind": kind, "places": [{"start": 0, "words": words[:1]}]}
    row["raw"] = {"n": 1}
    if kind == "long":
        row["share"] = most / len(words)
    yield row


@sm.map
def wrong(text: list[str]) -> Counted: ...


@sm.map
def untyped(text): ...
"""


#: Where this package lies.
ROOT = Path(sm.__file__).resolve().parent.parent


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets functions import this package from wherever it is."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def mapped(place: Path, more: str) -> str:
    """Returns a file with a node that calls a function of `step.py` in the Python of this test."""
    (place / "step.py").write_text(STEP, "utf-8")
    with_ = f'interpreter: ["{sys.executable}"], environment: [PYTHONPATH], files: ["{ROOT}"]'
    text = PIPELINE + f"  mapped: {{op: map, from: world, with: {{{with_}, {more}}}}}\n"
    (place / "mapped.yaml").write_text(text, "utf-8")
    return "mapped.yaml"


@pytest.mark.usefixtures("found")
def test_a_signature_types_the_columns(place: Path) -> None:
    file = mapped(place, "python: step.py:count, arguments: {most: 60}")
    ran = sm.run(file, targets=["mapped"], directory=place, progress=False)
    rows = ran.load("mapped").to_arrow()
    kinds = {name: str(rows.schema.field(name).type) for name in ("text", "length", "share", "kind", "raw", "places")}
    assert kinds == {
        "text": "string",
        "length": "int64",
        "share": "double",
        "kind": "string",
        "raw": "string",
        "places": "list<item: struct<start: int64 not null, words: list<item: string> not null>>",
    }
    assert rows["length"].to_pylist() == [len(text.split()) for text in rows["text"].to_pylist()]
    assert {share is None for share in rows["share"].to_pylist()} == {True, False}
    again = sm.run(file, targets=["mapped"], directory=place, progress=False)
    assert "mapped" in again.cached
    # The types are part of the file, and so of the key.
    (place / "step.py").write_text(STEP.replace("length: int", "length: float"), "utf-8")
    other = sm.run(file, targets=["mapped"], directory=place, progress=False)
    assert other.ran == ["mapped"] and str(other.load("mapped").to_arrow().schema.field("length").type) == "double"


@pytest.mark.usefixtures("found")
def test_a_signature_that_types_nothing_is_told(place: Path) -> None:
    with pytest.raises(sm.UsageFailed, match=r"step.py:40: `untyped` does not say what it returns"):
        sm.plan(mapped(place, "python: step.py:untyped"), targets=["mapped"], directory=place)
    with pytest.raises(sm.UsageFailed, match="the function's signature types its columns already"):
        sm.plan(mapped(place, "python: step.py:count, output: {n: int}"), targets=["mapped"], directory=place)
    with pytest.raises(sm.NodeFailed, match="wants `text` as array, and the column is Utf8"):
        sm.run(mapped(place, "python: step.py:wrong"), targets=["mapped"], directory=place, progress=False)


def package(site: Path, name: str, version: str, code: str) -> None:
    """Installs a package with two operators into a folder, as `pip install --target` does."""
    (site / name).mkdir(parents=True, exist_ok=True)
    (site / name / "__init__.py").write_text("", "utf-8")
    (site / name / "words.py").write_text("def words(text):\n    return len(text.split())\n", "utf-8")
    (site / name / "steps.py").write_text(code, "utf-8")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    (info / "entry_points.txt").write_text(
        f"[searchmill.operators]\n{name}-count = {name}.steps:count\n{name}-gone = {name}.gone:count\n", "utf-8"
    )


def test_an_installed_package_brings_operators(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = place / "lib" / "site-packages"
    code = (
        "from typing import TypedDict\nimport searchmill\nfrom .words import words\n"
        "class Counted(TypedDict):\n    length: int\n"
        "@searchmill.map\ndef count(text: str) -> Counted:\n    return {'length': words(text)}\n"
    )
    package(site, "toolbox", "1.0", code)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{site}")
    file = mapped(place, "python: toolbox-count")
    ran = sm.run(file, targets=["mapped"], directory=place, progress=False)
    rows = ran.load("mapped").to_arrow()
    assert rows["length"].to_pylist() == [len(text.split()) for text in rows["text"].to_pylist()]
    assert "mapped" in sm.run(file, targets=["mapped"], directory=place, progress=False).cached
    # Its package is part of the key: every file of it.
    (site / "toolbox" / "words.py").write_text("def words(text):\n    return -1\n", "utf-8")
    (reason,) = sm.why("mapped", file=file, directory=place)["reasons"]
    assert "operator toolbox-count of toolbox 1.0, toolbox.steps:count, files " in reason or "is now `…" in reason
    other = sm.run(file, targets=["mapped"], directory=place, progress=False)
    assert other.ran == ["mapped"] and set(other.load("mapped").to_arrow()["length"].to_pylist()) == {-1}
    with pytest.raises(sm.UsageFailed, match="did you mean `toolbox-count`"):
        sm.plan(mapped(place, "python: toolbox-cout"), directory=place)
    with pytest.raises(sm.UsageFailed, match=r"`toolbox-gone` of `toolbox` is `toolbox\.gone:count`, which"):
        sm.plan(mapped(place, "python: toolbox-gone"), directory=place)
    package(site, "other", "1.0", code)
    info = site / "other-1.0.dist-info" / "entry_points.txt"
    info.write_text("[searchmill.operators]\ntoolbox-count = other.steps:count\n", "utf-8")
    with pytest.raises(sm.UsageFailed, match="`other` and `toolbox` both bring an operator `toolbox-count`"):
        sm.plan(mapped(place, "python: toolbox-count"), directory=place)


def test_entry_points_that_change_in_their_place_are_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = place / "lib" / "site-packages"
    package(
        site,
        "moved",
        "1.0",
        "def count(text):\n    return {'length': 1}\n\ndef other(text):\n    return {'length': 2}\n",
    )
    info = site / "moved-1.0.dist-info" / "entry_points.txt"
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{site}")
    file = mapped(place, "python: moved-count, output: {length: int}")

    def lengths() -> set[int]:
        ran = sm.run(file, targets=["mapped"], directory=place, progress=False)
        return set(ran.load("mapped").to_arrow()["length"].to_pylist())

    assert lengths() == {1}
    info.write_text("[searchmill.operators]\nmoved-count = moved.steps:other\n", "utf-8")
    assert lengths() == {2}
    info.write_text(info.read_text("utf-8") + "moved-count = moved.steps:count\n", "utf-8")
    with pytest.raises(sm.UsageFailed, match="`moved` brings more than one operator `moved-count`"):
        sm.plan(file, directory=place)


def test_a_package_may_hold_what_cannot_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = place / "lib" / "site-packages"
    package(site, "odd", "1.0", "def count(text):\n    return {}\n")
    os.mkfifo(site / "odd" / "pipe")
    (site / "odd" / "nowhere").symlink_to("gone")
    # What an interrupted installation leaves behind.
    (site / "broken-1.0.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{site}")
    ran = sm.run(mapped(place, "python: odd-count"), targets=["mapped"], directory=place, progress=False)
    assert len(ran.load("mapped")) == 140


def test_long_messages_are_cut_in_a_notebook() -> None:
    shown = _html.conversation({"id": "q", "messages": [{"role": "tool", "content": "x" * 1_000_000}]})
    assert len(shown) < 5_000 and "(1000000 characters)" in shown
