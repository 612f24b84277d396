//! Looks into a file of a user: how it is separated, and which fields have the texts, questions and answers.

use std::collections::BTreeSet;
use std::path::Path;

use searchmill_data::source::fields::{fields_of, first_cells};
use searchmill_data::source::format::{Compression, Format};
use searchmill_data::source::record::Cut;
use searchmill_data::source::table::Splitting;
use searchmill_engine::Failure;

use crate::args::InitArgs;

/// Separators that are tried, besides that of the ending.
const DELIMITERS: [u8; 3] = [b',', b';', b'|'];
/// Separators of several answers in a cell.
const INSIDE: [&str; 2] = ["|", ";"];
/// Cells in which these are looked for.
const CELLS: usize = 1000;

/// Names of fields, most telling first.
const IDS: [&str; 9] = ["id", "_id", "doc_id", "docid", "question_id", "qid", "pid", "nr", "number"];
const TITLES: [&str; 4] = ["title", "headline", "heading", "name"];
const TEXTS: [&str; 8] = ["text", "contents", "content", "body", "passage", "paragraph", "article", "document"];
const QUESTIONS: [&str; 6] = ["question", "query", "problem", "prompt", "input", "q"];
const ANSWERS: [&str; 12] = [
    "golden_answers",
    "answers",
    "answer",
    "gold_answers",
    "gold_answer",
    "gold",
    "ground_truth",
    "reference",
    "target",
    "solution",
    "output",
    "a",
];

/// What is in a file.
#[derive(Default)]
pub(super) struct Found {
    /// Path or URL, as given.
    pub(super) path: String,
    /// Separator of cells, if it is another one than the ending says.
    pub(super) delimiter: Option<char>,
    /// Columns of the record kind with the fields that they are read from, where these have other names.
    pub(super) columns: Vec<(&'static str, String)>,
    /// Separator of several answers in a cell.
    pub(super) split: Option<&'static str>,
    /// Whether the fields could be looked at.
    pub(super) is_known: bool,
    /// Whether questions have evidence.
    pub(super) has_evidence: bool,
}

/// Looks into a file of documents.
pub(super) fn documents(path: &str, directory: &Path, args: &InitArgs) -> Result<Found, Failure> {
    let (mut found, fields) = opened(path, directory)?;
    let Some((fields, _)) = fields else { return Ok(found) };
    let text = chosen(path, &fields, args.text.as_ref(), &TEXTS, "the documents' texts", "--text")?;
    let (id, title) = (known(&fields, &IDS), known(&fields, &TITLES));
    found.columns = renamed([("id", id), ("title", title), ("text", Some(text))]);
    Ok(found)
}

/// Looks into a file of questions.
pub(super) fn questions(path: &str, directory: &Path, args: &InitArgs) -> Result<Found, Failure> {
    let (mut found, fields) = opened(path, directory)?;
    let Some((fields, splitting)) = fields else { return Ok(found) };
    let question = chosen(path, &fields, args.question.as_ref(), &QUESTIONS, "the questions", "--question")?;
    let answer = chosen(path, &fields, args.answer.as_ref(), &ANSWERS, "the accepted answers", "--answer")?;
    let cells = first_cells(&directory.join(path), splitting, &answer, CELLS).unwrap_or_default();
    for separator in INSIDE {
        // The separator of the cells themselves stands inside one only in quotes.
        if found.split.is_none() && cells.iter().any(|cell| cell.contains(separator)) {
            found.split = Some(separator);
        }
    }
    found.has_evidence = fields.contains("evidence");
    let id = known(&fields, &IDS);
    found.columns = renamed([("id", id), ("question", Some(question)), ("golden_answers", Some(answer))]);
    Ok(found)
}

type Fields = (BTreeSet<String>, Splitting);

/// Finds the separator and the fields of a file, if it is on this machine and can be looked at.
fn opened(path: &str, directory: &Path) -> Result<(Found, Option<Fields>), Failure> {
    let mut found = Found { path: path.to_owned(), ..Found::default() };
    // Nothing is downloaded for a look.
    if path.contains("://") {
        return Ok((found, None));
    }
    let file = directory.join(path);
    if !file.is_file() {
        return Err(Failure::usage(format!("there is no file {path}")));
    }
    let (format, compression, cut) = (Format::Auto, Compression::Auto, Cut::Values);
    let splitting = Splitting { format, compression, cut, quotes: true, delimiter: None };
    let Some(format) = Format::of_name(path) else {
        let failure = Failure::usage(format!("the ending of {path} does not say what it is"));
        return Err(failure.with_help("name a JSONL, JSON, CSV, TSV or Parquet file, or a folder of texts"));
    };
    let mut best: Option<Fields> = None;
    if format == Format::Csv {
        for delimiter in DELIMITERS {
            let splitting = Splitting { delimiter: Some(delimiter), ..splitting };
            let Some(fields) = fields_of(&file, splitting) else { continue };
            // The right separator gives the most fields; on a tie the comma, tried first, stays.
            if best.as_ref().is_none_or(|(known, _)| fields.len() > known.len()) {
                best = Some((fields, splitting));
            }
        }
        let delimiter = best.as_ref().and_then(|(_, splitting)| splitting.delimiter);
        found.delimiter = delimiter.filter(|delimiter| *delimiter != b',').map(char::from);
    } else {
        best = fields_of(&file, splitting).map(|fields| (fields, splitting));
    }
    found.is_known = best.is_some();
    Ok((found, best))
}

/// Returns the field that the user named, or the one whose name tells.
fn chosen(
    path: &str,
    fields: &BTreeSet<String>,
    named: Option<&String>,
    names: &[&str],
    what: &str,
    option: &str,
) -> Result<String, Failure> {
    let all = fields.iter().map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ");
    match named {
        Some(named) if fields.contains(named) => Ok(named.clone()),
        Some(named) => Err(Failure::usage(format!("{path} has no field `{named}`")).with_help(format!("it has {all}"))),
        None => known(fields, names).ok_or_else(|| {
            let failure = Failure::usage(format!("no field of {path} tells by its name that it has {what}"));
            failure.with_help(format!("add `{option} FIELD`: it has {all}"))
        }),
    }
}

/// Returns the first of the names that is a field, in any case.
fn known(fields: &BTreeSet<String>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| fields.iter().find(|field| field.eq_ignore_ascii_case(name)).cloned())
}

/// Returns the columns that are read from a field of another name.
fn renamed(columns: [(&'static str, Option<String>); 3]) -> Vec<(&'static str, String)> {
    columns.into_iter().filter_map(|(column, field)| Some((column, field.filter(|field| field != column)?))).collect()
}
