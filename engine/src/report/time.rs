//! Moments as people write them.

use crate::lineage::civil;

/// A moment in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// Year of the Gregorian calendar.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
    /// 0 to 999.
    pub millisecond: u64,
}

impl Utc {
    /// Of seconds since 1970; times before that become 1970.
    #[must_use]
    pub fn of(unix_seconds: f64) -> Self {
        let milliseconds = (unix_seconds * 1000.0).round().max(0.0) as u64;
        let (seconds, millisecond) = (milliseconds / 1000, milliseconds % 1000);
        let (year, month, day) = civil((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        Self { year, month, day, hour, minute, second, millisecond }
    }
}

/// ISO 8601: `2026-11-20T16:10:23.092Z`.
impl std::fmt::Display for Utc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { year, month, day, hour, minute, second, millisecond } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(20_777), (2026, 11, 20));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(Utc::of(1_795_191_023.092_369).to_string(), "2026-11-20T16:10:23.092Z");
        assert_eq!(Utc::of(951_782_399.999_9).to_string(), "2000-02-29T00:00:00.000Z", "rounded up into the leap day");
        assert_eq!(Utc::of(-1.0).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
