//! Moments as text.

/// A Unix time as RFC 3339 in UTC, to the millisecond: `2026-11-20T13:15:02.250Z`.
#[must_use]
pub fn rfc3339(unix: f64) -> String {
    let millis = (unix.max(0.0) * 1000.0).round() as i64;
    let (days, rest) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    let (year, month, day) = civil(days);
    let (seconds, millis) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Days since 1970 to (year, month, day) of the Gregorian calendar (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`).
pub(crate) fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_utc() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(20_777), (2026, 11, 20));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(rfc3339(0.0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399.999_6), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_180_502.25), "2026-11-20T13:15:02.250Z");
    }
}
