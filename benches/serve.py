#!/usr/bin/env python3
"""Queries a second and latencies of `serve env` beside servers in Python, over one corpus.

    benches/serve.py [--bin target/release/searchmill] [--chunks 100000] [--connections 1,32,200,1000] [--seconds 10]
                     [--kinds bm25,dense,fused] [--peers fastapi-bm25s,fastapi-faiss]

The corpus is generated: chunks of 60 words drawn from a Zipf distribution over 50,000 words, and queries of 4 words of one
chunk each. Each connection sends `POST /retrieve` with one query, waits for the answer, and sends the next, so the number of
connections is the number of requests in flight. Peers (FastAPI with uvicorn, one process, a thread per request, as the original
servers run): `fastapi-bm25s` (bm25s with numba) and `fastapi-faiss` (faiss-cpu, `IndexFlatIP`, vectors of the same hashing as
`encoder: hashing` are not available in Python, so a random projection of the words takes their place). They need the packages
fastapi, uvicorn, bm25s, numba, faiss-cpu, numpy. searchmill and the peers run one after the other. Prints one JSON line per
server and number of connections: queries a second, p50 and p99 in ms, failed requests (any status but 200, or no answer).
"""
import argparse, asyncio, json, os, random, re, shutil, statistics, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--chunks", type=int, default=100_000)
parser.add_argument("--connections", default="1,32,200,1000")
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--kinds", default="bm25,dense,fused")
parser.add_argument("--peers", default="fastapi-bm25s,fastapi-faiss")
parser.add_argument("--keep", metavar="FOLDER", help="only writes corpus, indexes and queries, for `wrk -s serve.lua`")
parser.add_argument("--serve-peer", help=argparse.SUPPRESS)
parser.add_argument("--corpus", help=argparse.SUPPRESS)
args = parser.parse_args()
binary = os.path.abspath(args.bin)
TOP_K = 3

PIPELINE = """\
name: serve
nodes:
  corpus: {op: read, with: {path: corpus.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 100, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  dense:  {op: index, from: chunks, with: {kind: {dense: {encoder: {hashing: {dimensions: 256}}, factory: Flat}}}}
"""


def corpus(count):
    rng = random.Random(7)
    words = [f"w{number:05}" for number in range(50_000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    drawn = rng.choices(words, weights, k=count * 60)
    return [" ".join(drawn[start:start + 60]) for start in range(0, len(drawn), 60)]


def queries(texts):
    rng = random.Random(8)
    return [" ".join(rng.sample(rng.choice(texts).split(), 4)) for _ in range(20_000)]


def peer(kind, path):
    """Serves a peer; runs in a process of its own."""
    import numpy, uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    texts = [json.loads(line)["text"] for line in open(path)]

    class Request(BaseModel):
        queries: list[str]
        topk: int = TOP_K
        return_scores: bool = False

    if kind == "fastapi-bm25s":
        import bm25s

        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numba")
        index.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)

        def search(asked, topk):
            tokens = bm25s.tokenize(asked, stopwords=None, show_progress=False, return_ids=False)
            return index.retrieve(tokens, k=topk, show_progress=False)
    else:
        import faiss

        projection = {}
        rng = numpy.random.default_rng(9)

        def vector(text):
            summed = numpy.zeros(256, "float32")
            for word in text.split():
                if word not in projection:
                    projection[word] = rng.standard_normal(256).astype("float32")
                summed += projection[word]
            return summed / numpy.linalg.norm(summed)

        index = faiss.IndexFlatIP(256)
        index.add(numpy.stack([vector(text) for text in texts]))

        def search(asked, topk):
            scores, rows = index.search(numpy.stack([vector(text) for text in asked]), topk)
            return rows, scores

    search([texts[0][:20]], TOP_K)
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: Request):
        rows, scores = search(request.queries, request.topk)
        return {"result": [
            [{"document": {"id": str(row), "contents": texts[int(row)]}, "score": float(score)} for row, score in zip(*found)]
            for found in zip(rows, scores)]}

    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)

    async def run():
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        print(f"at http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
        await serving

    asyncio.run(run())


async def connection(port, asked, end, latencies, failed):
    reader = writer = None
    while time.perf_counter() < end:
        body = json.dumps({"queries": [next(asked)], "topk": TOP_K, "return_scores": True}).encode()
        head = f"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        start = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode() + body)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            length = int(re.search(rb"content-length: (\d+)", answer, re.I)[1])
            await asyncio.wait_for(reader.readexactly(length), 60)
            if b" 200 " not in answer.split(b"\r\n", 1)[0]:
                failed.append(answer[:80])
            else:
                latencies.append(time.perf_counter() - start)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, TypeError) as error:
            failed.append(repr(error))
            writer = None
    if writer is not None:
        writer.close()


async def measure(name, port, connections, asked):
    def cycle(start):
        while True:
            yield asked[start % len(asked)]
            start += 1

    for seconds, shown in [(1, False), (args.seconds, True)]:
        latencies, failed = [], []
        start = time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(
            connection(port, cycle(number * 97), end, latencies, failed) for number in range(connections)))
        took = time.perf_counter() - start
    latencies.sort()
    at = lambda share: round(1000 * latencies[int(share * (len(latencies) - 1))], 2) if latencies else None
    print(json.dumps({"server": name, "connections": connections, "queries_per_second": round(len(latencies) / took, 1),
                      "p50_ms": at(0.5), "p99_ms": at(0.99), "failed": len(failed)}), flush=True)


def serve(command, folder):
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if " at http" not in " " + line:
        process.kill()
        sys.exit(f"{command}: {line}")
    return process, int(line.rsplit(":", 1)[1])


def main():
    texts = corpus(args.chunks)
    asked = queries(texts)
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.abspath(args.keep or scratch)
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/corpus.jsonl", "w") as file:
            file.writelines(json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(texts))
        with open(f"{folder}/pipeline.yaml", "w") as file:
            file.write(PIPELINE)
        subprocess.run([binary, "run", "pipeline.yaml", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        if args.keep:
            with open(f"{folder}/queries.txt", "w") as file:
                file.write("\n".join(asked))
            shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve.lua"), folder)
            return
        indexes = {"bm25": ["bm25"], "dense": ["dense"], "fused": ["bm25", "dense"]}
        own = {f"searchmill-{kind}": [binary, "serve", "env", *indexes[kind], "--listen", "127.0.0.1:0"]
               for kind in args.kinds.split(",") if kind}
        peers = {name: [sys.executable, os.path.abspath(__file__), "--serve-peer", name, "--corpus", f"{folder}/corpus.jsonl"]
                 for name in args.peers.split(",") if name}
        for name, command in {**own, **peers}.items():
            process, port = serve(command, folder)
            try:
                for connections in map(int, args.connections.split(",")):
                    asyncio.run(measure(name, port, connections, asked))
            finally:
                process.terminate()
                process.wait()


if args.serve_peer:
    peer(args.serve_peer, args.corpus)
else:
    main()
