//! What the nodes of a run share for external calls: one rate limiter per endpoint, one budget (of the run, and of the
//! day and the month), and a watch that reports silent endpoints.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{Datelike, TimeZone, Utc};
use chrono_tz::Tz;
use tokio::task::AbortHandle;

use crate::endpoint::{
    Budget, EndpointSession, EndpointUse, ObservedSession, PeriodLimits, RateLimiter, Redactor, SpendLedger, Usage,
    refers_to_service,
};
use crate::events::{Event, Reporter};
use crate::execute::decide::Parts;
use crate::execute::kernels::call_journal::Observations;
use crate::execute::settings::options::Settings;
use crate::execute::settings::unix_time;
use crate::fingerprint::Digest;
use crate::plan::{Node, Plan};
use crate::store::{CallCache, Spending, Store};

/// Longest interval between two checks of the watch.
const LOOK: Duration = Duration::from_millis(500);
/// Interval at which the spending of other runs is read again.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// The same interval, as a multiple of the time that reading takes (at least).
const PAUSE: u32 = 20;

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
        let shortest = uses.values().map(|endpoint| endpoint.stall_after).min().unwrap_or(LOOK);
        let mut limiters = BTreeMap::new();
        for (name, endpoint) in uses {
            let limiter = RateLimiter::new(&name, &endpoint.limits, endpoint.stall_after);
            limiters.insert(name, limiter);
        }
        let limits = options.asked.budget;
        // What a test spends does not count towards the limits of a day and a month.
        let budget = match options.trial {
            Some(_) => Budget::new(limits),
            None => Budget::recorded(limits, Arc::new(Ledger::open(store, plan, run))),
        };
        Self { limiters, budget, redactor, shortest, calls: Mutex::default(), rebuy: options.asked.rebuy }
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
        let (budget, redactor) = (Arc::clone(&self.budget), self.redactor.clone());
        let caller = node.id().as_str().into();
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
        Observations { caches }
    }

    fn calls_of(&self, base: Digest, store: &Store) -> Arc<CallCache> {
        // Nodes that call the same model share its cache, so that equal calls in flight are one.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(base);
        Arc::clone(calls.or_insert_with(|| Arc::new(CallCache::new(store, &base).asking(self.rebuy))))
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

/// The spending of a pipeline's runs, and its limits.
#[derive(Debug)]
struct Ledger {
    limits: PeriodLimits,
    zone: Tz,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spending: Spending,
    /// When the spending of other runs is read again.
    next: Option<Instant>,
}

impl Ledger {
    /// Opens the spending of a pipeline for one of its runs. Days begin at midnight in the time zone of its schedule.
    fn open(store: &Store, plan: &Plan, run: &str) -> Self {
        let state = State { spending: Spending::of(store, &plan.name, run), next: None };
        let zone = plan.schedule.as_ref().and_then(|schedule| schedule.cadence.timezone().parse().ok());
        Self { limits: plan.periods, zone: zone.unwrap_or(Tz::UTC), state: Mutex::new(state) }
    }
}

impl SpendLedger for Ledger {
    fn add(&self, usage: &Usage) -> Result<(), String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.spending.add(unix_time(), usage).map_err(|error| error.to_string())
    }

    fn used_up(&self) -> Result<Option<String>, String> {
        let PeriodLimits { per_day, per_month } = self.limits;
        if per_day.is_none() && per_month.is_none() {
            return Ok(None);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, begun) = (unix_time(), Instant::now());
        if state.next.is_none_or(|next| begun >= next) {
            // A month contains today.
            let first = start(now, self.zone, per_month.is_some());
            state.spending.look(first).map_err(|error| error.to_string())?;
            state.next = Some(Instant::now() + READ_AGAIN.max(begun.elapsed() * PAUSE));
        }
        for (limits, month, words) in [(per_day, false, "today"), (per_month, true, "this month")] {
            let Some(limits) = limits else { continue };
            let spent = state.spending.since(start(now, self.zone, month));
            if let Some(limit) = limits.used_up(&spent) {
                return Ok(Some(format!("{limit} {words}")));
            }
        }
        Ok(None)
    }
}

/// Returns the start of the day, or of the month, that contains a time.
fn start(now: f64, zone: Tz, month: bool) -> f64 {
    let Some(time) = Utc.timestamp_opt(now as i64, 0).single() else { return 0.0 };
    let today = time.with_timezone(&zone).date_naive();
    let Some(date) = (if month { today.with_day(1) } else { Some(today) }) else { return 0.0 };
    for hour in 0..4 {
        // Where summer time begins at midnight, the day begins an hour later.
        if let Some(time) = date.and_hms_opt(hour, 0, 0)
            && let Some(start) = zone.from_local_datetime(&time).earliest()
        {
            return start.timestamp() as f64;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> f64 {
        chrono::DateTime::parse_from_rfc3339(text).unwrap().timestamp() as f64
    }

    #[test]
    fn days_and_months_begin_at_midnight_where_the_schedule_is() {
        let (now, kolkata) = (at("2026-11-20T20:00:00Z"), chrono_tz::Asia::Kolkata);
        assert_eq!(start(now, Tz::UTC, false), at("2026-11-20T00:00:00Z"));
        assert_eq!(start(now, kolkata, false), at("2026-11-21T00:00:00+05:30"));
        assert_eq!(start(now, kolkata, true), at("2026-11-01T00:00:00+05:30"));
        let beirut = chrono_tz::Asia::Beirut;
        assert_eq!(start(at("2026-03-29T10:00:00Z"), beirut, false), at("2026-03-29T01:00:00+03:00"));
    }
}
