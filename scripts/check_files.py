#!/usr/bin/env python3
"""Opens the files that the five systems' pipelines deliver with the reader of their consumers, and checks what these need.

    python scripts/check_files.py OUT     (datasets 4; OUT: the folder `out` after the five runs with params/offline.yaml)

ms-swift reads JSON lines through `datasets`, with `messages` (`swift/llm/dataset/preprocessor`); verl reads Parquet through
`datasets`, with a chat as `prompt`, and passes `data_source`, `reward_model` and `extra_info` to its reward
(`verl/utils/dataset/rl_dataset.py`, `verl/workers/reward_manager`); ReSearch's trainer reads `question` in place of `prompt`.
Prints one row of each file.
"""
import json, pathlib, sys, tempfile

from datasets import load_dataset

ROLES = {"system", "user", "assistant", "tool_call", "tool", "tool_response"}


def chat(row):
    assert row["messages"] and all(message["role"] in ROLES for message in row["messages"]), row
    assert any(message["role"] == "assistant" and message["content"] for message in row["messages"]), row
    if row.get("tools"):
        assert all("function" in tool for tool in json.loads(row["tools"])), row


def weighted(row):
    chat(row)
    assert 0 < row["weight"] <= 1, row


def rewarded(row):
    assert row["data_source"] and row["reward_model"]["style"] == "rule" and row["reward_model"]["ground_truth"], row


def verl(row):
    rewarded(row)
    assert [message["role"] for message in row["prompt"]][-1] == "user", row
    assert row["reward_model"]["ground_truth"]["target"] and isinstance(row["extra_info"]["index"], int), row


def verl_with_tools(row):
    verl(row)
    assert row["agent_name"] == "tool_agent" and row["extra_info"]["tools_kwargs"]["search"]["create_kwargs"], row


def research(row):
    rewarded(row)
    assert isinstance(row["question"], str) and row["extra_info"]["id"], row


FILES = {
    "research/train.jsonl": chat, "research/rl.parquet": research, "research/validation.parquet": research,
    "r1_searcher/train.jsonl": chat, "r1_searcher/rl.parquet": verl,
    "search_r1/train.jsonl": chat, "search_r1/rl.parquet": verl,
    "deepsearch_rl/train.jsonl": chat, "deepsearch_rl/rl.parquet": verl_with_tools,
    "searchlm/warmup.jsonl": chat, "searchlm/train.jsonl": chat, "searchlm/weighted.parquet": weighted,
}

out = pathlib.Path(sys.argv[1])
with tempfile.TemporaryDirectory() as cache:
    for name, check in FILES.items():
        kind = "json" if name.endswith(".jsonl") else "parquet"
        rows = load_dataset(kind, data_files=str(out / name), split="train", cache_dir=cache)
        assert len(rows) > 0, name
        for row in rows:
            check(row)
        print(f"{name}: {len(rows)} rows, {', '.join(rows.column_names)}\n  {json.dumps(rows[0], ensure_ascii=False)[:300]}")
print(f"{len(FILES)} files are as their readers need them")
