#!/usr/bin/env python3
"""Rollouts put together from what is remembered: how many a second, and that nothing is paid.

Asks `--size` questions of a local endpoint (a search, then an answer), then runs again with other golden answers (rows come from the
memo and get the labels of today) and with another `max_turns` (rows are put together from answers, searches are run again).

    benches/reassemble.py [--bin target/release/searchmill] [--size 10000]
"""
import argparse, asyncio, json, os, subprocess, tempfile, threading

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--size", type=int, default=10_000)
args = parser.parse_args()
binary, folder = os.path.abspath(args.bin), tempfile.mkdtemp()
served = 0


class Endpoint(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        global served
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, rest = self.buffer.split(b"\r\n\r\n", 1)
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            if len(rest) < length:
                return
            body, self.buffer = json.loads(rest[:length]), rest[length:]
            served += 1
            self.transport.write(reply(body))


def reply(body):
    message = {"role": "assistant", "content": "<answer>Rome</answer>"}
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        query = json.dumps({"query": body["messages"][-1]["content"]})
        call = {"id": "c0", "type": "function", "function": {"name": "search", "arguments": query}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    text = json.dumps({"model": "mock", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text) + text


def serve(ready):
    async def main():
        server = await asyncio.get_running_loop().create_server(Endpoint, "127.0.0.1", 0)
        ready.append(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


port = []
threading.Thread(target=serve, args=(port,), daemon=True).start()
while not port:
    pass
open(f"{folder}/documents.jsonl", "w").writelines(
    json.dumps({"id": f"d{n}", "text": f"Town {n} lies on river {n % 97} in county {n % 31}."}) + "\n" for n in range(5000))
open(f"{folder}/pipeline.yaml", "w").write("""name: reassemble
params: {turns: 8}
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 100, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  answers:
    op: rollout
    from: {questions: questions, search: bm25}
    with: {policy: {endpoint: {base_url: "http://127.0.0.1:%d/v1", model: mock}}, max_turns: "${params.turns}"}
    resources: {concurrency: 64}
""" % port[0])


def run(task, answer, *more):
    before = served
    open(f"{folder}/questions.jsonl", "w").writelines(
        json.dumps({"id": f"q{n}", "question": f"Which river flows by town {n % 5000}, asked {n}?", "golden_answers": [answer]}) + "\n"
        for n in range(args.size))
    told = subprocess.run([binary, "run", "pipeline.yaml", "--json", *more], cwd=folder, capture_output=True, text=True, check=True).stdout
    events = [json.loads(line) for line in told.splitlines()]
    seconds = next(event["seconds"] for event in events if event.get("event") == "node_finished" and event["node"] == "answers")
    print(json.dumps({"task": task, "rollouts": args.size, "seconds": seconds, "rate": args.size / seconds, "calls": served - before}))


run("asked", "Rome")
run("other golden answers", "Roma")
run("another max_turns", "Roma", "--set", "turns=7")
