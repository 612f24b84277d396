//! Answers in every form in which servers send them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use searchmill_fixtures::openai_server::{answer, call, message};

use super::*;

/// A body with one choice.
fn body(message: &Value, reason: &Value) -> String {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    json!({"choices": [{"message": message, "finish_reason": reason}], "usage": usage}).to_string()
}

/// A stream of pieces of the content; every event has the reason of the pieces but the last one.
fn stream(pieces: &[&str], reason: &str, end: &str) -> Step {
    let event = |text: &str, reason: &str| {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{reason}}}]}}\n\n")
    };
    let pieces: String = pieces.iter().map(|piece| event(piece, reason)).collect();
    Step::Body(pieces + &if end.is_empty() { String::new() } else { event("", end) })
}

#[test]
fn calls_with_broken_arguments_are_mistakes_that_the_model_reads_and_the_rollout_goes_on() {
    let forms = [
        ("empty", "", "{}"),
        ("python", "{'query': 'Italy'}", ""),
        ("tag", "{\"query\": \"Italy\"}</tool_call>", ""),
        ("line", "{\"query\": \"Ita\nly\"}", ""),
        ("open", "{\"query\": \"Italy\"", ""),
        ("list", "[{\"query\": \"Italy\"}]", ""),
        ("twice", "{\"query\": \"Italy\", \"query\": \"France\"}", "{\"query\": \"Italy\", \"query\": \"France\"}"),
    ];
    let script: Vec<_> =
        forms.iter().map(|(name, text, _)| (*name, vec![call("search", text), answer("Rome")])).collect();
    let bench = Bench::new(&script);
    for (name, written, sent) in forms {
        let got = bench.one(name);
        assert_eq!((got.prediction.as_str(), got.turns), ("Rome", 2), "{name}");
        assert_eq!(got.messages[2].tool_calls[0].arguments, written, "the record keeps what the model wrote");
        assert!(got.messages[3].error.is_some() && got.messages[3].observations.is_empty(), "{name}: {got:?}");
        let body = &bench.server.requests(name)[1].body;
        let text = body["messages"][2]["tool_calls"][0]["function"]["arguments"].as_str().expect("a text");
        assert!(serde_json::from_str::<serde_json::Map<_, _>>(text).is_ok(), "{name}: a server parses {text}");
        if sent.is_empty() {
            assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), json!({"INVALID_JSON": written}));
        } else {
            assert_eq!(text, sent);
        }
    }
}

#[test]
fn calls_are_run_with_the_arguments_that_the_model_wrote_however_they_are_encoded() {
    let asks = |arguments: Value| {
        let function = json!({"name": "search", "arguments": arguments});
        Step::Say(json!({"content": null, "tool_calls": [{"id": "c", "type": "function", "function": function}]}))
    };
    let text = json!({"query": "Italy"}).to_string();
    let twice = Value::from(Value::from(text.as_str()).to_string());
    for stream in [false, true] {
        let bench = Bench::new(&[
            ("object", vec![asks(json!({"query": "Italy"})), answer("Rome")]),
            ("text", vec![asks(json!(text)), answer("Rome")]),
            ("text of text", vec![asks(twice.clone()), answer("Rome")]),
        ])
        .endpoint("stream", json!(stream));
        for name in ["object", "text", "text of text"] {
            let got = bench.one(name);
            assert_eq!(got.messages[3].observations[0].document_id, "it", "{name}");
            let sent = &bench.server.requests(name)[1].body["messages"][2]["tool_calls"][0]["function"]["arguments"];
            assert_eq!(sent, &json!(text), "{name}");
        }
    }
}

#[test]
fn streams_without_a_reason_are_cut_and_asked_for_again() {
    let whole = || stream(&["The river is ", "<answer>Ta", "el</answer>"], "\"\"", "\"stop\"");
    for blank in ["\"\"", "\"null\"", "null"] {
        let cut = || stream(&["The river is ", "<answer>Ta"], blank, "");
        let bench =
            Bench::new(&[("once", vec![cut(), whole()]), ("always", vec![cut()])]).endpoint("stream", json!(true));
        let outcome = bench.run(&["once", "always"]);
        let rows = outcome.read::<Trajectory>("trajectories");
        assert_eq!(rows.iter().map(|row| row.prediction.as_str()).collect::<Vec<_>>(), ["Tael"], "{blank}");
        let (kind, attempts, detail) = rejects(&outcome).remove("always").expect("a reject");
        assert_eq!((kind.as_str(), attempts), ("bad_response", 3));
        assert!(detail.expect("the last event").contains("<answer>Ta"));
    }
}

#[test]
fn answers_are_read_whichever_form_was_asked_for_and_however_they_are_encoded() {
    let whole = body(&message("<answer>Rome</answer>"), &json!("stop"));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(whole.as_bytes()).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let events = || stream(&["<answer>Ro", "me</answer>"], "null", "\"stop\"");
    for streamed in [false, true] {
        let bench = Bench::new(&[
            ("whole", vec![Step::Body(whole.clone())]),
            ("events", vec![events()]),
            ("gzip", vec![Step::Encoded("gzip", gzip.clone())]),
            ("half a character", vec![stream(&["<answer>Rome</answer> \\ud83d", "\\ude00"], "null", "\"stop\"")]),
        ])
        .endpoint("stream", json!(streamed));
        for name in ["whole", "events", "gzip", "half a character"] {
            let got = bench.one(name);
            assert_eq!(got.prediction, "Rome", "{name}");
            assert!(name != "half a character" || got.answer.ends_with('😀'), "{}", got.answer);
        }
    }
}

#[test]
fn what_a_server_did_to_an_answer_is_told() {
    let cut = |arguments: &str| {
        let function = json!({"name": "search", "arguments": arguments});
        json!({"content": "I look.", "tool_calls": [{"id": "c", "type": "function", "function": function}]})
    };
    let thoughts = json!({"content": null, "reasoning_content": "<answer>Rome</answer>"});
    let in_text = message("<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"Italy\"}}\n</tool_call>");
    let say = |message: &Value, reason: &str| vec![Step::Body(body(message, &json!(reason)))];
    let then = |mut steps: Vec<Step>| {
        steps.push(answer("Rome"));
        steps
    };
    let script = [
        ("A", then(say(&cut("{\"query\": \"Ita"), "length"))),
        ("B", then(say(&cut("{\"query\": \"Ita\"}"), "length"))),
        ("C", say(&message("I think that <answer>Ro"), "length")),
        ("D", say(&message("<answer>Rome</answer> because the"), "length")),
        ("E", say(&thoughts, "stop")),
        ("F", say(&in_text, "stop")),
        ("G", say(&message(""), "content_filter")),
        ("H", say(&json!({"content": null}), "stop")),
    ];
    let bench = Bench::new(&script);
    let outcome = bench.run(&["A", "B", "C", "D", "E", "F", "G", "H"]);
    let rows = outcome.read::<Trajectory>("trajectories");
    let ends: Vec<_> = rows.iter().map(|row| row.finish_reason.as_str()).collect();
    let none = "no_answer";
    assert_eq!(ends, ["answered", "answered", "length", "answered", none, none, none, none]);
    for row in &rows[..2] {
        assert_eq!(row.messages[2].finish_reason.as_deref(), Some("length"), "the reason of the turn is kept");
    }
    assert_eq!((rows[0].messages[3].error.is_some(), rows[4].prediction.as_str()), (true, ""));
    for hint in ["cut at the limit of tokens", "reasoning parser", "--tool-call-parser", "filtered", "an empty message"]
    {
        assert!(outcome.summary.contains("warning: 1 rollout has no answer"), "{}", outcome.summary);
        assert!(outcome.summary.contains(hint), "{hint}: {}", outcome.summary);
    }
}
