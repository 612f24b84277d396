//! Heartbeats where locks do not reach: a claim that changes every few seconds while its holder lives.
//!
//! A waiting process compares what it reads with what it read before, by its own monotonic clock. Clocks of different
//! machines are never compared.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Interval between heartbeats.
const BEAT: Duration = Duration::from_secs(2);
/// Without a heartbeat for this long, a holder counts as dead. If it is alive, work is done twice, but results stay
/// correct.
pub(super) const DEAD: Duration = Duration::from_secs(15);

/// A claim on something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// Unique id of this claim.
    pub(crate) holder: String,
    /// The machine (or cache) whose processes exclude each other by locks.
    pub(crate) machine: String,
    /// Whether the claim was released.
    #[serde(default)]
    pub(crate) free: bool,
    /// The name of the open store, whose lock shows to processes of this machine whether it lives.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    /// Number of heartbeats so far.
    beats: u64,
}

impl Claim {
    pub(crate) fn new(machine: String) -> Self {
        Self { holder: format!("{:016x}", rand::random::<u64>()), machine, free: false, owner: String::new(), beats: 0 }
    }

    /// Advances the heartbeat; the last one releases the claim.
    pub(crate) fn beat(&mut self, last: bool) {
        self.beats += 1;
        self.free = last;
    }
}

/// What a waiting process saw, and since when.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Option<(String, Instant)>,
}

impl Watch {
    /// Whether the observed content has not changed for too long.
    pub(crate) fn is_dead(&mut self, seen: &str) -> bool {
        self.is_dead_at(seen, Instant::now())
    }

    fn is_dead_at(&mut self, seen: &str, now: Instant) -> bool {
        match &self.seen {
            Some((before, since)) if before == seen => now.duration_since(*since) >= DEAD,
            _ => {
                self.seen = Some((seen.to_owned(), now));
                false
            }
        }
    }
}

/// Sends heartbeats from its own thread until dropped, then the last one.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the thread. `beat` receives whether it is the last heartbeat.
    pub(crate) fn start(mut beat: impl FnMut(bool) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                beat(false);
            }
            beat(true);
        });
        let thread = thread.inspect_err(|error| tracing::warn!("cannot start the heartbeat thread: {error}")).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // Ends the wait of the thread at once. It is joined, so that the claim is free when the guard is gone.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::debug!("a heartbeat thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_dead_when_nothing_changes_for_long() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!watch.is_dead_at("1", at(0)) && !watch.is_dead_at("1", at(14)));
        assert!(!watch.is_dead_at("2", at(15)), "a heartbeat restarts the wait");
        assert!(!watch.is_dead_at("2", at(29)) && watch.is_dead_at("2", at(30)));
        assert!(!watch.is_dead_at("3", at(31)), "it was alive after all");
    }

    #[test]
    fn the_last_beat_comes_when_it_is_let_go() {
        let (sender, received) = channel();
        let beating = Heartbeat::start(move |last| sender.send(last).expect("a listener"));
        drop(beating);
        assert_eq!(received.iter().collect::<Vec<_>>(), [true]);
    }
}
