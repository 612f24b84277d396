"""Makes the tiny random decoders that the tests compare with, and what transformers computes with them.

    python scripts/reference_models.py operators/models/tests/models     (torch 2.8, transformers 4.56)

For each family a folder: config.json, model.safetensors, a LoRA adapter in PEFT's format, and reference.safetensors with
logits (one row, 16 ragged rows, the adapter's), greedy continuations, and gradients of the mean loss, full and LoRA.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=2)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 2.0}
FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_scaling=YARN, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, rope_theta=1e6, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_scaling=LLAMA3, rope_theta=5e5, attention_bias=True,
                                                  mlp_bias=True, tie_word_embeddings=False)),
    "qwen3_linear": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, rope_scaling=LINEAR, attention_bias=True,
                                                         tie_word_embeddings=False)),
}
RANK, ALPHA, TARGETS = 4, 8.0, ["q_proj", "v_proj", "down_proj"]
GRADIENTS = ("embed_tokens", "norm", "layers.0.self_attn", "layers.1.mlp", "lm_head")


class LowRank(torch.nn.Module):
    """A linear map with `scale · x · aᵀ · bᵀ` added, as PEFT does it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features ** 0.5)
        self.b = torch.nn.Parameter(torch.randn(base.out_features, RANK) / RANK ** 0.5)

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T * (ALPHA / RANK)


def randomised(model):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 1.0 if "embed" in name else weight.shape[-1] ** -0.5
            weight.copy_(torch.randn_like(weight) * spread)
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
    return model.eval()


def loss_of(logits, tokens):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def with_adapter(model):
    adapted = {}
    for layer, block in enumerate(model.model.layers):
        for part in ("self_attn", "mlp"):
            for target in TARGETS:
                base = getattr(getattr(block, part), target, None)
                if base is not None:
                    wrapped = LowRank(base)
                    setattr(getattr(block, part), target, wrapped)
                    adapted[f"base_model.model.model.layers.{layer}.{part}.{target}"] = wrapped
    return adapted


def main(out):
    for number, (family, make) in enumerate(FAMILIES.items()):
        torch.manual_seed(number)
        model, folder = randomised(make()), os.path.join(out, family)
        os.makedirs(folder, exist_ok=True)
        model.save_pretrained(folder, safe_serialization=True)
        os.remove(os.path.join(folder, "generation_config.json"))
        found = {}
        one = torch.randint(3, 96, (1, 40))
        lengths = torch.randint(1, 11, (16,))
        ragged = torch.full((16, 10), 2)
        ragged_logits = torch.zeros(16, 10, 96)
        with torch.no_grad():
            found["one.logits"] = model(one).logits
            for row, length in enumerate(lengths.tolist()):
                ragged[row, :length] = torch.randint(3, 96, (length,))
                ragged_logits[row, :length] = model(ragged[row:row + 1, :length]).logits[0]
            greedy = one[:, :8]
            for _ in range(24):
                greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], 1)
        found |= {"one.tokens": one, "ragged.tokens": ragged, "ragged.lengths": lengths, "ragged.logits": ragged_logits,
                  "greedy": greedy[:, 8:]}
        loss = loss_of(model(one).logits, one)
        loss.backward()
        found["loss"] = loss.detach().reshape(1)
        for name, weight in model.named_parameters():
            if any(part in name for part in GRADIENTS):
                found["gradient." + name] = weight.grad.clone()
        adapted = with_adapter(model)
        model.zero_grad()
        logits = model(one).logits
        loss_of(logits, one).backward()
        found["lora.logits"] = logits.detach()
        weights = {}
        for name, module in adapted.items():
            for part, tensor in (("lora_A", module.a), ("lora_B", module.b)):
                weights[f"{name}.{part}.weight"] = tensor.detach().contiguous()
                found[f"lora.gradient.{name}.{part}.weight"] = tensor.grad
        save_file(weights, os.path.join(folder, "adapter_model.safetensors"))
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
                  "target_modules": TARGETS, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
                  "base_model_name_or_path": family, "modules_to_save": None}
        json.dump(config, open(os.path.join(folder, "adapter_config.json"), "w"), indent=2)
        found = {name: (t.to(torch.uint32) if t.dtype == torch.int64 else t).contiguous() for name, t in found.items()}
        save_file(found, os.path.join(folder, "reference.safetensors"))
        print(family, sum(p.numel() for p in model.parameters()), "parameters, loss", float(loss))


main(sys.argv[1])
