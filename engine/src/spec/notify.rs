//! `notify:` of a schedule as written: whom the daemon tells how a run ended, and when.

use searchmill_schemas::named;
use serde::{Deserialize, Serialize};

use super::field::{self, Problems, refuse, take};
use super::value::{Spanned, Value};
use crate::diagnostic::Diagnostic;
use crate::endpoint::has_user_info;

named! {
    /// How a run ended, seen together with the runs before it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Occasion {
        /// It failed, was lost or took too long.
        Failure = "failure",
        /// A check or too many lost rows hold back what it would have delivered.
        Held = "held",
        /// It succeeded after a failure or held outputs.
        Recovery = "recovery",
        /// The budget was used up.
        Budget = "budget",
    }
}

/// The occasions without `on:`.
const USUAL: [Occasion; 3] = [Occasion::Failure, Occasion::Held, Occasion::Recovery];

/// Whom to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Notify {
    /// The receiver.
    pub to: Receiver,
    /// When.
    pub on: Vec<Occasion>,
}

/// A receiver of notes.
#[derive(Clone, Debug, PartialEq)]
pub enum Receiver {
    /// A URL that takes JSON by POST. `${secret:…}` in it is a reference.
    Webhook(String),
    /// A program that reads JSON from its standard input.
    Program(Vec<String>),
}

/// Reads one receiver or a list of them.
pub(super) fn read(value: &Spanned, problems: &mut Problems) -> Vec<Notify> {
    if matches!(value.value, Value::Null | Value::Broken) {
        return Vec::new();
    }
    value.as_list().iter().filter_map(|item| one(item, problems)).collect()
}

fn one(item: &Spanned, problems: &mut Problems) -> Option<Notify> {
    let mut fields = field::fields(item.clone(), "`notify`", &["webhook", "program", "on"], problems);
    let (webhook, program) = (take(&mut fields, "webhook"), take(&mut fields, "program"));
    let on = match take(&mut fields, "on") {
        Some(on) => occasions(&on, problems),
        None => USUAL.to_vec(),
    };
    let to = match (webhook, program) {
        (Some(url), None) => Receiver::Webhook(address(&url, problems)?),
        (None, Some(words)) => Receiver::Program(words_of(&words, problems)?),
        _ => {
            let fault = Diagnostic::error("missing-key", "`notify` needs a `webhook` or a `program`").at(item.span, "");
            return refuse(problems, fault.help("write `notify: {webhook: \"${secret:HOOK_URL}\"}`"));
        }
    };
    Some(Notify { to, on })
}

fn address(value: &Spanned, problems: &mut Problems) -> Option<String> {
    let url = field::text(value, "`webhook`", problems)?;
    // The address in a secret is known only when a note is sent.
    let is_web = ["http://", "https://", "${secret:"].iter().any(|start| url.starts_with(start));
    // A user name in a URL comes with a password, which belongs in a secret.
    if !is_web || has_user_info(&url) {
        let fault = field::fault("bad-value", value, "`webhook` is no http or https URL without a user name");
        return refuse(problems, fault.help("write a URL, or `${secret:NAME}` for one that only the environment has"));
    }
    Some(url)
}

fn words_of(value: &Spanned, problems: &mut Problems) -> Option<Vec<String>> {
    let items = value.as_list();
    let words: Vec<String> = items.iter().filter_map(|item| field::text(item, "`program`", problems)).collect();
    (!words.is_empty() && words.len() == items.len()).then_some(words)
}

fn occasions(value: &Spanned, problems: &mut Problems) -> Vec<Occasion> {
    let mut occasions = Vec::new();
    for item in value.as_list() {
        occasions.extend(field::named(Some(item), "`on`", &Occasion::ALL, Occasion::name, problems));
    }
    occasions
}
