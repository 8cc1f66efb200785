//! Reads and writes times and numbers, and writes text from strangers safely.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use jiff::tz::Offset;
use jiff::{Span, SpanRelativeTo, Timestamp};
use sluicegate::{Key, Rule};

/// Reads a span of time: `100ms`, `2s`, `10m`, `2h`, `7d`, `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let span = text.parse::<Span>();
    let span = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let span = span.ok().and_then(|it| Duration::try_from(it).ok());
    span.filter(|span| !span.is_zero())
        .ok_or_else(|| "write a time such as 100ms, 90s, 2h, 7d or 1h30m".into())
}

/// Reads a date and a time, in UTC if it has no offset.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    let in_utc = || Offset::UTC.to_timestamp(text.parse().ok()?).ok();
    text.parse().ok().or_else(in_utc)
}

/// Whole milliseconds, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time of the store's or a log's clock, in UTC: `2026-11-22 14:00:05`.
pub(crate) fn date(ms: u64) -> String {
    formatted(ms, "%Y-%m-%d %H:%M:%S")
}

/// The same in a shorter form: `22 Nov 14:00:05`.
pub(crate) fn short_date(ms: u64) -> String {
    formatted(ms, "%d %b %H:%M:%S")
}

/// For programs, RFC 3339: `2026-11-22T14:00:05.123Z`.
pub(crate) fn rfc3339(ms: u64) -> String {
    formatted(ms, "%Y-%m-%dT%H:%M:%S%.fZ")
}

/// A time of the server's clock, to the millisecond: `2026-11-22 14:40:03.123 UTC`.
pub(crate) fn date_time(ms: u64) -> String {
    formatted(ms, "%Y-%m-%d %H:%M:%S%.3f UTC")
}

/// The time, with the date if it is more than half a day from `now_ms`.
pub(crate) fn time(ms: u64, now_ms: u64) -> String {
    let is_near = ms.abs_diff(now_ms) < 43_200_000;
    let date = ["%Y-%m-%d ", ""][usize::from(is_near)];
    formatted(ms, &format!("{date}%H:%M:%S%.3f"))
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

/// Formats a time with a format of `strftime`.
pub(crate) fn formatted(ms: u64, format: &str) -> String {
    match i64::try_from(ms).map(Timestamp::from_millisecond) {
        Ok(Ok(time)) => time.strftime(format).to_string(),
        _ => format!("{ms} ms"),
    }
}

/// The line and the column of a byte of a text, both from 1. Columns are characters.
pub(crate) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before[line_start..].chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// A rule without the limit: `?/1m`, `?+10/1s@bucket`.
pub(crate) fn without_limit(rule: &Rule) -> String {
    let rule = rule.to_string();
    let rest = rule.trim_start_matches(|digit: char| digit.is_ascii_digit());
    format!("?{rest}")
}

/// The used units of a rule: `1 204`, or for slots `3/20 in use`.
pub(crate) fn used(units: u64, limit: Option<u64>, are_slots: bool) -> String {
    match limit {
        _ if !are_slots => grouped(units),
        Some(limit) => format!("{}/{} in use", grouped(units), grouped(limit)),
        None => format!("{} in use", grouped(units)),
    }
}

/// Writes a number with a blank between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join("\u{202f}")
}

/// The same number for a text in each run of the tool.
pub(crate) fn hash(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

/// Text from a stranger on one line, without control characters and without characters that change its direction.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = |c: char| if is_unsafe(c) { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// The start of a line from a stranger.
pub(crate) fn start(line: &[u8]) -> String {
    // Cut the line before converting it: it may have 64 KiB.
    let text = printable(&line[..line.len().min(200)]);
    text.chars().take(100).collect()
}

/// An identity in the form of the tool's arguments.
pub(crate) fn identity(key: &Key) -> String {
    format!("{}={}", key.kind(), printable(key.value()))
}

/// Whether a terminal acts on the character, or the character changes the order of the text.
pub(crate) fn is_unsafe(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [
            ("100ms", 100),
            ("90s", 90_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("2 hours", 7_200_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["", "0s", "-1h", "2", "h", "soon", "1m@fixed"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in [
            "2026-12-01T08:00:00+01:00",
            "2026-12-01T07:00:00Z",
            "2026-12-01 07:00",
            "2026-12-01T07:00:00",
        ] {
            let seconds = parse_date(text).map(Timestamp::as_second);
            assert_eq!(seconds, Some(1_796_108_400), "{text}");
        }
        assert!(parse_date("tomorrow").is_none());
    }

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(date(1_795_298_400_123), "2026-11-21 22:00:00");
        assert_eq!(short_date(1_795_298_400_123), "21 Nov 22:00:00");
        assert_eq!(rfc3339(1_795_298_400_123), "2026-11-21T22:00:00.123Z");
        assert_eq!(rfc3339(1_795_298_400_000), "2026-11-21T22:00:00Z");
        assert_eq!(date(u64::MAX), "18446744073709551615 ms");
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1 000"),
            (1_234_567, "1 234 567"),
        ] {
            assert_eq!(grouped(number).replace('\u{202f}', " "), text);
        }
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(
            printable(b"a\x1b[31m\n\xff\xc2\x9b"),
            "a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(
            printable("a\u{202e}b\u{2066}c\u{200f}".as_bytes()),
            "a\u{fffd}b\u{fffd}c\u{fffd}"
        );
    }

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
