#!/usr/bin/env python3
"""A function of each row: `map` with `python` beside datasets and Daft (PyPI), on the same 100,000 rows in one run.

    benches/map_python.py [--bin target/release/searchmill] [--rows 100000] [--reps 3]

Rows have an id and a text of 100 words. `identity` returns nothing new; `tokens` splits the text and counts. searchmill's time is
that of the node in the run's record, with the start of its Python processes (as many as it takes by itself) and with reading and
writing Parquet; that of datasets is one `Dataset.map` by row over a table in memory that is written to its cache, in one process;
that of Daft is a column made by `daft.func` between reading and writing Parquet (its identity returns the text), as it takes the
machine by itself. By turns; the figures are medians of seconds. Prints one JSON line. Needs `pip install datasets daft`; the
`python3` that runs this script runs the functions too.
"""
import argparse, json, os, random, statistics, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--rows", type=int, default=100000)
parser.add_argument("--reps", type=int, default=3)
args = parser.parse_args()
binary = os.path.abspath(args.bin)

FUNCTIONS = '''
def identity(text):
    return {}


def tokens(text):
    words = text.lower().split()
    return {"words": len(words), "distinct": len(set(words))}
'''


def of_datasets(folder, rows, name):
    import datasets
    import functions
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(rows)
    function = getattr(functions, name)
    start = time.perf_counter()
    made = table.map(lambda row: function(row["text"]), load_from_cache_file=False, cache_file_name=f"{folder}/{time.time_ns()}.arrow")
    assert len(made) == len(rows)
    return time.perf_counter() - start


def of_daft(folder, rows, name):
    import daft, functions
    import pyarrow, pyarrow.parquet
    made = daft.DataType.struct({"words": daft.DataType.int64(), "distinct": daft.DataType.int64()})
    call = {
        "identity": daft.func(lambda text: functions.identity(text) or text, return_dtype=daft.DataType.string()),
        "tokens": daft.func(functions.tokens, return_dtype=made),
    }[name]
    source, place = f"{folder}/rows.parquet", f"{folder}/{time.time_ns()}"
    if not os.path.exists(source):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    start = time.perf_counter()
    table = daft.read_parquet(source)
    table.with_column("made", call(table["text"])).write_parquet(place)
    spent = time.perf_counter() - start
    assert daft.read_parquet(place).count_rows() == len(rows)
    return spent


PEERS = {"datasets": of_datasets, "daft": of_daft}
draw = random.Random(1)
rows = [{"id": str(row), "text": " ".join(f"w{draw.randrange(50000)}" for _ in range(100))} for row in range(args.rows)]
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with open(f"{folder}/functions.py", "w") as file:
        file.write(FUNCTIONS)
    interpreter = json.dumps([sys.executable])
    with open(f"{folder}/p.yaml", "w") as file:
        file.write("name: functions\nnodes:\n"
                   "  rows: {op: read, with: {path: rows.jsonl, as: document}}\n"
                   f"  identity: {{op: map, from: rows, with: {{python: functions.py:identity, interpreter: {interpreter}}}}}\n"
                   f"  tokens: {{op: map, from: rows, with: {{python: functions.py:tokens, interpreter: {interpreter}, output: {{words: int, distinct: int}}}}}}\n")
    subprocess.run([binary, "run", "-q", "p.yaml", "rows"], cwd=folder, check=True, capture_output=True)
    sys.path.insert(0, folder)
    os.environ["DAFT_PROGRESS_BAR"] = "0"
    ours = {"identity": [], "tokens": []}
    peers = {peer: {name: [] for name in ours} for peer in PEERS}
    for _ in range(args.reps):
        for name in ours:
            done = subprocess.run([binary, "run", "--json", f"--force={name}", "p.yaml", name], cwd=folder, capture_output=True, text=True)
            events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            found = [event["seconds"] for event in events if event.get("node") == name and "seconds" in event]
            assert found, done.stdout + done.stderr
            ours[name] += found
            for peer, timed in PEERS.items():
                peers[peer][name].append(timed(folder, rows, name))
    median = lambda times: {name: round(statistics.median(found), 2) for name, found in times.items()}
    print(json.dumps({"rows": args.rows, "searchmill": median(ours), **{peer: median(found) for peer, found in peers.items()}}))
