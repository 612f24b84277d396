//! Checks whether the recorded rows of a node follow from the remembered answers: its kernel runs again with these
//! answers alone, and the external content of each row is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};

use super::rerun::{Outcome, Rerun};
use crate::endpoint::{Begun, CallJournal, EndpointSession, KeptCall};
use crate::error::OperatorError;
use crate::execute::kernels::call_journal::Sent;
use crate::execute::kernels::dry_run::{Rehearsed, quiet_context};
use crate::execute::kernels::observations::Observations;
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
    let Kernel::AsyncMap(kernel) = rerun.operator.open(&rerun.inputs, &context)? else {
        return Ok(Outcome::NotChecked("its rows are not independent".to_owned()));
    };
    let recorded = recorded(store, rerun, kernel.as_ref())?;
    let rows = input_rows(rerun, kernel.as_ref(), seed)?;
    let answers = Answers { calls, observed, since };
    let (same, other) = context.block_on(compared(&kernel, &context, &answers, rows, &recorded))?;
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

fn input_rows(rerun: &Rerun<'_>, kernel: &dyn AsyncMapKernel, seed: u64) -> Result<Vec<Rehearsed>, OperatorError> {
    let mut keys = RowKeys::new(rerun.step.result.memo.unwrap_or(Digest::from_bytes([0; 32])), kernel.reads());
    let mut found = Vec::new();
    for batch in rerun.inputs.rows(rerun.main_port.as_deref().unwrap_or_default())?.batches() {
        let batch = batch?;
        for row in (0..batch.num_rows()).map(|row| batch.slice(row, 1)) {
            let identity = keys.identify(&row).map_err(OperatorError::data)?;
            let occurrence = identity.occurrence;
            let place = |sample| CallPlace { seed, sample, occurrence, repeat: 0 };
            let samples = 0..kernel.samples().max(1);
            found.extend(samples.map(|sample| (row.clone(), place(sample), keys.key(&identity, sample))));
        }
    }
    Ok(found)
}

/// Returns the ids of the rows that match their answers, and of those that do not.
async fn compared(
    kernel: &Arc<dyn AsyncMapKernel>,
    context: &Context,
    answers: &Answers,
    rows: Vec<Rehearsed>,
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
    kernel: &Arc<dyn AsyncMapKernel>,
    context: &Context,
    answers: &Answers,
    (row, place, key): Rehearsed,
    recorded: &BTreeMap<String, Digest>,
) -> Result<Compared, OperatorError> {
    let mut choices = Vec::new();
    let mut other = Compared::Unknown;
    for _ in 0..WAYS {
        let journal = Arc::new(Remembered::new(answers.clone(), place, choices));
        let mut session = EndpointSession { journal: Some(journal.clone()), ..context.session().clone() };
        answers.observed.join(&mut session, Some(&key), answers.since);
        if let Ok(output) = kernel.run(&row, place.sample, &context.clone().with_session(session)).await {
            let said = output.batches.iter().map(|(_, batch)| said_of(kernel.as_ref(), batch));
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

/// The answers a result may be based on: those valid when it was computed.
#[derive(Clone)]
struct Answers {
    calls: Arc<CallCache>,
    observed: Observations,
    since: u64,
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
