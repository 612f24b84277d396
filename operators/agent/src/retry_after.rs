//! `Retry-After`: the delay that a server asks for.

use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

/// Returns the requested delay: `Retry-After-Ms` (milliseconds, sent by some APIs), seconds, or an HTTP date. A date
/// is relative to the response's own `Date` header, so clock errors do not matter; without that header a date is
/// ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(milliseconds) = number(headers, "retry-after-ms") {
        // `parse` also reads negative numbers, `inf` and `NaN`, which are no delays.
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    if let Some(seconds) = number(headers, RETRY_AFTER.as_str()) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    date(headers, &RETRY_AFTER)?.duration_since(date(headers, &DATE)?).ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<f64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(pairs: &[(&'static str, &str)]) -> Option<Duration> {
        let parse = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("a header value"))
        };
        retry_after(&pairs.iter().map(parse).collect())
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_read() {
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "0.25")]), Some(Duration::from_millis(250)));
        assert_eq!(wait(&[("retry-after-ms", "40"), ("retry-after", "1")]), Some(Duration::from_millis(40)));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT"), date]), Some(Duration::from_secs(23)));
    }

    #[test]
    fn what_cannot_be_understood_is_no_wish() {
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after", "soon")]), None);
        assert_eq!(wait(&[("retry-after", "-3")]), None);
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT")]), None);
        assert_eq!(wait(&[("retry-after", "1e300")]), None);
    }
}
