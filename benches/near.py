#!/usr/bin/env python3
"""Near duplicates of passages by MinHash: `dedup` with `near` beside datasketch (PyPI), on the same passages in one run.

    benches/near.py [--bin target/release/searchmill] [--rows 100000] [--reps 3]
    benches/near.py [--data-juicer] …
    benches/near.py --golden

Passages have 100 words of a Zipf vocabulary; a fifth are copies with one to five words changed. Both normalise texts, hash 5-grams of
words with SHA-1, use the same 128 permutations and the bands for a similarity of 0.8, verify candidates by their sets, and keep the
first row of each connected component: the kept rows are compared. searchmill's time is that of the node in the run's record, on all
cores, with reading and writing Parquet; datasketch's is one Python process over texts in memory. By turns; the figures are medians.
Prints one JSON line. `--golden` prints the values in the tests of `operators/text/src/minhash.rs`. `--data-juicer` (PyPI's
`py-data-juicer aiohttp`) times `DocumentMinhashDeduplicator` too, hashing in as many processes as there are cores; it verifies no
candidates, so that it keeps other rows.
"""
import argparse, itertools, json, os, random, re, statistics, subprocess, tempfile, time

import datasketch, numpy
from datasketch import MinHash, MinHashLSH

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--rows", type=int, default=100000)
parser.add_argument("--reps", type=int, default=3)
parser.add_argument("--golden", action="store_true")
parser.add_argument("--data-juicer", action="store_true")
args = parser.parse_args()
binary = os.path.abspath(args.bin)
THRESHOLD, PERMUTATIONS, NGRAM = 0.8, 128, 5


def grams(text, n=NGRAM):
    words = re.findall(r"[^\W_]+", text.lower())
    n = min(n, len(words))
    return {" ".join(words[start:start + n]).encode() for start in range(len(words) - n + 1)} if words else set()


def golden():
    print("datasketch", datasketch.__version__, "numpy", numpy.__version__)
    brown, red = "The quick brown fox jumps over the lazy dog near the river bank.", "the quick red fox jumps over the lazy dog near the river bank"
    for text, seed, count in [(brown, 1, 8), (red, 1, 8), (brown, 4294967295, 4), ("東 京 é", 7, 4)]:
        sketch = MinHash(num_perm=128, seed=seed)
        sketch.update_batch(grams(text, 3))
        print(repr(text), "seed", seed, "first", sketch.hashvalues[:count].tolist(), "last", int(sketch.hashvalues[-1]),
              "sum", int(sketch.hashvalues.sum()))
    draws = numpy.random.RandomState(1).randint(0, 2**32, 1600, dtype=numpy.uint32)
    print("RandomState(1), 1600 draws: first", draws[:2].tolist(), "last", int(draws[-1]), "sum", int(draws.sum(dtype=numpy.uint64)))
    shapes = [(threshold, count) for threshold in (0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95) for count in (16, 64, 128, 256)]
    print([(threshold, count, *datasketch.lsh._optimal_param(threshold, count, 0.5, 0.5)) for threshold, count in shapes])


if args.golden:
    golden()
    raise SystemExit


def passages(count):
    source = random.Random(1)
    vocabulary = [f"w{number}" for number in range(50000)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(vocabulary))))
    texts = []
    for _ in range(count):
        if texts and source.random() < 0.2:
            words = texts[source.randrange(len(texts))].split()
            for _ in range(source.randint(1, 5)):
                words[source.randrange(len(words))] = source.choice(vocabulary)
        else:
            words = source.choices(vocabulary, cum_weights=weights, k=100)
        texts.append(" ".join(words))
    return texts


def peer(texts):
    start = time.perf_counter()
    permutations = MinHash(num_perm=PERMUTATIONS).permutations
    lsh = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    sets, parents = [], list(range(len(texts)))

    def root(row):
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for row, text in enumerate(texts):
        members = grams(text)
        sets.append(members)
        sketch = MinHash(num_perm=PERMUTATIONS, permutations=permutations, scheme="affine32")
        sketch.update_batch(members)
        for other in lsh.query(sketch):
            one, two = root(row), root(other)
            if one != two and len(members & sets[other]) / len(members | sets[other]) >= THRESHOLD:
                parents[max(one, two)] = min(one, two)
        lsh.insert(row, sketch, check_duplication=False)
    kept = [row for row in range(len(texts)) if root(row) == row]
    return time.perf_counter() - start, kept


def juicer(texts):
    import datasets
    from data_juicer.ops.deduplicator.document_minhash_deduplicator import DocumentMinhashDeduplicator
    from loguru import logger
    logger.remove()
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"text": texts})
    operator = DocumentMinhashDeduplicator(
        tokenization="space", window_size=NGRAM, num_permutations=PERMUTATIONS, jaccard_threshold=THRESHOLD)
    start = time.perf_counter()
    kept, _ = operator.process(table.map(operator.compute_hash, num_proc=os.cpu_count(), load_from_cache_file=False))
    return time.perf_counter() - start, len(kept)


texts = passages(args.rows)
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/passages.jsonl", "w") as file:
        file.writelines(json.dumps({"id": str(row), "text": text}) + "\n" for row, text in enumerate(texts))
    with open(f"{folder}/p.yaml", "w") as file:
        file.write("name: near\nnodes:\n"
                   "  passages: {op: read, with: {path: passages.jsonl, as: document}}\n"
                   f"  unique: {{op: dedup, from: passages, with: {{near: {{minhash: {{threshold: {THRESHOLD}, permutations: {PERMUTATIONS}, ngram: {NGRAM}}}}}}}}}\n")
    subprocess.run([binary, "run", "-q", "p.yaml"], cwd=folder, check=True, capture_output=True)
    node, python, juice = [], [], []
    for _ in range(args.reps):
        done = subprocess.run([binary, "run", "--json", "--force=unique", "p.yaml"], cwd=folder, capture_output=True, text=True)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        node += [event["seconds"] for event in events if event.get("node") == "unique" and "seconds" in event]
        seconds, kept = peer(texts)
        python.append(seconds)
        juice += [juicer(texts)] if args.data_juicer else []
    shown = subprocess.run([binary, "show", "unique", "--json", "-n", "0"], cwd=folder, capture_output=True, text=True, check=True)
    own = [int(json.loads(line)["id"]) for line in shown.stdout.splitlines()]
assert own == kept, "other rows were kept"
own, other = statistics.median(node), statistics.median(python)
peers = {"datasketch_seconds": round(other, 3), "ratio": round(other / own, 1), "datasketch": datasketch.__version__}
if juice:
    seconds = statistics.median(seconds for seconds, _ in juice)
    peers |= {"data_juicer_seconds": round(seconds, 3), "data_juicer_ratio": round(seconds / own, 1), "data_juicer_kept": juice[0][1]}
print(json.dumps({"rows": args.rows, "kept": len(kept), "searchmill_seconds": round(own, 3), "cores": os.cpu_count()} | peers))
