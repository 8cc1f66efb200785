//! Times in headers.

use std::time::Duration;

use http::HeaderValue;

/// Whole seconds, rounded up: a client that returns early would be denied again.
pub(super) const fn seconds(time: Duration) -> u64 {
    let partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(partial as u64)
}

/// The value of `Retry-After`. At least 1: clients treat 0 as "at once", or ignore the header.
pub(in crate::middleware) fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

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
