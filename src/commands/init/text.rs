//! The text of a new pipeline.

use super::look::Found;
use crate::args::Goal;

/// What the pipeline is made of.
pub(super) struct Plan {
    pub(super) name: String,
    /// A folder of texts, or a file.
    pub(super) documents: Documents,
    pub(super) questions: Found,
    pub(super) goal: Goal,
    /// `None`: the teacher without a model.
    pub(super) model: Option<Model>,
}

pub(super) enum Documents {
    Folder(String),
    File(Found),
}

pub(super) struct Model {
    pub(super) name: String,
    pub(super) base_url: String,
    /// Whether its server is not on this machine, so that it will want a key.
    pub(super) is_remote: bool,
}

/// Returns the pipeline as a YAML file.
pub(super) fn pipeline(plan: &Plan) -> String {
    let mut text = String::new();
    let aim = match plan.goal {
        Goal::Evaluate => "scores and a report of the answers",
        Goal::TrainingFile => "a training file of the right answers",
        Goal::Rl => "rows for reinforcement learning, and scores of the model as it is",
    };
    text.push_str("# yaml-language-server: $schema=pipeline.schema.json\n");
    text.push_str(&format!("name: {}\n", quoted(&plan.name)));
    text.push_str(&format!("description: {}\n", quoted(&format!("Documents and questions to {aim}"))));
    text.push_str("params:\n  chunk_words: 100      # words of a passage\n");
    text.push_str("  top_k: 3              # passages a search\n  samples: 1            # answers to each question\n");
    match &plan.model {
        None => text.push_str("  policy: evidence      # a teacher without a model, which knows the evidence\n"),
        Some(model) => {
            text.push_str("  policy:\n    endpoint:\n");
            text.push_str(&format!("      base_url: {}\n", quoted(&model.base_url)));
            text.push_str(&format!("      model: {}\n", quoted(&model.name)));
            if model.is_remote {
                text.push_str("      api_key: ${secret:OPENAI_API_KEY}   # an environment variable\n");
            }
        }
    }
    text.push_str("\nnodes:\n");
    match &plan.documents {
        Documents::Folder(path) => {
            text.push_str("  # Texts, Markdown, HTML, PDF and DOCX files: a document each.\n");
            let path = quoted(path);
            text.push_str(&format!("  documents: {{op: read, with: {{path: {path}, as: document, layout: files}}}}\n"));
        }
        Documents::File(found) => read(&mut text, "documents", "document", found),
    }
    read(&mut text, "questions", "question", &plan.questions);
    text.push_str("\n  chunks: {op: chunk, from: documents, with: {size: \"${params.chunk_words}\", count: words}}\n");
    text.push_str("  bm25:   {op: index, from: chunks, with: {kind: bm25}}\n\n");
    text.push_str("  # The model searches, reads and answers: `searchmill show rollouts`.\n");
    text.push_str("  rollouts:\n    op: rollout\n    from: {questions: questions, search: bm25}\n    with:\n");
    text.push_str("      policy: \"${params.policy}\"\n      search: {top_k: \"${params.top_k}\"}\n");
    text.push_str("      samples: \"${params.samples}\"\n      max_turns: 8\n");
    text.push_str("  scores: {op: evaluate, from: {trajectories: rollouts, questions: questions}}\n");
    text.push_str("  report: {op: write, from: scores.report, with: {path: out/report}}\n");
    match plan.goal {
        Goal::Evaluate => {}
        Goal::TrainingFile => {
            text.push_str("\n  # Right answers (F1 of at least 0.8) as messages for ms-swift.\n");
            text.push_str("  kept:       {op: filter-by-f1, from: rollouts, with: {threshold: 0.8}}\n");
            text.push_str("  examples:   {op: convert-to-swift, from: kept}\n");
            text.push_str("  train_file: {op: write, from: examples, with: {path: out/train.jsonl}}\n");
        }
        Goal::Rl => {
            text.push_str("\n  # Questions for verl; a part is kept for tests.\n");
            text.push_str(
                "  parts:    {op: split, from: questions, with: {parts: {train: 0.9, test: 0.1}}, seed: 1}\n",
            );
            let rows = "{layout: verl, data_source: hotpotqa, agent_name: tool_agent";
            text.push_str(&format!("  rl_rows:  {{op: convert-to-verl, from: parts.train, with: {rows}}}}}\n"));
            text.push_str(&format!(
                "  rl_tests: {{op: convert-to-verl, from: parts.test, with: {rows}, split: test}}}}\n"
            ));
            text.push_str("  rl_train_file: {op: write, from: rl_rows, with: {path: out/rl_train.parquet}}\n");
            text.push_str("  rl_test_file:  {op: write, from: rl_tests, with: {path: out/rl_test.parquet}}\n");
        }
    }
    text
}

/// Writes the node that reads a file.
fn read(text: &mut String, name: &str, kind: &str, found: &Found) {
    if !found.is_known {
        text.push_str("  # The fields were not looked at: name those with other names in `columns: {…}`.\n");
    }
    if found.split.is_some() {
        text.push_str("  # Some cells have several answers.\n");
    }
    let path = quoted(&found.path);
    text.push_str(&format!("  {name}:\n    op: read\n    with:\n      path: {path}\n      as: {kind}\n"));
    if let Some(delimiter) = found.delimiter {
        text.push_str(&format!("      delimiter: {}\n", quoted(&delimiter.to_string())));
    }
    if !found.columns.is_empty() {
        let columns: Vec<String> =
            found.columns.iter().map(|(column, field)| format!("{column}: {}", quoted(field))).collect();
        text.push_str(&format!("      columns: {{{}}}\n", columns.join(", ")));
    }
    if let Some(split) = found.split {
        text.push_str(&format!("      split: {}\n", quoted(split)));
    }
}

/// Returns a text as a YAML scalar: bare where nothing in it has a meaning in YAML.
fn quoted(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.'));
    // A digit may begin a number or a date.
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/');
    // YAML 1.1 reads all of these as booleans or null.
    let words = ["true", "false", "null", "yes", "no", "on", "off"];
    let is_word = words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if starts && !is_word && is_plain && text.chars().any(char::is_alphabetic) {
        return text.to_owned();
    }
    // `$` would begin a reference.
    serde_json::Value::from(text.replace("${", "$${")).to_string()
}
