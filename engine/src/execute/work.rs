//! What an external node still has to ask, before it asks: rows that are known, rows that are not, and what these will
//! cost, going by what rows like them cost before.

use std::collections::BTreeSet;

use super::identity::Parts;
use crate::fingerprint::{Digest, Preimage, RowKeys};
use crate::operator::{EndpointUse, OperatorError, Prices, RowShape, RowsInput, Usage};
use crate::plan::Node;
use crate::store::{Memo, NodeResult, Store};

/// Memos of other nodes that are looked at, newest first.
const MEMOS: usize = 8;

/// What an external node still has to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// How many rows (samples counted) are remembered, and how many are not; `None` while the input is not known.
    pub rows: Option<(u64, u64)>,
    /// What the missing rows will cost; `None` when nothing is known of rows like them.
    pub estimate: Option<Usage>,
    /// What the estimate rests on.
    pub basis: Option<Basis>,
    /// What the endpoint takes.
    pub prices: Option<Prices>,
}

/// What an estimate rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Rows of the same node: the same params and side inputs.
    Node,
    /// Rows of other nodes with the same operator and model.
    Model,
}

impl Work {
    /// Of a node whose input is not known yet.
    pub(super) fn later(endpoint: EndpointUse) -> Self {
        Self { rows: None, estimate: None, basis: None, prices: endpoint.prices }
    }

    /// Of a node that would run on `rows`.
    pub(super) fn of(
        store: &Store,
        node: &Node,
        parts: &Parts,
        shape: RowShape,
        rows: &RowsInput,
    ) -> Result<Self, OperatorError> {
        let base = parts.row_base(node);
        let keys = RowKeys::new(base, shape.columns);
        let memo = Memo::open(store, &base)?;
        let (known, missing) = count(&memo, &keys, shape.samples, rows)?;
        let endpoint = node.operator.endpoint();
        let history = memo.history().map(|found| (found, Basis::Node));
        let history = history.or_else(|| Some((of_model(store, node, endpoint.as_ref()?)?, Basis::Model)));
        let prices = endpoint.and_then(|endpoint| endpoint.prices);
        let estimate = history.map(|((rows, usage), _)| {
            let usage = scaled(&usage, missing as f64 / rows as f64);
            prices.as_ref().map_or(usage, |prices| usage.at(prices))
        });
        Ok(Self { rows: Some((known, missing)), estimate, basis: history.map(|(_, basis)| basis), prices })
    }
}

/// Rows and samples that are remembered, and that are not.
fn count(memo: &Memo, keys: &RowKeys, samples: u32, rows: &RowsInput) -> Result<(u64, u64), OperatorError> {
    let (mut known, mut missing) = (0, 0);
    for batch in rows.batches() {
        let batch = batch?;
        for row in (0..batch.num_rows()).map(|row| batch.slice(row, 1)) {
            for sample in 0..samples.max(1) {
                let found = keys.key(&row, sample).is_ok_and(|key| memo.contains(&key));
                *(if found { &mut known } else { &mut missing }) += 1;
            }
        }
    }
    Ok((known, missing))
}

/// What rows of other nodes cost that asked the same of the same operator.
fn of_model(store: &Store, node: &Node, endpoint: &EndpointUse) -> Option<(u64, Usage)> {
    let asks_the_same = |result: &NodeResult| {
        let params = result.origin.as_ref().map(|origin| origin.params.clone())?;
        let same = Preimage::read(&result.preimage).operator == node.entry.name;
        let asked = (node.entry.bind)(params).ok().filter(|_| same)?.endpoint()?;
        (asked.model == endpoint.model).then_some(())
    };
    let results = store.result_keys().into_iter().filter_map(|key| store.result(&key));
    let mut found: Vec<(f64, Digest)> = results
        .filter(|result| asks_the_same(result).is_some())
        .filter_map(|result| Some((result.finished, result.memo?)))
        .collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    let bases: BTreeSet<Digest> = found.into_iter().take(MEMOS).map(|(_, base)| base).collect();
    let (mut rows, mut usage) = (0, Usage::default());
    for (more, cost) in bases.iter().filter_map(|base| Memo::open(store, base).ok()?.history()) {
        rows += more;
        usage += cost;
    }
    (rows > 0).then_some((rows, usage))
}

fn scaled(usage: &Usage, factor: f64) -> Usage {
    let scale = |count: u64| (count as f64 * factor).round() as u64;
    Usage {
        calls: scale(usage.calls),
        prompt_tokens: scale(usage.prompt_tokens),
        completion_tokens: scale(usage.completion_tokens),
        cost_nanos: scale(usage.cost_nanos),
    }
}
