#!/usr/bin/env python3
"""Overhead of the engine: a linear chain of N in-process nodes, process start included.

Prints one JSON line a measurement: seconds (median), nodes/s, milliseconds a node. `first`: an empty store, every node
runs; `changed`: the source changed, every node runs again; `noop`: everything is known. Each node adds 1 to a number, so
that no two nodes share a key, and the result is checked.

    benches/engine.py [--bin target/release/searchmill] [--sizes 10,100,1000] [--reps 5]

Several programs (`--bin BEFORE,AFTER`) take turns run by run, so that noise of the machine meets all of them.

    benches/engine.py --rounds 1000 [--reps 5]

Instead: a loop of that many rounds of five `sql` nodes, without and with `stop: {when: …}`; `plan` before the first run, the first
run, and no-op runs. `cpu`: user and system time, which a busy machine changes less.
"""
import argparse, json, os, resource, shutil, statistics, subprocess, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--sizes", default="10,100,1000")
parser.add_argument("--noop-only", default="10000", help="sizes that are run once and then only timed as no-op")
parser.add_argument("--reps", type=int, default=5)
parser.add_argument("--rounds", type=int)
args = parser.parse_args()
binaries = [os.path.abspath(path) for path in args.bin.split(",")]


def pipeline(folder, nodes):
    lines = ["name: chain", "nodes:", "  n0: {op: read, with: {path: in.jsonl, as: table}}"]
    for i in range(1, nodes):
        lines.append(f'  n{i}: {{op: sql, from: {{t: n{i - 1}}}, with: {{query: "SELECT x + 1 AS x FROM t"}}}}')
    open(f"{folder}/chain.yaml", "w").write("\n".join(lines) + "\n")


def loop(folder, stop):
    nodes = [("a", "x", "x + 1 as x")] + [(name, before, "x") for before, name in zip("abcd", "bcde")]
    lines = ["name: loop", "nodes:", "  start: {op: read, with: {path: in.jsonl, as: table}}", "repeat:", "  rl:",
             f"    rounds: {args.rounds}", "    carry: {x: start}", "    nodes:"]
    lines += [f'      {name}: {{op: sql, from: {{t: {before}}}, with: {{query: "select {what} from t"}}}}' for name, before, what in nodes]
    lines += ["    next: {x: e}"] + ['    stop: {when: "select max(x) > 1000000 from e"}'] * stop
    open(f"{folder}/chain.yaml", "w").write("\n".join(lines) + "\n")


def time_loop(binary, stop):
    folder = tempfile.mkdtemp()
    loop(folder, stop)
    source(folder, 0)
    for task, command, reps in (("plan", ["plan"], args.reps), ("first", ["run", "-q"], 1), ("noop", ["run", "-q"], args.reps)):
        times = []
        for _ in range(reps):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = run(binary, folder, *command)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append((seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        seconds, cpu = (statistics.median(part) for part in zip(*times))
        print(json.dumps({"task": f"engine_loop{args.rounds}_{task}", "bin": binary, "stop": stop, "seconds": round(seconds, 3),
                          "cpu": round(cpu, 3), "reps": reps}), flush=True)
    shutil.rmtree(folder)


def run(binary, folder, *command):
    start = time.perf_counter()
    done = subprocess.run([binary, *(command or ("run", "-q")), "chain.yaml"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def check(binary, folder, nodes, start):
    shown = subprocess.run([binary, "show", f"n{nodes - 1}", "--json"], cwd=folder, capture_output=True, text=True).stdout
    if json.loads(shown.splitlines()[0])["x"] != start + nodes - 1:
        raise SystemExit(f"wrong result: {shown}")


def emit(task, binary, nodes, times):
    seconds = statistics.median(times)
    program = {"bin": binary} if len(binaries) > 1 else {}
    print(json.dumps({"task": f"engine_chain{nodes}_{task}", **program, "seconds": round(seconds, 4), "reps": len(times),
                      "nodes_per_s": round(nodes / seconds, 1), "ms_per_node": round(1e3 * seconds / nodes, 3)}), flush=True)


def source(folder, value):
    open(f"{folder}/in.jsonl", "w").write(json.dumps({"x": value}) + "\n")


if args.rounds:
    for binary in binaries:
        for stop in (False, True):
            time_loop(binary, stop)
    raise SystemExit

for size in args.sizes.split(",") + [s for s in args.noop_only.split(",") if s]:
    nodes, full = int(size), size in args.sizes.split(",")
    folders = {binary: tempfile.mkdtemp() for binary in binaries}
    times = {(task, binary): [] for task in ("first", "changed", "noop") for binary in binaries}
    for folder in folders.values():
        pipeline(folder, nodes)
    for rep in range(max(1, args.reps // 2 + 1) if full else 1):
        for binary, folder in folders.items():
            shutil.rmtree(f"{folder}/.searchmill", ignore_errors=True)
            for task, value in [("first", rep), ("changed", rep + 1000)][: 2 if full else 1]:
                source(folder, value)
                times[task, binary].append(run(binary, folder))
                check(binary, folder, nodes, value)
    for rep in range(args.reps):
        for binary, folder in folders.items():
            times["noop", binary].append(run(binary, folder))
    for (task, binary), seconds in times.items():
        if seconds:
            emit(task, binary, nodes, seconds)
    for folder in folders.values():
        shutil.rmtree(folder)
