//! A project whose questions are sent to a scripted endpoint.

use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, answer};
use serde_json::json;

use super::project::Mill;

/// Questions, a search index and a rollout; `API_KEY` and `ENDPOINT` come from the environment.
pub(crate) const PIPELINE: &str = "\
name: endpoint
nodes:
  corpus:    {op: read, with: {path: documents.jsonl, as: document}}
  chunks:    {op: chunk, from: corpus, with: {size: 40, count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  answers:
    op: rollout
    from: {questions: questions, search: bm25}
    with:
      policy: {endpoint: {base_url: \"${env:ENDPOINT}\", model: m, api_key: \"${secret:API_KEY}\", timeout_seconds: 2}}
      samples: 1
    retry: {max_attempts: 2, backoff: 10ms}
    resources: {concurrency: 8}
  scores:    {op: evaluate, from: {trajectories: answers, questions: questions}}
";

/// The project and its endpoint.
pub(crate) struct Bench {
    pub(crate) mill: Mill,
    pub(crate) server: OpenAiServer,
    pub(crate) api_key: &'static str,
}

/// Returns questions `q0`, `q1`, … that are answered after a delay.
pub(crate) fn patient(count: usize, wait: Duration) -> Vec<(String, Vec<Step>)> {
    let step = || if wait.is_zero() { answer("Rome") } else { Step::After(wait, Box::new(answer("Rome"))) };
    (0..count).map(|number| (format!("q{number}"), vec![step()])).collect()
}

impl Bench {
    /// Adds a second rollout of the same questions with the same endpoint.
    pub(crate) fn twice(&self) {
        let text = self.mill.read("pipeline.yaml");
        let start = text.find("  answers:").expect("the node");
        let end = text.find("  scores:").expect("the node");
        let second =
            text[start..end].replace("answers:", "others:").replace("samples: 1", "samples: 1\n      tool_name: look");
        self.mill.write("pipeline.yaml", &format!("{}{second}{}", &text[..end], &text[end..]));
    }

    /// Starts a server with this script, and a project that asks all its questions in this order.
    pub(crate) fn new(script: &[(String, Vec<Step>)]) -> Self {
        let mill = Mill::new();
        mill.write("pipeline.yaml", PIPELINE);
        mill.write("documents.jsonl", &document("Rome is the capital of Italy."));
        let bench = Self { mill, server: OpenAiServer::start(to_script(script)), api_key: "first" };
        bench.ask(&script.iter().map(|(question, _)| question.as_str()).collect::<Vec<_>>());
        bench
    }

    /// Replaces the server.
    pub(crate) fn serve(&mut self, script: &[(String, Vec<Step>)]) {
        self.server = OpenAiServer::start(to_script(script));
    }

    /// Replaces the server by one that gives the same answer to the same request.
    pub(crate) fn serve_by_turn(&mut self, script: &[(String, Vec<Step>)]) {
        self.server = OpenAiServer::start_by_turn(to_script(script));
    }

    /// Runs `searchmill` with these arguments and the environment of the pipeline.
    pub(crate) fn call(&self, args: &[&str]) -> super::project::Told {
        let mut command = self.mill.command(args);
        command.env("ENDPOINT", self.server.base_url()).env("API_KEY", self.api_key);
        super::project::Told::new(command.output().expect("the program can be started"))
    }

    /// Creates a bench whose server gives the same answer to the same request, however often it is asked.
    pub(crate) fn by_turn(script: &[(String, Vec<Step>)]) -> Self {
        let bench = Self::new(script);
        Self { server: OpenAiServer::start_by_turn(to_script(script)), ..bench }
    }

    /// Writes the file of questions.
    pub(crate) fn ask(&self, questions: &[&str]) {
        let line = |question: &&str| {
            let row = json!({"id": question, "question": question, "golden_answers": ["Rome"], "evidence": []});
            format!("{row}\n")
        };
        self.mill.write("questions.jsonl", &questions.iter().map(line).collect::<String>());
    }

    /// Changes fields of all questions; an `id` gets the row's number.
    pub(crate) fn relabel(&self, fields: &serde_json::Value) {
        let text = self.mill.read("questions.jsonl");
        let line = |(number, line): (usize, &str)| {
            let mut row: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for (name, value) in fields.as_object().expect("fields") {
                row[name] = value.clone();
            }
            if let Some(id) = fields["id"].as_str() {
                row["id"] = format!("{id}{number}").into();
            }
            format!("{row}\n")
        };
        self.mill.write("questions.jsonl", &text.lines().enumerate().map(line).collect::<String>());
    }

    /// Returns the same project with an empty store and a new server with the same script.
    pub(crate) fn elsewhere(&self) -> Self {
        let mill = Mill::new();
        for name in ["pipeline.yaml", "documents.jsonl", "questions.jsonl"] {
            mill.write(name, &self.mill.read(name));
        }
        Self { mill, server: self.server.again(), api_key: self.api_key }
    }

    pub(crate) fn replace(&self, from: &str, to: &str) {
        let text = self.mill.read("pipeline.yaml");
        assert!(text.contains(from), "{from}");
        self.mill.write("pipeline.yaml", &text.replace(from, to));
    }

    /// Returns the command `run pipeline.yaml --json` with the environment of the pipeline, not yet started.
    pub(crate) fn command(&self, more: &[&str]) -> std::process::Command {
        let mut command = self.mill.command(&[&["run", "pipeline.yaml", "--json"], more].concat());
        command.env("ENDPOINT", self.server.base_url()).env("API_KEY", self.api_key);
        command
    }

    pub(crate) fn run(&self, more: &[&str]) -> super::project::Told {
        super::project::Told::new(self.command(more).output().expect("the program can be started"))
    }

    /// Returns the number of requests about these questions.
    pub(crate) fn paid(&self, questions: &[&str]) -> usize {
        questions.iter().map(|question| self.server.requests(question).len()).sum()
    }
}

pub(crate) fn document(text: &str) -> String {
    format!("{}\n", json!({"id": "d1", "title": "Italy", "text": text}))
}

fn to_script(script: &[(String, Vec<Step>)]) -> Script {
    script.iter().cloned().collect()
}
