//! Usage and cost of external calls, and budgets.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Blame, OperatorError};

/// Nanos per unit of currency. Costs are integers, so that sums do not depend on the order.
const NANOS: f64 = 1e9;
const PER_MILLION: f64 = 1e6;

/// Usage of external calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Calls made, retries included.
    pub calls: u64,
    /// Those of them that ask no model: of tools, functions and rerankers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub service_calls: u64,
    /// Prompt tokens, as the endpoint counts them.
    pub prompt_tokens: u64,
    /// Completion tokens, as the endpoint counts them.
    pub completion_tokens: u64,
    /// Cost in billionths of a unit of currency, at the prices in the endpoint's params; 0 without prices.
    #[serde(default)]
    pub cost_nanos: u64,
}

/// For serde: leaves out what is zero.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// Returns the calls that ask a model.
    pub fn model_calls(&self) -> u64 {
        self.calls.saturating_sub(self.service_calls)
    }

    /// Returns the sum of prompt and completion tokens.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Returns the cost in units of currency.
    pub fn cost(&self) -> f64 {
        self.cost_nanos as f64 / NANOS
    }

    /// Sets the cost at those prices.
    #[must_use]
    pub fn at(self, prices: &Prices) -> Self {
        Self { cost_nanos: prices.nanos(&self), ..self }
    }

    /// Subtracts `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// Multiplies everything.
    #[must_use]
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        self.with(self, |count, _| (count as f64 * factor).round() as u64)
    }

    fn with(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            calls: combine(self.calls, other.calls),
            service_calls: combine(self.service_calls, other.service_calls),
            prompt_tokens: combine(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: combine(self.completion_tokens, other.completion_tokens),
            cost_nanos: combine(self.cost_nanos, other.cost_nanos),
        }
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(&other, u64::saturating_add);
    }
}

/// Prices of an endpoint. They do not affect results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "snake_case")]
pub struct Prices {
    /// Price per million prompt tokens.
    pub prompt: f64,
    /// Price per million completion tokens.
    pub completion: f64,
    /// Price per call, in addition to its tokens.
    pub call: f64,
    /// Currency of these prices. All endpoints of a pipeline must use the same one.
    pub currency: String,
}

impl Default for Prices {
    fn default() -> Self {
        Self { prompt: 0.0, completion: 0.0, call: 0.0, currency: "USD".to_owned() }
    }
}

impl Prices {
    /// Returns the cost in billionths of a unit, rounded once.
    pub fn nanos(&self, usage: &Usage) -> u64 {
        let tokens = usage.prompt_tokens as f64 * self.prompt + usage.completion_tokens as f64 * self.completion;
        ((tokens / PER_MILLION + usage.calls as f64 * self.call) * NANOS).round() as u64
    }

    /// Returns the name of an invalid field, if any.
    pub fn fault(&self) -> Option<&'static str> {
        let prices = [("prompt", self.prompt), ("completion", self.completion), ("call", self.call)];
        prices.into_iter().find(|(_, price)| !price.is_finite() || *price < 0.0).map(|(name, _)| name)
    }
}

/// Limits on a run's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetLimits {
    /// Calls, retries included.
    pub calls: Option<u64>,
    /// Prompt and completion tokens.
    pub tokens: Option<u64>,
    /// Units of currency.
    pub cost: Option<f64>,
}

impl BudgetLimits {
    /// Names of the limits.
    pub const NAMES: [&'static str; 3] = ["calls", "tokens", "cost"];

    /// Sets one limit from text: `calls` `500`, `tokens` `1.5M`, `cost` `2.50`.
    ///
    /// # Errors
    /// Fails with a message if the name or amount is invalid.
    pub fn set(&mut self, name: &str, amount: &str) -> Result<(), String> {
        let number = amount_of(amount)?;
        // From 2^53 on, floats have no place for every whole number.
        let is_whole = number.fract() == 0.0 && number < 2f64.powi(53);
        match name {
            "calls" | "tokens" if !is_whole => return Err(format!("`{amount}` is not a whole number")),
            "calls" => self.calls = Some(number as u64),
            "tokens" => self.tokens = Some(number as u64),
            "cost" => self.cost = Some(number),
            _ => return Err(format!("unknown budget limit `{name}`: use calls, tokens or cost")),
        }
        Ok(())
    }

    /// Replaces limits by those of `other` that are set.
    #[must_use]
    pub fn overlaid(self, other: Self) -> Self {
        Self { calls: other.calls.or(self.calls), tokens: other.tokens.or(self.tokens), cost: other.cost.or(self.cost) }
    }

    /// Describes the limit that is used up, if any.
    pub fn used_up(&self, spent: &Usage) -> Option<String> {
        match (self.calls, self.tokens, self.cost) {
            (Some(limit), ..) if spent.calls >= limit => Some(format!("{} of {limit} calls", spent.calls)),
            (_, Some(limit), _) if spent.tokens() >= limit => Some(format!("{} of {limit} tokens", spent.tokens())),
            (.., Some(limit)) if spent.cost_nanos as f64 >= limit * NANOS => {
                Some(format!("{:.4} of {limit} (cost)", spent.cost()))
            }
            _ => None,
        }
    }
}

/// Parses `500`, `20k`, `1.5M`, `2G`.
fn amount_of(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let (digits, factor) = match trimmed.chars().last() {
        Some('k' | 'K') => (&trimmed[..trimmed.len() - 1], 1e3),
        Some('m' | 'M') => (&trimmed[..trimmed.len() - 1], 1e6),
        Some('g' | 'G') => (&trimmed[..trimmed.len() - 1], 1e9),
        _ => (trimmed, 1.0),
    };
    if let Ok(number) = digits.trim().replace('_', "").parse::<f64>() {
        // 2.3 × 1e6 is not an integer in binary floating point.
        let number = if factor > 1.0 { (number * factor * 1e3).round() / 1e3 } else { number };
        if number.is_finite() && number >= 0.0 {
            return Ok(number);
        }
    }
    Err(format!("`{text}` is not an amount: write a number, optionally followed by k, M or G"))
}

/// Limits on the usage of all runs of a pipeline together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeriodLimits {
    /// From midnight to midnight.
    pub per_day: Option<BudgetLimits>,
    /// In a calendar month.
    pub per_month: Option<BudgetLimits>,
}

impl PeriodLimits {
    /// Returns all limits.
    pub fn all(&self) -> impl Iterator<Item = BudgetLimits> {
        self.per_day.into_iter().chain(self.per_month)
    }
}

/// A durable record of what all runs of a pipeline spend.
pub(crate) trait SpendLedger: Send + Sync + std::fmt::Debug {
    /// Records usage of this run.
    fn add(&self, usage: &Usage) -> Result<(), String>;

    /// Describes the limit of a period that is used up, if any. Fails if what was spent cannot be read.
    fn used_up(&self) -> Result<Option<String>, String>;
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This limit is used up.
    Limit(String),
    /// The machine cannot record what the call would cost, or read what was spent.
    Fault(String),
}

/// The budget and spending of a run, shared by all its nodes.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: BudgetLimits,
    ledger: Option<Arc<dyn SpendLedger>>,
    spent: Mutex<Usage>,
    /// Why the first refused call was refused.
    closed: OnceLock<String>,
    /// Why spending cannot be recorded or read. No call is made after that.
    fault: OnceLock<String>,
}

impl Budget {
    /// Creates a budget with those limits.
    pub(crate) fn new(limits: BudgetLimits) -> Arc<Self> {
        Arc::new(Self { limits, ..Self::default() })
    }

    /// Creates the budget of a run whose spending is recorded.
    pub(crate) fn recorded(limits: BudgetLimits, ledger: Arc<dyn SpendLedger>) -> Arc<Self> {
        Arc::new(Self { limits, ledger: Some(ledger), ..Self::default() })
    }

    /// Returns the usage so far.
    pub(crate) fn spent(&self) -> Usage {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit that was used up, if a call was refused because of it.
    pub(crate) fn refused(&self) -> Option<String> {
        self.closed.get().cloned()
    }

    /// Reports whether spending can be recorded and read.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn check(&self) -> Result<(), OperatorError> {
        let Some(fault) = self.fault.get() else { return Ok(()) };
        let help = "received answers are stored; the next run asks for the remaining rows";
        Err(OperatorError::machine(fault).with_help(help))
    }

    /// Returns why a node was stopped: not by the user, if spending cannot be recorded.
    pub(crate) fn cause_of(&self, error: OperatorError) -> OperatorError {
        if error.blame == Blame::Cancelled { self.check().err().unwrap_or(error) } else { error }
    }

    /// Takes one call from the budget. A refused call closes the budget.
    pub(crate) fn take_call(&self) -> Result<(), Refusal> {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = self.fault.get() {
            return Err(Refusal::Fault(fault.clone()));
        }
        if let Some(limit) = self.used_up(&spent).map_err(Refusal::Fault)? {
            // All refused calls name the same limit, whatever was spent since.
            return Err(Refusal::Limit(self.closed.get_or_init(|| limit).clone()));
        }
        // Recorded before it is made, under the lock: parallel calls cannot take the same last one.
        self.record(&Usage { calls: 1, ..Usage::default() }).map_err(Refusal::Fault)?;
        spent.calls = spent.calls.saturating_add(1);
        Ok(())
    }

    fn used_up(&self, spent: &Usage) -> Result<Option<String>, String> {
        let limit = self.limits.used_up(spent);
        let (None, Some(ledger)) = (&limit, &self.ledger) else { return Ok(limit) };
        ledger.used_up().map_err(|error| self.fault.get_or_init(|| format!("spending cannot be read: {error}")).clone())
    }

    /// Records usage durably. What cannot be recorded is not spent.
    fn record(&self, usage: &Usage) -> Result<(), String> {
        let recorded = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.add(usage));
        recorded.map_err(|error| self.fault.get_or_init(|| format!("spending cannot be recorded: {error}")).clone())
    }

    /// Adds tokens and cost of a call; the call itself is counted by [`Budget::take_call`].
    pub(crate) fn pay(&self, usage: &Usage) {
        let usage = Usage { calls: 0, ..*usage };
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += usage;
        // Paid for already: the next call is refused instead, as the fault is remembered.
        if let Err(error) = self.record(&usage) {
            tracing::warn!("{error}");
        }
    }

    /// Whether a call would be refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.get().is_some() || self.fault.get().is_some() || self.used_up(&self.spent()) != Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_per_million_tokens_and_rounded_once() {
        let prices = Prices { prompt: 0.15, completion: 0.6, call: 0.001, ..Prices::default() };
        let usage =
            Usage { calls: 2, prompt_tokens: 1_000_000, completion_tokens: 500_000, cost_nanos: 7, ..Usage::default() };
        assert_eq!(usage.at(&prices).cost_nanos, 150_000_000 + 300_000_000 + 2_000_000);
        assert_eq!(Usage::default().at(&prices).cost_nanos, 0);
        assert_eq!(Prices { call: -1.0, ..Prices::default() }.fault(), Some("call"));
    }

    #[test]
    fn a_server_that_counts_beyond_all_numbers_stops_no_run() {
        let much = Usage {
            calls: 1,
            service_calls: 0,
            prompt_tokens: i64::MAX as u64,
            completion_tokens: i64::MAX as u64,
            cost_nanos: u64::MAX,
        };
        let mut sum = much;
        sum += much;
        sum += much;
        assert_eq!((sum.calls, sum.tokens(), sum.cost_nanos), (3, u64::MAX, u64::MAX));
        assert!(BudgetLimits { tokens: Some(1), ..BudgetLimits::default() }.used_up(&sum).is_some());
    }

    #[test]
    fn budgets_are_read_as_people_write_them() {
        let mut budget = BudgetLimits::default();
        for (name, amount) in [("calls", "500"), ("tokens", "2.3M"), ("cost", "2.50")] {
            budget.set(name, amount).expect("a limit");
        }
        assert_eq!(budget, BudgetLimits { calls: Some(500), tokens: Some(2_300_000), cost: Some(2.5) });
        for (name, amount) in [("calls", "1.5"), ("calls", "many"), ("cost", "-1"), ("euros", "3"), ("tokens", "")] {
            assert!(budget.set(name, amount).is_err(), "{name}={amount}");
        }
        let wider = budget.overlaid(BudgetLimits { calls: Some(9), ..BudgetLimits::default() });
        assert_eq!((wider.calls, wider.tokens), (Some(9), Some(2_300_000)));
    }

    #[test]
    fn a_budget_gives_no_call_more_than_its_limit() {
        let budget = Budget::new(BudgetLimits { calls: Some(2), ..BudgetLimits::default() });
        assert!(budget.take_call().is_ok() && budget.take_call().is_ok());
        assert!(budget.refused().is_none(), "a budget that suffices exactly refuses nothing");
        assert_eq!(budget.take_call(), Err(Refusal::Limit("2 of 2 calls".to_owned())));
        assert_eq!((budget.spent().calls, budget.refused()), (2, Some("2 of 2 calls".to_owned())));
        let budget = Budget::new(BudgetLimits { cost: Some(1.0), ..BudgetLimits::default() });
        assert!(budget.take_call().is_ok());
        budget.pay(&Usage { calls: 1, cost_nanos: 1_000_000_000, ..Usage::default() });
        assert!(budget.take_call().is_err());
        assert_eq!(budget.spent().calls, 1);
    }

    /// A disk that is full after some writes.
    #[derive(Debug)]
    struct Disk(Mutex<usize>);

    impl SpendLedger for Disk {
        fn add(&self, _usage: &Usage) -> Result<(), String> {
            let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *left = left.checked_sub(1).ok_or("no space left")?;
            Ok(())
        }

        fn used_up(&self) -> Result<Option<String>, String> {
            Ok(None)
        }
    }

    #[test]
    fn spending_that_cannot_be_recorded_is_a_fault_of_the_machine_and_no_limit() {
        let budget = Budget::recorded(BudgetLimits::default(), Arc::new(Disk(Mutex::new(1))));
        assert!(budget.take_call().is_ok() && budget.check().is_ok());
        assert_eq!(budget.cause_of(OperatorError::cancelled()).blame, Blame::Cancelled);
        // The call is paid, and its cost is not recorded: no other call is made.
        budget.pay(&Usage { calls: 1, cost_nanos: 1, ..Usage::default() });
        let fault = "spending cannot be recorded: no space left".to_owned();
        assert_eq!(budget.take_call(), Err(Refusal::Fault(fault.clone())));
        assert!(budget.refused().is_none() && budget.is_empty());
        let error = budget.check().unwrap_err();
        assert_eq!((error.blame, error.message), (Blame::Machine, fault));
        assert_eq!(budget.cause_of(OperatorError::cancelled()).blame, Blame::Machine);
        assert_eq!(budget.cause_of(OperatorError::data("a row")).blame, Blame::Data);
    }
}
