#!/usr/bin/env python3
"""100,000 documents of which some change: chunk, hashing index, bm25, retrieval figures, run in full and run after the change.

`--change` says how: `scattered` (1 % of the rows anywhere, as the peers' `bench_incremental.py`), `appended` (1 % more rows at the
end) or `one` (a single document). Seconds are those of the whole command and, from its events, those of each node.

    PEERS_DATA=… benches/incremental.py [--bin target/release/searchmill] [--change scattered,appended,one] [--reps 3] [--minilm FOLDER --size 2000]
"""
import argparse, json, os, random, shutil, statistics, subprocess, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--change", default="scattered,appended,one")
parser.add_argument("--reps", type=int, default=3)
parser.add_argument("--minilm", help="folder of a BERT encoder: index its vectors instead of the hashing encoder's")
parser.add_argument("--size", type=int, default=100_000)
args = parser.parse_args()
binary, folder = os.path.abspath(args.bin), tempfile.mkdtemp()
texts = [json.loads(line)["contents"] for line in open(os.path.join(os.environ["PEERS_DATA"], "corpus_100k.jsonl"))][: args.size]
open(f"{folder}/pipeline.yaml", "w").write("""name: incremental
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 100, count: words}}
  dense: {op: index, from: chunks, with: {kind: {dense: {encoder: ENCODER}}}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
""".replace("ENCODER", "{bert: {model: %s}}" % args.minilm if args.minilm else "hashing"))


def write(change, generation):
    rows = len(texts) + (len(texts) // 100 if change == "appended" and generation else 0)
    pick = random.Random(generation)
    changed = set()
    if generation and change == "scattered":
        changed = set(pick.sample(range(len(texts)), len(texts) // 100))
    if generation and change == "one":
        changed = {pick.randrange(len(texts))}
    with open(f"{folder}/documents.jsonl", "w") as out:
        for row in range(rows):
            more = f" [rev {generation}]" if row in changed else ""
            out.write(json.dumps({"id": f"d{row}", "text": texts[row % len(texts)] + more}) + "\n")


def run():
    start = time.perf_counter()
    done = subprocess.run([binary, "run", "--json", "pipeline.yaml"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    nodes = {event["node"]: event for event in events if event["event"] == "node_finished"}
    return time.perf_counter() - start, nodes


def emit(task, times, nodes):
    seconds = {node: round(statistics.median(sample[node]["seconds"] for sample in nodes), 3) for node in nodes[0]}
    known = nodes[0].get("chunks", {}).get("cached_rows")
    print(json.dumps({"tool": "searchmill", "task": task, "n": args.size, "seconds": round(statistics.median(times), 3), "reps": len(times),
                      "nodes": seconds, "rows_known_to_chunk": known}), flush=True)


for change in args.change.split(","):
    full, after = [], []
    for rep in range(args.reps):
        shutil.rmtree(f"{folder}/.searchmill", ignore_errors=True)
        write(change, 0)
        full.append(run())
        write(change, rep + 1)
        after.append(run())
    emit("map_full", [seconds for seconds, _ in full], [nodes for _, nodes in full])
    emit(f"map_1pct_{change}" if change != "one" else "map_one_changed", [seconds for seconds, _ in after], [nodes for _, nodes in after])
shutil.rmtree(folder)
