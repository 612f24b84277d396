"""One round of REINFORCE with torch: learns from recorded tokens and advantages, and leaves a model.

    python3 step.py ROWS.parquet MODEL OUTPUT METRICS.jsonl SEED

ROWS has a row per rollout: `tokens` (the spans that `record: tokens` stores) and `advantage`. A branch of a rollout is one
sequence; only tokens that the model sampled have loss. The loss is the clipped one of PPO (arXiv:1707.06347), averaged over
tokens. The optimiser's state lies beside the weights, so that the next round goes on from it.
"""
import json
import pathlib
import sys

import pyarrow.parquet as parquet
import torch
from transformers import AutoModelForCausalLM

LEARNING_RATE, CLIP, BATCH = 1e-3, 0.2, 64


def sequences(path):
    """Yields ids, log-probabilities (None: the model only read the token) and the advantage of every branch."""
    for row in parquet.read_table(path, columns=["tokens", "advantage"]).to_pylist():
        branches = {}
        for span in row["tokens"]:
            ids, logprobs = branches.setdefault(span["branch"], ([], []))
            ids += span["ids"]
            logprobs += span["logprobs"] if span["sampled"] else [None] * len(span["ids"])
        for ids, logprobs in branches.values():
            if any(logprob is not None for logprob in logprobs):
                yield ids, logprobs, row["advantage"]


def loss_of(model, ids, logprobs, advantage):
    """Returns the summed loss of a sequence, its number of sampled tokens, and the largest difference of log-probabilities."""
    now = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    places = [at for at in range(1, len(ids)) if logprobs[at] is not None]
    now = now[[at - 1 for at in places], [ids[at] for at in places]]
    then = torch.tensor([logprobs[at] for at in places])
    ratio = (now - then).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return loss.sum(), len(places), (now - then).abs().max().item()


def main(rows, folder, output, metrics, seed):
    torch.manual_seed(int(seed))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    state = pathlib.Path(folder) / "optimizer.pt"
    if state.exists():
        optimizer.load_state_dict(torch.load(state, weights_only=True))
    all_sequences = list(sequences(rows))
    order = torch.randperm(len(all_sequences)).tolist()
    with open(metrics, "w", encoding="utf-8") as log:
        for step, start in enumerate(range(0, len(order), BATCH), 1):
            batch = [all_sequences[place] for place in order[start : start + BATCH]]
            tokens = sum(sum(logprob is not None for logprob in logprobs[1:]) for _, logprobs, _ in batch)
            total, gap = 0.0, 0.0
            for ids, logprobs, advantage in batch:
                loss, _, difference = loss_of(model, ids, logprobs, advantage)
                (loss / tokens).backward()
                total, gap = total + loss.item() / tokens, max(gap, difference)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            optimizer.zero_grad()
            figures = {"step": step, "loss": total, "grad_norm": norm, "tokens": tokens, "logprob_gap": gap}
            log.write(json.dumps(figures) + "\n")
    model.save_pretrained(output)
    torch.save(optimizer.state_dict(), pathlib.Path(output) / "optimizer.pt")


main(*sys.argv[1:])
