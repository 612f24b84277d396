//! The samples of the rows of a node, in the order in which they are started and written, and the run of one sample.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::call_journal::Observations;
use crate::endpoint::{CallJournal, RowFailure, Usage};
use crate::error::OperatorError;
use crate::fingerprint::{CallPlace, RowIdentity, RowKey, RowKeys};
use crate::operator::{AsyncMapKernel, Context, Draw, Goal, Next, RowOutput, RowsInput};
use crate::store::Memo;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, OperatorError>> + Send>;

/// One sample of one row.
pub(crate) struct Sample {
    /// Place of the row in the input.
    pub(crate) place: usize,
    pub(crate) row: RecordBatch,
    /// Number of the sample.
    pub(crate) index: u32,
    pub(crate) identity: RowIdentity,
    pub(crate) key: RowKey,
}

impl Sample {
    /// Returns the place of its calls in the node of that context.
    pub(crate) fn call_place(&self, context: &Context) -> CallPlace {
        CallPlace { seed: context.seed(), sample: self.index, occurrence: self.identity.occurrence, repeat: 0 }
    }

    /// Runs a kernel for this sample. `journal` is that of its calls to the endpoint. Returns what the remembered
    /// observations cost, too.
    pub(crate) async fn run(
        &self,
        kernel: &dyn AsyncMapKernel,
        context: &Context,
        journal: Option<Arc<dyn CallJournal>>,
        observed: &Observations,
        since: u64,
    ) -> (Result<RowOutput, RowFailure>, Usage) {
        let mut session = context.session().clone();
        session.journal = journal;
        let observations = observed.join(&mut session, Some(&self.key), since);
        let result = kernel.run(&self.row, self.index, &context.clone().with_session(session)).await;
        let mut replayed = Usage::default();
        for calls in observations {
            replayed += calls.replayed();
        }
        (result, replayed)
    }
}

/// What is started next.
pub(crate) enum Pending {
    Sample(Sample),
    /// Results that are not known yet decide it.
    Wait,
    /// Nothing more.
    End,
}

/// The samples: without a goal, all of a row together; up to a goal, sample 0 of all rows, then sample 1, and so on.
pub(crate) struct Drawing {
    input: RowsInput,
    samples: u32,
    keys: RowKeys,
    draw: Option<Draw>,
    batches: Batches,
    /// A batch, and the next row in it.
    batch: Option<(RecordBatch, usize)>,
    /// Place of the next row in the input, and its next sample.
    place: usize,
    sample: u32,
    /// Identities of the rows, if they are needed again in the next round.
    identities: Vec<RowIdentity>,
    /// Identity of the current row, without a goal.
    current: Option<RowIdentity>,
    /// A sample that was returned before, and not started.
    pub(super) held: Option<Sample>,
}

impl Drawing {
    pub(crate) fn new(input: &RowsInput, samples: u32, goal: Option<Goal>, keys: RowKeys) -> Self {
        Self {
            input: input.clone(),
            samples: samples.max(1),
            keys,
            draw: goal.map(Draw::new),
            batches: Box::new(input.batches()),
            batch: None,
            place: 0,
            sample: 0,
            identities: Vec::new(),
            current: None,
            held: None,
        }
    }

    /// Counts the samples that a memo has, and the others.
    ///
    /// # Errors
    /// Fails like [`Drawing::next`].
    pub(crate) fn count_known(mut self, memo: &Memo) -> Result<(u64, u64), OperatorError> {
        let (mut known, mut missing) = (0, 0);
        while let Pending::Sample(sample) = self.next()? {
            let number = if memo.contains(&sample.key) { &mut known } else { &mut missing };
            *number += 1;
        }
        Ok((known, missing))
    }

    /// The state of drawing up to a goal.
    pub(crate) fn draw(&mut self) -> Option<&mut Draw> {
        self.draw.as_mut()
    }

    /// Returns the next sample.
    ///
    /// # Errors
    /// Fails if the input cannot be read, or a row has no identity.
    pub(crate) fn next(&mut self) -> Result<Pending, OperatorError> {
        // Then a sample that was held is not needed, either.
        if self.draw.as_ref().is_some_and(Draw::is_reached) {
            return Ok(Pending::End);
        }
        if let Some(held) = self.held.take() {
            return Ok(Pending::Sample(held));
        }
        loop {
            if self.draw.as_ref().is_some_and(|draw| !draw.may_admit()) {
                return Ok(Pending::End);
            }
            let Some(row) = self.row()? else {
                // Goes on to the next sample of the first row. An empty input has no second round.
                let is_needed = self.draw.as_ref().is_some_and(Draw::needs_more);
                if !is_needed || self.place == 0 || self.sample + 1 >= self.samples {
                    return Ok(Pending::End);
                }
                (self.place, self.sample, self.batch) = (0, self.sample + 1, None);
                self.batches = Box::new(self.input.batches());
                continue;
            };
            let identity = self.identity(&row)?;
            let (place, index, key) = (self.place, self.sample, self.keys.key(&identity, self.sample));
            match self.draw.as_ref().map(|draw| draw.next(place)) {
                Some(Next::Wait) => return Ok(Pending::Wait),
                Some(Next::Enough) => {
                    self.passes();
                    continue;
                }
                Some(Next::Drawn) | None => {}
            }
            self.draw.iter_mut().for_each(|draw| draw.admit(place));
            self.passes();
            return Ok(Pending::Sample(Sample { place, row, index, identity, key }));
        }
    }

    /// Returns the current row; `None` at the end of the input.
    fn row(&mut self) -> Result<Option<RecordBatch>, OperatorError> {
        loop {
            if let Some((batch, row)) = self.batch.as_ref().filter(|(batch, row)| *row < batch.num_rows()) {
                return Ok(Some(batch.slice(*row, 1)));
            }
            let Some(batch) = self.batches.next() else { return Ok(None) };
            self.batch = Some((batch?, 0));
        }
    }

    /// Rows are identified in input order, each once.
    fn identity(&mut self, row: &RecordBatch) -> Result<RowIdentity, OperatorError> {
        let known = if self.draw.is_some() { self.identities.get(self.place).copied() } else { self.current };
        if let Some(known) = known {
            return Ok(known);
        }
        let identity = self.keys.identify(row).map_err(OperatorError::data)?;
        if self.draw.is_some() {
            self.identities.push(identity);
        } else {
            self.current = Some(identity);
        }
        Ok(identity)
    }

    /// Goes on to the next sample, or row.
    fn passes(&mut self) {
        if self.draw.is_none() && self.sample + 1 < self.samples {
            self.sample += 1;
            return;
        }
        if self.draw.is_none() {
            (self.sample, self.current) = (0, None);
        }
        self.place += 1;
        if let Some((_, row)) = &mut self.batch {
            *row += 1;
        }
    }
}
