//! Open streams of MCP's older transport: where the answers to a session's messages go.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::mpsc;

/// Maximum number of open streams.
const STREAMS: usize = 4096;
/// Answers that wait for a slow client.
const WAITING: usize = 64;

/// Open streams by their ids.
#[derive(Default)]
pub(crate) struct Streams(Mutex<BTreeMap<String, mpsc::Sender<Value>>>);

impl Streams {
    /// Opens a stream; returns its answers. `None` if too many are open.
    pub(crate) fn open(&self, id: &str) -> Option<mpsc::Receiver<Value>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, answers) = mpsc::channel(WAITING);
        if open.len() >= STREAMS {
            return None;
        }
        open.insert(id.to_owned(), sender);
        Some(answers)
    }

    /// Returns where the answers of a session go, if its stream is open.
    pub(crate) fn find(&self, id: &str) -> Option<mpsc::Sender<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn close(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}
