//! Makes row ids unique within a table, whatever the files contain.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{Reject, text_column, text_value};

use super::record::{Decoded, Fault};

/// How ids become unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Rows have no ids.
    None,
    /// The first row with an id keeps it; later ones are rejected.
    Unique,
    /// Ids are names of files. Later rows with the same id get `~2`, `~3`, ….
    Named,
    /// Ids are titles. Rows that repeat title and text are dropped; other texts with the same title get `~2`, `~3`, ….
    Title,
}

/// Tracks the ids seen so far, with 128 bits each.
pub struct Identity {
    rule: Rule,
    ids: HashSet<u128>,
    passages: HashSet<u128>,
    /// Rows dropped because title and text repeat.
    pub repeated: u64,
}

impl Identity {
    pub fn new(rule: Rule) -> Self {
        Self { rule, ids: HashSet::new(), passages: HashSet::new(), repeated: 0 }
    }

    /// Returns the remaining rows with their final ids. Blocks must arrive in order.
    ///
    /// # Errors
    /// Fails if the batch has no text column `id`: a defect.
    pub fn apply(&mut self, decoded: Decoded) -> Result<(RecordBatch, Vec<Reject>), OperatorError> {
        match self.rule {
            Rule::None => Ok((decoded.batch, decoded.rejects)),
            Rule::Unique => self.unique(decoded),
            Rule::Named | Rule::Title => self.renamed(decoded),
        }
    }

    fn unique(&mut self, decoded: Decoded) -> Result<(RecordBatch, Vec<Reject>), OperatorError> {
        // The first row with an id decides, so blocks arrive in order.
        let Decoded { file, batch, lines, mut rejects, .. } = decoded;
        let ids = text_column(&batch, "id")?;
        let mut are_new = Vec::with_capacity(batch.num_rows());
        for (row, line) in (0..batch.num_rows()).zip(lines) {
            let id = ids.value(row);
            let is_new = self.ids.insert(mark(&[id]));
            if !is_new {
                let message = format!("the id `{id}` was given to an earlier row");
                rejects.push(Fault { kind: "duplicate_id", message }.reject(&file, line, id.as_bytes()));
            }
            are_new.push(is_new);
        }
        // Nearly always: spares a copy.
        if !are_new.contains(&false) {
            return Ok((batch, rejects));
        }
        Ok((filter_record_batch(&batch, &BooleanArray::from(are_new))?, rejects))
    }

    fn renamed(&mut self, decoded: Decoded) -> Result<(RecordBatch, Vec<Reject>), OperatorError> {
        let batch = decoded.batch;
        let (ids, texts) = (text_column(&batch, "id")?, text_column(&batch, "text")?);
        let titles = text_column(&batch, "title")?;
        let mut are_new = Vec::with_capacity(batch.num_rows());
        let mut named = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let title = text_value(titles, row).unwrap_or_default();
            // Every file is a document, even if another one has the same text.
            let is_new = self.rule == Rule::Named || self.passages.insert(mark(&[title, texts.value(row)]));
            self.repeated += u64::from(!is_new);
            are_new.push(is_new);
            // A row that is dropped takes no name from others.
            named.push(if is_new { self.free_name(ids.value(row)) } else { String::new() });
        }
        let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
        columns[0] = Arc::new(StringArray::from(named));
        let batch = RecordBatch::try_new(batch.schema(), columns)?;
        Ok((filter_record_batch(&batch, &BooleanArray::from(are_new))?, decoded.rejects))
    }

    /// Returns the name itself, or the first free one of `name~2`, `name~3`, ….
    fn free_name(&mut self, name: &str) -> String {
        if self.ids.insert(mark(&[name])) {
            return name.to_owned();
        }
        let mut number = 2_u64;
        loop {
            let candidate = format!("{name}~{number}");
            if self.ids.insert(mark(&[&candidate])) {
                return candidate;
            }
            number += 1;
        }
    }
}

/// Hashes texts to 128 bits. The hash is only compared within this run and never stored.
fn mark(parts: &[&str]) -> u128 {
    let mut mark = 0;
    // Two halves: 64 bits would collide within billions of rows.
    for salt in 0_u8..2 {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        parts.hash(&mut hasher);
        mark = mark << 64 | u128::from(hasher.finish());
    }
    mark
}
