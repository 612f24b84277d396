//! Tests of prompts that a rollout asks: the tool `prompt`, and a language model as reranker.

use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, answer, call, message, search, status};
use serde_json::{Value, json};

use crate::harness::project::{Mill, killed_after};

const TOOL: &str = r#"      tools:
        - prompt:
            name: ask_expert
            description: Asks an expert.
            parameters: {type: object, required: [about], properties: {about: {type: string}, hint: {type: string}}}
            system: You are an expert.
            user: "Expert on {{ about }}{% if hint %}, with {{ hint }}{% endif %}"
            policy: {endpoint: {base_url: "URL", model: expert, temperature: 0, prices: {call: 1}}}
"#;

const RERANK: &str = r#"      rerank:
        keep: 2
        prompt:
          user: "Order for {{ query }}:{% for d in documents %} [{{ d.number }}] {{ d.document_id }}{% endfor %}"
          policy: {endpoint: {base_url: "URL", model: ranker, temperature: 0, prices: {call: 1}}}
"#;

const ALONE: &str = r#"      rerank:
        keep: 2
        prompt:
          user: "Score {{ document.document_id }} for {{ query }}{{ output_schema and '' }}"
          policy: {endpoint: {base_url: "URL", model: ranker, temperature: 0}}
"#;

const PIPELINE: &str = r#"name: asked
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 50, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  rollouts:
    op: rollout
    from: {questions: questions, search: bm25}
    with:
      policy: {endpoint: {base_url: "URL", model: m, prices: {call: 0.01}}}
      search: {top_k: 3}
MORE    retry: {max_attempts: 2, backoff: 10ms}
    resources: {concurrency: 4}
"#;

fn say(text: &str) -> Step {
    Step::Say(message(text))
}

/// A server of the asked model (`steps` of each of so many questions) and of the other one, by the beginning of its prompt.
fn server(questions: usize, steps: impl Fn(usize) -> Vec<Step>, others: &[(&str, Vec<Step>)]) -> OpenAiServer {
    let asked = (0..questions).map(|number| (format!("what is {number}?"), steps(number)));
    let others = others.iter().map(|(prompt, steps)| ((*prompt).to_owned(), steps.clone()));
    OpenAiServer::start_by_turn(asked.chain(others).collect::<Script>())
}

fn mill(server: &OpenAiServer, questions: usize, more: &str) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &PIPELINE.replace("MORE", more).replace("URL", &server.base_url()));
    let document = |number| {
        let text = "tower ".repeat(number) + "of the old town by the river";
        format!("{}\n", json!({"id": format!("d{number}"), "text": text}))
    };
    mill.write("documents.jsonl", &(1..=4).map(document).collect::<String>());
    ask(&mill, questions);
    mill
}

fn ask(mill: &Mill, questions: usize) {
    let question = |number| {
        let question = format!("what is {number}?");
        format!("{}\n", json!({"id": format!("q{number}"), "question": question, "golden_answers": ["Rome"]}))
    };
    mill.write("questions.jsonl", &(0..questions).map(question).collect::<String>());
}

fn replace(mill: &Mill, from: &str, to: &str) {
    let text = mill.read("pipeline.yaml");
    assert!(text.contains(from), "{from}");
    mill.write("pipeline.yaml", &text.replace(from, to));
}

fn rollouts(mill: &Mill) -> Vec<Value> {
    let rows = mill.call(&["show", "rollouts", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
    rows.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

/// Documents and texts of the tool messages of a rollout.
fn shown(rollout: &Value) -> Vec<(Vec<String>, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let messages = rollout["messages"].as_array().expect("messages").iter();
    let seen = |message: &Value| {
        let seen = message["observations"].as_array().cloned().unwrap_or_default();
        (seen.iter().map(|seen| text(&seen["document_id"])).collect(), text(&message["content"]))
    };
    messages.filter(|message| message["role"] == "tool").map(seen).collect()
}

fn rivers() -> Step {
    call("ask_expert", r#"{"about": "rivers"}"#)
}

#[test]
fn an_expert_is_paid_once_and_what_it_said_is_in_the_record() {
    let said = say("<think>Which one?</think>The Tiber.");
    let server = server(2, |_| vec![rivers(), answer("Rome")], &[("Expert on rivers", vec![said])]);
    let mill = mill(&server, 2, TOOL);
    let told = mill.run(&[]).exit(0);
    assert_eq!(server.requests("Expert on rivers").len(), 1, "two rollouts, one call");
    let asked = &server.requests("Expert on rivers")[0].body;
    assert_eq!(
        (&asked["model"], &asked["temperature"], &asked["messages"]),
        (
            &json!("expert"),
            &json!(0.0),
            &json!([{"role": "system", "content": "You are an expert."},
            {"role": "user", "content": "Expert on rivers"}])
        )
    );
    assert_eq!(asked.get("tools"), None);
    for rollout in rollouts(&mill) {
        assert_eq!(shown(&rollout)[0].1, "The Tiber.");
        assert_eq!(rollout["tool_errors"], 0);
    }
    let (calls, cost) = (&told.summary()["calls"], told.summary()["cost"].as_f64().expect("a cost"));
    assert!(*calls == 5 && (cost - 1.04).abs() < 1e-9, "{calls} calls, {cost}");
    let audit = mill.call(&["audit", "latest", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("2 rows match the cached answers") && audit.contains("observations of tools"), "{audit}");
    // Nothing runs again; another limit of turns pays for nothing.
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    replace(&mill, "      tools:\n", "      max_turns: 9\n      tools:\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "rollouts");
    assert_eq!(server.count(), 5);
    // Another template, and another setting of the model, ask again.
    replace(&mill, "You are an expert.", "You know it all.");
    mill.run(&[]).exit(0);
    assert_eq!(server.requests("Expert on rivers").len(), 2);
    replace(&mill, "model: expert, temperature: 0", "model: expert, temperature: 0.5");
    mill.run(&[]).exit(0);
    assert_eq!(server.requests("Expert on rivers").len(), 3);
    // A forced run asks again, once.
    mill.run(&["--force=rollouts"]).exit(0);
    assert_eq!(server.requests("Expert on rivers").len(), 4);
}

#[test]
fn what_an_expert_costs_is_estimated_and_limited() {
    let about = |number: usize| call("ask_expert", &json!({"about": format!("river {number}")}).to_string());
    let server =
        server(6, |number| vec![about(number), answer("Rome")], &[("Expert on river", vec![say("The Tiber.")])]);
    let mill = mill(&server, 2, TOOL);
    mill.run(&[]).exit(0);
    ask(&mill, 6);
    mill.run(&["questions"]).exit(0);
    let plan = mill.call(&["plan", "pipeline.yaml", "--json"]).exit(0).events();
    let planned = plan.iter().find(|line| line["node"] == "rollouts").expect("the node");
    let (calls, cost) = (&planned["estimate"]["calls"], planned["estimate"]["cost"].as_f64().unwrap_or_default());
    assert!(*calls == 12 && (cost - 4.08).abs() < 1e-9, "{planned}");
    let told = mill.run(&["--budget", "cost=2"]).exit(4);
    assert!(told.summary()["budget"].as_str().expect("a limit").contains("of 2"), "{}", told.summary());
    mill.run(&[]).exit(0);
    assert_eq!(server.count(), 18, "nothing is paid twice");
}

#[test]
fn an_expert_that_fails_is_an_error_and_never_nothing() {
    let about = |what: &str| call("ask_expert", &json!({"about": what}).to_string());
    let steps = |_| vec![about("silence"), about("a fault"), about("prose"), answer("Rome")];
    let silent = ("Expert on silence", vec![say(" ")]);
    let broken = ("Expert on a fault", vec![status(500)]);
    let prose = ("Expert on prose", vec![say("I am sure."), say(r#"{"sure": true, "answer": "Rome"}"#)]);
    let server = server(1, steps, &[silent, broken, prose]);
    let output = "            output: [{answer: text}, {sure: bool}]\n            repairs: 1\n";
    let mill = mill(&server, 1, &(TOOL.to_owned() + output));
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("warning: 2 of 3 calls of `ask_expert` failed: 1 × http"), "{}", told.stdout);
    assert!(told.stdout.contains("; 1 × the answer holds no JSON object"), "{}", told.stdout);
    let rollout = &rollouts(&mill)[0];
    assert_eq!((&rollout["tool_errors"], &rollout["prediction"]), (&json!(2), &json!("Rome")));
    let shown = shown(rollout);
    assert!(
        shown[0].1.starts_with("Error: `ask_expert` failed: the answer holds no JSON object (asked again 1 times)")
    );
    assert!(shown[1].1.starts_with("Error: `ask_expert` failed: ") && shown[1].1.contains("500"), "{}", shown[1].1);
    assert_eq!(shown[2].1, r#"{"answer": "Rome", "sure": true}"#, "in the order of `output`");
    assert_eq!(server.requests("Expert on silence").len(), 2);
    assert_eq!(server.requests("Expert on a fault").len(), 2, "`retry`");
    let first = server.requests("Expert on prose")[0].body["messages"][1]["content"].to_string();
    assert!(first.contains("with these fields: {\\\"answer\\\": string, \\\"sure\\\": true or false}"), "{first}");
    let again = server.requests("Expert on prose")[1].body["messages"][3]["content"].to_string();
    assert!(again.contains("Your reply cannot be used: the answer holds no JSON object"), "{again}");
    let audit = mill.call(&["audit", "latest", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("1 rows match the cached answers"), "{audit}");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    // A key that is refused is no observation.
    replace(&mill, "      tools:\n", "      max_turns: 9\n      tools:\n");
    let script = [("what is 0?".to_owned(), vec![about("fish")]), ("Expert on fish".to_owned(), vec![status(401)])];
    let refusing = OpenAiServer::start_by_turn(script.into());
    replace(&mill, &server.base_url(), &refusing.base_url());
    let told = mill.run(&["--force=rollouts"]).exit(3);
    assert!(told.stdout.contains("`ask_expert` failed: ") && told.stdout.contains("401"), "{}", told.stdout);
}

#[test]
fn an_answer_is_kept_if_another_call_of_the_message_fails_the_row() {
    let call = |id: &str, about: &str| {
        let function = json!({"name": "ask_expert", "arguments": json!({"about": about}).to_string()});
        json!({"id": id, "type": "function", "function": function})
    };
    let calls = json!([call("a", "fish"), call("b", "rivers")]);
    let both = Step::Say(json!({"role": "assistant", "content": null, "tool_calls": calls}));
    let slow = Step::After(Duration::from_millis(400), Box::new(say("The Tiber.")));
    let others = [("Expert on fish", vec![status(403)]), ("Expert on rivers", vec![slow])];
    let server = server(1, |_| vec![both.clone(), answer("Rome")], &others);
    let mill = mill(&server, 1, TOOL);
    for refused in 1..3 {
        let told = mill.run(&[]).exit(3);
        assert!(told.stdout.contains("`ask_expert` failed: ") && told.stdout.contains("403"), "{}", told.stdout);
        assert_eq!(server.requests("Expert on fish").len(), refused);
        assert_eq!(server.requests("Expert on rivers").len(), 1, "what was paid is kept");
    }
}

#[test]
fn kill_9_in_a_rollout_with_an_expert_pays_nothing_twice() {
    const QUESTIONS: usize = 16;
    let slow = |step: Step| Step::After(Duration::from_millis(60), Box::new(step));
    let about = |number: usize| call("ask_expert", &json!({"about": format!("river {number}")}).to_string());
    let expert = [("Expert on river", vec![slow(say("Hm.")), slow(say(r#"{"river": "Tiber"}"#))])];
    let calm = server(QUESTIONS, |number| vec![slow(about(number)), slow(answer("Rome"))], &expert);
    let more = TOOL.to_owned() + "            output: {river: text}\n";
    let undisturbed = mill(&calm, QUESTIONS, &more);
    undisturbed.run(&[]).exit(0);
    assert_eq!(calm.count(), 4 * QUESTIONS);
    let again = calm.again();
    let mill = mill(&again, QUESTIONS, &more);
    let mut kills = 0;
    for round in 0..6_u64 {
        kills += usize::from(killed_after(
            &mut mill.command(&["run", "pipeline.yaml", "--json"]),
            Duration::from_millis(400 + 90 * round),
        ));
    }
    assert!(kills >= 2, "only {kills} runs were killed");
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
    let twice = again.count() - calm.count();
    assert!(twice <= 4 * kills, "{twice} calls were paid again after {kills} kills with 4 rows in flight");
}

#[test]
fn a_replay_from_the_record_asks_no_expert_and_a_test_plays_it() {
    let server = server(1, |_| vec![rivers(), answer("Rome")], &[("Expert on rivers", vec![say("The Tiber.")])]);
    let mill = mill(&server, 1, TOOL);
    mill.run(&[]).exit(0);
    let text = mill.read("pipeline.yaml");
    let node = &text[text.find("  rollouts:\n").expect("the node")..];
    let again =
        node.replace("  rollouts:\n", "  again:\n").replace("search: bm25}", "search: bm25, recorded: rollouts}");
    let tests = r#"tests:
  - name: asks
    given: {questions: [{id: a, question: "where?"}], corpus: [{id: d, text: "Of rivers."}]}
    model:
    - when: "where?"
      answers:
      - {tool_calls: [{id: c, type: function, function: {name: ask_expert, arguments: "{\"about\": \"rivers\"}"}}]}
      - "<answer>Rome</answer>"
    - {when: "Expert on rivers", answer: "The Tiber."}
    expect:
      rollouts: [{prediction: Rome, tool_errors: 0}]
"#;
    mill.write("pipeline.yaml", &format!("{text}{again}{tests}"));
    let paid = server.count();
    let expert = server.requests("Expert on rivers").len();
    mill.run(&[]).exit(0);
    let ids = mill.artifacts();
    assert_eq!(ids["rollouts.trajectories"], ids["again.trajectories"]);
    assert_eq!((server.count(), server.requests("Expert on rivers").len()), (paid, expert), "all was known");
    mill.call(&["test", "pipeline.yaml"]).exit(0);
    assert_eq!(server.count(), paid, "a test calls no endpoint");
}

#[test]
fn a_model_orders_what_a_search_found() {
    let order = |text: &str| vec![say(text)];
    let others = [("Order for tower:", order("[3] > [1]")), ("Order for town:", order(r#"{"order": [2, 3, 1]}"#))];
    let server = server(2, |_| vec![search(&["tower", "town"]), answer("Rome")], &others);
    let mill = mill(&server, 2, RERANK);
    let told = mill.run(&[]).exit(0);
    let asked = server.requests("Order for tower:");
    let prompt = asked[0].body["messages"][0]["content"].as_str().expect("a prompt").to_owned();
    assert!(prompt.starts_with("Order for tower: [1] d4 [2] d3 [3] d2\n\nReply with one JSON object"), "{prompt}");
    assert_eq!((asked.len(), server.requests("Order for town:").len()), (1, 1), "each once for two rollouts");
    for rollout in rollouts(&mill) {
        let shown = shown(&rollout);
        assert_eq!(shown[0].0, ["d2", "d4"]);
        assert_eq!(shown[1].0.len(), 2, "`keep`");
    }
    assert_eq!(told.summary()["calls"], 6);
    let audit = mill.call(&["audit", "latest", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("2 rows match the cached answers"), "{audit}");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    replace(&mill, "keep: 2", "keep: 1");
    mill.run(&[]).exit(0);
    assert_eq!(server.requests("Order for tower:").len(), 1, "the same call, of which less is shown");
    assert_eq!(shown(&rollouts(&mill)[0])[0].0, ["d2"]);
    replace(&mill, "Order for {{ query }}:", "Order for {{ query }}: {# anew #}(");
    mill.run(&[]).exit(0);
    assert_eq!(server.requests("Order for tower:").len(), 2, "another prompt");
}

#[test]
fn a_reply_that_is_no_order_is_an_error_and_never_an_empty_result() {
    let queries = ["tower", "town", "river", "old"];
    let replies = [
        ("Order for tower:", vec![say("[4] > [1]"), say("Passage [1] is best."), say("[2] > [2]")]),
        ("Order for town:", vec![say("I cannot say."), say("[1]")]),
        ("Order for river:", vec![status(500)]),
        ("Order for old:", vec![say(r#"{"order": []}"#)]),
    ];
    let server = server(1, |_| vec![search(&queries), answer("Rome")], &replies);
    let mill = mill(&server, 1, RERANK);
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("warning: 3 of 4 calls of `search` failed"), "{}", told.stdout);
    let rollout = &rollouts(&mill)[0];
    assert_eq!(rollout["tool_errors"], 3);
    let shown = shown(rollout);
    let error = "the reranker failed: the passage [2] is there twice (asked again 2 times)";
    assert!(shown[0].0.is_empty() && shown[0].1.contains(error), "{}", shown[0].1);
    assert_eq!(shown[1].0.len(), 1);
    assert!(shown[2].1.contains("the reranker failed: ") && shown[2].1.contains("500"), "{}", shown[2].1);
    assert!(shown[3].1.contains("the answer names no passage"), "{}", shown[3].1);
    let repairs = server.requests("Order for tower:");
    let last = |place: usize| {
        let messages = repairs[place].body["messages"].as_array().cloned().unwrap_or_default();
        messages.last().expect("a message")["content"].to_string()
    };
    assert!(last(1).contains("there is no passage [4]: they are [1] to [3]"), "{}", last(1));
    assert!(last(2).contains("is no order of the passages"), "{}", last(2));
    let audit = mill.call(&["audit", "latest", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("1 rows match the cached answers"), "{audit}");
}

#[test]
fn a_model_scores_each_passage_alone_and_equal_pairs_once() {
    let scores =
        [("Score d2 for", "2"), ("Score d3 for", "<think>3?</think> 9.5"), ("Score d4 for", r#"{"score": 2}"#)];
    let scores = scores.map(|(prompt, score)| (prompt, vec![say(score)]));
    let server = server(2, |_| vec![search(&["tower"]), answer("Rome")], &scores);
    let mill = mill(&server, 2, ALONE);
    mill.run(&[]).exit(0);
    for rollout in rollouts(&mill) {
        assert_eq!(shown(&rollout)[0].0, ["d3", "d4"], "equal scores stay in the order of the search");
        let seen = &rollout["messages"].as_array().expect("messages").iter().find(|one| one["role"] == "tool");
        assert_eq!(seen.expect("a result")["observations"][0]["score"], 9.5);
    }
    assert_eq!(server.requests("Score d3 for").len(), 1);
    assert_eq!(server.requests("Score d3 for")[0].body["messages"][0]["content"], "Score d3 for tower");
    mill.call(&["audit", "latest", "--rollouts"]).exit(0);
}

#[test]
fn mistakes_are_told_at_their_place() {
    let server = server(1, |_| vec![answer("Rome")], &[]);
    let mill = mill(&server, 1, &(TOOL.to_owned() + RERANK));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let whole = mill.read("pipeline.yaml");
    let expert = format!(
        "policy: {{endpoint: {{base_url: \"{}\", model: expert, temperature: 0, prices: {{call: 1}}}}}}",
        server.base_url()
    );
    for (from, to, line, message) in [
        ("{{ about }}", "{{ abuot }}", 19, "`abuot` is no property of `parameters`"),
        ("{{ about }}", "{{ abuot }}", 19, "did you mean `about`?"),
        ("{{ about }}", "{{ about }", 19, "the prompt is no template: line 1"),
        (expert.as_str(), "policy: model", 20, "only an endpoint can be asked here"),
        ("model: expert,", "model: expert, api: completions,", 20, "a prompt needs `api: chat`"),
        (
            "temperature: 0, prices: {call: 1}}}\n      rerank",
            "temperature: -1}}\n      rerank",
            20,
            "must not be negative",
        ),
        ("            system:", "            constrained: true\n            system:", 18, "it has no schema"),
        ("            system:", "            output: {a: integer}\n            system:", 18, "`integer` is no type"),
        ("name: ask_expert", "name: search", 15, "two tools have the name `search`"),
        ("{{ query }}", "{{ question }}", 24, "a reranker's prompt knows no `question`"),
        ("for d in documents", "for d in []", 24, "shows no passages"),
        ("{{ query }}", "{{ query }}{{ document }}", 24, "reads both `documents` and `document`"),
        ("keep: 2", "python: \"a.py:b\"", 22, "write either `python` or `prompt`"),
        ("keep: 2", "timeout_seconds: 3", 22, "belongs to `python`"),
    ] {
        assert!(whole.contains(from), "{from}");
        mill.write("pipeline.yaml", &whole.replacen(from, to, 1));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(message) && told.contains(&format!("pipeline.yaml:{line}:")), "{to}: {line}: {told}");
    }
}
