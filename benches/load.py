#!/usr/bin/env python3
"""Times `searchmill.load(...).to_arrow()` beside `pyarrow.dataset` on the same files: a million rows.

    PYTHONPATH=python SEARCHMILL=target/release/searchmill "$(scripts/setup-python)" benches/load.py [--reps 9]

Prints a line of JSON per way. In turns, so that a slow moment of the machine meets both.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import pyarrow
import pyarrow.dataset

import searchmill as sm

PIPELINE = """\
name: many
nodes:
  world: {op: generate-world, with: {documents: 2000, questions: 0}, seed: 1}
  many:
    op: sql
    from: {w: world}
    with:
      query: >-
        select r.value as n, w.id || '-' || r.value as id, w.title, w.text, r.value * 0.5 as score
        from w cross join range(0, 500) as r
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=9)
    reps = parser.parse_args().reps
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "many.yaml"), "w", encoding="utf-8") as file:
            file.write(PIPELINE)
        rows = sm.run("many.yaml", directory=folder, progress=False).load("many")
        paths = [str(rows.path / name) for name in rows.files]
        ways = {
            "load": lambda columns: rows.to_arrow(columns),
            "pyarrow.dataset": lambda columns: pyarrow.dataset.dataset(paths, format="parquet").to_table(columns),
        }
        for columns in (None, ["n", "score"]):
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(reps + 1):
                for name, read in ways.items():
                    start = time.perf_counter()
                    table = read(columns)
                    seconds[name].append(time.perf_counter() - start)
                    assert table.num_rows == len(rows) == 1_000_000, (table.num_rows, len(rows))
            for name, times in seconds.items():
                # The first of each warms the files.
                median = statistics.median(times[1:])
                told = {"way": name, "columns": columns or "all", "rows": len(rows), "files": len(paths)}
                print(json.dumps({**told, "ms": round(median * 1000, 1), "least": round(min(times[1:]) * 1000, 1)}))


if __name__ == "__main__":
    main()
