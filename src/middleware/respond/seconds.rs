//! Times in headers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;

/// Whole seconds, rounded up: a client that returns early would be denied again.
pub(super) const fn seconds(time: Duration) -> u64 {
    let partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(partial as u64)
}

/// Whole milliseconds, rounded up, and at least 1.
pub(super) fn milliseconds(time: Duration) -> u64 {
    let ms = time.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// The value of `retry-after-ms`.
pub(super) fn retry_after_ms(wait: Duration) -> HeaderValue {
    HeaderValue::from(milliseconds(wait))
}

/// The value of `Retry-After`. At least 1: clients treat 0 as "at once", or ignore the header.
pub(in crate::middleware) fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

/// The value of `Retry-After` as an HTTP date by this machine's clock; `None` after the year 9999.
pub(super) fn retry_after_date(wait: Duration) -> Option<HeaderValue> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = now.unwrap_or_default().saturating_add(wait);
    HeaderValue::try_from(http_date(seconds(end))?).ok()
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(since_epoch_s: u64) -> Option<String> {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    // Years begin in March here, so that the day that some of them lack is their last.
    const MONTHS: [&str; 12] = [
        "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
    ];
    const FOUR_CENTURIES: u64 = 146_097;
    let (days, second) = (since_epoch_s / 86_400, since_epoch_s % 86_400);
    let weekday = WEEKDAYS[usize::try_from(days % 7).ok()?];
    // From the first of March of the year 0 on.
    let days = days + 719_468;
    let day = days % FOUR_CENTURIES;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = days / FOUR_CENTURIES * 400 + year + u64::from(month >= 10);
    let month = MONTHS[usize::try_from(month).ok()?];
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    (year < 10_000).then(|| {
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_709_251_200, "Fri, 01 Mar 2024 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(http_date(seconds).as_deref(), Some(expected));
        }
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
