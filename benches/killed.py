#!/usr/bin/env python3
"""How many calls are paid when a run of 1,000 calls is killed (`kill -9`) in the middle and started again; then once more
with nothing changed. Counts, not times.

    PEERS=../shared/peers benches/killed.py [--bin target/release/searchmill] [--data-designer PYTHON] [--dvc DVC]

`--data-designer` is the Python of an environment with Data Designer, `--dvc` the program of one with DVC and openai: a stage
that runs a loop over the questions. Prints a line of JSON per tool: calls until the kill, after it, and of the third run.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROWS, PORT = 1000, 18641

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
    builder, num_records=1000, dataset_name="answers", resume=dd.ResumeMode.IF_POSSIBLE
)
assert made.load_dataset()["answer"].notna().sum() == 1000
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


def served() -> int:
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/stats"))["served"]


def measure(tool: str, command: list[str], folder: Path) -> None:
    """Kills the command once half of the calls are served, and runs it twice more."""
    begun = served()
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        while served() - begun < ROWS // 2:
            assert child.poll() is None, (folder / "log").read_text()
            time.sleep(0.005)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        # What is in flight is still served.
        time.sleep(1)
        counts = [served() - begun]
        for _ in range(2):
            before = served()
            subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=True)
            counts.append(served() - before)
    print(json.dumps({"tool": tool, "until_the_kill": counts[0], "after_it": counts[1], "once_more": counts[2]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release/searchmill")
    parser.add_argument("--data-designer")
    parser.add_argument("--dvc")
    given = parser.parse_args()
    mock = subprocess.Popen(
        [sys.executable, os.path.join(os.environ["PEERS"], "mock_openai.py"), str(PORT), "--think-ms", "50"]
    )
    try:
        while socket.socket().connect_ex(("127.0.0.1", PORT)):
            time.sleep(0.05)
        for tool in ("searchmill", "data_designer", "dvc"):
            program = given.bin if tool == "searchmill" else getattr(given, tool)
            if not program:
                continue
            program = os.path.abspath(program)
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                rows = (json.dumps({"id": str(n), "question": f"How large is city {n}?"}) + "\n" for n in range(ROWS))
                (folder / "questions.jsonl").write_text("".join(rows), "utf-8")
                url = f"http://127.0.0.1:{PORT}/v1"
                for name, text in (("p.yaml", SEARCHMILL), ("job.py", DATA_DESIGNER), ("loop.py", LOOP)):
                    (folder / name).write_text(text.replace("URL", url), "utf-8")
                command = [program, "run", "p.yaml"]
                if tool == "data_designer":
                    command = [program, "job.py"]
                elif tool == "dvc":
                    subprocess.run([program, "init", "--no-scm", "-q"], cwd=folder, check=True)
                    python = os.path.join(os.path.dirname(program), "python")
                    stage = ["stage", "add", "-q", "-n", "answers", "-d", "questions.jsonl", "-d", "loop.py"]
                    subprocess.run([program, *stage, "-o", "answers.json", python, "loop.py"], cwd=folder, check=True)
                    command = [program, "repro"]
                measure(tool, command, folder)
    finally:
        mock.terminate()
        mock.wait()


if __name__ == "__main__":
    main()
