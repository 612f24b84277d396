//! Sends a run's OpenLineage events to a file or to an HTTP endpoint. Failed deliveries never fail the run; they are
//! reported once, at the end.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use searchmill_engine::lineage::openlineage::{Emitter, Ending};
use searchmill_engine::operator::{has_user_info, root_cause};
use searchmill_engine::{Event, Failure, PreparedRun, Reporter, RunSummary, unix_time};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Path of the API below OPENLINEAGE_URL, as in OpenLineage's own clients.
const ENDPOINT: &str = "api/v1/lineage";
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts per event.
const ATTEMPTS: u32 = 3;
/// Number of consecutive failed events after which sending stops.
const GIVE_UP: usize = 3;
/// Maximum wait for the last deliveries after the end of the run.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Destination of the events.
enum Target {
    File(PathBuf),
    Http(String),
}

impl Target {
    fn read(written: &str, directory: &Path) -> Self {
        let Some((_, after)) = written.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        else {
            return Self::File(directory.join(written));
        };
        // An address with a path is complete; only a bare host gets the path of the API.
        if after.trim_end_matches('/').contains('/') {
            return Self::Http(written.to_owned());
        }
        let endpoint = variable("OPENLINEAGE_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Self::Http(format!("{}/{}", written.trim_end_matches('/'), endpoint.trim_start_matches('/')))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Forwards the events of a run, and sends them as OpenLineage events.
struct Teller {
    inner: Arc<dyn Reporter>,
    state: Mutex<(Emitter, Sink)>,
    count: Arc<Mutex<Count>>,
}

enum Sink {
    File(File),
    Http(UnboundedSender<Option<Value>>),
}

/// What became of the events.
#[derive(Clone, Debug, Default)]
struct Count {
    sent: usize,
    arrived: usize,
    /// Reason for the last failed delivery.
    reason: String,
}

/// Pending deliveries.
pub(crate) struct Delivery {
    teller: Arc<Teller>,
    sending: Option<tokio::task::JoinHandle<()>>,
    target: String,
}

/// Starts sending a run's events, if requested by flag or environment; returns the reporter to use. Must be called on
/// a runtime.
pub(crate) fn begin(
    written: Option<&str>,
    run: &PreparedRun,
    directory: &Path,
    inner: Arc<dyn Reporter>,
) -> Result<(Arc<dyn Reporter>, Option<Delivery>), Failure> {
    let off = variable("OPENLINEAGE_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let Some(written) = written.filter(|written| !written.is_empty() && !off) else { return Ok((inner, None)) };
    if has_user_info(written) {
        let failure = Failure::usage("--openlineage: the address must hold no user name or password");
        return Err(failure.with_help("set OPENLINEAGE_API_KEY"));
    }
    let emitter = run.emitter(variable("OPENLINEAGE_NAMESPACE").unwrap_or_else(|| "searchmill".to_owned()));
    let count = Arc::<Mutex<Count>>::default();
    let (sink, sending, target) = match Target::read(written, directory) {
        // Appended: the events of several runs may share the file.
        Target::File(path) => match File::options().create(true).append(true).open(&path) {
            Ok(file) => (Sink::File(file), None, path.display().to_string()),
            Err(error) => {
                let message = format!("--openlineage: cannot write {}: {error}", path.display());
                return Err(Failure::usage(message));
            }
        },
        Target::Http(url) => {
            // Redirects are not followed: events and the key go only to the given address.
            let client = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
            // Built to check the address: a wrong one is reported before the run.
            let checked = client.build().and_then(|client| client.post(&url).build().map(|_| client));
            let client =
                checked.map_err(|error| Failure::usage(format!("--openlineage: invalid address {url}: {error}")))?;
            let (sender, receiver) = unbounded_channel();
            let key = variable("OPENLINEAGE_API_KEY");
            let sending = tokio::spawn(send_all(receiver, client, url.clone(), key, Arc::clone(&count)));
            (Sink::Http(sender), Some(sending), url)
        }
    };
    let teller = Arc::new(Teller { inner, state: Mutex::new((emitter, sink)), count });
    Ok((Arc::clone(&teller) as Arc<dyn Reporter>, Some(Delivery { teller, sending, target })))
}

impl Delivery {
    /// Waits for the last deliveries; returns a warning if an event was not delivered.
    pub(crate) async fn finish(self) -> Option<String> {
        let mut late = false;
        if let Some(sending) = self.sending {
            // `None` marks the end: the reporter still holds the sender, so the channel does not close by itself.
            if let Sink::Http(sender) = &lock(&self.teller.state).1 {
                // A closed receiver has already reported its reason.
                drop(sender.send(None));
            }
            late = tokio::time::timeout(LAST_WAIT, sending).await.is_err();
        }
        let Count { sent, arrived, mut reason } = lock(&self.teller.count).clone();
        if late && reason.is_empty() {
            reason = format!("no answer within {} s of the end of the run", LAST_WAIT.as_secs());
        }
        let (lost, target) = (sent - arrived, self.target);
        (lost > 0).then(|| format!("OpenLineage: {lost} of {sent} events did not arrive at {target}: {reason}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ending(summary: &RunSummary) -> Ending {
    match summary {
        // ABORT is a run that was stopped, also by its budget; a failed node outweighs the budget.
        _ if summary.interrupted || (summary.budget.is_some() && summary.failed == 0) => Ending::Abort,
        _ if summary.failed > 0 => Ending::Fail,
        _ => Ending::Complete,
    }
}

fn tell(emitter: &mut Emitter, event: &Event) -> Vec<Value> {
    match event {
        Event::RunStarted { run, time, .. } => emitter.run_started(run, *time),
        Event::NodeStarted { node, reasons, time, .. } => {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            emitter.node_started(node, &reasons, *time)
        }
        Event::NodeCached { node, key, .. } => emitter.node_cached(node, key.as_ref(), unix_time()),
        Event::NodeFinished { node, key, .. } => emitter.node_finished(node, key, unix_time()),
        Event::NodeChecked { node, checks } => {
            emitter.checked(node, checks);
            Vec::new()
        }
        Event::NodeFailed { node, message, .. } => emitter.node_failed(node, message, unix_time()),
        Event::NodeSkipped { node } => emitter.node_skipped(node, unix_time()),
        Event::RunFinished(summary) => emitter.run_finished(ending(summary), unix_time()),
        Event::Delivered { node, destination } => {
            // Removes the remark on an unchanged destination.
            emitter.delivered(node, destination.trim_end_matches(" (unchanged)"));
            Vec::new()
        }
        Event::NodeWaiting { .. }
        | Event::NodeProgress { .. }
        | Event::NodeLog { .. }
        | Event::HeldBack { .. }
        | Event::LoopEnded { .. }
        | Event::NodeEnded { .. }
        | Event::CallRetried { .. }
        | Event::EndpointSilent { .. }
        | Event::EndpointHeard { .. }
        | Event::BudgetUsedUp { .. }
        | Event::NodeReleased { .. } => Vec::new(),
    }
}

impl Reporter for Teller {
    fn event(&self, event: &Event) {
        self.inner.event(event);
        // Progress is frequent and not part of OpenLineage.
        if matches!(event, Event::NodeProgress { .. } | Event::NodeLog { .. }) {
            return;
        }
        // One lock for both: events leave in the order in which the emitter made them.
        let (emitter, sink) = &mut *lock(&self.state);
        for told in tell(emitter, event) {
            lock(&self.count).sent += 1;
            match sink {
                Sink::File(file) => {
                    let written = file.write_all(format!("{told}\n").as_bytes());
                    lock(&self.count).note(written.map_err(|error| error.to_string()));
                }
                Sink::Http(sender) => drop(sender.send(Some(told))),
            }
        }
    }
}

impl Count {
    fn note(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.arrived += 1,
            Err(reason) => self.reason = reason,
        }
    }
}

async fn send_all(
    mut events: UnboundedReceiver<Option<Value>>,
    client: reqwest::Client,
    url: String,
    key: Option<String>,
    count: Arc<Mutex<Count>>,
) {
    let mut in_a_row = 0;
    while let Some(Some(event)) = events.recv().await {
        if in_a_row >= GIVE_UP {
            continue;
        }
        let outcome = send(&client, &url, key.as_deref(), &event, &count).await;
        in_a_row = if outcome.is_ok() { 0 } else { in_a_row + 1 };
        lock(&count).note(outcome);
    }
}

/// Sends one event, with retries after transient failures.
async fn send(
    client: &reqwest::Client,
    url: &str,
    key: Option<&str>,
    event: &Value,
    count: &Mutex<Count>,
) -> Result<(), String> {
    let mut wait = Duration::from_millis(200);
    let mut attempt = 1;
    loop {
        let mut request = client.post(url).json(event);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let (reason, again) = match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => {
                let status = answer.status();
                let moved = ", and redirects are not followed: give the final URL";
                let more = if status.is_redirection() { moved } else { "" };
                // Another 4xx status would be the same at the next attempt.
                (format!("it answered {status}{more}"), status.is_server_error() || status.as_u16() == 429)
            }
            Err(error) => (root_cause(&error), true),
        };
        if !again || attempt == ATTEMPTS {
            return Err(reason);
        }
        // Set before the last attempt, in case the run ends first.
        lock(count).reason.clone_from(&reason);
        attempt += 1;
        tokio::time::sleep(wait).await;
        wait *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_usual_endpoint_unless_they_name_one() {
        let read = |written: &str| match Target::read(written, Path::new("/work")) {
            Target::File(path) => path.display().to_string(),
            Target::Http(url) => url,
        };
        assert_eq!(read("http://127.0.0.1:5000"), "http://127.0.0.1:5000/api/v1/lineage");
        assert_eq!(read("https://lineage.example/"), "https://lineage.example/api/v1/lineage");
        assert_eq!(read("http://127.0.0.1:5000/in?x=1"), "http://127.0.0.1:5000/in?x=1");
        assert_eq!(read("events.jsonl"), "/work/events.jsonl");
        assert_eq!(read("/tmp/events.jsonl"), "/tmp/events.jsonl");
    }
}
