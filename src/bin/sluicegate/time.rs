//! How the tool writes times of the server: in UTC, to the millisecond.

use super::text::formatted;

/// Date and time: `2026-11-22 14:40:03.123 UTC`.
pub(crate) fn date_time(ms: u64) -> String {
    formatted(ms, "%Y-%m-%d %H:%M:%S%.3f UTC")
}

/// The time, with the date if it is more than half a day from `now_ms`.
pub(crate) fn time(ms: u64, now_ms: u64) -> String {
    if ms.abs_diff(now_ms) < 43_200_000 {
        formatted(ms, "%H:%M:%S%.3f")
    } else {
        formatted(ms, "%Y-%m-%d %H:%M:%S%.3f")
    }
}

/// A span of time in at most two units: `417ms`, `23.417s`, `12m 5s`, `3h 12m`, `2d 3h`.
pub(crate) fn span(ms: u64) -> String {
    let two = |large: u64, name, small: u64, small_name| match small {
        0 => format!("{large}{name}"),
        small => format!("{large}{name} {small}{small_name}"),
    };
    let s = ms / 1_000;
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms.is_multiple_of(1_000) => format!("{s}s"),
        1_000..60_000 => format!("{s}.{:03}s", ms % 1_000),
        60_000..3_600_000 => two(s / 60, "m", s % 60, "s"),
        3_600_000..86_400_000 => two(s / 3_600, "h", s / 60 % 60, "m"),
        _ => two(s / 86_400, "d", s / 3_600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (23_417, "23.417s"),
            (60_000, "1m"),
            (725_999, "12m 5s"),
            (11_520_000, "3h 12m"),
            (86_400_000, "1d"),
            (183_600_000, "2d 3h"),
        ] {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn times_are_utc_to_the_millisecond() {
        let now_ms = 1_700_000_000_123;
        assert_eq!(date_time(now_ms), "2023-11-14 22:13:20.123 UTC");
        assert_eq!(time(now_ms + 1_000, now_ms), "22:13:21.123");
        assert_eq!(time(now_ms + 86_400_000, now_ms), "2023-11-15 22:13:20.123");
        assert_eq!(time(u64::MAX, now_ms), "18446744073709551615 ms");
    }
}
