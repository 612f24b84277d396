#!/usr/bin/env python3
"""1,000 single-turn rows from an OpenAI-compatible endpoint through `searchmill run`, process start included: the first run,
and the second one, which pays nothing. The same task as the peers' `bench_datagen.py`, and the same JSON lines.

    PEERS=../shared/peers PEERS_DATA=… [PEERS_PYTHON=…] benches/datagen.py [--bin target/release/searchmill] [--size 1000] [--reps 5]
"""
import argparse, json, os, shutil, socket, statistics, subprocess, sys, tempfile, time, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/release/searchmill")
parser.add_argument("--size", type=int, default=1000)
parser.add_argument("--reps", type=int, default=5)
parser.add_argument("--concurrency", type=int, default=30)
parser.add_argument("--think-ms", type=float, default=0)
parser.add_argument("--port", type=int, default=18621)
parser.add_argument("--operator", choices=["rollout", "map"], default="rollout", help="the same task as a rollout without tools, or as a prompt")
args = parser.parse_args()
POLICY = 'policy: {endpoint: {base_url: "http://127.0.0.1:%d/v1", model: mock}}' % args.port
NODES = {
    "rollout": "op: rollout\n    from: {questions: questions}\n    with: {%s, max_turns: 1, ask_for_answer: false}" % POLICY,
    "map": 'op: map\n    from: questions\n    with: {%s, prompt: "{{ question }}"}' % POLICY,
}
binaries = [os.path.abspath(path) for path in args.bin.split(",")]
folder = tempfile.mkdtemp()
questions = [json.loads(line)["question"] for line in open(os.path.join(os.environ["PEERS_DATA"], "questions.jsonl"))]
with open(f"{folder}/questions.jsonl", "w") as out:
    for row in range(args.size):
        text = questions[row % len(questions)] + ("" if row < len(questions) else f" ({row})")
        out.write(json.dumps({"id": str(row), "question": text}) + "\n")
open(f"{folder}/pipeline.yaml", "w").write(f"""name: datagen
nodes:
  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}
  answers:
    {NODES[args.operator]}
    resources: {{concurrency: {args.concurrency}}}
""")


def served():
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{args.port}/stats"))


def run(binary):
    start = time.perf_counter()
    done = subprocess.run([binary, "run", "-q", "pipeline.yaml"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def emit(task, binary, times):
    seconds = statistics.median(times)
    program = {"bin": binary} if len(binaries) > 1 else {}
    print(json.dumps({"tool": "searchmill", "task": task, **program, "n": args.size, "seconds": round(seconds, 4), "seconds_min": round(min(times), 4),
                      "seconds_max": round(max(times), 4), "reps": len(times), "rate": round(args.size / seconds, 1), "rate_unit": "rows/s"}), flush=True)


mock = subprocess.Popen([os.environ.get("PEERS_PYTHON", sys.executable), os.path.join(os.environ["PEERS"], "mock_openai.py"), str(args.port),
                         "--think-ms", str(args.think_ms)])
try:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", args.port)).close()
            break
        except OSError:
            time.sleep(0.05)
    first, second = ({binary: [] for binary in binaries} for _ in range(2))
    for rep in range(args.reps + 1):
        for binary in binaries:
            shutil.rmtree(f"{folder}/.searchmill", ignore_errors=True)
            seconds = run(binary)
            first[binary] += [seconds] if rep else []
    for binary in binaries:
        shutil.rmtree(f"{folder}/.searchmill", ignore_errors=True)
        run(binary)
        before = served()
        second[binary] = [run(binary) for _ in range(args.reps)]
        if served() != before:
            raise SystemExit(f"the second run paid for calls: {before} {served()}")
    name = f"c{args.concurrency}_t{args.think_ms:g}ms"
    for binary in binaries:
        emit(f"datagen_{name}", binary, first[binary])
        emit(f"datagen_second_run_{name}", binary, second[binary])
finally:
    mock.terminate()
    mock.wait()
    shutil.rmtree(folder)
