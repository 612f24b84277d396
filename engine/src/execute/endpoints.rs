//! What the nodes of a run share about the outside: one limiter an endpoint, one budget, and the watch over silence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::fingerprint::{Digest, calls_base};
use crate::operator::{Budget, BudgetLimits, EndpointSession, EndpointUse, RateLimiter, Redactor, SecretLookup};
use crate::plan::{Node, Plan};
use crate::report::{Event, Reporter};
use crate::store::{CallCache, Store};

/// How often the watch looks, at most.
const LOOK: Duration = Duration::from_millis(500);

/// The endpoints of a run.
pub(super) struct Endpoints {
    limiters: BTreeMap<String, Arc<RateLimiter>>,
    pub(super) budget: Arc<Budget>,
    /// Strikes the secrets that the plan refers to, as far as they are set.
    pub(super) redactor: Redactor,
    shortest: Duration,
    /// Calls that were known before or made since, by model: nodes that ask the same one share them.
    calls: Mutex<BTreeMap<Digest, Arc<CallCache>>>,
    rebuy: bool,
}

impl Endpoints {
    /// Gates for all endpoints that the plan's nodes ask; where nodes set different limits for one, the strictest count.
    pub(super) fn new(plan: &Plan, budget: BudgetLimits, secrets: &SecretLookup, rebuy: bool) -> Self {
        let mut uses: BTreeMap<String, EndpointUse> = BTreeMap::new();
        for found in plan.nodes().iter().filter_map(|node| node.operator.declaration.endpoint.as_ref()) {
            match uses.get_mut(&found.address) {
                Some(before) => {
                    before.limits = before.limits.stricter(&found.limits);
                    before.stall_after = before.stall_after.min(found.stall_after);
                }
                None => drop(uses.insert(found.address.clone(), found.clone())),
            }
        }
        let redactor = Redactor::of_environment();
        for name in plan.nodes().iter().flat_map(Node::secrets) {
            if let Some(value) = secrets(&name) {
                redactor.learn(&name, &value);
            }
        }
        let shortest = uses.values().map(|found| found.stall_after).min().unwrap_or(LOOK);
        let limiter = |(address, found): (String, EndpointUse)| {
            let limiter = RateLimiter::new(&address, &found.limits, found.stall_after);
            (address, limiter)
        };
        let limiters = uses.into_iter().map(limiter).collect();
        Self { limiters, budget: Budget::new(budget), redactor, shortest, calls: Mutex::default(), rebuy }
    }

    /// What a node has to do with it.
    pub(super) fn session(&self, node: &Node) -> EndpointSession {
        let limiter =
            node.operator.declaration.endpoint.as_ref().and_then(|found| self.limiters.get(&found.address).cloned());
        let redactor = self.redactor.clone();
        let caller = node.id().into();
        EndpointSession { budget: Arc::clone(&self.budget), caller, limiter, redactor, ..EndpointSession::default() }
    }

    /// The calls to the model that a node asks.
    pub(super) fn calls(&self, node: &Node, store: &Store) -> Option<Arc<CallCache>> {
        let base = calls_base(&node.operator.declaration.endpoint.as_ref()?.identity);
        let new = || Arc::new(CallCache::new(store, &base).asking(self.rebuy));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(calls.entry(base).or_insert_with(new)))
    }

    /// Why the endpoint of a node is asked no more, if so.
    pub(super) fn closed(&self, node: &Node) -> Option<String> {
        self.session(node).closed()
    }

    /// Tells of endpoints that are silent, until it is aborted.
    pub(super) fn watch(&self, reporter: Arc<dyn Reporter>) -> Option<AbortHandle> {
        if self.limiters.is_empty() {
            return None;
        }
        let limiters: Vec<Arc<RateLimiter>> = self.limiters.values().cloned().collect();
        let every = (self.shortest / 4).clamp(Duration::from_millis(10), LOOK);
        let watch = async move {
            loop {
                tokio::time::sleep(every).await;
                for silence in limiters.iter().filter_map(|limiter| limiter.watch(Instant::now())) {
                    let endpoint = silence.address;
                    reporter.event(&match silence.silent {
                        Some(silent) => {
                            Event::EndpointSilent { endpoint, seconds: silent.as_secs_f64(), waiting: silence.waiting }
                        }
                        None => Event::EndpointHeard { endpoint },
                    });
                }
            }
        };
        Some(tokio::spawn(watch).abort_handle())
    }
}
