//! Formats times.

/// Formats a Unix time as RFC 3339 in UTC, to the millisecond: `2026-11-20T13:15:02.250Z`.
pub fn rfc3339(unix: f64) -> String {
    let moment = chrono::DateTime::from_timestamp_millis((unix.max(0.0) * 1000.0).round() as i64);
    moment.unwrap_or_default().to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_utc() {
        assert_eq!(rfc3339(0.0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399.999_6), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_180_502.25), "2026-11-20T13:15:02.250Z");
        assert_eq!(rfc3339(1_795_191_023.092_369), "2026-11-20T16:10:23.092Z");
        assert_eq!(rfc3339(951_782_399.999_9), "2000-02-29T00:00:00.000Z", "rounded up into the leap day");
        assert_eq!(rfc3339(-1.0), "1970-01-01T00:00:00.000Z");
    }
}
