//! Estimates the work of an external node before it runs: the known rows, the missing rows, and their cost, based on
//! the cost of similar rows.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::endpoint::{EndpointUse, Prices, Usage};
use crate::error::OperatorError;
use crate::execute::decide::Parts;
use crate::execute::kernels::call_journal::Observations;
use crate::execute::kernels::dry_run::{Answers, count_samples};
use crate::execute::kernels::samples::Drawing;
use crate::fingerprint::{Digest, Preimage, RowKeys};
use crate::operator::Inputs;
use crate::plan::Node;
use crate::store::{CallCache, Memo, Store};

/// Memos of other nodes read for an estimate (at most), newest first.
const MEMOS: usize = 8;

/// The remaining work of an external node.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Remembered and missing rows (samples counted); `None` while the input is unknown.
    pub rows: Option<(u64, u64)>,
    /// Whether there may be fewer missing rows: no more are drawn once enough of them pass.
    pub at_most: bool,
    /// Estimated cost of the missing rows; `None` without similar rows.
    pub estimate: Option<Usage>,
    /// The basis of the estimate.
    pub basis: Option<Basis>,
    /// Prices of the endpoint.
    pub prices: Option<Prices>,
}

/// The basis of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Rows of the same node, with the same params and side inputs.
    Node,
    /// Rows of other nodes with the same operator and model.
    Model,
}

impl Work {
    /// The work of a node that would run on `inputs`. Rows that remembered answers can reproduce count as known, if all
    /// inputs are available and `directory` is given. With `forced`, only rows of an interrupted forced run count.
    pub(crate) fn of(
        store: &Store,
        node: &Node,
        parts: &Parts,
        inputs: &Inputs,
        forced: bool,
        directory: Option<&Path>,
    ) -> Result<Self, OperatorError> {
        let base = parts.row_base(node);
        let shape = node.operator.declaration.rows.clone().unwrap_or_default();
        let keys = RowKeys::new(base, shape.columns.clone());
        let floor = store.floor(&base)?;
        // An interrupted forced run goes on with the rows that it has; a new one begins without any.
        let since = if forced && !floor.open { u64::MAX } else { floor.since };
        let memo = Memo::open(store, &base)?.since(since);
        let rows = inputs.rows(node.main_port.as_deref().unwrap_or_default())?;
        let (mut known, mut missing) = Drawing::new(rows, shape.samples, None, keys.clone()).count_known(&memo)?;
        let endpoint = node.operator.declaration.endpoint.as_ref();
        if let (Some(endpoint), Some(directory)) = (endpoint, directory)
            && missing > 0
        {
            let calls = Arc::new(CallCache::new(store, &parts.calls_base(node, endpoint, false)));
            let observed =
                Observations::kept(store, &node.operator.declaration, |service| parts.calls_base(node, service, true));
            let answers = Answers { calls, observed, since };
            if shape.goal.is_some() || answers.calls.count()? > 0 {
                let samples = Drawing::new(rows, shape.samples, shape.goal, keys);
                match count_samples(node, inputs, directory, &answers, &memo, samples) {
                    Ok(counted) => (known, missing) = counted,
                    // It may not open before a service has reported its tools: only the rows of the memo are known.
                    Err(_) if !answers.observed.caches.is_empty() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let most = shape.goal.and_then(|goal| goal.at_most).unwrap_or(u64::MAX);
        missing = missing.min(most);
        let prices = endpoint.and_then(|endpoint| endpoint.prices.clone());
        let (history, basis) = match memo.history() {
            Some(history) => (Some(history), Basis::Node),
            None => (endpoint.and_then(|endpoint| of_model(store, node, endpoint)), Basis::Model),
        };
        // The tokens of a tool have prices of their own: then the rows cost what they cost before.
        let mixed = node.operator.declaration.observed.iter().any(|service| service.prices.is_some());
        let mut estimate = None;
        if let Some((rows, usage)) = history {
            let usage = usage.scaled(missing as f64 / rows as f64);
            estimate = Some(match &prices {
                Some(prices) if !mixed => usage.at(prices),
                _ => usage,
            });
        }
        Ok(Self {
            rows: Some((known, missing)),
            at_most: shape.goal.is_some(),
            estimate,
            basis: estimate.map(|_| basis),
            prices,
        })
    }
}

/// Returns number and cost of the rows of other nodes with the same operator and model.
fn of_model(store: &Store, node: &Node, endpoint: &EndpointUse) -> Option<(u64, Usage)> {
    let mut memos: Vec<(f64, Digest)> = Vec::new();
    for key in store.keys_below("results") {
        let Some(result) = store.result(&key) else { continue };
        let (Some(memo), Some(origin)) = (result.memo, &result.origin) else { continue };
        if Preimage::read(&result.preimage).operator == node.entry.name
            && let Ok(operator) = (node.entry.bind)(origin.params.clone())
            && operator.declaration.endpoint.is_some_and(|called| called.model == endpoint.model)
        {
            memos.push((result.finished, memo));
        }
    }
    memos.sort_by(|one, other| other.0.total_cmp(&one.0));
    let bases: BTreeSet<Digest> = memos.into_iter().take(MEMOS).map(|(_, base)| base).collect();
    let (mut rows, mut usage) = (0, Usage::default());
    for base in bases {
        // The estimate is a hint: a memo that cannot be read is left out.
        if let Ok(memo) = Memo::open(store, &base)
            && let Some((more, cost)) = memo.history()
        {
            rows += more;
            usage += cost;
        }
    }
    (rows > 0).then_some((rows, usage))
}
