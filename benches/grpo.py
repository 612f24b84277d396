#!/usr/bin/env python3
"""A round of GRPO (sample 32 × 8 completions, reward, one step on all of them), beside TRL's GRPOTrainer; and tokens a second of
generation, beside transformers or llama.cpp.

    benches/grpo.py --model TINY_QWEN3 --peer PYTHON [--bin target/release/searchmill] [--questions 32] [--samples 8]
                    [--tokens 64] [--rounds 4] [--threads 2] [--gguf FILE] [--llama-bench PROGRAM]

`--model`: the folder of the peers' `make_tiny_qwen3.py`. `--peer`: a Python with torch and trl (without it, searchmill alone).
Both have the same weights, prompts (32, of equal length), temperature 1, limit of tokens, rewards by the number of the sample,
AdamW, precision (f32) and threads; neither has a reference model. The random model ends hardly any completion before the limit.
searchmill's round is that of the nodes `rollouts`, `scored` and `step` in the run's record, so it includes reading and writing
Parquet, recorded tokens and the model's folder; TRL's is the time of `on_step_begin` to `on_step_end`. The first round of each
warms up; figures are medians of the others. They run one after the other.

Generation alone: searchmill's node `rollouts`, and `generate` of transformers on the same prompts in one batch. With `--gguf` (the
same model) and `--llama-bench` (of llama.cpp), also one sequence at a time: `llama-bench -t THREADS -n TOKENS`, and searchmill
with one row in flight. Prints one JSON line.
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
    seed: 1
repeat:
  rl:
    rounds: {rounds}
    carry: {{policy: start, optimizer: null}}
    nodes:
      rollouts:
        op: rollout
        from: {{questions: questions, search: bm25, model: policy}}
        with: {{policy: {{model: {{temperature: 1, max_tokens: {tokens}}}}}, samples: {samples}, max_turns: 1, system_prompt: s, record: tokens}}
        seed: "${{repeat.round}}"
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
    parser.add_argument("--gguf")
    parser.add_argument("--llama-bench")
    for name, default in (("questions", 32), ("samples", 8), ("tokens", 64), ("rounds", 4), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
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


def llama(args):
    """Tokens a second of `llama-bench` generating one sequence."""
    command = [args.llama_bench, "-m", args.gguf, "-t", str(args.threads), "-p", "0", "-n", str(args.tokens), "-o", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]["avg_ts"]


def main():
    args = arguments()
    if args.as_peer:
        return as_peer(json.loads(open(args.as_peer).read()))
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
        if args.peer:
            prompts, seen = [], set()
            for row in rows:
                if row["question_id"] not in seen:
                    seen.add(row["question_id"])
                    system, user = (message["content"] for message in row["messages"][:2])
                    prompts.append(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
            told["searchmill_prompt_tokens"] = len(spans[0][0]["ids"])
            given = {"prompts": prompts, "model": os.path.abspath(args.model)}
            given |= {name: getattr(args, name) for name in ("questions", "samples", "tokens", "rounds", "threads")}
            with open(f"{folder}/given.json", "w") as file:
                json.dump(given, file)
            environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
            command = [args.peer, os.path.abspath(__file__), "--model", args.model, "--as-peer", f"{folder}/given.json"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            peer = json.loads(done.stdout.splitlines()[-1])
            seconds = statistics.median(peer["seconds"][rest])
            told |= {"trl_round_s": round(seconds, 3), "trl_sampled_tokens": peer["tokens"][-1], "trl_prompt_tokens": peer["prompt_tokens"],
                     "transformers_generation_tokens_per_s": round(statistics.median(peer["generate"])), "ratio_round": round(seconds / own, 2),
                     "versions": {name: peer[name] for name in ("trl", "transformers", "torch")}}
        if args.gguf and args.llama_bench:
            told["llama_cpp_one_sequence_tokens_per_s"] = round(llama(args))
    print(json.dumps(told))


main()
