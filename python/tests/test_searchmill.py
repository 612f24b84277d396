"""The package against the real program, on a small pipeline."""

from __future__ import annotations

import doctest
import importlib
import sys
import time
import warnings
from pathlib import Path

import pytest

import searchmill as sm

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
        began = time.monotonic()
        running.cancel()
        # Signals that come together are one.
        time.sleep(1)
        running.cancel()
        with pytest.raises(sm.Interrupted):
            running.wait(60)
        assert time.monotonic() - began < 60
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
    sm.run("pipeline.yaml", targets=["world"], directory=place, progress=False)
    page = sm.ui(directory=place)
    assert page.url.startswith("http://127.0.0.1:") and page.url in page._repr_html_()
    page.stop()
    with pytest.raises(sm.SearchmillError):
        sm.ui(directory=place, listen="nowhere:1")


@pytest.mark.parametrize("name", ["_errors", "_html", "_program"])
def test_the_examples_of_the_texts_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"searchmill.{name}")).failed == 0
