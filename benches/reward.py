#!/usr/bin/env python3
"""Rewards a second: `reward` (R1-Searcher's rule for Qwen, published) beside the system's own server code in Python.

    benches/reward.py --results eval_bamboogle_qwen.jsonl --peer R1-SEARCHER [--bin target/release/searchmill] [--rows 20000] [--reps 5]

`--results`: R1-Searcher's results (JSONL), repeated until there are enough rows. `--peer`: a clone of RUCAIBox/R1-Searcher, whose
`train/reward_server_qwen_zero.py` is imported with its servers and tokenizer replaced by empty modules; its logging and printing
are switched off. Both rewards are compared. Both run once a repetition, by turns; the figures are medians. The node's time is that
in the run's record: it includes reading and writing Parquet. Prints one JSON line.
"""
import argparse, contextlib, importlib.util, io, json, os, statistics, subprocess, sys, tempfile, time, types
from unittest import mock

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--results", required=True)
parser.add_argument("--peer", required=True)
parser.add_argument("--rows", type=int, default=20000)
parser.add_argument("--reps", type=int, default=5)
args = parser.parse_args()
binary = os.path.abspath(args.bin)
END = "<|endoftext|>"

source = [json.loads(line) for line in open(args.results)]
rows = []
for number in range(args.rows):
    row = dict(source[number % len(source)])
    row["question"] = f"{number}: {row['question']}"
    row["idx"] = number
    rows.append(row)


def peer():
    names = ["uvicorn", "fastapi", "fastapi.responses", "datasets", "openrlhf", "openrlhf.utils", "openrlhf.utils.logging_utils",
             "transformers", "ujson"]
    for name in names:
        sys.modules[name] = mock.MagicMock()
    sys.modules["ujson"] = json
    path = os.path.join(args.peer, "train/reward_server_qwen_zero.py")
    spec = importlib.util.spec_from_file_location("peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    proxy = module.MathRuleProxy.__new__(module.MathRuleProxy)
    proxy.tokenizer = types.SimpleNamespace(pad_token=END, eos_token=END)
    proxy.log_file, proxy.cnt, proxy.avg_len, proxy.avg_length_dict, proxy.key_words = None, 0, 5000, [], []
    proxy.eval_data_dict = proxy.get_answer_dict(rows)
    return proxy


def timed_peer(proxy):
    queries = [f"\n\nUser:{row['question']}\nAssistant: <think>{row['gen_text_store']}{END}" for row in rows]
    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        scores = proxy.get_reward(queries)
        return time.perf_counter() - start, scores


with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/results.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with open(f"{folder}/p.yaml", "w") as file:
        file.write("name: reward\nnodes:\n"
                   "  rollouts: {op: read, with: {path: results.jsonl, as: trajectory, layout: r1-searcher}}\n"
                   "  rewarded: {op: reward, from: rollouts, with: {system: r1-searcher-qwen, rule: published}}\n")
    subprocess.run([binary, "run", "-q", "p.yaml"], cwd=folder, check=True, capture_output=True)
    proxy, node, python = peer(), [], []
    for _ in range(args.reps):
        done = subprocess.run([binary, "run", "--json", "--force=rewarded", "p.yaml"], cwd=folder, capture_output=True, text=True)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        node += [event["seconds"] for event in events if event.get("node") == "rewarded" and "seconds" in event]
        seconds, scores = timed_peer(proxy)
        python.append(seconds)
    shown = subprocess.run([binary, "show", "rewarded", "--json", "-n", "0"], cwd=folder, capture_output=True, text=True, check=True)
    own = [json.loads(line)["reward"] for line in shown.stdout.splitlines()]
assert len(own) == len(scores) and all(abs(a - b) < 1e-9 for a, b in zip(own, scores)), "the rewards differ"
own, other = statistics.median(node), statistics.median(python)
print(json.dumps({"rows": args.rows, "searchmill_rows_per_second": round(args.rows / own), "peer_rows_per_second": round(args.rows / other),
                  "ratio": round(other / own, 1)}))
