"""Twenty training steps of a tiny decoder, as torch, transformers and PEFT take them: what `train` is compared with.

    python scripts/reference_training.py operators/models/tests/models operators/models/tests/training
    python scripts/reference_training.py --adapter BASE ADAPTER MERGED     (torch 2.8, transformers 4.56, peft 0.21)

The first form writes full.safetensors and lora.safetensors: sequences, which of their tokens are learnt, and loss and
gradient norm of each step (AdamW, cosine schedule with warm-up, gradients clipped to norm 1, batches of 4 sequences of
different lengths, loss = mean over all learnt tokens of the batch). lora.safetensors has the adapter at the start too.
The second form loads an adapter that `train` wrote with PEFT and says how far its logits are from the merged model's.
"""
import json
import random
import shutil
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

STEPS, BATCH, WARMUP, RATE = 20, 4, 3, 1e-2


def sequences():
    rng = random.Random(7)
    made = []
    for _ in range(12):
        length = rng.randrange(9, 40)
        tokens = [rng.randrange(3, 96) for _ in range(length)]
        learnt = [rng.random() < 0.6 for _ in range(length)]
        made.append((tokens, learnt))
    return made


def step_loss(model, batch):
    """The mean over all learnt tokens: each sequence alone, so that nothing depends on padding."""
    losses = []
    for tokens, learnt in batch:
        logits = model(torch.tensor([tokens])).logits[0, :-1]
        wanted = torch.tensor(learnt[1:])
        losses.append(torch.nn.functional.cross_entropy(logits[wanted], torch.tensor(tokens[1:])[wanted], reduction="none"))
    return torch.cat(losses).mean()


def trained(model, data):
    bare = [p for n, p in model.named_parameters() if p.requires_grad and n.endswith(("norm.weight", ".bias"))]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and not n.endswith(("norm.weight", ".bias"))]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": bare, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    schedule = get_cosine_schedule_with_warmup(optimizer, WARMUP, STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        batch = [data[(step * BATCH + i) % len(data)] for i in range(BATCH)]
        loss = step_loss(model, batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(rest + bare, 1.0)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return {"losses": torch.tensor(losses), "norms": torch.tensor(norms)}


def packed(data):
    flat = [t for tokens, _ in data for t in tokens]
    learnt = [int(l) for _, mask in data for l in mask]
    return {"tokens": torch.tensor(flat), "learnt": torch.tensor(learnt), "lengths": torch.tensor([len(t) for t, _ in data])}


def loaded(folder):
    """The model of a folder, whose adapter is left alone."""
    with tempfile.TemporaryDirectory() as bare:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(f"{folder}/{name}", bare)
        return AutoModelForCausalLM.from_pretrained(bare, dtype=torch.float32)


def write(models, out):
    torch.manual_seed(11)
    data = sequences()
    full = loaded(models + "/qwen3")
    save_file(packed(data) | trained(full, data), out + "/full.safetensors")
    base = loaded(models + "/qwen3")
    lora = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear"))
    start = {"start/" + n.replace(".default", ""): p.detach().clone() for n, p in lora.named_parameters() if p.requires_grad}
    save_file(packed(data) | start | trained(lora, data), out + "/lora.safetensors")


def compare(base, adapter, merged):
    tokens = torch.arange(3, 60)[None]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        before = plain(tokens).logits
        peft = PeftModel.from_pretrained(plain, adapter).eval()(tokens).logits
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()(tokens).logits
    print(json.dumps({"peft_from_merged": float((peft - whole).abs().max() / whole.abs().max()),
                      "peft_from_base": float((peft - before).abs().max() / before.abs().max())}))


if __name__ == "__main__":
    compare(*sys.argv[2:]) if sys.argv[1] == "--adapter" else write(*sys.argv[1:])
