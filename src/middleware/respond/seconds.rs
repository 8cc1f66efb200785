//! Times in headers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use httpdate::fmt_http_date;

pub(super) use crate::domain::rule::seconds;

/// Whole milliseconds, rounded up, and at least 1.
pub(super) fn milliseconds(time: Duration) -> u64 {
    let ms = time.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// The value of `Retry-After`. At least 1: clients treat 0 as "at once", or ignore the header.
pub(in crate::middleware) fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

/// The time so much from now by this machine's clock, in whole seconds since the Unix epoch, rounded up.
pub(super) fn from_epoch(wait: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    seconds(now.unwrap_or_default().saturating_add(wait))
}

/// The value of `Retry-After` as an HTTP date; `None` after the year 9999.
pub(super) fn http_date(since_epoch_s: u64) -> Option<HeaderValue> {
    const YEAR_10_000_S: u64 = 253_402_300_800;
    let date = UNIX_EPOCH.checked_add(Duration::from_secs(since_epoch_s))?;
    let date = (since_epoch_s < YEAR_10_000_S).then(|| fmt_http_date(date))?;
    HeaderValue::try_from(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_after_the_year_9999_is_none() {
        let last = "Fri, 31 Dec 9999 23:59:59 GMT";
        assert_eq!(http_date(253_402_300_799).unwrap(), last);
        assert_eq!(http_date(253_402_300_800), None);
        assert_eq!(http_date(u64::MAX), None);
    }

    #[test]
    fn waiting_times_are_rounded_up_to_at_least_a_second() {
        for (ms, expected) in [
            (0, "1"),
            (1, "1"),
            (1_000, "1"),
            (1_001, "2"),
            (59_999, "60"),
        ] {
            assert_eq!(retry_after(Duration::from_millis(ms)), expected, "{ms} ms");
        }
    }
}
