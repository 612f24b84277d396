//! `schedule:` as written: when a pipeline runs on its own, and how overlaps and missed ticks are handled.

use std::time::Duration;

use searchmill_schemas::named;

use super::cadence::{self, Cadence};
use super::field::{self, Fields, Problems, refuse, take};
use super::notify::{self, Notify};
use super::scope::{Shared, part_span};
use super::value::{Spanned, Value};
use crate::diagnostic::Diagnostic;

const KEYS: &[&str] = &["cron", "timezone", "overlap", "catchup", "jitter", "max_runtime", "grace", "notify"];
/// Default time for a run to finish calls in flight.
const GRACE: Duration = Duration::from_mins(1);

/// When a pipeline runs on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The ticks.
    pub cadence: Cadence,
    /// How a tick during an active run is handled.
    pub overlap: Overlap,
    /// How missed ticks are handled.
    pub catchup: Catchup,
    /// Each tick is delayed by a share of this, which depends on the schedule's name and the tick alone.
    pub jitter: Duration,
    /// A run that takes longer is told to stop.
    pub max_runtime: Option<Duration>,
    /// Time to finish calls in flight after that.
    pub grace: Duration,
    /// Whom to tell how a run ended.
    pub notify: Vec<Notify>,
}

named! {
    /// How a tick during an active run is handled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Overlap {
        /// It is skipped.
        #[default]
        Skip = "skip",
        /// It is queued.
        Queue = "queue",
        /// It stops the active run and replaces it.
        Replace = "replace",
        /// It starts a parallel run.
        Allow = "allow",
    }
}

named! {
    /// How missed ticks are handled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Catchup {
        /// All are skipped.
        None = "none",
        /// Only the latest one runs.
        #[default]
        Latest = "latest",
        /// All run, one after another.
        All = "all",
    }
}

/// Reads `schedule:`; `None` after an error, which is reported.
pub(super) fn read(written: Spanned, shared: &mut Shared<'_>) -> Option<Schedule> {
    let (span, known) = (written.span, shared.problems.len());
    let mut fields = field::fields(written, "`schedule`", KEYS, &mut shared.problems);
    // Asked before `cron` is taken: a line that is wrong is not missing.
    let silent = fields.iter().all(|(key, _)| key.text != "cron");
    let cadence = cadence(&mut fields, shared);
    if silent && shared.problems.len() == known {
        let fault = Diagnostic::error("missing-key", "`schedule` has no `cron`").at(span, "");
        shared.report(fault.help("write `cron: \"0 3 * * *\"`"));
    }
    let problems = &mut shared.problems;
    let notify = take(&mut fields, "notify").map(|value| notify::read(&value, problems)).unwrap_or_default();
    let (overlap, mut catchup) = (take(&mut fields, "overlap"), take(&mut fields, "catchup"));
    // `none` may be written as YAML's null.
    if let Some(value) = catchup.as_mut().filter(|value| value.value == Value::Null) {
        value.value = Value::String("none".to_owned());
    }
    let overlap = field::named(overlap.as_ref(), "`overlap`", &Overlap::ALL, Overlap::name, problems);
    let catchup = field::named(catchup.as_ref(), "`catchup`", &Catchup::ALL, Catchup::name, problems);
    let jitter = length(&mut fields, "jitter", 24, problems).unwrap_or_default();
    let max_runtime = length(&mut fields, "max_runtime", 24 * 365, problems);
    let grace = length(&mut fields, "grace", 24, problems).unwrap_or(GRACE);
    // All fields are read before this: their errors are reported together.
    let cadence = cadence.filter(|_| problems.len() == known)?;
    let (overlap, catchup) = (overlap.unwrap_or_default(), catchup.unwrap_or_default());
    Some(Schedule { cadence, overlap, catchup, jitter, max_runtime, grace, notify })
}

fn cadence(fields: &mut Fields, shared: &mut Shared<'_>) -> Option<Cadence> {
    let zone = match take(fields, "timezone") {
        Some(value) => zone(&value, shared),
        None => Some(chrono_tz::Tz::UTC),
    };
    let value = take(fields, "cron")?;
    let line = field::text(&value, "`cron`", &mut shared.problems)?;
    // The line is checked even if the time zone is invalid.
    match Cadence::new(&line, zone.unwrap_or(chrono_tz::Tz::UTC)) {
        Ok(cadence) => zone.map(|_| cadence),
        Err(bad) => {
            let span = match (&bad.part, value.via) {
                (Some(part), None) => part_span(shared.sources, value.span, &line, part),
                _ => value.span,
            };
            let fault = Diagnostic::error("bad-cron", format!("`{line}` is not a cron line: {}", bad.message));
            shared.refuse(fault.at(span, "").used_at(value.via).help(
                "five fields, `minute hour day month weekday`, or six with seconds first: `0 3 * * *` is every night at three",
            ))
        }
    }
}

fn zone(value: &Spanned, shared: &mut Shared<'_>) -> Option<chrono_tz::Tz> {
    let name = field::text(value, "`timezone`", &mut shared.problems)?;
    match cadence::zone(&name) {
        Ok(zone) => Some(zone),
        Err(meant) => {
            let fault = field::fault("bad-timezone", value, format!("unknown time zone `{name}`"));
            shared.refuse(fault.help(match meant {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "a time zone is written by its IANA name: `Europe/Berlin`, `Asia/Shanghai`, `UTC`".to_owned(),
            }))
        }
    }
}

/// Reads a duration of at most `most` hours.
fn length(fields: &mut Fields, name: &str, most: u64, problems: &mut Problems) -> Option<Duration> {
    let value = take(fields, name)?;
    let length = field::duration(&value, &format!("`{name}`"), problems)?;
    if length > Duration::from_hours(most) {
        return refuse(problems, field::fault("bad-value", &value, format!("`{name}` must be at most {most} hours")));
    }
    if length.is_zero() && name == "max_runtime" {
        let fault = field::fault("bad-value", &value, "`max_runtime` of 0 stops every run");
        return refuse(problems, fault.help("leave it out for no limit"));
    }
    Some(length)
}
