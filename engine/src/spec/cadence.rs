//! Cadence: the ticks of a cron line in a time zone.
//!
//! Daylight saving time follows Vixie cron. A fixed time skipped in spring moves to the first moment after the gap; a
//! fixed time repeated in autumn occurs only the first time. A line with `*` or a step in seconds, minutes or hours
//! follows the wall clock: nothing in the gap, both passes of the repeated hour. A list or range counts as several
//! fixed times.

use chrono::{DateTime, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use croner::Cron;

use super::suggest;

/// A point in time.
pub type Time = DateTime<Utc>;

/// Limit of fixed times into which lists and ranges are expanded.
const MOST_TIMES: usize = 64;
/// Limit of a cron line's length in bytes.
const LONGEST: usize = 200;

/// A cron line in a time zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Cadence {
    text: String,
    /// The line, or one line per fixed time.
    lines: Vec<Cron>,
    zone: Tz,
}

/// Why a cron line is invalid.
#[derive(Debug, PartialEq)]
pub(super) struct BadCron {
    /// The reason.
    pub(super) message: String,
    /// The faulty byte range of the line, if known.
    pub(super) part: Option<std::ops::Range<usize>>,
}

impl Cadence {
    /// Parses a cron line: `minute hour day month weekday`, or six fields with seconds first, or seven with a year
    /// last.
    pub(super) fn new(line: &str, zone: Tz) -> Result<Self, BadCron> {
        if line.len() > LONGEST || !line.is_ascii() {
            let message = format!("it is not ASCII or longer than {LONGEST} characters");
            return Err(BadCron { message, part: None });
        }
        let whole = parse(line).map_err(|message| BadCron { message, part: to_blame(line) })?;
        // `9,17` would follow the wall clock, where `9` and `17` alone are fixed times.
        let lines = fixed_times(line).unwrap_or_else(|| vec![whole]);
        let cadence = Self { text: line.split_whitespace().collect::<Vec<_>>().join(" "), lines, zone };
        // A line such as `0 0 30 2 *` is well-formed, and the daemon would wait for ever.
        match cadence.after(DateTime::UNIX_EPOCH) {
            Some(_) => Ok(cadence),
            None => Err(BadCron { message: "no such day ever comes".to_owned(), part: None }),
        }
    }

    /// Restores a cadence from [`Self::cron`] and [`Self::timezone`].
    pub fn recall(cron: &str, timezone: &str) -> Option<Self> {
        Self::new(cron, zone(timezone).ok()?).ok()
    }

    /// Returns the cron line.
    pub fn cron(&self) -> &str {
        &self.text
    }

    /// Returns the time zone's name.
    pub fn timezone(&self) -> &'static str {
        self.zone.name()
    }

    /// Returns the first tick after that time, or `None` if there is none (a line with a year).
    pub fn after(&self, time: Time) -> Option<Time> {
        let time = time.with_timezone(&self.zone);
        let next = self.lines.iter().filter_map(|line| line.find_next_occurrence(&time, false).ok()).min()?;
        Some(next.with_timezone(&Utc))
    }

    /// Returns the last tick before that time.
    pub fn before(&self, time: Time) -> Option<Time> {
        // Cron counts whole seconds: half a second after a tick, that tick is already before.
        let within = time.timestamp_subsec_nanos() > 0;
        let time = time.with_timezone(&self.zone);
        let last = self.lines.iter().filter_map(|line| line.find_previous_occurrence(&time, within).ok()).max()?;
        Some(last.with_timezone(&Utc))
    }

    /// Formats a time in the local time zone: `2026-03-29 03:00:00 CEST`.
    pub fn local(&self, time: Time) -> String {
        time.with_timezone(&self.zone).format("%Y-%m-%d %H:%M:%S %Z").to_string()
    }
}

fn parse(line: &str) -> Result<Cron, String> {
    let fields = line.split_whitespace().count();
    if !line.trim_start().starts_with('@') && !(5..=7).contains(&fields) {
        return Err(format!("it has {fields} field{}", if fields == 1 { "" } else { "s" }));
    }
    line.parse::<Cron>().map_err(|error| plain(&error.to_string()))
}

/// Expands lists and ranges to one line per time of day: the parser treats only single values as fixed times.
fn fixed_times(line: &str) -> Option<Vec<Cron>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    // Five fields begin with minutes and hours; six and seven with seconds before them.
    let clock = fields.len().min(7).checked_sub(5)?.min(1) + 2;
    let mut heads = vec![String::new()];
    for field in &fields[..clock] {
        let values = values(field)?;
        heads = heads.iter().flat_map(|head| values.iter().map(move |value| format!("{head}{value} "))).collect();
        if heads.len() > MOST_TIMES {
            return None;
        }
    }
    let rest = fields[clock..].join(" ");
    heads.iter().map(|head| format!("{head}{rest}").parse().ok()).collect()
}

/// Returns the numbers of a field without `*` and steps.
fn values(field: &str) -> Option<Vec<u32>> {
    let mut values = Vec::new();
    for piece in field.split(',') {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        values.extend(first.parse().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(values)
}

/// Returns the parser's message without its type names.
fn plain(message: &str) -> String {
    let (_, reason) = message.split_once(": ").unwrap_or(("", message));
    let reason = reason.trim_end_matches('.').replace("CronPattern", "a cron line");
    let mut chars = reason.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Returns the only field that is invalid even if all others are `*`.
fn to_blame(line: &str) -> Option<std::ops::Range<usize>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if !(5..=7).contains(&fields.len()) {
        return None;
    }
    for (index, field) in fields.iter().enumerate() {
        let mut alone = vec!["*"; fields.len()];
        alone[index] = field;
        if alone.join(" ").parse::<Cron>().is_err() {
            let start = field.as_ptr() as usize - line.as_ptr() as usize;
            return Some(start..start + field.len());
        }
    }
    None
}

/// Returns a time zone by its IANA name, or the name that was probably meant.
pub(super) fn zone(name: &str) -> Result<Tz, Option<&'static str>> {
    if let Ok(zone) = name.parse::<Tz>() {
        return Ok(zone);
    }
    // The name of a city alone, and another case, are meant more often than a similar name.
    let city = name.replace(' ', "_").to_ascii_lowercase();
    for zone in TZ_VARIANTS {
        let known = zone.name().to_ascii_lowercase();
        if known == city || known.rsplit('/').next() == Some(city.as_str()) {
            return Err(Some(zone.name()));
        }
    }
    Err(suggest::closest(name, TZ_VARIANTS.iter().map(|zone| zone.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cadence(line: &str, zone: &str) -> Cadence {
        Cadence::new(line, zone.parse().unwrap()).unwrap()
    }

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    /// Returns the ticks after a time, in UTC without the year.
    fn ticks(line: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cadence = cadence(line, zone);
        let next = std::iter::successors(cadence.after(at(from)), |tick| cadence.after(*tick));
        next.take(count).map(|tick| tick.format("%m-%dT%H:%M:%S").to_string()).collect()
    }

    #[test]
    fn seconds_and_years_are_optional() {
        assert_eq!(ticks("0 3 * * *", "UTC", "2026-11-20T10:00:00Z", 2), ["11-21T03:00:00", "11-22T03:00:00"]);
        assert_eq!(ticks("*/20 * * * * *", "UTC", "2026-11-20T10:00:00Z", 2), ["11-20T10:00:20", "11-20T10:00:40"]);
        assert_eq!(ticks("0 0 3 1 1 * 2027", "UTC", "2026-11-20T10:00:00Z", 9), ["01-01T03:00:00"]);
        assert_eq!(ticks("@daily", "UTC", "2026-11-20T10:00:00Z", 1), ["11-21T00:00:00"]);
        assert_eq!(ticks("0 9 * * MON", "UTC", "2026-11-20T10:00:00Z", 1), ["11-23T09:00:00"]);
    }

    #[test]
    fn a_spring_night_moves_fixed_times_and_drops_steps() {
        // Berlin, 2026-03-29: 02:00 CET is 03:00 CEST, 01:00 UTC.
        let nights = ticks("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 3);
        assert_eq!(nights, ["03-28T01:30:00", "03-29T01:00:00", "03-30T00:30:00"]);
        let halves = ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 4);
        assert_eq!(halves, ["03-29T00:30:00", "03-29T01:00:00", "03-29T01:30:00", "03-29T02:00:00"]);
        // A list counts as several fixed times; two of them in one gap are one tick.
        let twice = ticks("0 2,14 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 3);
        assert_eq!(twice, ["03-29T01:00:00", "03-29T12:00:00", "03-30T00:00:00"]);
        let pair = ticks("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2);
        assert_eq!(pair, ["03-29T01:00:00", "03-30T00:00:00"]);
    }

    #[test]
    fn an_autumn_night_has_fixed_times_once_and_steps_twice() {
        // Berlin, 2026-10-25: 03:00 CEST is 02:00 CET, 01:00 UTC.
        let nights = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
        assert_eq!(nights, ["10-25T00:30:00", "10-26T01:30:00"]);
        let halves = ticks("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59:00Z", 5);
        assert_eq!(halves, ["10-25T00:00:00", "10-25T00:30:00", "10-25T01:00:00", "10-25T01:30:00", "10-25T02:00:00"]);
        // Half an hour of summer time.
        let island = ticks("45 1 * * *", "Australia/Lord_Howe", "2026-04-03T20:00:00Z", 2);
        assert_eq!(island, ["04-04T14:45:00", "04-05T15:15:00"]);
    }

    #[test]
    fn backwards_gives_the_same_ticks_as_forwards() {
        let zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];
        for zone in zones {
            for line in ["30 2 * * *", "*/30 * * * *", "0 0 * * *", "15 1,2,3 * * *", "0 */6 * * SUN"] {
                let cadence = cadence(line, zone);
                let (start, end) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
                let forwards = std::iter::successors(cadence.after(start), |tick| cadence.after(*tick));
                let forwards: Vec<Time> = forwards.take_while(|tick| *tick < end).collect();
                let backwards = std::iter::successors(cadence.before(end), |tick| cadence.before(*tick));
                let mut backwards: Vec<Time> = backwards.take_while(|tick| *tick > start).collect();
                backwards.reverse();
                assert_eq!(forwards, backwards, "{line} in {zone}");
                assert!(forwards.len() > 40, "{line} in {zone}");
            }
        }
    }

    #[test]
    fn bad_lines_blame_a_field() {
        let bad = |line: &str| Cadence::new(line, Tz::UTC).unwrap_err();
        assert_eq!(bad("0 25 * * *").part, Some(2..4));
        assert_eq!(bad("0  3 * * NEVER").part, Some(9..14));
        assert_eq!(bad("0 3 * *").message, "it has 4 fields");
        assert_eq!(bad("").message, "it has 0 fields");
        assert_eq!(bad("0 3 30 2 *").message, "no such day ever comes");
        assert!(bad("@sometimes").part.is_none());
        assert!(bad("0 3 * * é").part.is_none());
        assert!(bad(&"1,".repeat(200)).message.contains("200"));
    }

    #[test]
    fn zones_are_found_by_what_people_write() {
        assert_eq!(zone("Europe/Berlin"), Ok(Tz::Europe__Berlin));
        assert_eq!(zone("berlin"), Err(Some("Europe/Berlin")));
        assert_eq!(zone("new york"), Err(Some("America/New_York")));
        assert_eq!(zone("europe/berlin"), Err(Some("Europe/Berlin")));
        assert_eq!(zone("Europe/Belrin"), Err(Some("Europe/Berlin")));
        assert_eq!(zone("Middle-earth/Shire"), Err(None));
    }
}
