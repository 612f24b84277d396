//! Warnings of `read` about accepted rows: dropped fields, and questions without answers.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray, RecordBatch};
use searchmill_schemas::{RecordKind, text_column, text_value};
use serde_json::{Map, Value};

const ANSWERS: &str = "golden_answers";

/// Other names for accepted answers. Names that contain `answer` count too.
const SYNONYMS: [&str; 7] = ["target", "targets", "ground_truth", "gold", "label", "labels", "solution"];

/// Rows per batch whose metadata is searched for a field that may hold answers.
const SEARCHED: usize = 100;

/// Collects warnings.
#[derive(Default)]
pub struct Notes {
    rows: u64,
    answered: bool,
    /// Fields that no column uses.
    unused: BTreeSet<String>,
    /// Dropped fields inside objects.
    pub dropped: BTreeSet<String>,
    /// Number of records with NaN or Infinity, and the place of the first one.
    nulled: (u64, String),
    /// Remarks on rows.
    pub remarks: BTreeSet<&'static str>,
}

impl Notes {
    /// Starts collecting for a record kind. Only questions need answers.
    pub fn new(kind: RecordKind) -> Self {
        Self { answered: kind != RecordKind::Question, ..Self::default() }
    }

    /// Counts records of a file in which numbers that JSON lacks became null, by their lines.
    pub fn nulled(&mut self, file: &str, lines: &[u64]) {
        if let Some(first) = lines.first()
            && self.nulled.0 == 0
        {
            self.nulled.1 = format!("{file}:{first}");
        }
        self.nulled.0 += lines.len() as u64;
    }

    /// Inspects accepted rows.
    pub fn look(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows() as u64;
        self.answered = self.answered || has_answers(batch);
        if !self.answered
            && let Ok(metadata) = text_column(batch, "metadata")
        {
            for row in 0..metadata.len().min(SEARCHED) {
                let Some(text) = text_value(metadata, row) else { continue };
                let Ok(fields) = serde_json::from_str::<Map<String, Value>>(text) else { continue };
                self.unused.extend(fields.into_iter().map(|(name, _)| name));
            }
        }
    }

    /// Returns the warnings for the node's log.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.remarks.iter().map(|remark| (*remark).to_owned()).collect();
        if self.rows > 0 && !self.answered {
            let mut warning = format!("warning: no record has `{ANSWERS}`");
            let names = self.unused.iter().map(String::as_str);
            let named = names.clone().find(|name| {
                let name = name.to_lowercase();
                name.contains("answer") || SYNONYMS.contains(&name.as_str())
            });
            if let Some(name) = named.or_else(|| searchmill_engine::spec::closest(ANSWERS, names)) {
                warning += &format!("; did you mean `{name}`? Write `columns: {{{ANSWERS}: {name}}}`");
            }
            lines.push(warning);
        }
        if let (count @ 1.., first) = &self.nulled {
            let records = if *count == 1 { "1 record has".to_owned() } else { format!("{count} records have") };
            lines.push(format!("warning: {records} NaN or Infinity, read as null; the first is {first}"));
        }
        if !self.dropped.is_empty() {
            let names: Vec<String> = self.dropped.iter().map(|name| format!("`{name}`")).collect();
            lines.push(format!("warning: dropped fields that the rows have no column for: {}", names.join(", ")));
        }
        lines
    }
}

/// Whether any question has an answer.
fn has_answers(batch: &RecordBatch) -> bool {
    let Some(column) = batch.column_by_name(ANSWERS) else { return false };
    let Some(lists) = column.as_list_opt::<i32>() else { return false };
    lists.iter().flatten().any(|answers| {
        // Tools write an unknown answer as an empty text.
        answers.as_string_opt::<i32>().is_none_or(|texts| texts.iter().flatten().any(|text| !text.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Question, to_batch};

    use super::*;

    fn told(answers: &[&str], metadata: &str) -> Vec<String> {
        let question = Question {
            id: "q".to_owned(),
            question: "?".to_owned(),
            golden_answers: answers.iter().map(|text| (*text).to_owned()).collect(),
            question_type: None,
            evidence: Vec::new(),
            metadata: Some(metadata.to_owned()),
        };
        let mut notes = Notes::new(RecordKind::Question);
        notes.look(&to_batch(&[question]).unwrap());
        notes.lines()
    }

    #[test]
    fn questions_of_which_none_has_an_answer() {
        assert_eq!(told(&["a"], "{}"), Vec::<String>::new());
        assert_eq!(told(&[], r#"{"level": 1}"#), ["warning: no record has `golden_answers`"]);
        assert_eq!(
            told(&[""], r#"{"Answers": ["x"]}"#),
            [
                "warning: no record has `golden_answers`; did you mean `Answers`? Write `columns: {golden_answers: Answers}`"
            ]
        );
        assert!(told(&[], r#"{"target": "x"}"#)[0].contains("did you mean `target`?"));
        assert_eq!(Notes::new(RecordKind::Question).lines(), Vec::<String>::new(), "no rows");
    }
}
