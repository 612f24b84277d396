//! Files and servers that broke other programs (`../shared/trials`): what each `expect.md` there demands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use searchmill_fixtures::shared;
use serde_json::{Value, json};

use crate::harness::project::{Mill, Told, files_in};

/// Returns a project with the files of a trial; `None`, and a note, without them.
fn trial(name: &str) -> Option<Mill> {
    let folder = shared(&format!("trials/{name}"))?;
    let mill = Mill::new();
    for file in files_in(&folder) {
        let copy = mill.path(&file.file_name().expect("a name").to_string_lossy());
        std::fs::copy(&file, &copy).expect("a copy");
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o644)).expect("a writable copy");
    }
    Some(mill)
}

/// The server of a trial; it ends with this value.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(mill: &Mill) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = Command::new("python3");
        command.args(["server.py", &port.to_string(), "server.log"]).current_dir(mill.path(""));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("python3");
        let server = Self { process, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_mins(1), "the server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Runs the pipeline with this server.
    fn run(&self, mill: &Mill) -> Told {
        let address = format!("base_url=http://127.0.0.1:{}/v1", self.port);
        mill.call(&["run", "pipeline.yaml", "--set", &address])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Returns the rows that `show` writes.
fn shown(mill: &Mill, node: &str, more: &[&str]) -> Vec<Value> {
    let told = mill.call(&[&["show", node, "--format", "jsonl", "-n", "0"], more].concat());
    let rows =
        told.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    rows.collect()
}

fn rejects(mill: &Mill, node: &str) -> Vec<String> {
    shown(mill, node, &["--rejects"]).iter().map(Value::to_string).collect()
}

/// Returns the lines of a JSON Lines file; none if it does not exist.
fn lines(mill: &Mill, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(mill.path(file)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the rollouts by the first letter of their question.
fn by_letter(rows: Vec<Value>) -> BTreeMap<String, Value> {
    rows.into_iter().map(|row| (row["question"].as_str().expect("a question")[..1].to_owned(), row)).collect()
}

/// Returns a message's tool calls, whether they are a list or its JSON text.
fn calls(message: &Value) -> Vec<Value> {
    match &message["tool_calls"] {
        Value::Array(calls) => calls.clone(),
        Value::String(text) => serde_json::from_str(text).expect("a list of calls"),
        _ => Vec::new(),
    }
}

/// Returns the arguments of all calls of a conversation, parsed.
fn arguments(row: &Value) -> Vec<Value> {
    let calls = row["messages"].as_array().into_iter().flatten().flat_map(calls);
    let parsed = calls.map(|call| {
        let arguments = if call["function"].is_object() { &call["function"]["arguments"] } else { &call["arguments"] };
        match arguments {
            Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
            value => value.clone(),
        }
    });
    parsed.collect()
}

/// Returns the messages of a rollout's tools.
fn results(row: &Value) -> Vec<Value> {
    let messages = row["messages"].as_array().into_iter().flatten();
    messages.filter(|message| message["role"] == "tool").cloned().collect()
}

fn wanted() -> Value {
    json!({"query": "capital of Ostrin"})
}

#[test]
fn a_stream_that_ends_early_is_asked_again() {
    let Some(mill) = trial("02-truncated-stream-empty-finish") else { return };
    let server = Server::start(&mill);
    let told = server.run(&mill);
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    let rows = shown(&mill, "rollouts", &[]);
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((&row["prediction"], &row["finish_reason"]), (&json!("Tael"), &json!("answered")), "{row}");
    }
    let mut attempts: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines(&mill, "server.log") {
        attempts.insert(line["question"].to_string(), line["attempt"].as_u64().expect("a number"));
    }
    assert!(attempts.len() == 3 && attempts.values().all(|count| *count == 2), "{attempts:?}");
}

#[test]
fn compressed_answers_and_errors_are_read() {
    let Some(mill) = trial("03-gzip-without-asking") else { return };
    let server = Server::start(&mill);
    let told = server.run(&mill);
    let rows = shown(&mill, "rollouts", &[]);
    let answers: BTreeMap<_, _> = rows.iter().map(|row| (row["question_id"].to_string(), &row["prediction"])).collect();
    let tael = json!("Tael");
    assert_eq!(
        answers,
        BTreeMap::from([("\"qA\"".to_owned(), &tael), ("\"qB\"".to_owned(), &tael)]),
        "{}",
        told.stderr
    );
    let rejects = rejects(&mill, "rollouts");
    assert!(rejects.len() == 1 && rejects[0].contains("context length exceeded"), "{rejects:?}");
}

#[test]
fn arguments_in_any_form_lose_no_rollout() {
    let Some(mill) = trial("05-tool-call-arguments") else { return };
    let server = Server::start(&mill);
    let told = server.run(&mill);
    let rows = by_letter(shown(&mill, "rollouts", &[]));
    assert_eq!(rows.len(), 10, "{:?}{}", rejects(&mill, "rollouts"), told.stderr);
    for letter in ["A", "B"] {
        let row = &rows[letter];
        assert_eq!(arguments(row), [wanted()], "{row}");
        assert!(results(row).iter().all(|result| result["error"].is_null()), "{row}");
    }
    for row in rows.values() {
        let results = results(row);
        assert!(results.len() == 1 && results[0]["content"].as_str().is_some_and(|text| !text.is_empty()), "{row}");
    }
    assert!(!results(&rows["J"])[0]["error"].is_null(), "one of two queries was chosen: {}", rows["J"]);

    let written: BTreeMap<&str, &str> = BTreeMap::from([
        ("E", "{'query': 'capital of Ostrin'}"),
        ("F", "{\"query\": \"capital of Ostrin\"}</tool_call>"),
        ("G", "{\"query\": \"capital\nof Ostrin\"}"),
        ("H", "{\"query\": \"capital of Ostrin\""),
        ("I", "[{\"query\": \"capital of Ostrin\"}]"),
        ("J", "{\"query\": \"capital of Ostrin\", \"query\": \"sea\"}"),
    ]);
    let second: Vec<Value> = lines(&mill, "server.log").into_iter().filter(|line| line["turn"] == 1).collect();
    let asked: BTreeSet<String> =
        second.iter().map(|line| line["question"].as_str().expect("text")[..1].to_owned()).collect();
    assert_eq!(asked.len(), 10, "every conversation goes on");
    for line in &second {
        let letter = &line["question"].as_str().expect("a text")[..1];
        for sent in line["sent"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let is_object = serde_json::from_str::<Value>(sent).is_ok_and(|value| value.is_object());
            assert!(is_object || written.get(letter) == Some(&sent), "{letter}: {sent}");
        }
    }
    let trained = lines(&mill, "out/train.jsonl");
    assert!(!trained.is_empty());
    for row in trained {
        assert!(arguments(&row).iter().all(Value::is_object), "{row}");
        for call in row["messages"].as_array().into_iter().flatten().flat_map(calls) {
            assert!(
                call["function"]["arguments"].is_object() || call["arguments"].is_object(),
                "an object, no text: {call}"
            );
        }
    }
}

#[test]
fn an_inspect_log_with_nan_is_read() {
    let Some(mill) = trial("07-inspect-log-nan") else { return };
    let told = mill.call(&["run", "pipeline.yaml"]);
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    assert_eq!(rejects(&mill, "rollouts"), [""; 0]);
    let rows = shown(&mill, "rollouts", &[]);
    assert_eq!(rows.len(), 3);
    for row in rows {
        let metadata = match &row["metadata"] {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        assert!(serde_json::from_str::<Value>(&metadata).is_ok() && metadata.contains("graded"), "{row}");
    }
}

#[test]
fn calls_of_other_programs_are_read_or_refused_with_their_place() {
    let Some(mill) = trial("08-tool-calls-as-text") else { return };
    let mut files: Vec<String> = (1..=8).map(|number| format!("r{number}.jsonl")).collect();
    files.push("all.jsonl".to_owned());
    for file in files {
        drop(std::fs::remove_file(mill.path("out/train.jsonl")));
        let told = mill.call(&["run", "pipeline.yaml", "--set", &format!("file={file}")]);
        let (rows, mut rejects) = (shown(&mill, "rollouts", &[]), rejects(&mill, "rollouts"));
        let count = mill.read(&file).lines().count();
        if told.code != 0 && rows.is_empty() && rejects.is_empty() {
            // No row could be read: the error of the node says why.
            rejects = vec![format!("{}{}", told.stdout, told.stderr); count];
        }
        assert_eq!(rows.len() + rejects.len(), count, "{file}: {}", told.stderr);
        for row in &rows {
            assert_eq!(arguments(row), [wanted()], "{file}: {row}");
        }
        for reject in &rejects {
            let place = ["messages", "tool_calls", "tools", "content"].iter().any(|word| reject.contains(word));
            let advice = ["expected", "must", "needs", "write", "missing"].iter().any(|word| reject.contains(word));
            assert!(place && advice, "{file}: {reject}");
        }
        let trained = lines(&mill, "out/train.jsonl");
        assert_eq!(trained.len(), rows.len(), "{file}: {}", told.stderr);
        for row in trained {
            assert_eq!(arguments(&row), [wanted()], "{file}: {row}");
        }
    }
}

/// Whether what a run says, or a reject, contains one of these words.
fn tells(mill: &Mill, told: &Told, node: &str, words: &[&str]) -> bool {
    let all = format!("{}\n{}\n{}", told.stdout, told.stderr, rejects(mill, node).join("\n")).to_lowercase();
    words.iter().any(|word| all.contains(word))
}

#[test]
fn a_quotation_mark_without_a_partner_takes_no_rows() {
    let Some(mill) = trial("10-tsv-unbalanced-quote") else { return };
    for (file, rows) in [("documents.tsv", 6), ("last.tsv", 4)] {
        let told = mill.call(&["run", "pipeline.yaml", "--set", &format!("file={file}")]);
        let found = lines(&mill, "out/documents.jsonl").len();
        let is_told = tells(&mill, &told, "documents", &["quot"]);
        assert!(told.code == 0 && found == rows || told.code != 0 && is_told, "{file}: {found} rows, {}", told.stderr);
        drop(std::fs::remove_file(mill.path("out/documents.jsonl")));
    }
    let told = mill.call(&["run", "pipeline.yaml", "--set", "file=last.csv"]);
    assert!(told.code != 0 && tells(&mill, &told, "documents", &["quot"]), "{}{}", told.stdout, told.stderr);
}

#[test]
fn text_without_the_mark_of_utf8_is_text() {
    let Some(mill) = trial("12-parquet-bytes-without-utf8") else { return };
    let told = mill.call(&["run", "pipeline.yaml"]);
    if told.code != 0 {
        assert!(told.stderr.contains("bytes"), "{}", told.stderr);
        return;
    }
    for node in ["documents", "table"] {
        let texts: Vec<Value> = shown(&mill, node, &[]).iter().map(|row| row["text"].clone()).collect();
        assert_eq!(texts, ["Velmora lies on the river Tael.", "Ostrín was founded in 1604."], "{node}");
    }
    let questions = shown(&mill, "questions", &[]);
    let texts: Vec<_> = questions.iter().map(|row| (&row["question"], &row["golden_answers"])).collect();
    let answers = [json!(["Tael"]), json!(["1604"])];
    assert_eq!(texts, [(&json!("Which river?"), &answers[0]), (&json!("Which year?"), &answers[1])]);
    let hits = shown(&mill, "hits", &[]);
    let digits = |text: &str| text.len() > 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_hexadecimal = |value: &Value| value.as_str().is_some_and(digits);
    assert!(!hits.is_empty() && !hits.iter().any(|hit| is_hexadecimal(&hit["document_id"])), "{hits:?}");
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let Some(mill) = trial("13-duplicate-columns") else { return };
    for (pipeline, column, is_json) in [
        ("p0", "value", false),
        ("p1", "question", false),
        ("p2", "question", true),
        ("p3", "question", false),
        ("p4", "question", false),
        ("p5", "question", true),
        ("p6", "value", false),
    ] {
        let told = mill.call(&["run", &format!("{pipeline}.yaml")]);
        let named = tells(&mill, &told, "rows", &[&format!("`{column}`")]);
        let refused = told.code != 0 || (is_json && !rejects(&mill, "rows").is_empty());
        assert!(refused && named, "{pipeline}: {} {}{}", told.code, told.stdout, told.stderr);
    }
}

/// Documents that each question finds.
fn found(mill: &Mill, file: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in shown(mill, "scored", &["--file", file]) {
        let text = |name: &str| row[name].as_str().expect("a text").to_owned();
        found.entry(text("question_id")).or_default().insert(text("document_id"));
    }
    found
}

#[test]
fn a_query_finds_every_unicode_form_of_its_word() {
    let Some(mill) = trial("18-unicode-forms-in-search") else { return };
    for language in ["english", "plain", "cjk"] {
        let file = format!("{language}.yaml");
        let told = mill.call(&["run", &file]);
        assert_eq!(told.code, 0, "{language}: {}", told.stderr);
        let found = found(&mill, &file);
        for (question, documents) in [
            ("café", &["nfc0", "nfd0"][..]),
            ("cafe-nfd", &["nfc0", "nfd0"][..]),
            ("zurich", &["nfc1", "nfd1"][..]),
            ("zurich-nfd", &["nfc1", "nfd1"][..]),
            ("wide", &["wide"][..]),
            ("half", &["half"][..]),
            ("liga", &["liga"][..]),
            ("soft", &["soft"][..]),
            ("turk", &["turk"][..]),
        ] {
            let documents: BTreeSet<String> = documents.iter().map(|id| (*id).to_owned()).collect();
            assert_eq!(found.get(question), Some(&documents), "{language}: {question}");
        }
    }
    assert_eq!(mill.call(&["run", "em.yaml"]).code, 0);
    let help = mill.call(&["ops", "evaluate"]).stdout;
    let is_one = shown(&mill, "scores", &["--file", "em.yaml"]).iter().all(|row| row["em"] == 1.0);
    assert!(is_one || help.contains("Unicode"), "{help}");
}

#[test]
fn cut_and_empty_answers_are_no_ordinary_rows() {
    let Some(mill) = trial("22-length-cuts-a-tool-call") else { return };
    let server = Server::start(&mill);
    let told = server.run(&mill);
    let rows = by_letter(shown(&mill, "rollouts", &[]));
    let rejected = rejects(&mill, "rollouts").join("\n");
    let finish = |letter: &str| rows.get(letter).map(|row| row["finish_reason"].clone()).unwrap_or_default();
    let prediction = |letter: &str| rows.get(letter).map_or_else(|| json!(""), |row| row["prediction"].clone());

    let has_error = rows.get("A").is_some_and(|row| results(row).iter().any(|result| !result["error"].is_null()));
    assert!(finish("A") == "length" || has_error, "{:?}", rows.get("A"));
    let turns = rows.get("B").map(|row| row["messages"].to_string()).unwrap_or_default();
    assert!(turns.contains("\"finish_reason\":\"length\""), "B: {turns}");
    assert_eq!((prediction("C"), finish("C")), (json!(""), json!("length")));
    assert_eq!(prediction("D"), "Tael");

    let trained = std::fs::read_to_string(mill.path("out/swift.jsonl")).unwrap_or_default();
    let cut = ["capital of Ost\"", "capital of Ost\\", "capital of Ost'"].iter().any(|cut| trained.contains(cut));
    assert!(!cut, "{trained}");
    let report = mill.call(&["show", "scores"]).stdout;
    let all = format!("{}\n{}\n{report}\n{rejected}", told.stdout, told.stderr).to_lowercase();
    for (letter, words) in [
        ("E", &["reasoning", "thought"][..]),
        (
            "F",
            &[
                "call in the text",
                "calls in the text",
                "calls in its text",
                "tool call in",
                "tool call is left in the text",
                "tool_call",
            ][..],
        ),
        ("G", &["content_filter", "filter"][..]),
        ("H", &["empty"][..]),
    ] {
        assert_eq!(prediction(letter), "", "{letter}");
        assert!(words.iter().any(|word| all.contains(word)), "{letter}: no hint in {all}");
        let question = format!("{letter}: which");
        assert!(!trained.contains(&question), "{letter} is a training row: {trained}");
    }
}

#[test]
fn an_array_that_is_cut_short_is_no_shorter_array() {
    let Some(mill) = trial("30-json-array-cut-short") else { return };
    for (file, words) in [
        ("comma", &["cut", "end of", "eof", "truncated", "not closed", "unclosed"][..]),
        ("value", &["cut", "end of", "eof", "truncated", "not closed", "unclosed"][..]),
        ("inside", &["cut", "end of", "eof", "truncated", "not closed", "unclosed"][..]),
        ("pretty_cut", &["cut", "end of", "eof", "truncated", "not closed", "unclosed"][..]),
        ("extra", &["behind", "after", "trailing", "garbage"][..]),
    ] {
        let told = mill.call(&["run", "pipeline.yaml", "--set", &format!("file={file}.json")]);
        let rejected = !rejects(&mill, "questions").is_empty();
        assert!(told.code != 0 || rejected, "{file}: {}{}", told.stdout, told.stderr);
        assert!(tells(&mill, &told, "questions", words), "{file}: {}{}", told.stdout, told.stderr);
        if told.code == 0 {
            assert!(told.stderr.contains("reject") || told.stdout.contains("reject"), "{file}: {}", told.stderr);
        }
    }
    let told = mill.call(&["run", "pipeline.yaml", "--set", "file=whole.json"]);
    assert_eq!((told.code, lines(&mill, "out/q.jsonl").len()), (0, 4), "{}", told.stderr);
}
