//! What the operator reports: how many questions have which difficulty.

use std::collections::BTreeMap;

use searchmill_engine::operator::Outputs;

use super::cut::{Cut, Rating};
use crate::shared::html::table::{NOTHING, Table, share};

/// Attempts listed one by one; later ones share a line.
const LISTED: i64 = 30;

/// Counts of questions.
#[derive(Default)]
pub(crate) struct Tally {
    labels: BTreeMap<String, usize>,
    attempts: BTreeMap<i64, usize>,
    questions: usize,
    without_samples: usize,
    /// Samples without golden answers.
    pub(crate) unjudged: usize,
    /// Samples of questions that are not in `questions`.
    pub(crate) strangers: usize,
}

impl Tally {
    /// Counts a question.
    pub(crate) fn count(&mut self, rating: &Rating) {
        self.questions += 1;
        *self.labels.entry(rating.label.clone()).or_default() += 1;
        self.without_samples += usize::from(rating.samples == 0);
        if let Some(first) = rating.attempts {
            // All later ones share the entry behind the last listed one.
            *self.attempts.entry(first.min(LISTED + 1)).or_default() += 1;
        }
    }

    /// Writes the figures and the summary.
    pub(crate) fn report(&self, cut: &Cut, outputs: &mut Outputs) {
        let mut table = Table::new("Difficulty", &["", "Questions", "Share"]);
        for label in cut.labels() {
            let count = self.labels.get(label).copied().unwrap_or(0);
            outputs.figure(label, count as f64);
            table.row([label.to_owned(), count.to_string(), share(count, self.questions)]);
        }
        let mut text = table.render();
        for (count, what) in [
            (self.without_samples, "questions have no samples."),
            (self.unjudged, "samples have no golden answers and do not count."),
            (self.strangers, "samples belong to questions that are not in `questions`."),
        ] {
            if count > 0 {
                text += &format!("{count} {what}\n");
            }
        }
        let mut table = Table::new("First Correct Sample", &["Number", "Questions", "Share", "Up to here"]);
        let mut whole = 0;
        for (&first, &count) in &self.attempts {
            whole += count;
            let name = if first > LISTED { format!("> {LISTED}") } else { first.to_string() };
            table.row([name, count.to_string(), share(count, self.questions), share(whole, self.questions)]);
        }
        // Also questions without samples.
        let never = self.questions - whole;
        table.row(["none".to_owned(), never.to_string(), share(never, self.questions), NOTHING.to_owned()]);
        outputs.summary(&(text + "\n" + &table.render()));
    }
}
