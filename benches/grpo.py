#!/usr/bin/env python3
"""A round of GRPO (sample 32 × 8 completions, reward, one step on all of them), beside TRL's GRPOTrainer; and tokens a second of
generation, beside transformers or llama.cpp.

    benches/grpo.py --model TINY_QWEN3 --peer PYTHON [--bin target/release/searchmill] [--questions 32] [--samples 8]
                    [--tokens 64] [--rounds 4] [--threads 2] [--llama PYTHON]

`--model`: the folder of the peers' `make_tiny_qwen3.py`. `--peer`: a Python with torch and trl (without it, searchmill alone).
Both have the same weights, prompts (32, of equal length), temperature 1, limit of tokens, rewards by the number of the sample,
AdamW, precision (f32) and threads; neither has a reference model. The random model ends hardly any completion before the limit.
searchmill's round is that of the nodes `rollouts`, `scored` and `step` in the run's record, so it includes reading and writing
Parquet, recorded tokens and the model's folder; TRL's is the time of `on_step_begin` to `on_step_end`. The first round of each
warms up; figures are medians of the others. They run one after the other.

Generation alone: searchmill's node `rollouts`, and `generate` of transformers on the same prompts in one batch. `--llama`: a Python
with xllamacpp, gguf, safetensors and numpy (llama.cpp, prebuilt on PyPI); the same weights are written as GGUF (f32). It generates
one sequence alone, and all of them with as many slots, from the same prompts; its rates are those of its own timings and of the
clock. searchmill's rate of one sequence is that of a node, which opens the model too. Prints one JSON line.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile

TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PIPELINE = """name: grpo
nodes:
  documents: {{op: read, with: {{path: documents.jsonl, as: document}}}}
  chunks:    {{op: chunk, from: documents, with: {{size: 50, count: words}}}}
  bm25:      {{op: index, from: chunks, with: {{kind: bm25}}}}
  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}
  one:       {{op: sample, from: questions, with: {{n: 1}}, seed: 1}}
  start:     {{op: read-model, with: {{model: model}}}}
  alone:
    op: rollout
    from: {{questions: one, search: bm25, model: start}}
    with: {{policy: {{model: {{temperature: 1, max_tokens: {tokens}}}}}, max_turns: 1, system_prompt: s}}
repeat:
  rl:
    rounds: {rounds}
    carry: {{policy: start, optimizer: null}}
    nodes:
      rollouts:
        op: rollout
        from: {{questions: questions, search: bm25, model: policy}}
        with: {{policy: {{model: {{temperature: 1, max_tokens: {tokens}, seed: "${{repeat.round}}"}}}}, samples: {samples}, max_turns: 1, system_prompt: s, record: tokens}}
        resources: {{concurrency: 64}}
      scored: {{op: advantage, from: rollouts, with: {{reward: sample_index, method: grpo}}}}
      step:
        op: train
        from: {{trajectories: scored, model: policy, state: optimizer}}
        with: {{method: grpo, epochs: 1, batch_size: {batch}, learning_rate: 1e-6, schedule: constant, warmup_ratio: 0}}
    next: {{policy: step.model, optimizer: step.state}}
"""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/release/searchmill")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer")
    parser.add_argument("--llama")
    for name, default in (("questions", 32), ("samples", 8), ("tokens", 64), ("rounds", 4), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    parser.add_argument("--as-llama", help=argparse.SUPPRESS)
    return parser.parse_args()


def searchmill(args, folder):
    """Seconds of the parts of each round, and what was sampled in the last one."""
    binary = os.path.abspath(args.bin)
    shutil.copytree(args.model, f"{folder}/model")
    with open(f"{folder}/model/chat_template.jinja", "w") as file:
        file.write(TEMPLATE)
    with open(f"{folder}/documents.jsonl", "w") as file:
        file.write(json.dumps({"id": "d", "title": "T", "text": "A document."}) + "\n")
    with open(f"{folder}/questions.jsonl", "w") as file:
        for number in range(args.questions):
            row = {"id": f"q{number}", "question": f"Who is the mother of number {number % 10}{number // 10}?", "golden_answers": ["x"]}
            file.write(json.dumps(row) + "\n")
    with open(f"{folder}/p.yaml", "w") as file:
        file.write(PIPELINE.format(tokens=args.tokens, samples=args.samples, rounds=args.rounds, batch=args.questions * args.samples))
    environment = os.environ | {"RAYON_NUM_THREADS": str(args.threads)}
    done = subprocess.run([binary, "run", "--json", "p.yaml"], cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    seconds = {event["node"]: event["seconds"] for event in events if "seconds" in event and "node" in event}
    parts = {part: [seconds[f"{part}@round={n}"] for n in range(args.rounds)] for part in ("rollouts", "scored", "step")}
    shown = subprocess.run([binary, "show", f"rollouts@round={args.rounds - 1}", "--json", "-n", "0"], cwd=folder, capture_output=True,
                           text=True, check=True).stdout
    rows = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    return parts, rows, seconds["alone"]


def as_peer(given):
    """Runs TRL's trainer and transformers' `generate` on the given prompts. Prints one JSON line."""
    import time
    import torch
    torch.set_num_threads(given["threads"])
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    import transformers, trl
    tokenizer = AutoTokenizer.from_pretrained(given["model"])
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32)
    batch, times, begun = given["questions"] * given["samples"], [], [0.0]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            begun[0] = time.perf_counter()

        def on_step_end(self, *_, **__):
            times.append(time.perf_counter() - begun[0])

    counted = []

    def reward(completions, completion_ids, **_):
        counted.append(sum(len(ids) for ids in completion_ids))
        return [float(number % given["samples"]) for number in range(len(completions))]

    with tempfile.TemporaryDirectory() as out:
        settings = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=batch, num_generations=given["samples"],
            max_completion_length=given["tokens"], temperature=1.0, top_p=1.0, top_k=0, beta=0.0, learning_rate=1e-6, max_steps=given["rounds"],
            lr_scheduler_type="constant", logging_steps=1000, save_strategy="no", gradient_checkpointing=False, loss_type="dapo",
            disable_tqdm=True)
        rows = Dataset.from_list([{"prompt": prompt} for prompt in given["prompts"]])
        trainer = GRPOTrainer(model, reward_funcs=reward, args=settings, train_dataset=rows, processing_class=tokenizer, callbacks=[Clock()])
        # The generation is part of the first call inside a step.
        trainer.train()
    model.eval()
    ids = tokenizer(given["prompts"], return_tensors="pt", padding=True, padding_side="left")
    ids = {name: tensor.repeat_interleave(given["samples"], 0) for name, tensor in ids.items() if name != "token_type_ids"}
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(**ids, max_new_tokens=given["tokens"], min_new_tokens=given["tokens"], do_sample=True, temperature=1.0, top_k=0)
        rates.append((made.shape[1] - ids["input_ids"].shape[1]) * made.shape[0] / (time.perf_counter() - start))
    print(json.dumps({"seconds": times, "tokens": counted, "generate": rates, "trl": trl.__version__, "transformers": transformers.__version__,
                      "torch": torch.__version__, "prompt_tokens": int(ids["input_ids"].shape[1])}))


def write_gguf(model, path):
    """Writes a Qwen3 folder with tied embeddings as GGUF."""
    import gguf
    from safetensors.numpy import load_file
    with open(f"{model}/config.json") as file:
        config = json.load(file)
    with open(f"{model}/tokenizer.json") as file:
        tokenizer = json.load(file)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens = [special.get(n) or texts.get(n) or f"[unused{n}]" for n in range(config["vocab_size"])]
    kinds = [gguf.TokenType.CONTROL if n in special else gguf.TokenType.NORMAL for n in range(config["vocab_size"])]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, weight in load_file(f"{model}/model.safetensors").items():
        parts = name.removesuffix(".weight").split(".")
        if name == "model.embed_tokens.weight":
            name = "token_embd.weight"
        elif name == "model.norm.weight":
            name = "output_norm.weight"
        elif parts[1] == "layers":
            name = f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.weight"
        else:
            continue
        writer.add_tensor(name, weight.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_llama(given):
    """Generates with llama.cpp: one sequence, then all at the same time. Prints one JSON line."""
    import threading, time
    import xllamacpp
    with tempfile.TemporaryDirectory() as folder:
        path, rows = f"{folder}/model.gguf", given["questions"] * given["samples"]
        write_gguf(given["model"], path)

        def server(slots):
            params = xllamacpp.CommonParams()
            params.model.path, params.n_parallel, params.n_ctx = path, slots, slots * 512
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
            params.warmup, params.verbosity = True, -1
            return xllamacpp.Server(params)

        def ask(running, prompt, seed):
            request = {"prompt": prompt, "max_tokens": given["tokens"], "n_predict": given["tokens"], "temperature": 1.0, "top_k": 0, "top_p": 1.0,
                       "min_p": 0.0, "repeat_penalty": 1.0, "seed": seed, "ignore_eos": True, "cache_prompt": True, "timings_per_token": True}
            return running.handle_completions(request)

        alone, one = server(1), []
        for seed in range(5):
            reply = ask(alone, given["prompts"][0], seed)
            one.append(reply["timings"]["predicted_per_second"])
        del alone
        many, rates = server(min(rows, 256)), []
        for turn in range(3):
            made, start = [0] * rows, time.perf_counter()

            def work(number):
                reply = ask(many, given["prompts"][number // given["samples"]], turn * rows + number)
                made[number] = reply["usage"]["completion_tokens"]

            threads = [threading.Thread(target=work, args=(number,)) for number in range(rows)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            rates.append(sum(made) / (time.perf_counter() - start))
    print(json.dumps({"one": sorted(one)[len(one) // 2], "all": sorted(rates)[1], "version": str(getattr(xllamacpp, "__version__", ""))}))


def chat_prompts(rows):
    """The prompt of each question."""
    prompts = {}
    for row in rows:
        system, user = (message["content"] for message in row["messages"][:2])
        text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
        prompts.setdefault(row["question_id"], text)
    return list(prompts.values())


def ask(python, option, args, folder):
    """Runs this script with another Python, and returns what it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    command = [python, os.path.abspath(__file__), "--model", args.model, option, f"{folder}/given.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-3000:])
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def main():
    args = arguments()
    if args.as_peer:
        return as_peer(json.loads(open(args.as_peer).read()))
    if args.as_llama:
        return as_llama(json.loads(open(args.as_llama).read()))
    with tempfile.TemporaryDirectory() as folder:
        parts, rows, alone = searchmill(args, folder)
        spans = [row["tokens"] for row in rows]
        sampled = sum(len(span["ids"]) for row in spans for span in row if span["sampled"])
        rest = slice(1, None) if args.rounds > 1 else slice(None)
        median = {part: statistics.median(seconds[rest]) for part, seconds in parts.items()}
        own = sum(median.values())
        told = {"questions": args.questions, "samples": args.samples, "tokens": args.tokens, "rounds": args.rounds, "threads": args.threads,
                "searchmill_round_s": round(own, 3), "searchmill_parts_s": {part: round(s, 3) for part, s in median.items()},
                "searchmill_sampled_tokens": sampled, "searchmill_generation_tokens_per_s": round(sampled / median["rollouts"]),
                "searchmill_one_sequence_tokens_per_s": round(args.tokens / alone)}
        told["searchmill_prompt_tokens"] = len(spans[0][0]["ids"])
        given = {"prompts": chat_prompts(rows), "model": os.path.abspath(args.model)}
        given |= {name: getattr(args, name) for name in ("questions", "samples", "tokens", "rounds", "threads")}
        with open(f"{folder}/given.json", "w") as file:
            json.dump(given, file)
        if args.peer:
            peer = ask(args.peer, "--as-peer", args, folder)
            seconds = statistics.median(peer["seconds"][rest])
            told |= {"trl_round_s": round(seconds, 3), "trl_sampled_tokens": peer["tokens"][-1], "trl_prompt_tokens": peer["prompt_tokens"],
                     "transformers_generation_tokens_per_s": round(statistics.median(peer["generate"])), "ratio_round": round(seconds / own, 2),
                     "versions": {name: peer[name] for name in ("trl", "transformers", "torch")}}
        if args.llama:
            peer = ask(args.llama, "--as-llama", args, folder)
            told |= {"llama_cpp_one_sequence_tokens_per_s": round(peer["one"]), "llama_cpp_all_tokens_per_s": round(peer["all"]),
                     "xllamacpp": peer["version"]}
    print(json.dumps(told))


main()
