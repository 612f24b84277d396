//! Delivers the notes of a schedule: JSON to a webhook or to a program, in bounded time, with retries.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use searchmill_engine::operator::{http_client, root_cause};
use searchmill_engine::{NoteReceiver, Notify};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

/// Attempts per receiver.
const ATTEMPTS: u32 = 3;
/// Time for one attempt.
const WITHIN: Duration = Duration::from_secs(10);
/// Pause before the second attempt; before the third, five times as long.
const PAUSE: Duration = Duration::from_secs(1);

/// Sends a note to all receivers; returns what failed, without secrets.
pub(super) async fn send(receivers: &[Notify], note: &Value, directory: &Path) -> Vec<String> {
    let sending = Sending { note, directory, client: http_client().map_err(|error| error.message) };
    let mut problems = Vec::new();
    for receiver in receivers {
        // A receiver that fails does not keep the note from the others.
        if let Err(problem) = sending.patiently(&receiver.to).await {
            problems.push(format!("cannot notify {}: {problem}", shown(&receiver.to)));
        }
    }
    problems
}

/// A note that is sent.
struct Sending<'a> {
    note: &'a Value,
    directory: &'a Path,
    /// The client of all attempts at webhooks.
    client: Result<reqwest::Client, String>,
}

impl Sending<'_> {
    async fn patiently(&self, to: &NoteReceiver) -> Result<(), String> {
        // A dead receiver takes at most 36 s: three times 10 s, and pauses of 1 s and 5 s.
        let mut pause = PAUSE;
        let mut attempt = 1;
        loop {
            let problem = match tokio::time::timeout(WITHIN, self.once(to)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(problem)) => problem,
                Err(_) => format!("no answer within {} s", WITHIN.as_secs()),
            };
            if attempt == ATTEMPTS {
                return Err(format!("{problem} ({ATTEMPTS} attempts)"));
            }
            tokio::time::sleep(pause).await;
            (attempt, pause) = (attempt + 1, pause * 5);
        }
    }

    async fn once(&self, to: &NoteReceiver) -> Result<(), String> {
        match to {
            // Resolved only here: state and notes hold the reference, never the secret.
            NoteReceiver::Webhook(url) => self.post(&resolved(url)?).await,
            NoteReceiver::Program(words) => {
                let words = words.iter().map(|word| resolved(word)).collect::<Result<Vec<_>, _>>()?;
                run(&words, self.note, self.directory).await
            }
        }
    }

    async fn post(&self, url: &str) -> Result<(), String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        match client.post(url).json(self.note).send().await {
            Ok(sent) if sent.status().is_success() => Ok(()),
            Ok(sent) => Err(format!("status {}", sent.status().as_u16())),
            Err(error) if error.is_builder() => Err("the address is no http or https URL".to_owned()),
            // The address may contain a secret.
            Err(error) => Err(root_cause(&error.without_url())),
        }
    }
}

/// Returns the value of a reference to a secret, or the text itself.
fn resolved(text: &str) -> Result<String, String> {
    let Some(name) = text.strip_prefix("${secret:").and_then(|rest| rest.strip_suffix('}')) else {
        return Ok(text.to_owned());
    };
    std::env::var(name).map_err(|_| format!("the secret `{name}` is not set"))
}

async fn run(words: &[String], note: &Value, directory: &Path) -> Result<(), String> {
    let (program, args) = words.split_first().ok_or("there is no program")?;
    let mut command = tokio::process::Command::new(program);
    command.args(args).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // Killed with the attempt, when its time is over.
    command.env("SEARCHMILL_OCCASION", note["occasion"].as_str().unwrap_or_default()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("cannot start it: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        let text = format!("{note}\n");
        if let Err(error) = input.write_all(text.as_bytes()).await {
            // Its exit status decides: a program may succeed without reading the note.
            tracing::debug!("the program of a note does not read it: {error}");
        }
        // Closed here: a program that reads to the end would wait for ever.
    }
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) }
}

/// Names a receiver without what may be secret: the host of a webhook, or the program.
fn shown(to: &NoteReceiver) -> String {
    match to {
        NoteReceiver::Program(words) => format!("`{}`", words.first().map_or("", String::as_str)),
        // The path of a webhook is often its only password (Slack, Discord).
        NoteReceiver::Webhook(url) => {
            // `https:`, nothing, and the host.
            let host = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
            if url.len() > host.len() { format!("{host}/…") } else { host }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_named_by_their_host_alone() {
        let shown = |url: &str| shown(&NoteReceiver::Webhook(url.to_owned()));
        assert_eq!(shown("https://hooks.example.com/services/T0/B1"), "https://hooks.example.com/…");
        assert_eq!(shown("https://hooks.example.com"), "https://hooks.example.com");
        assert_eq!(shown("${secret:HOOK}"), "${secret:HOOK}");
        assert!(resolved("${secret:SURELY_NOT_SET_HERE}").unwrap_err().contains("SURELY_NOT_SET_HERE"));
        assert_eq!(resolved("https://h/x").as_deref(), Ok("https://h/x"));
    }
}
