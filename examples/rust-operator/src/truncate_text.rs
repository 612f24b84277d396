//! `truncate-text`: shorten documents to their first words.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator, OperatorError, ParamIssue, Ports,
};
use searchmill_schemas::{RecordKind, Reject, text_column};
use serde::{Deserialize, Serialize};

/// Keeps the first words of every document's text. All other columns pass. Documents without a word are failed rows.
pub(crate) struct TruncateText;

/// Params of `truncate-text`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct TruncateTextParams {
    /// Maximum number of words per text. Words are separated by white space.
    pub(crate) words: usize,
    /// Text appended to a shortened text.
    #[serde(default = "ellipsis")]
    pub(crate) ending: String,
}

fn ellipsis() -> String {
    " …".to_owned()
}

impl Operator for TruncateText {
    type Params = TruncateTextParams;
    const NAME: &'static str = "truncate-text";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Shortens documents to their first words.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "The first 100 words of every document",
            yaml: "short: {op: truncate-text, from: corpus, with: {words: 100}}",
        },
        Example {
            title: "The same, cut without a mark",
            yaml: "short: {op: truncate-text, from: corpus, with: {words: 100, ending: \"\"}}",
        },
    ];

    fn declare(params: &TruncateTextParams) -> Declaration {
        let ports = Ports::new().rows_in("documents", &[RecordKind::Document], "The documents to shorten.").rows_out(
            "documents",
            RecordKind::Document,
            "The shortened documents, in the order of the input.",
        );
        Declaration::pure(ports).issues(issues(params))
    }

    fn open(params: &TruncateTextParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Map(Arc::new(Truncation { params: params.clone() })))
    }
}

fn issues(params: &TruncateTextParams) -> Vec<ParamIssue> {
    let nothing = || ParamIssue::new("words", "nothing would be left of a text").with_help("write 1 or more");
    (params.words == 0).then(nothing).into_iter().collect()
}

struct Truncation {
    params: TruncateTextParams,
}

impl MapKernel for Truncation {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let (ids, texts) = (text_column(batch, "id")?, text_column(batch, "text")?);
        let has_words = |row: usize| texts.is_valid(row) && !texts.value(row).trim().is_empty();
        let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(has_words(row))).collect();
        for row in (0..batch.num_rows()).filter(|row| !keep.value(*row)) {
            output.reject(empty(ids.value(row)));
        }
        let shortened: StringArray = texts.iter().map(|text| text.map(|text| self.shorten(text))).collect();
        let mut columns = batch.columns().to_vec();
        columns[batch.schema().index_of("text")?] = Arc::new(shortened);
        let shortened = RecordBatch::try_new(batch.schema(), columns)?;
        output.push("documents", filter_record_batch(&shortened, &keep)?);
        Ok(())
    }
}

impl Truncation {
    fn shorten<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match word_start(text, self.params.words) {
            None => Cow::Borrowed(text),
            Some(end) => Cow::Owned(format!("{}{}", text[..end].trim_end(), self.params.ending)),
        }
    }
}

/// Byte offset of word `index`, from 0.
fn word_start(text: &str, index: usize) -> Option<usize> {
    let mut after_space = true;
    let starts = text.char_indices().filter(|(_, ch)| {
        let starts = after_space && !ch.is_whitespace();
        after_space = ch.is_whitespace();
        starts
    });
    starts.map(|(at, _)| at).nth(index)
}

fn empty(id: &str) -> Reject {
    let message = "the document has no words".to_owned();
    Reject { id: id.to_owned(), kind: "empty".to_owned(), message, attempts: 1, detail: None }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas::Document;
    use serde_json::{Value, json};

    use super::*;

    fn documents() -> Vec<Document> {
        let texts = ["one two three", "  eins\n zwei  ", "東京 は 都市", "", "four five six seven"];
        let document = |(row, text): (usize, &&str)| Document {
            id: format!("d{row}"),
            title: None,
            text: (*text).to_owned(),
            metadata: None,
        };
        texts.iter().enumerate().map(document).collect()
    }

    fn run(batch_rows: usize, params: Value) -> Result<Outcome, OperatorError> {
        let mut harness = Harness::new();
        harness.batch_rows = batch_rows;
        harness.run(&entry::<TruncateText>(), params, &inputs([("documents", rows_input(&documents()))]))
    }

    #[test]
    fn long_texts_are_cut_and_short_ones_are_not_touched() {
        let outcome = run(8192, json!({"words": 2})).expect("runs");
        let texts: Vec<String> = outcome.read::<Document>("documents").into_iter().map(|row| row.text).collect();
        assert_eq!(texts, ["one two …", "  eins\n zwei  ", "東京 は …", "four five …"]);
    }

    #[test]
    fn a_document_without_words_is_a_failed_row() {
        let rejects = run(8192, json!({"words": 2})).expect("runs").rejects();
        assert_eq!(rejects.len(), 1);
        assert_eq!((rejects[0].id.as_str(), rejects[0].kind.as_str()), ("d3", "empty"));
    }

    #[test]
    fn batches_do_not_matter() {
        let whole = run(8192, json!({"words": 1, "ending": ""})).expect("runs");
        for batch_rows in [1, 2, 7] {
            let cut = run(batch_rows, json!({"words": 1, "ending": ""})).expect("runs");
            assert_eq!(cut.batch("documents"), whole.batch("documents"));
        }
    }

    #[test]
    fn nothing_left_is_refused_at_its_place() {
        let message = run(8192, json!({"words": 0})).expect_err("no words").message;
        assert_eq!(message, "words: nothing would be left of a text");
    }
}
