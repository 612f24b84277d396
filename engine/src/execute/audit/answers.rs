//! Checks whether the recorded rows of a node follow from the remembered answers: its kernel runs again with these
//! answers alone, and the external content of each row is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};

use super::rerun::{Outcome, Rerun};
use crate::endpoint::{Begun, CallJournal, KeptCall};
use crate::error::OperatorError;
use crate::execute::kernels::call_journal::Sent;
use crate::execute::kernels::dry_run::{Answers, quiet_context};
use crate::execute::kernels::observations::Observations;
use crate::execute::kernels::samples::{Drawing, Pending, Sample};
use crate::fingerprint::{Beside, CallPlace, Digest, Preimage, RowKeys, calls_base, hash_bytes};
use crate::lineage::difference;
use crate::operator::{AsyncMapKernel, Context, InputArtifact, Kernel};
use crate::store::{CallCache, Store};

/// Combinations of answers tried for one row, where calls were answered more than once (`--force`).
const WAYS: usize = 64;
/// Differing rows reported (at most).
const TOLD: usize = 20;

/// Compares all rows of a node that calls an endpoint.
pub(super) fn compare(store: &Store, rerun: &Rerun<'_>, directory: &Path) -> Result<Outcome, OperatorError> {
    let Some(endpoint) = &rerun.operator.declaration.endpoint else {
        return Ok(Outcome::NotChecked("it asks no endpoint".to_owned()));
    };
    let Preimage { services, inputs, sources, .. } = &rerun.step.preimage;
    let beside = Beside { services, inputs, sources };
    let calls = Arc::new(CallCache::new(store, &calls_base(endpoint, &beside, false)));
    let seed = rerun.step.preimage.seed.unwrap_or_default();
    let context = quiet_context(seed, directory, &tokio::runtime::Handle::current());
    let since = rerun.step.result.since();
    let observed = Observations::kept(store, &rerun.operator.declaration, |service| calls_base(service, &beside, true));
    let context = observed.context(context, since);
    let Kernel::AsyncMap(kernel) = rerun.operator.open(&rerun.run.inputs, &context)? else {
        return Ok(Outcome::NotChecked("its rows are not independent".to_owned()));
    };
    let recorded = recorded(store, rerun, kernel.as_ref())?;
    let rows = samples(rerun, kernel.as_ref())?;
    let answers = Answers { calls, observed, since };
    let (same, other) = context.block_on(compared(kernel.as_ref(), &context, &answers, rows, &recorded))?;
    if !other.is_empty() {
        let wrong = |id: String| {
            let place = format!("row {id}, what the model said");
            (String::new(), difference(place, "as in the artifact", "not among the cached answers"), 1)
        };
        return Ok(Outcome::Differs(other.into_iter().take(TOLD).map(wrong).collect()));
    }
    let (all, same) = (recorded.len(), same.len());
    Ok(match all - same {
        0 => Outcome::Same(format!("{all} rows match the cached answers")),
        unknown => Outcome::NotChecked(format!(
            "answers of {unknown} of {all} rows are not cached here; the other {same} rows match their answers"
        )),
    })
}

/// Returns digests of the external content of the recorded rows, by row id.
fn recorded(
    store: &Store,
    rerun: &Rerun<'_>,
    kernel: &dyn AsyncMapKernel,
) -> Result<BTreeMap<String, Digest>, OperatorError> {
    let mut recorded = BTreeMap::new();
    for (_, output) in rerun.step.result.outputs.iter().filter(|(port, _)| *port != "rejects") {
        let InputArtifact::Rows(table) = store.open_input(&output.id)? else { continue };
        for batch in table.batches() {
            let said = kernel.said(&batch?)?;
            recorded.extend(said.into_iter().map(|(id, said)| (id, hash_bytes(said.as_bytes()))));
        }
    }
    Ok(recorded)
}

/// Returns all samples of the input rows.
fn samples(rerun: &Rerun<'_>, kernel: &dyn AsyncMapKernel) -> Result<Vec<Sample>, OperatorError> {
    let keys = RowKeys::new(rerun.step.result.memo.unwrap_or(Digest::from_bytes([0; 32])), kernel.reads());
    let mut drawing = Drawing::new(rerun.run.main_rows()?, kernel.samples(), None, keys);
    let mut samples = Vec::new();
    while let Pending::Sample(sample) = drawing.next()? {
        samples.push(sample);
    }
    Ok(samples)
}

/// Returns the ids of the rows that match their answers, and of those that do not.
async fn compared(
    kernel: &dyn AsyncMapKernel,
    context: &Context,
    answers: &Answers,
    rows: Vec<Sample>,
    recorded: &BTreeMap<String, Digest>,
) -> Result<(BTreeSet<String>, Vec<String>), OperatorError> {
    let compared = rows.into_iter().map(|row| compare_row(kernel, context, answers, row, recorded));
    let mut compared = stream::iter(compared).buffered(context.concurrency());
    let (mut same, mut other) = (BTreeSet::new(), Vec::new());
    while let Some(row) = compared.next().await {
        match row? {
            Compared::Same(ids) => same.extend(ids),
            Compared::Other(id) => other.push(id),
            Compared::Unknown => {}
        }
    }
    Ok((same, other))
}

/// The recorded rows of one input row, by id. An input row can have several.
enum Compared {
    Same(Vec<String>),
    Other(String),
    Unknown,
}

async fn compare_row(
    kernel: &dyn AsyncMapKernel,
    context: &Context,
    answers: &Answers,
    sample: Sample,
    recorded: &BTreeMap<String, Digest>,
) -> Result<Compared, OperatorError> {
    let mut choices = Vec::new();
    let mut other = Compared::Unknown;
    for _ in 0..WAYS {
        let journal = Arc::new(Remembered::new(answers.clone(), sample.call_place(context), choices));
        let own = Arc::clone(&journal) as Arc<dyn CallJournal>;
        let (result, _) = sample.run(kernel, context, Some(own), &answers.observed, answers.since).await;
        if let Ok(output) = result {
            let said = output.batches.iter().map(|(_, batch)| said_of(kernel, batch));
            let said = said.collect::<Result<Vec<_>, _>>()?.into_iter().flatten();
            let known: Vec<_> = said.filter(|(id, _)| recorded.contains_key(id)).collect();
            match known.iter().find(|(id, digest)| recorded.get(id) != Some(digest)) {
                Some((id, _)) => other = Compared::Other(id.clone()),
                None if known.is_empty() => {}
                None => return Ok(Compared::Same(known.into_iter().map(|(id, _)| id).collect())),
            }
        }
        match journal.next_way() {
            Some(next) => choices = next,
            None => break,
        }
    }
    Ok(other)
}

fn said_of(kernel: &dyn AsyncMapKernel, batch: &RecordBatch) -> Result<Vec<(String, Digest)>, OperatorError> {
    let said = kernel.said(batch)?.into_iter();
    Ok(said.map(|(id, said)| (id, hash_bytes(said.as_bytes()))).collect())
}

/// The calls of one row, replayed from remembered answers. Where a call has several answers, `choices` picks one.
struct Remembered {
    answers: Answers,
    sent: Sent,
    choices: Vec<usize>,
    /// Number of answers each call had.
    had: Mutex<Vec<usize>>,
}

impl Remembered {
    fn new(answers: Answers, place: CallPlace, choices: Vec<usize>) -> Self {
        let sent = Sent::new(answers.calls.base(), place);
        Self { answers, sent, choices, had: Mutex::default() }
    }

    /// Returns the next combination of answers: the last call with a further answer takes it.
    fn next_way(&self) -> Option<Vec<usize>> {
        let had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = |call: usize| self.choices.get(call).copied().unwrap_or(0);
        let call = (0..had.len()).rev().find(|call| chosen(*call) + 1 < had[*call])?;
        Some((0..call).map(chosen).chain([chosen(call) + 1]).collect())
    }
}

impl CallJournal for Remembered {
    fn begin<'a>(
        &'a self,
        request: &'a [u8],
        accept: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync),
    ) -> BoxFuture<'a, Begun> {
        let answers = self.answers.calls.answers(&self.sent.next_key(request), self.answers.since);
        let begun = match answers {
            Err(error) => Begun::Failed(error.to_string()),
            Ok(answers) => {
                let mut answers: Vec<KeptCall> = answers.into_iter().filter(|call| accept(call)).collect();
                let mut had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
                let chosen = self.choices.get(had.len()).copied().unwrap_or(0);
                had.push(answers.len());
                if chosen < answers.len() {
                    Begun::Known(answers.swap_remove(chosen))
                } else {
                    Begun::Failed("the answer is not cached".to_owned())
                }
            }
        };
        async move { begun }.boxed()
    }
}
