//! The memo of external rows: rows kept and found, turns journalled.
//!
//! ```text
//! cargo bench --bench memo -- [--size 20000] [--turns 3]
//! ```
//! Rows are trajectories of `--turns` model turns with a search each but the last, five passages a search. One line of
//! JSON a task. `memo_keep` is a finished rollout written to disk (one `write`, not flushed), `memo_find` key to decoded
//! rows, `memo_key` a question row to its key, `turn_keep` an answer kept; `memo_overhead` is the CPU time that all of
//! this takes for one rollout, to be set against `cpu_ms_client` of the bench `rollout`.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::Instant;

use searchmill_engine::fingerprint::{CallPlace, Digest, NodeIdentity, RowKey, RowKeys, call_key, hash_bytes};
use searchmill_engine::operator::{KeptCall, RowOutput, Usage};
use searchmill_engine::store::{CallCache, Memo, Store};
use searchmill_schemas::{Message, Observation, Question, Role, ToolCall, Trajectory, to_batch};
use serde_json::json;

fn main() {
    let (size, turns) = (option("--size", 20_000), option("--turns", 3));
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("store")).expect("a store");
    let base = hash_bytes(b"bench");
    let keys: Vec<RowKey> = (0..size).map(|number| RowKey(hash_bytes(&number.to_le_bytes()))).collect();
    let outputs: Vec<RowOutput> = (0..size).map(|number| output(number, turns)).collect();

    let mut memo = Memo::empty(&store, &base);
    let keep = timed("memo_keep", size, || {
        keys.iter().zip(&outputs).for_each(|(key, output)| memo.put(key, output).expect("a disk"));
    });
    timed("memo_flush", 1, || memo.sync().expect("a disk"));
    drop(memo);
    let mut memo = Memo::empty(&store, &base);
    timed("memo_open", size, || memo = Memo::open(&store, &base).expect("a memo"));
    assert_eq!(memo.len(), size);
    timed("memo_contains", size, || assert!(keys.iter().all(|key| memo.contains(key))));
    timed("memo_find", size, || {
        for key in &keys {
            let found = memo.get(key).next().expect("a row");
            assert_eq!(found.batches[0].1.num_rows(), 1);
        }
    });
    let questions = to_batch(&(0..size).map(question).collect::<Vec<_>>()).expect("questions");
    let mut row_keys = row_keys();
    let key = timed("memo_key", size, || {
        for row in 0..size {
            let identity = row_keys.identify(&questions.slice(row, 1)).expect("a row");
            assert_ne!(row_keys.key(&identity, 0), row_keys.key(&identity, 1));
        }
    });
    let turn = journal(&store, &base, &keys, turns);
    let micros = keep + key + turns as f64 * turn;
    println!("{}", json!({"task": "memo_overhead", "turns": turns, "cpu_us_each": 1e6 * micros, "profile": profile()}));
}

/// Seconds a journalled turn.
fn journal(store: &Store, base: &Digest, keys: &[RowKey], turns: usize) -> f64 {
    let calls = CallCache::new(store, base);
    let request = "x".repeat(4000);
    let response = serde_json::to_vec(&turn_of_model(0, false)).expect("JSON");
    let usage = Usage { calls: 1, prompt_tokens: 900, completion_tokens: 60, cost_nanos: 0, ..Usage::default() };
    let seconds = timed("turn_keep", keys.len() * turns, || {
        for row in keys {
            for repeat in 0..turns as u32 {
                let request = hash_bytes(&[row.0.as_bytes(), request.as_bytes()].concat());
                let key = call_key(base, &request, &CallPlace { repeat, ..CallPlace::default() });
                calls.keep(&key, &KeptCall { response: response.clone(), usage });
            }
        }
    });
    calls.check().expect("a disk");
    seconds
}

/// Seconds each.
fn timed(task: &str, count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({"task": task, "n": count, "seconds": seconds, "rate": count as f64 / seconds, "profile": profile()})
    );
    seconds / count as f64
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "release" }
}

fn option(name: &str, default: usize) -> usize {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == name);
    place.map_or(default, |place| arguments[place + 1].parse().expect("a number"))
}

fn row_keys() -> RowKeys {
    let (params, inputs, outputs, sources) = (json!({"model": "m"}), [], [], []);
    let identity = NodeIdentity {
        operator: "rollout",
        version: 1,
        params: &params,
        inputs: &inputs,
        outputs: &outputs,
        sources: &sources,
        seed: None,
        services: &serde_json::Value::Null,
    };
    RowKeys::new(identity.key().0.0, vec!["question".to_owned()])
}

fn question(number: usize) -> Question {
    Question {
        id: format!("q-{number:06}"),
        question: format!("Which river runs through the capital of the {number}th province of Musturdia?"),
        golden_answers: vec!["the Tiber".to_owned()],
        question_type: Some("bridge".to_owned()),
        evidence: Vec::new(),
        metadata: None,
    }
}

fn turn_of_model(number: usize, last: bool) -> Message {
    let mut message = Message::text(Role::Assistant, if last { "So <answer>the Tiber</answer>" } else { "" });
    if !last {
        let arguments = json!({"query": format!("capital of province {number}")}).to_string();
        message.tool_calls.push(ToolCall { id: "call_0".to_owned(), name: "search".to_owned(), arguments });
    }
    message.reasoning = Some("I need the capital first, then its river, and then I can say it. ".repeat(4));
    (message.prompt_tokens, message.completion_tokens) = (Some(900), Some(60));
    message
}

fn turn_of_tool(number: usize) -> Message {
    let passage =
        "The river Tiber runs through the town, which has been the seat of the province since 1871. ".repeat(5);
    let mut message = Message::text(Role::Tool, (1..=5).map(|rank| format!("[{rank}] {passage}")).collect::<String>());
    message.tool_call_id = Some("call_0".to_owned());
    let seen = |rank: usize| Observation {
        chunk_id: format!("doc-{number:06}#{rank}"),
        document_id: format!("doc-{number:06}"),
        title: Some("Musturdia".to_owned()),
        score: 1.0 / (rank + 1) as f64,
    };
    message.observations = (0..5).map(seen).collect();
    message
}

fn output(number: usize, turns: usize) -> RowOutput {
    let asked = question(number);
    let mut said =
        vec![Message::text(Role::System, "Answer with the search tool."), Message::text(Role::User, &asked.question)];
    for turn in 1..turns {
        said.extend([turn_of_model(number + turn, false), turn_of_tool(number)]);
    }
    said.push(turn_of_model(number, true));
    let trajectory = Trajectory {
        id: format!("{}@0", asked.id),
        question_id: asked.id,
        sample_index: 0,
        question: asked.question,
        golden_answers: asked.golden_answers,
        question_type: asked.question_type,
        evidence: asked.evidence,
        policy: "endpoint".to_owned(),
        model: Some("m".to_owned()),
        protocol: "tool_call".to_owned(),
        tools: "[]".to_owned(),
        messages: said,
        answer: "So <answer>the Tiber</answer>".to_owned(),
        prediction: "the Tiber".to_owned(),
        turns: turns as i32,
        tool_calls: turns as i32 - 1,
        prompt_tokens: 900 * turns as i64,
        completion_tokens: 60 * turns as i64,
        last_prompt_tokens: 900,
        last_completion_tokens: 60,
        finish_reason: "answered".to_owned(),
        metadata: None,
    };
    let usage =
        Usage { calls: turns as u64, prompt_tokens: 900, completion_tokens: 60, cost_nanos: 0, ..Usage::default() };
    RowOutput { batches: vec![("trajectories".to_owned(), to_batch(&[trajectory]).expect("a row"))], usage }
}
