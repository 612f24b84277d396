//! Marks and notes of people about rows.

use super::failure::Failure;
use super::views::StoreView;
use crate::execute::unix_time;
use crate::store::Label;

/// Characters of a note (at most).
const NOTE: usize = 10_000;
/// Characters of an author's name (at most).
const AUTHOR: usize = 100;

impl StoreView<'_> {
    /// Keeps what a person says of a row of the store; the time is now. One without mark and note takes back what the
    /// author said of the row.
    ///
    /// # Errors
    /// Fails if the table is not in the store, if no author is named, if a text is too long, or if it cannot be written.
    pub fn label(&self, label: Label) -> Result<Label, Failure> {
        let store = self.session.existing()?;
        if store.artifact(&label.artifact).is_none() {
            return Err(Failure::usage(format!("the artifact {} is not in the store", label.artifact)));
        }
        let author = label.author.trim().to_owned();
        if author.is_empty() || author.chars().count() > AUTHOR {
            return Err(Failure::usage(format!("`author` must be a name of 1 to {AUTHOR} characters")));
        }
        if label.note.chars().count() > NOTE {
            return Err(Failure::usage(format!("`note` has more than {NOTE} characters")));
        }
        let label = Label { author, note: label.note.trim().to_owned(), time: unix_time(), ..label };
        store.add_label(&label)?;
        Ok(label)
    }

    /// Returns all labels, the newest first, and the number of damaged ones.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub fn labels(&self) -> Result<(Vec<Label>, usize), Failure> {
        if !self.exists()? {
            return Ok((Vec::new(), 0));
        }
        Ok(self.session.existing()?.labels()?)
    }
}
