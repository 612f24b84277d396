//! Forwards events and records them with the run, without the secrets that operators may have put into them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::endpoint::Redactor;
use crate::events::{Event, Reporter};
use crate::execute::settings::clock::unix_time;
use crate::store::RunWriter;

/// Time between two recorded events of a node's progress. Nodes that take less have none.
const PROGRESS: Duration = Duration::from_secs(5);

/// Forwards and records events.
pub(crate) struct EventLog {
    pub(crate) inner: Arc<dyn Reporter>,
    pub(crate) records: Arc<Mutex<RunWriter>>,
    pub(crate) redactor: Redactor,
    /// When the progress of a node was last recorded, or first reported.
    pub(crate) progress: Mutex<BTreeMap<String, Instant>>,
}

impl EventLog {
    /// Whether an event of progress is due to be recorded.
    fn is_due(&self, node: &str) -> bool {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.get_mut(node) {
            Some(last) if last.elapsed() < PROGRESS => false,
            Some(last) => {
                *last = Instant::now();
                true
            }
            // The first one only starts the clock: short nodes have no recorded progress.
            None => {
                progress.insert(node.to_owned(), Instant::now());
                false
            }
        }
    }
}

/// An event with a time, unless the event already has one.
#[derive(Serialize)]
struct Timed<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(flatten)]
    event: &'e Event,
}

impl Reporter for EventLog {
    fn event(&self, event: &Event) {
        let mut event = event.clone();
        // Before it is shown or written: operators put texts of programs and servers into events.
        self.redactor.clean_all(event.texts());
        let event = &event;
        self.inner.event(event);
        let mut is_progress = false;
        if let Event::NodeProgress { node, .. } = event {
            is_progress = true;
            if !self.is_due(node) {
                return;
            }
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let has_time = matches!(event, Event::RunStarted { .. } | Event::NodeStarted { .. });
        let mut recorded = records.event(&Timed { time: (!has_time).then(unix_time), event });
        // Whoever follows the run sees at once what goes on.
        if is_progress || matches!(event, Event::NodeStarted { .. }) {
            recorded = recorded.and_then(|()| records.flush());
        }
        if let Err(error) = recorded {
            tracing::warn!("cannot record an event: {error}");
        }
    }
}
