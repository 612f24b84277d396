//! Forwards events and records them with the run, without the secrets that operators may have put into them.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::clock::unix_time;
use crate::operator::Redactor;
use crate::report::{Event, Reporter};
use crate::store::RunWriter;

/// Forwards and records events.
pub(super) struct Recorded {
    pub(super) inner: Arc<dyn Reporter>,
    pub(super) ledger: Arc<Mutex<RunWriter>>,
    pub(super) redactor: Redactor,
}

/// An event with a time, unless the event already has one.
#[derive(Serialize)]
struct Timed<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(flatten)]
    event: &'e Event,
}

impl<'e> Timed<'e> {
    fn now(event: &'e Event) -> Self {
        let has_time = matches!(event, Event::RunStarted { .. } | Event::NodeStarted { .. });
        Self { time: (!has_time).then(unix_time), event }
    }
}

impl Reporter for Recorded {
    fn event(&self, event: &Event) {
        let mut event = event.clone();
        self.redactor.clean_all(event.texts());
        let event = &event;
        self.inner.event(event);
        if !matches!(event, Event::NodeProgress { .. }) {
            let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = ledger.event(&Timed::now(event)) {
                tracing::warn!("cannot record an event: {error}");
            }
        }
    }
}
