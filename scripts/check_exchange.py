#!/usr/bin/env python3
"""Opens exported trajectories with the packages of the tools they are for, and reads them back.

    python scripts/check_exchange.py [--bin target/debug/searchmill]     (atif 1.8, inspect_ai 0.3.285, verifiers 0.4; nemo_gym 0.7)

Rolls out questions of a generated world offline, several samples each, in a protocol with tool calls and in one of plain text;
exports them in every format; opens the files with each package that is installed, and names those that are not; then `read`s
every file back and compares all columns.
"""
import argparse, importlib, json, os, subprocess, tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--bin", default="target/debug/searchmill")
binary = os.path.abspath(parser.parse_args().bin)
FILES = {"atif": "trajectories.jsonl", "inspect": "1970-01-01T00-00-00+00-00_trajectories.json", "verifiers": "traces.jsonl", "nemo-gym": "rollouts.jsonl"}
PROTOCOLS = {"tools": "tool_call", "text": "search-r1"}


def exports():
    nodes = ["world: {op: generate-world, with: {documents: 100, questions: 12}}",
             "chunks: {op: chunk, from: world.documents, with: {size: 100, count: words}}",
             "bm25: {op: index, from: chunks, with: {kind: bm25}}"]
    for name, protocol in PROTOCOLS.items():
        nodes.append(f"{name}: {{op: rollout, from: {{questions: world.questions, search: bm25}}, "
                     f"with: {{policy: evidence, protocol: {protocol}, samples: 2}}}}")
        nodes.append(f"{name}_rewarded: {{op: reward, from: {name}, with: {{sum: [{{f1: 2}}, {{answered: 0.5}}]}}}}")
        for form in FILES:
            nodes.append(f"{name}_{form}: {{op: export-trajectories, from: {name}_rewarded, with: {{format: {form}, name: world}}}}")
            nodes.append(f"{name}_{form}_out: {{op: write, from: {name}_{form}, with: {{path: out/{name}/{form}}}}}")
    return "name: export\nnodes:\n" + "".join(f"  {node}\n" for node in nodes)


def imports():
    nodes = [f"  {name}_{form}: {{op: read, with: {{path: out/{name}/{form}/{file}, as: trajectory, layout: {form}}}}}\n"
             for name in PROTOCOLS for form, file in FILES.items()]
    return "name: import\nnodes:\n" + "".join(nodes)


def run(folder, name, text):
    with open(f"{folder}/{name}.yaml", "w") as file:
        file.write(text)
    done = subprocess.run([binary, "run", "-q", f"{name}.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def rows(folder, pipeline, node):
    """Rows of a node in the last run of a pipeline."""
    shown = subprocess.run([binary, "show", node, "--file", f"{pipeline}.yaml", "--format", "jsonl", "-n", "0"], cwd=folder, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def open_atif(folder, count):
    from atif import Trajectory
    documents = [Trajectory.model_validate(document) for document in lines(f"{folder}/{FILES['atif']}")]
    assert len(documents) == count and all(document.steps for document in documents)
    try:
        from nemo_gym.atif_v1_7 import AtifTrajectoryV1_7  # NeMo Gym reads a strict subset.
    except ImportError:
        return
    for document in lines(f"{folder}/{FILES['atif']}"):
        AtifTrajectoryV1_7.model_validate(document)


def open_inspect(folder, count):
    from inspect_ai.log import list_eval_logs, read_eval_log
    assert len(list_eval_logs(folder)) == 1, "`inspect view` does not list it"
    log = read_eval_log(f"{folder}/{FILES['inspect']}")
    assert log.status == "success" and len(log.samples) == count
    assert {sample.epoch for sample in log.samples} == {1, 2} and "f1" in log.samples[0].scores
    for sample in log.samples:
        calls = {call.id for message in sample.messages for call in getattr(message, "tool_calls", None) or []}
        assert all(message.tool_call_id in calls | {None} for message in sample.messages if message.role == "tool")


def open_verifiers(folder, count):
    from pathlib import Path
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.state import State
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.trace_store import read_episodes
    episodes = read_episodes(Path(folder), Trace[WireTaskData, State, WireAgentConfig])
    traces = [episode.traces[0] for episode in episodes]
    assert len(traces) == count and len({episode.group.id for episode in episodes}) == count // 2
    for trace in traces:
        assert trace.ok and trace.num_branches == 1 and len(trace.messages) == len(trace.nodes) and trace.num_turns > 0
    rewards = [trace.reward for trace in traces]
    assert max(rewards) == 2.5 and all(0 <= reward <= 2.5 for reward in rewards), rewards


def open_nemo_gym(folder, count):
    from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
    inputs, rollouts = lines(f"{folder}/rollouts_materialized_inputs.jsonl"), lines(f"{folder}/{FILES['nemo-gym']}")
    key = lambda row: (row["_ng_task_index"], row["_ng_rollout_index"])
    assert list(map(key, inputs)) == list(map(key, rollouts)) and len(set(map(key, inputs))) == count
    for row in rollouts:
        NeMoGymResponseCreateParamsNonStreaming.model_validate(row["responses_create_params"])
        NeMoGymResponse.model_validate(row["response"])
        assert isinstance(row["reward"], float)


READERS = {"atif": ("atif", open_atif), "inspect": ("inspect_ai", open_inspect),
           "verifiers": ("verifiers.v1.trace", open_verifiers), "nemo-gym": ("nemo_gym.openai_utils", open_nemo_gym)}

with tempfile.TemporaryDirectory() as folder:
    run(folder, "export", exports())
    exported = {name: rows(folder, "export", name) for name in PROTOCOLS}
    run(folder, "import", imports())
    for name, own in exported.items():
        for form, (package, opened) in READERS.items():
            back = rows(folder, "import", f"{name}_{form}")
            assert back == own, f"{name} {form}: a column changed"
            try:
                importlib.import_module(package)
            except ImportError as error:
                print(f"{name:5} {form:9} {len(own)} rows read back; not opened: {error}")
                continue
            opened(f"{folder}/out/{name}/{form}", len(own))
            print(f"{name:5} {form:9} {len(own)} rows read back; opened by {package}")
