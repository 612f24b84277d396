#!/usr/bin/env python3
"""Overhead of the engine: a linear chain of N in-process nodes, process start included.

Prints one JSON line a measurement: seconds (median), nodes/s, milliseconds a node. `first`: an empty store, every node
runs; `changed`: the source changed, every node runs again; `noop`: everything is known. Each node adds 1 to a number, so
that no two nodes share a key, and the result is checked.

    benches/engine.py [--bin target/release/searchmill] [--sizes 10,100,1000] [--reps 5]
"""
import argparse, json, os, shutil, statistics, subprocess, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/debug/searchmill")
parser.add_argument("--sizes", default="10,100,1000")
parser.add_argument("--noop-only", default="10000", help="sizes that are run once and then only timed as no-op")
parser.add_argument("--reps", type=int, default=5)
args = parser.parse_args()
binary = os.path.abspath(args.bin)


def pipeline(folder, nodes):
    lines = ["name: chain", "nodes:", "  n0: {op: read, with: {path: in.jsonl, as: table}}"]
    for i in range(1, nodes):
        lines.append(f'  n{i}: {{op: sql, from: {{t: n{i - 1}}}, with: {{query: "SELECT x + 1 AS x FROM t"}}}}')
    open(f"{folder}/chain.yaml", "w").write("\n".join(lines) + "\n")


def run(folder):
    start = time.perf_counter()
    done = subprocess.run([binary, "run", "-q", "chain.yaml"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def check(folder, nodes, start):
    shown = subprocess.run([binary, "show", f"n{nodes - 1}", "--json"], cwd=folder, capture_output=True, text=True).stdout
    if json.loads(shown.splitlines()[0])["x"] != start + nodes - 1:
        raise SystemExit(f"wrong result: {shown}")


def emit(task, nodes, times):
    seconds = statistics.median(times)
    print(json.dumps({"task": f"engine_chain{nodes}_{task}", "seconds": round(seconds, 4), "reps": len(times),
                      "nodes_per_s": round(nodes / seconds, 1), "ms_per_node": round(1e3 * seconds / nodes, 3)}), flush=True)


def source(folder, value):
    open(f"{folder}/in.jsonl", "w").write(json.dumps({"x": value}) + "\n")


for size in args.sizes.split(",") + [s for s in args.noop_only.split(",") if s]:
    nodes, full = int(size), size in args.sizes.split(",")
    folder = tempfile.mkdtemp()
    pipeline(folder, nodes)
    first, changed = [], []
    for rep in range(max(1, args.reps // 2 + 1) if full else 1):
        shutil.rmtree(f"{folder}/.searchmill", ignore_errors=True)
        source(folder, rep)
        first.append(run(folder))
        check(folder, nodes, rep)
        if full:
            source(folder, rep + 1000)
            changed.append(run(folder))
            check(folder, nodes, rep + 1000)
    emit("first", nodes, first)
    if full:
        emit("changed", nodes, changed)
    emit("noop", nodes, [run(folder) for _ in range(args.reps)])
    shutil.rmtree(folder)
