//! Checks whether the recorded rows of a node follow from the remembered answers: its kernel runs again with these
//! answers alone, and the external content of each row is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};

use super::{Outcome, Rerun};
use crate::endpoint::{Begun, CallJournal, KeptCall};
use crate::error::OperatorError;
use crate::execute::kernels::call_journal::{Observations, Sent};
use crate::execute::kernels::dry_run::{Answers, quiet_context};
use crate::execute::kernels::samples::{Drawing, Pending, Sample};
use crate::fingerprint::{Beside, Digest, Preimage, RowKeys, calls_base, hash_bytes};
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
    let compared = rows.into_iter().map(|row| compare_row(kernel.as_ref(), &context, &answers, row, &recorded));
    let mut compared = stream::iter(compared).buffered(context.concurrency());
    let (mut same, mut other) = (BTreeSet::new(), Vec::new());
    while let Some(row) = context.block_on(compared.next()) {
        match row? {
            Compared::Same(ids) => same.extend(ids),
            Compared::Other(id) => other.push(id),
            Compared::Unknown => {}
        }
    }
    if !other.is_empty() {
        let mut differences = Vec::new();
        for id in other.into_iter().take(TOLD) {
            let place = format!("row {id}, what the model said");
            let found = difference(place, "as in the artifact", "not among the cached answers");
            differences.push((String::new(), found, 1));
        }
        return Ok(Outcome::Differs(differences));
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
            for (id, said) in kernel.said(&batch?)? {
                recorded.insert(id, hash_bytes(said.as_bytes()));
            }
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
        let sent = Sent::new(answers.calls.base(), sample.call_place(context));
        let journal = Arc::new(Remembered { answers: answers.clone(), sent, choices, had: Mutex::default() });
        let own = Arc::clone(&journal) as Arc<dyn CallJournal>;
        let (result, _) = sample.run(kernel, context, Some(own), &answers.observed, answers.since).await;
        if let Ok(output) = result {
            let (mut same, mut differing) = (Vec::new(), None);
            for (_, batch) in &output.batches {
                for (id, said) in kernel.said(batch)? {
                    match recorded.get(&id) {
                        // The node may have left the row out, or a goal may have been reached before it.
                        None => {}
                        Some(digest) if *digest == hash_bytes(said.as_bytes()) => same.push(id),
                        Some(_) => {
                            differing.get_or_insert(id);
                        }
                    }
                }
            }
            match differing {
                Some(id) => other = Compared::Other(id),
                None if same.is_empty() => {}
                None => return Ok(Compared::Same(same)),
            }
        }
        match journal.next_way() {
            Some(next) => choices = next,
            None => break,
        }
    }
    Ok(other)
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
    /// Returns the next combination of answers: the last call with a further answer takes it.
    fn next_way(&self) -> Option<Vec<usize>> {
        let had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        let mut choices = self.choices.clone();
        choices.resize(had.len(), 0);
        while let Some(chosen) = choices.pop() {
            if chosen + 1 < had[choices.len()] {
                choices.push(chosen + 1);
                return Some(choices);
            }
        }
        None
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
