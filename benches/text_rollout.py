#!/usr/bin/env python3
"""Rollouts in a text protocol (Search-R1's tags, one search each) beside a plain aiohttp loop, against the same endpoint.

    benches/text_rollout.py [--bin target/release/searchmill] [--size 2000] [--concurrency 30] [--reps 3] [--peer PYTHON]

The endpoint is a server in this script: without results in the text it writes a query, with results an answer. searchmill reads
the questions, searches a BM25 index of 2,000 documents, and stores and journals every row (process start included). The peer
keeps nothing, and its search is free: it appends a constant passage. `--peer`: a Python with aiohttp. Prints one JSON line.
"""
import argparse, asyncio, json, os, socket, statistics, subprocess, sys, tempfile, time

PIPELINE = """name: text
nodes:
  documents: {op: read, with: {path: documents.jsonl, as: document}}
  chunks:    {op: chunk, from: documents, with: {size: 50, count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  rollouts:
    op: rollout
    from: {questions: questions, search: bm25}
    with: {protocol: search-r1, policy: {endpoint: {base_url: "http://127.0.0.1:PORT/v1", model: m, max_tokens: 64}}, search: {top_k: 3}, max_turns: 4}
    resources: {concurrency: CONCURRENCY}
"""


def reply(body):
    messages = json.loads(body)["messages"]
    found = any("<information>" in (message.get("content") or "") for message in messages if message["role"] == "assistant")
    text = "<think>It is there.</think> <answer>1900</answer>" if found else "<think>I need it.</think> <search>founding of mill 7</search>"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                       "usage": {"prompt_tokens": 100, "completion_tokens": 12, "total_tokens": 112}}).encode()


class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, rest = self.data.split(b"\r\n\r\n", 1)
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            if len(rest) < length:
                return
            body, self.data = rest[:length], rest[length:]
            answer = reply(body)
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


async def serve(port):
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port)
    await server.serve_forever()


async def peer(port, size, concurrency):
    import aiohttp
    places, passage = asyncio.Semaphore(concurrency), "\n\n<information>Doc 1(Title: mill 7) founded in 1900</information>\n\n"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as http:
        async def one(number):
            text = ""
            async with places:
                for _ in range(4):
                    messages = [{"role": "user", "content": f"Answer with tags. Question: when was mill {number} founded?"}]
                    messages += [{"role": "assistant", "content": text}] if text else []
                    request = {"model": "m", "messages": messages, "max_tokens": 64, "stop": ["</search>", "</answer>"]}
                    async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=request) as answer:
                        text += (await answer.json())["choices"][0]["message"]["content"]
                    if "</answer>" in text:
                        return text
                    text += passage
        begun = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(size)))
        return time.perf_counter() - begun


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ours(args, port):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/documents.jsonl", "w") as file:
            file.writelines(json.dumps({"id": f"d{n}", "title": f"mill {n}", "text": f"The mill {n} was founded in {1800 + n % 200}."}) + "\n" for n in range(2000))
        with open(f"{folder}/questions.jsonl", "w") as file:
            file.writelines(json.dumps({"id": f"q{n}", "question": f"When was mill {n} founded?", "golden_answers": ["1900"]}) + "\n" for n in range(args.size))
        with open(f"{folder}/pipeline.yaml", "w") as file:
            file.write(PIPELINE.replace("PORT", str(port)).replace("CONCURRENCY", str(args.concurrency)))
        run = lambda *more: subprocess.run([args.bin, "run", "pipeline.yaml", "-q", *more], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        run("bm25", "questions")
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release/searchmill")
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=30)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--as", dest="role")
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.role == "server":
        return asyncio.run(serve(args.port))
    if args.role == "peer":
        return print(asyncio.run(peer(args.port, args.size, args.concurrency)))
    args.bin, port = os.path.abspath(args.bin), free_port()
    me = os.path.abspath(__file__)
    server = subprocess.Popen([sys.executable, me, "--as", "server", "--port", str(port)])
    try:
        time.sleep(1)
        loop = [args.peer, me, "--as", "peer", "--port", str(port), "--size", str(args.size), "--concurrency", str(args.concurrency)]
        both = [(ours(args, port), float(subprocess.run(loop, check=True, capture_output=True, text=True).stdout)) for _ in range(args.reps)]
    finally:
        server.kill()
    rate = lambda seconds: round(args.size / statistics.median(seconds))
    print(json.dumps({"bench": "text_rollout", "searchmill_per_s": rate([one for one, _ in both]), "aiohttp_per_s": rate([other for _, other in both]),
                      "size": args.size, "concurrency": args.concurrency, "reps": args.reps}))


main()
