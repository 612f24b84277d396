#!/usr/bin/env python3
"""Time of `compare`: two systems with 100,000 rows of scores, 1,000 bootstrap resamples, the permutation test as by default.

    benches/compare.py [--bin target/release/searchmill] [--rows 100000] [--samples 1] [--resamples 1000] [--reps 5] [--scipy]

Half of the rows are of each system; a question has `--samples` rows. The node's time is that in the run's record: it includes
reading and writing Parquet. `--scipy`: scipy's paired bootstrap and permutation test of the same means, in this Python. Prints one
JSON line with medians.
"""
import argparse, json, os, random, statistics, subprocess, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--rows", type=int, default=100000)
parser.add_argument("--samples", type=int, default=1)
parser.add_argument("--resamples", type=int, default=1000)
parser.add_argument("--permutations", type=int, default=10000)
parser.add_argument("--reps", type=int, default=5)
parser.add_argument("--scipy", action="store_true")
args = parser.parse_args()
binary = os.path.abspath(args.bin)
draw = random.Random(3)
questions = args.rows // 2 // args.samples


def rows(gain):
    for place in range(questions):
        level = (place * 7919 % 101) / 100
        for sample in range(args.samples):
            f1 = min(1.0, max(0.0, round(level + gain + draw.gauss(0, 0.3), 2)))
            yield {"id": f"q{place}@{sample}", "question_id": f"q{place}", "f1": f1, "kind": f"type {place % 4}"}


def means(found):
    sums = {}
    for row in found:
        sums.setdefault(row["question_id"], []).append(row["f1"])
    return [statistics.fmean(values) for values in sums.values()]


def scipy_seconds(one, other):
    import numpy
    from scipy import stats

    difference = (numpy.array(other) - numpy.array(one),)
    start = time.perf_counter()
    stats.bootstrap(difference, numpy.mean, n_resamples=args.resamples, method="percentile", batch=50)
    stats.permutation_test(difference, lambda x, axis=-1: numpy.mean(x, axis=axis), permutation_type="samples", vectorized=True,
                           n_resamples=args.permutations, batch=50)
    return time.perf_counter() - start


with tempfile.TemporaryDirectory() as folder:
    tables = {"base": list(rows(0.0)), "new": list(rows(0.02))}
    for name, found in tables.items():
        with open(f"{folder}/{name}.jsonl", "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
    with open(f"{folder}/p.yaml", "w") as file:
        file.write("name: compare\nnodes:\n"
                   "  base: {op: read, with: {path: base.jsonl, as: table}}\n"
                   "  new: {op: read, with: {path: new.jsonl, as: table}}\n"
                   "  compared: {op: compare, from: {base: base, new: new}, with: {resamples: %d, permutations: %d}}\n"
                   % (args.resamples, args.permutations))
    subprocess.run([binary, "run", "-q", "p.yaml"], cwd=folder, check=True, capture_output=True)
    node = []
    for _ in range(args.reps):
        done = subprocess.run([binary, "run", "--json", "--force=compared", "p.yaml"], cwd=folder, capture_output=True, text=True)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        node += [event["seconds"] for event in events if event.get("node") == "compared" and "seconds" in event]
    line = {"rows": 2 * len(tables["base"]), "questions": questions, "resamples": args.resamples,
            "permutations": args.permutations, "searchmill_seconds": statistics.median(node)}
    if args.scipy:
        line["scipy_seconds"] = round(scipy_seconds(means(tables["base"]), means(tables["new"])), 2)
print(json.dumps(line))
