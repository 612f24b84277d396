#!/usr/bin/env python3
"""Peak memory of a 2 GB JSONL file through read, chunk and sql, and how long it takes. The rows repeat the peers' passages.

    PEERS_DATA=… benches/memory.py [--bin target/release/searchmill] [--gb 2]
"""
import argparse, json, os, resource, shutil, subprocess, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--gb", type=float, default=2)
args = parser.parse_args()
folder = tempfile.mkdtemp(dir=os.environ.get("PEERS_TMP"))
lines = [json.loads(line)["contents"] for line in open(os.path.join(os.environ["PEERS_DATA"], "corpus_100k.jsonl"))]
size = rows = 0
with open(f"{folder}/documents.jsonl", "w") as out:
    while size < args.gb * 1e9:
        line = json.dumps({"id": f"d{rows}", "text": " ".join(lines[(rows * 7 + k) % len(lines)] for k in range(6))}) + "\n"
        size, rows = size + len(line), rows + 1
        out.write(line)
open(f"{folder}/pipeline.yaml", "w").write("""name: memory
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 200, count: words}}
  lengths: {op: sql, from: {chunks: chunks}, with: {query: "SELECT document_id, count(*) AS chunks, sum(length(text)) AS letters FROM chunks GROUP BY document_id ORDER BY document_id"}}
""")
start = time.perf_counter()
done = subprocess.run([os.path.abspath(args.bin), "run", "-q", "pipeline.yaml"], cwd=folder, capture_output=True, text=True)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({"tool": "searchmill", "task": "read_chunk_sql", "gb": round(size / 1e9, 2), "rows": rows, "seconds": round(seconds, 1),
                  "peak_rss_mib": round(peak, 1), "exit": done.returncode, "stderr": done.stderr[-400:]}))
shutil.rmtree(folder)
