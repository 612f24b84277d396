"""Losses, gradients and advantages of reinforcement learning, as TRL and verl compute them: what `train` and `advantage` are compared with.

    python scripts/reference_rl.py operators/models/tests/models/qwen3 operators/models/tests/training    (torch 2.15, trl 1.16)
    python scripts/reference_rl.py --verl                                                                 (verl 0.9, in sys.path)

The first form writes
- grpo.safetensors: sequences with the log-probabilities that they were sampled with (by a model near the tiny one, at
  temperatures 1 and 0.7), and for each setting the loss, the entropy and the gradients of two weights. The loss is that of
  TRL's own `GRPOTrainer._compute_loss`; observations are masked by its `tool_mask`. `verl/…` are the same with verl's policy
  loss with dual clip, which this script writes anew from its documentation, and `steps/…` twenty AdamW steps on TRL's loss;
- dpo.safetensors: pairs, and for each setting the loss and the gradients of TRL's own `DPOTrainer._compute_loss`;
- advantages.json: rewards, log-probabilities of a model that sampled and of the tiny one as reference, and the advantages by
  the formulas of TRL (GRPO, Dr. GRPO, RLOO) and verl and OpenRLHF (REINFORCE++).
The second form compares the formulas that are written anew here with verl's own functions.
"""
import json
import random
import sys
import tempfile

import torch
from safetensors.torch import save_file

STEPS, RATE = 20, 5e-5
GRADIENTS = ["model.norm.weight", "model.layers.0.self_attn.k_proj.weight"]
PROMPT = 5


# Formulas written anew.

def verl_policy_loss(old, new, advantages, mask, low, high, dual, aggregation):
    """verl's documentation of `compute_policy_loss_vanilla`; dual clip: arXiv:1912.09729."""
    ratio = torch.exp(torch.clamp(new - old, -20.0, 20.0))
    losses = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - low, 1 + high))
    return aggregated(torch.where(advantages < 0, torch.minimum(losses, -advantages * dual), losses), mask, aggregation)


def aggregated(numbers, mask, aggregation):
    """verl's documentation of `agg_loss`."""
    if aggregation == "token-mean":
        return (numbers * mask).sum() / mask.sum()
    return ((numbers * mask).sum(-1) / mask.sum(-1)).mean()


def kl(estimator, new, reference):
    """Schulman, Approximating KL divergence, 2020."""
    difference = reference - new
    return {"k1": -difference, "k2": difference ** 2 / 2, "k3": torch.exp(difference) - difference - 1}[estimator]


def whitened(values):
    """verl's `masked_whiten` of the values that are not masked."""
    return (values - values.mean()) / torch.sqrt(values.var(unbiased=True) + 1e-8)


def grouped(rewards, groups, of_group):
    out = torch.zeros_like(rewards)
    for group in sorted(set(groups)):
        places = torch.tensor([i for i, g in enumerate(groups) if g == group])
        out[places] = of_group(rewards[places])
    return out


def grpo(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4) if len(rewards) > 1 else torch.zeros_like(rewards)


def dr_grpo(rewards):
    return rewards - rewards.mean() if len(rewards) > 1 else torch.zeros_like(rewards)


def rloo(rewards):
    count = len(rewards)
    return rewards - (rewards.sum() - rewards) / (count - 1) if count > 1 else torch.zeros_like(rewards)


def reinforce_plus_plus(outcomes, old, reference, coefficient, estimator):
    """Returns without discount of the outcome, paid at the last token, and the KL term of each token, whitened over all
    tokens (verl, `compute_reinforce_plus_plus_outcome_advantage`, on tokens of the model alone)."""
    returns = []
    for outcome, p, q in zip(outcomes, old, reference):
        rewards = -coefficient * kl(estimator, p, q)
        rewards[-1] += outcome
        returns.append(rewards.flip(0).cumsum(0).flip(0))
    flat = whitened(torch.cat(returns))
    return list(flat.split([len(r) for r in returns]))


# Models and sequences.

def load(folder):
    from transformers import AutoModelForCausalLM
    import shutil
    with tempfile.TemporaryDirectory() as bare:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(f"{folder}/{name}", bare)
        return AutoModelForCausalLM.from_pretrained(bare, dtype=torch.float32)


def tokenizer(folder):
    """Any tokenizer of the right size: the trainers get tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words = {f"w{i}": i for i in range(96)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w2", eos_token="w1")


def moved(model, by, seed):
    """A model near another one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * by)
    return model


def sequences(count, seed, longest=24):
    """Tokens, and which of them the model sampled: none of the prompt, some of the rest."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        length = rng.randrange(PROMPT + 4, longest)
        tokens = [rng.randrange(3, 96) for _ in range(length)]
        learnt = [at >= PROMPT and rng.random() < 0.65 for at in range(length)]
        learnt[PROMPT] = learnt[-1] = True
        made.append((tokens, learnt))
    return made


def padded(rows, fill):
    width = max(len(row) for row in rows)
    return torch.tensor([list(row) + [fill] * (width - len(row)) for row in rows])


def log_probabilities(model, tokens, temperature=1.0):
    logits = model(torch.tensor([tokens])).logits[0, :-1] / temperature
    found = torch.log_softmax(logits, -1)[range(len(tokens) - 1), tokens[1:]]
    return torch.cat([torch.zeros(1), found])


def entropies(model, tokens, temperature):
    """The entropy of the distribution of each token but the first."""
    logs = torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1] / temperature, -1)
    return torch.cat([torch.zeros(1), -(logs.exp() * logs).sum(-1)])


def sampled(model, data, temperature=1.0):
    """The log-probability of each token, 0 where none was sampled."""
    with torch.no_grad():
        found = [log_probabilities(model, tokens, temperature) for tokens, _ in data]
    return [torch.where(torch.tensor(learnt), row, torch.zeros(1)) for row, (_, learnt) in zip(found, data)]


def packed(data):
    return {"tokens": torch.tensor([t for tokens, _ in data for t in tokens]),
            "learnt": torch.tensor([int(l) for _, mask in data for l in mask]),
            "lengths": torch.tensor([len(tokens) for tokens, _ in data])}


def gradients(model, loss, prefix):
    model.zero_grad()
    loss.backward()
    named = dict(model.named_parameters())
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in named.values()))
    out = {f"{prefix}/loss": loss.detach().reshape(1), f"{prefix}/norm": norm.reshape(1)}
    return out | {f"{prefix}/{name}": named[name].grad.clone() for name in GRADIENTS}


# GRPO.

def grpo_trainer(folder, temperature):
    """TRL's trainer, for its loss."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    with tempfile.TemporaryDirectory() as out:
        arguments = GRPOConfig(output_dir=out, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=8,
                               num_generations=4, temperature=temperature, gradient_checkpointing=False)
        data = Dataset.from_list([{"prompt": "w3 w4"}] * 8)
        trainer = GRPOTrainer(load(folder), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
                              train_dataset=data, processing_class=tokenizer(folder))
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    trainer.model.train()
    return trainer


def grpo_inputs(data, old, reference, advantages):
    completions = [tokens[PROMPT:] for tokens, _ in data]
    return {"prompt_ids": torch.tensor([tokens[:PROMPT] for tokens, _ in data]),
            "prompt_mask": torch.ones(len(data), PROMPT, dtype=torch.long),
            "completion_ids": padded(completions, 2),
            "completion_mask": padded([[1] * len(c) for c in completions], 0),
            "tool_mask": padded([[int(l) for l in learnt[PROMPT:]] for _, learnt in data], 0),
            "old_per_token_logps": padded([row[PROMPT:].tolist() for row in old], 0.0),
            "ref_per_token_logps": padded([row[PROMPT:].tolist() for row in reference], 0.0),
            "num_items_in_batch": torch.tensor(float(sum(sum(learnt) for _, learnt in data))),
            "advantages": torch.tensor(advantages)}


SETTINGS = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "clip": {"loss_type": "dapo", "epsilon_low": 0.1, "epsilon_high": 0.28},
    "dual": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28, "delta": 1.5},
    "k3": {"loss_type": "grpo", "beta": 0.3},
    "k3_weighted": {"loss_type": "grpo", "beta": 0.3, "weighted": True},
    "bonus": {"loss_type": "dapo", "bonus": 0.4},
    "gspo": {"loss_type": "grpo", "level": "sequence"},
    "gspo_narrow": {"loss_type": "dapo", "level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4, "beta": 0.3},
}


def set_up(trainer, loss_type, epsilon_low=0.2, epsilon_high=0.2, delta=None, beta=0.0, weighted=False, bonus=0.0, level="token"):
    trainer.importance_sampling_level = level
    trainer.loss_type, trainer.epsilon_low, trainer.epsilon_high, trainer.beta = loss_type, epsilon_low, epsilon_high, beta
    trainer.args.delta, trainer.args.use_bias_correction_kl, trainer.max_completion_length = delta, weighted, 40
    trainer.entropy_coef, trainer._entropy_bonus_enabled = bonus, bonus != 0.0


def write_grpo(folder, out):
    data, advantages = sequences(8, 3), [1.2, -0.8, 0.4, -1.5, 0.0, 0.9, -0.3, 1.1]
    near, reference = moved(load(folder), 0.004, 5), moved(load(folder), 0.005, 6)
    saved = packed(data) | {"advantages": torch.tensor(advantages)}
    for temperature in (1.0, 0.7):
        old, ref = sampled(near, data, temperature), sampled(reference, data, temperature)
        saved |= {f"sampled/{temperature}": torch.cat(old), f"reference/{temperature}": torch.cat(ref)}
        trainer = grpo_trainer(folder, temperature)
        inputs = grpo_inputs(data, old, ref, advantages)
        for name, settings in SETTINGS.items():
            set_up(trainer, **settings)
            trainer._metrics["train"].clear()
            saved |= gradients(trainer.model, trainer._compute_loss(trainer.model, inputs), f"{temperature}/{name}")
            saved[f"{temperature}/{name}/entropy"] = torch.tensor(trainer._metrics["train"]["entropy"])
        model, mask = load(folder), inputs["tool_mask"]
        for aggregation in ("token-mean", "seq-mean-token-mean"):
            new = torch.nn.utils.rnn.pad_sequence([log_probabilities(model, t, temperature)[PROMPT:] for t, _ in data], True)
            loss = verl_policy_loss(inputs["old_per_token_logps"], new, inputs["advantages"][:, None], mask, 0.2, 0.28, 1.3, aggregation)
            saved |= gradients(model, loss, f"{temperature}/verl/{aggregation}")
            # verl subtracts the entropy, aggregated alike; here, alone.
            both = torch.nn.utils.rnn.pad_sequence([entropies(model, t, temperature)[PROMPT:] for t, _ in data], True)
            saved |= gradients(model, -0.4 * aggregated(both, mask, aggregation), f"{temperature}/bonus/{aggregation}")
        for estimator in ("k1", "k2", "k3"):
            new = torch.nn.utils.rnn.pad_sequence([log_probabilities(model, t, temperature)[PROMPT:] for t, _ in data], True)
            loss = (kl(estimator, new, inputs["ref_per_token_logps"]) * mask).sum() / mask.sum()
            saved |= gradients(model, loss, f"{temperature}/{estimator}_alone")
    save_file(saved | twenty_steps(folder, data, advantages, near), out + "/grpo.safetensors")


def twenty_steps(folder, data, advantages, near):
    """Four sequences a step, five epochs in a fixed order, on TRL's loss `dapo`."""
    old, saved = sampled(near, data), {"losses": [], "norms": [], "entropies": []}
    trainer = grpo_trainer(folder, 1.0)
    set_up(trainer, "dapo", 0.2, 0.28)
    model = trainer.model
    bare = [p for n, p in model.named_parameters() if n.endswith("norm.weight")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("norm.weight")]
    optimizer = torch.optim.AdamW([{"params": rest, "weight_decay": 0.1}, {"params": bare, "weight_decay": 0.0}], lr=RATE,
                                  betas=(0.9, 0.999), eps=1e-8)
    for step in range(STEPS):
        batch = [(step * 4 + i) % len(data) for i in range(4)]
        pick = lambda rows: [rows[i] for i in batch]
        inputs = grpo_inputs(pick(data), pick(old), pick(old), pick(advantages))
        trainer._metrics["train"].clear()
        loss = trainer._compute_loss(model, inputs)
        loss.backward()
        saved["norms"].append(float(torch.nn.utils.clip_grad_norm_(rest + bare, 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        saved["losses"].append(float(loss.detach()))
        saved["entropies"].append(trainer._metrics["train"]["entropy"][0])
    last = torch.cat(sampled(model, data))
    return {f"steps/{name}": torch.tensor(numbers) for name, numbers in saved.items()} | {"steps/log_probabilities": last}


# DPO.

def write_dpo(folder, out):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    chosen, rejected = sequences(4, 11), sequences(4, 12)
    # Both rollouts of a pair have the same prompt.
    rejected = [(c[:PROMPT] + r[PROMPT:], mask) for (c, _), (r, mask) in zip(chosen, rejected)]
    data = chosen + rejected
    saved = packed(data)
    settings = {
        "sigmoid": {"beta": 0.1}, "strong": {"beta": 0.8}, "ipo": {"beta": 0.1, "loss_type": ["ipo"]},
        "sft": {"beta": 0.1, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
        # The loss of `aot_unpaired` on one pair is that of DPO with label smoothing.
        "smooth": {"beta": 0.8, "loss_type": ["aot_unpaired"], "label_smoothing": 0.2},
    }
    reference = moved(load(folder), 0.004, 6)
    saved["reference"] = torch.cat(sampled(reference, data))
    for name, given in settings.items():
        with tempfile.TemporaryDirectory() as where:
            arguments = DPOConfig(output_dir=where, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False, **given)
            rows = Dataset.from_list([{"prompt": "w3", "chosen": "w4", "rejected": "w5"}] * 2)
            trainer = DPOTrainer(load(folder), ref_model=reference, args=arguments, train_dataset=rows, processing_class=tokenizer(folder))
        trainer.model.train()
        mine = data if name != "smooth" else [data[0], data[4]]
        inputs = {"input_ids": padded([t for t, _ in mine], 2), "attention_mask": padded([[1] * len(t) for t, _ in mine], 0),
                  "completion_mask": padded([[int(l) for l in mask] for _, mask in mine], 0)}
        saved |= gradients(trainer.model, trainer._compute_loss(trainer.model, inputs, False), name)
    save_file(saved, out + "/dpo.safetensors")


# Advantages.

def write_advantages(folder, out):
    groups = ["a", "a", "a", "b", "b", "c", "d", "d"]
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.2, 0.2, 0.9, 0.0, 1.0], dtype=torch.float64)
    data = sequences(8, 21)
    near = moved(load(folder), 0.004, 9)
    with torch.no_grad():
        both = [[log_probabilities(model, tokens)[torch.tensor(learnt)].double() for tokens, learnt in data] for model in (near, load(folder))]
    old, reference = both
    saved = {"groups": groups, "rewards": rewards.tolist(), "tokens": [t for t, _ in data], "learnt": [m for _, m in data],
             "sampled": [row.tolist() for row in old]}
    for name, of_group in (("grpo", grpo), ("dr_grpo", dr_grpo), ("rloo", rloo)):
        saved[name] = grouped(rewards, groups, of_group).tolist()
    for estimator in ("k1", "k2", "k3"):
        found = reinforce_plus_plus(rewards, old, reference, 0.3, estimator)
        saved[f"reinforce++/{estimator}"] = [row.tolist() for row in found]
    found = reinforce_plus_plus(grouped(rewards, groups, dr_grpo), old, reference, 0.3, "k1")
    saved["reinforce++-baseline/k1"] = [row.tolist() for row in found]
    with open(out + "/advantages.json", "w") as file:
        file.write(json.dumps(saved) + "\n")


def compare_with_verl():
    """The formulas above beside verl's own."""
    import numpy as np
    from types import SimpleNamespace
    from verl.trainer.ppo import core_algos
    torch.manual_seed(3)
    # Near each other: verl caps k3 at 10.
    old = torch.randn(6, 9) - 2
    new = old + 0.5 * torch.randn(6, 9)
    mask, advantages = torch.ones(6, 9), torch.randn(6, 1).expand(6, 9)
    apart = {}
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        theirs = core_algos.compute_policy_loss(old, new, advantages, mask, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.28,
                                                clip_ratio_c=1.3, loss_agg_mode=aggregation)[0]
        apart[aggregation] = float((theirs - verl_policy_loss(old, new, advantages, mask, 0.2, 0.28, 1.3, aggregation)).abs())
    for name, own in (("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")):
        apart[own] = float((core_algos.kl_penalty(old, new, name) - kl(own, old, new)).abs().max())
    outcome = torch.randn(6)
    rewards = -0.3 * kl("k1", old, new)
    rewards[:, -1] += outcome
    theirs = core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=SimpleNamespace(gamma=1.0))[0]
    own = torch.stack(reinforce_plus_plus(outcome, list(old), list(new), 0.3, "k1"))
    apart["reinforce++"] = float((theirs - own).abs().max())
    index, last = np.array(list("aaabbb")), torch.zeros(6, 9)
    last[:, -1] = outcome
    theirs = core_algos.compute_rloo_outcome_advantage(last, mask, index)[0][:, 0]
    apart["rloo"] = float((theirs - grouped(outcome, list(index), rloo)).abs().max())
    theirs = core_algos.compute_grpo_outcome_advantage(last, mask, index, epsilon=1e-4)[0][:, 0]
    apart["grpo"] = float((theirs - grouped(outcome, list(index), grpo)).abs().max())
    print(json.dumps(apart))


if __name__ == "__main__":
    if sys.argv[1] == "--verl":
        compare_with_verl()
    else:
        torch.set_num_threads(2)
        write_grpo(*sys.argv[1:])
        write_dpo(*sys.argv[1:])
        write_advantages(*sys.argv[1:])
