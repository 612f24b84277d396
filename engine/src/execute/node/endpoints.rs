//! What the nodes of a run share for external calls: one rate limiter per endpoint, one budget, and a watch that
//! reports silent endpoints.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::period_budget::Ledger;
use crate::endpoint::{
    Budget, EndpointSession, EndpointUse, ObservedSession, RateLimiter, Redactor, refers_to_service,
};
use crate::error::OperatorError;
use crate::events::{Event, Reporter};
use crate::execute::decide::identity::Parts;
use crate::execute::kernels::observations::Observations;
use crate::execute::settings::options::Settings;
use crate::fingerprint::Digest;
use crate::plan::{Node, Plan};
use crate::store::{CallCache, Store};

/// Longest interval between two checks of the watch.
const LOOK: Duration = Duration::from_millis(500);

/// The endpoints of a run.
pub(crate) struct Endpoints {
    limiters: BTreeMap<String, Arc<RateLimiter>>,
    pub(crate) budget: Arc<Budget>,
    /// Redacts the secrets that the plan refers to and that are set.
    pub(crate) redactor: Redactor,
    shortest: Duration,
    /// Remembered and new calls by model; nodes that call the same model share them.
    calls: Mutex<BTreeMap<Digest, Arc<CallCache>>>,
    rebuy: bool,
}

impl Endpoints {
    /// Creates rate limiters for all endpoints the plan's nodes call. If nodes set different limits for one endpoint,
    /// the strictest apply.
    pub(crate) fn new(plan: &Plan, options: &Settings, store: &Store, run: &str, redactor: Redactor) -> Self {
        let mut uses: BTreeMap<String, EndpointUse> = BTreeMap::new();
        for node in &plan.nodes {
            for endpoint in node.operator.declaration.endpoints() {
                let known = uses.entry(name(node, endpoint)).or_insert_with(|| endpoint.clone());
                known.limits = known.limits.stricter(&endpoint.limits);
                known.stall_after = known.stall_after.min(endpoint.stall_after);
            }
        }
        let (mut limiters, mut shortest) = (BTreeMap::new(), None);
        for (name, endpoint) in uses {
            shortest = Some(endpoint.stall_after.min(shortest.unwrap_or(endpoint.stall_after)));
            let limiter = RateLimiter::new(&name, &endpoint.limits, endpoint.stall_after);
            limiters.insert(name, limiter);
        }
        let zone = plan.schedule.as_ref().map_or("UTC", |schedule| schedule.cadence.timezone());
        let limits = options.asked.budget;
        // What a test spends does not count towards the limits of a day and a month.
        let budget = match options.trial {
            Some(_) => Budget::new(limits),
            None => Budget::recorded(limits, Arc::new(Ledger::open(store, &plan.name, run, plan.periods, zone))),
        };
        let (shortest, rebuy) = (shortest.unwrap_or(LOOK), options.asked.rebuy);
        Self { limiters, budget, redactor, shortest, calls: Mutex::default(), rebuy }
    }

    /// Returns the endpoint session of a node.
    pub(crate) fn session(&self, node: &Node) -> EndpointSession {
        let declaration = &node.operator.declaration;
        let mut observed = Vec::with_capacity(declaration.observed.len());
        for service in &declaration.observed {
            let caller = format!("{} ({})", node.id(), service.model).into();
            let limiter = self.limiter(node, service);
            observed.push(ObservedSession { limiter, caller, ..ObservedSession::default() });
        }
        let limiter = declaration.endpoint.as_ref().and_then(|endpoint| self.limiter(node, endpoint));
        let redactor = self.redactor.clone();
        let caller = node.id().as_str().into();
        let budget = Arc::clone(&self.budget);
        EndpointSession { budget, caller, limiter, redactor, observed, ..EndpointSession::default() }
    }

    fn limiter(&self, node: &Node, endpoint: &EndpointUse) -> Option<Arc<RateLimiter>> {
        self.limiters.get(&name(node, endpoint)).cloned()
    }

    /// Returns the call cache of the model that a node calls.
    pub(crate) fn calls(&self, node: &Node, parts: &Parts, store: &Store) -> Option<Arc<CallCache>> {
        let endpoint = node.operator.declaration.endpoint.as_ref()?;
        Some(self.calls_of(parts.calls_base(node, endpoint, false), store))
    }

    /// Returns the observations of the services that a node calls beside its endpoint.
    pub(crate) fn observed(&self, node: &Node, parts: &Parts, store: &Store) -> Observations {
        let mut caches = Vec::new();
        for service in &node.operator.declaration.observed {
            caches.push(self.calls_of(parts.calls_base(node, service, true), store));
        }
        Observations::new(caches)
    }

    fn calls_of(&self, base: Digest, store: &Store) -> Arc<CallCache> {
        // Nodes that call the same model share its cache, so that equal calls in flight are one.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(base);
        Arc::clone(calls.or_insert_with(|| Arc::new(CallCache::new(store, &base).asking(self.rebuy))))
    }

    /// Returns why a node's endpoint, or a service that it observes, takes no more calls, if one does not.
    pub(crate) fn closed(&self, node: &Node) -> Option<OperatorError> {
        self.session(node).any_closed()
    }

    /// Reports silent endpoints until aborted.
    pub(crate) fn watch(&self, reporter: Arc<dyn Reporter>) -> Option<AbortHandle> {
        if self.limiters.is_empty() {
            return None;
        }
        let limiters: Vec<Arc<RateLimiter>> = self.limiters.values().cloned().collect();
        let every = (self.shortest / 4).clamp(Duration::from_millis(10), LOOK);
        let watch = async move {
            loop {
                tokio::time::sleep(every).await;
                for limiter in &limiters {
                    let Some(silence) = limiter.watch(Instant::now()) else { continue };
                    let endpoint = silence.endpoint;
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

/// Returns a redactor of the secrets that the plan refers to and that are set.
pub(crate) fn redactor(plan: &Plan, options: &Settings) -> Redactor {
    let redactor = Redactor::of_environment();
    for name in plan.nodes.iter().flat_map(Node::secrets) {
        if let Some(value) = (options.secrets)(&name) {
            redactor.learn(&name, &value);
        }
    }
    // Variables that are passed to services may be secrets, and services may print them.
    for service in plan.nodes.iter().flat_map(|node| &node.spec.services) {
        for name in &service.env {
            redactor.learn_variable(name);
        }
    }
    redactor
}

/// Returns the name of an endpoint. A service belongs to one node, so its name contains the node's id.
fn name(node: &Node, found: &EndpointUse) -> String {
    if refers_to_service(&found.name) { format!("{} of `{}`", found.name, node.id()) } else { found.name.clone() }
}
