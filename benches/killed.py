#!/usr/bin/env python3
"""How many calls are paid when a run of 1,000 calls is killed (`kill -9`) in the middle and started again; then once more
with nothing changed. Counts, not times.

    benches/killed.py [--bin target/release/searchmill] [--data-designer PYTHON] [--dvc DVC] [--verifiers VF-EVAL] [--rows 1000]

`--data-designer` is the Python of an environment with Data Designer, `--dvc` the program of one with DVC and openai: a stage
that runs a loop over the questions. `--verifiers` starts a process for each rollout, about one second each. Prints a line of
JSON per tool: calls until the kill, after it, and of the third run.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

THINKS = 0.05  # seconds

SEARCHMILL = """\
name: answers
nodes:
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  answers:
    op: map
    from: questions
    with: {prompt: "{{ question }}", policy: {endpoint: {base_url: "URL", model: mock}}}
    resources: {concurrency: 30}
"""

DATA_DESIGNER = """\
import data_designer.config as dd
from data_designer.interface import DataDesigner
provider = dd.ModelProvider(name="mock", endpoint="URL", provider_type="openai", api_key="x")
parameters = dd.ChatCompletionInferenceParams(max_parallel_requests=30)
builder = dd.DataDesignerConfigBuilder(
    model_configs=[dd.ModelConfig(alias="m", model="mock", provider="mock", inference_parameters=parameters)]
)
builder.with_seed_dataset(dd.LocalFileSeedSource(path="questions.jsonl"))
builder.add_column(dd.LLMTextColumnConfig(name="answer", prompt="{{ question }}", model_alias="m"))
made = DataDesigner(artifact_path="made", model_providers=[provider]).create(
    builder, num_records=ROWS, dataset_name="answers", resume=dd.ResumeMode.IF_POSSIBLE
)
assert made.load_dataset()["answer"].notna().sum() == ROWS
"""

LOOP = """\
import asyncio, json, openai
client = openai.AsyncOpenAI(base_url="URL", api_key="x")
limit = asyncio.Semaphore(30)
async def one(question):
    async with limit:
        asked = [{"role": "user", "content": question}]
        return (await client.chat.completions.create(model="mock", messages=asked)).choices[0].message.content
async def main():
    questions = [json.loads(line)["question"] for line in open("questions.jsonl")]
    json.dump(await asyncio.gather(*map(one, questions)), open("answers.json", "w"))
asyncio.run(main())
"""


VERIFIERS = """\
import json
import verifiers.v1 as vf
class Data(vf.TaskData):
    pass
class Task(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        return 1.0
class Answers(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        rows = [json.loads(line) for line in open("questions.jsonl")]
        return [Task(Data(idx=n, name=row["id"], prompt=row["question"]), self.config.task) for n, row in enumerate(rows)]
__all__ = ["Answers"]
"""


class Endpoint:
    """An OpenAI-compatible chat endpoint that counts what it served, whole or as a stream."""

    def __init__(self) -> None:
        self.served = 0
        self.port = 0
        ready = threading.Event()
        threading.Thread(target=asyncio.run, args=(self.serve(ready),), daemon=True).start()
        ready.wait()

    async def serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await server.serve_forever()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = 0
                for line in head.splitlines():
                    if line.startswith("content-length:"):
                        length = int(line.partition(":")[2])
                body = await reader.readexactly(length)
                kind, content = "application/json", b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}'
                if body:
                    self.served += 1
                    await asyncio.sleep(THINKS)
                    kind, content = self.answer(json.loads(body))
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, asked: dict) -> tuple[str, bytes]:
        message = {"role": "assistant", "content": "As large as the others."}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        known = {"id": f"chatcmpl-{self.served}", "created": 1700000000, "model": "mock"}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return "application/json", json.dumps(known | {"object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        known["object"] = "chat.completion.chunk"
        events = [
            known | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            known | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            known | {"choices": [], "usage": usage},
        ]
        return "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


def measure(tool: str, command: list[str], again: list[str], folder: Path, endpoint: Endpoint, rows: int) -> None:
    """Kills the command once half of the calls are served, and runs `again` twice; `again` may have a pattern of a path."""
    begun = endpoint.served
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        while endpoint.served - begun < rows // 2:
            assert child.poll() is None, (folder / "log").read_text()
            time.sleep(0.005)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        # What is in flight is still served.
        time.sleep(1)
        counts = [endpoint.served - begun]
        again = [str(next(folder.glob(word))) if "*" in word else word for word in again]
        for _ in range(2):
            before = endpoint.served
            subprocess.run(again, cwd=folder, stdout=log, stderr=log, check=True)
            counts.append(endpoint.served - before)
    print(json.dumps({"tool": tool, "until_the_kill": counts[0], "after_it": counts[1], "once_more": counts[2]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release/searchmill")
    parser.add_argument("--data-designer")
    parser.add_argument("--dvc")
    parser.add_argument("--verifiers")
    parser.add_argument("--rows", type=int, default=1000)
    given = parser.parse_args()
    endpoint = Endpoint()
    os.environ["OPENAI_API_KEY"] = "x"
    for tool in ("searchmill", "data_designer", "dvc", "verifiers"):
        program = given.bin if tool == "searchmill" else getattr(given, tool)
        if not program:
            continue
        program = os.path.abspath(program)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            rows = (json.dumps({"id": str(n), "question": f"How large is city {n}?"}) + "\n" for n in range(given.rows))
            (folder / "questions.jsonl").write_text("".join(rows), "utf-8")
            url = f"http://127.0.0.1:{endpoint.port}/v1"
            for name, text in (("p.yaml", SEARCHMILL), ("job.py", DATA_DESIGNER), ("loop.py", LOOP), ("answers.py", VERIFIERS)):
                (folder / name).write_text(text.replace("URL", url).replace("ROWS", str(given.rows)), "utf-8")
            command = again = [program, "run", "p.yaml"]
            if tool == "data_designer":
                command = again = [program, "job.py"]
            elif tool == "dvc":
                subprocess.run([program, "init", "--no-scm", "-q"], cwd=folder, check=True)
                python = os.path.join(os.path.dirname(program), "python")
                stage = ["stage", "add", "-q", "-n", "answers", "-d", "questions.jsonl", "-d", "loop.py"]
                subprocess.run([program, *stage, "-o", "answers.json", python, "loop.py"], cwd=folder, check=True)
                command = again = [program, "repro"]
            elif tool == "verifiers":
                os.environ["PYTHONPATH"] = place
                command = [program, "answers", "-m", "mock", "-c", "30", "--no-push", "--client.base-url", url]
                command += ["--client.api-key-var", "OPENAI_API_KEY", "--env.agent.harness.id", "null"]
                command += ["--env.agent.runtime.type", "subprocess"]
                again = [program, "@", "outputs/*/configs/resolved/eval.json", "--resume"]
            measure(tool, command, again, folder, endpoint, given.rows)


if __name__ == "__main__":
    main()
