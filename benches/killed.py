#!/usr/bin/env python3
"""How many calls are paid when a run of 1,000 calls is killed (`kill -9`) in the middle and started again; then once more
with nothing changed. Counts, not times.

    benches/killed.py [--bin target/release/searchmill] [--data-designer PYTHON] [--dvc DVC] [--verifiers VF-EVAL] [--rows 1000]

`--data-designer` is the Python of an environment with Data Designer, `--dvc` the program of one with DVC and openai: a stage
that runs a loop over the questions. `--verifiers` starts a process for each rollout, about one second each. Prints a line of
JSON per tool: calls until the kill, after it, and of the third run.
"""

import argparse
import http.server
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


class Endpoint(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible chat endpoint that counts what it served, whole or as a stream."""

    protocol_version = "HTTP/1.1"
    served = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        self.give("application/json", b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            Endpoint.served += 1
        time.sleep(THINKS)
        message = {"role": "assistant", "content": "As large as the others."}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        known = {"id": "chatcmpl-1", "created": 1700000000, "model": "mock"}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = known | {"object": "chat.completion", "choices": [choice], "usage": usage}
            self.give("application/json", json.dumps(answer).encode())
            return
        known["object"] = "chat.completion.chunk"
        events = [
            known | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            known | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            known | {"choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        self.give("text/event-stream", "".join(lines).encode())

    def give(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        """A killed client leaves its connections broken."""


def measure(tool: str, command: list[str], again: list[str], folder: Path, rows: int) -> None:
    """Kills the command once half of the calls are served, and runs `again` twice; `again` may have a pattern of a path."""
    begun = Endpoint.served
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        while Endpoint.served - begun < rows // 2:
            assert child.poll() is None, (folder / "log").read_text()
            time.sleep(0.005)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        # What is in flight is still served.
        time.sleep(1)
        counts = [Endpoint.served - begun]
        again = [str(next(folder.glob(word))) if "*" in word else word for word in again]
        for _ in range(2):
            before = Endpoint.served
            subprocess.run(again, cwd=folder, stdout=log, stderr=log, check=True)
            counts.append(Endpoint.served - before)
    print(json.dumps({"tool": tool, "until_the_kill": counts[0], "after_it": counts[1], "once_more": counts[2]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release/searchmill")
    parser.add_argument("--data-designer")
    parser.add_argument("--dvc")
    parser.add_argument("--verifiers")
    parser.add_argument("--rows", type=int, default=1000)
    given = parser.parse_args()
    server = Server(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
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
            url = f"http://127.0.0.1:{server.server_port}/v1"
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
            measure(tool, command, again, folder, given.rows)


if __name__ == "__main__":
    main()
