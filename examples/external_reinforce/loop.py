"""All rounds of REINFORCE in one program, with torch: the model writes a query, reads what the retriever finds, and answers.

    python3 loop.py ROWS.jsonl MODEL OUTPUT METRICS.jsonl SEED RETRIEVER

ROWS has a question per line: `question` and `golden_answers`. RETRIEVER is the address of `searchmill serve env`. The reward
is the share of the golden answer's words in the answer; a rollout's advantage is its reward minus the mean of its question
(Dr. GRPO, arXiv:2503.20783). Learnt are the tokens that the model sampled, in the query and in the answer.
"""
import json
import sys
import urllib.request

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROUNDS, QUESTIONS, SAMPLES, TOKENS, LEARNING_RATE = 4, 4, 4, 12, 1e-3


def search(address, queries):
    """Returns the text of the best passages of each query."""
    body = json.dumps({"queries": [query or "nothing" for query in queries], "topk": 1}).encode()
    request = urllib.request.Request(address + "/retrieve", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        results = json.load(answer)["result"]
    return [" ".join(document["contents"] for document in documents) for documents in results]


def sample(model, tokenizer, prompts):
    """Returns the tokens that the model samples after each prompt."""
    tokenizer.padding_side = "left"
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = model.generate(**batch, do_sample=True, max_new_tokens=TOKENS, pad_token_id=tokenizer.pad_token_id)
    return ids[:, batch["input_ids"].shape[1] :].tolist()


def reward(answer, golden):
    words = golden.lower().split()
    return sum(word in answer.lower().split() for word in words) / max(len(words), 1)


def logprob(model, tokenizer, prompt, ids):
    """Returns the log-probability of sampled tokens after a prompt."""
    before = tokenizer(prompt)["input_ids"]
    logits = model(input_ids=torch.tensor([before + ids])).logits[0, len(before) - 1 : -1].log_softmax(-1)
    return logits[range(len(ids)), ids].sum()


def main(rows, folder, output, metrics, seed, retriever):
    torch.manual_seed(int(seed))
    questions = [json.loads(line) for line in open(rows, encoding="utf-8")]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    with open(metrics, "w", encoding="utf-8") as log:
        for step in range(1, ROUNDS + 1):
            first = (step - 1) * QUESTIONS % len(questions)
            batch = [row for row in questions[first : first + QUESTIONS] for _ in range(SAMPLES)]
            asked = [row["question"] + "\nQuery:" for row in batch]
            queries = sample(model, tokenizer, asked)
            found = search(retriever, tokenizer.batch_decode(queries, skip_special_tokens=True))
            read = [f"{text}\n{row['question']}\nAnswer:" for text, row in zip(found, batch)]
            answers = sample(model, tokenizer, read)
            texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
            rewards = torch.tensor([reward(text, row["golden_answers"][0]) for text, row in zip(texts, batch)])
            advantages = (rewards.view(-1, SAMPLES) - rewards.view(-1, SAMPLES).mean(1, keepdim=True)).flatten()
            total = 0.0
            for prompts, sampled in ((asked, queries), (read, answers)):
                for prompt, ids, advantage in zip(prompts, sampled, advantages):
                    loss = -advantage * logprob(model, tokenizer, prompt, ids) / (len(batch) * TOKENS)
                    loss.backward()
                    total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            optimizer.zero_grad()
            log.write(json.dumps({"step": step, "loss": total, "grad_norm": norm, "reward": rewards.mean().item()}) + "\n")
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


main(*sys.argv[1:])
