//! Signs of life where locks do not reach: a claim that changes every few seconds while its holder lives.
//!
//! Whoever waits compares what he sees with what he saw, over his own steady clock. No two clocks are compared, and no
//! clock that can be set.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(2);
/// After so long without one, a holder is taken to be dead. If he is not, work is done twice and results stay right.
pub(super) const DEAD: Duration = Duration::from_secs(15);

/// Who holds something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// This hold, and no other one.
    pub(super) holder: String,
    /// The machine (or the cache) whose processes keep each other apart by locks.
    pub(super) machine: String,
    /// Was it given back?
    #[serde(default)]
    pub(super) free: bool,
    /// Signs of life so far.
    beats: u64,
}

impl Claim {
    pub(super) fn new(machine: String) -> Self {
        Self { holder: format!("{:016x}", rand::random::<u64>()), machine, free: false, beats: 0 }
    }

    /// The next sign of life; the last one gives it back.
    pub(super) fn beat(&mut self, last: bool) {
        self.beats += 1;
        self.free = last;
    }
}

/// What a waiting process saw, and since when.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: Option<(String, Instant)>,
}

impl Watch {
    /// Has what is seen been the same for too long?
    pub(super) fn is_dead(&mut self, seen: &str) -> bool {
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

/// Gives signs of life from a thread of its own, until it is dropped: then the last one.
#[derive(Debug)]
pub(super) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// `beat` is told whether it is the last one.
    pub(super) fn start(mut beat: impl FnMut(bool) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let run = move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                beat(false);
            }
            beat(true);
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(run);
        let thread = thread.map_err(|error| tracing::warn!("no signs of life will be given: {error}")).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::debug!("a heartbeat died");
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
        assert!(!watch.is_dead_at("2", at(15)), "a sign of life begins the wait anew");
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
