//! [`Stamp`]: the time of a log line.

use std::str;

use jiff::Timestamp;
use jiff::fmt::strtime;
use serde_json::Value;

use crate::text::parse_date;

/// The greatest time of the store's clock.
const LATEST_MS: i64 = 1 << 47;

/// The time of a request in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// In ms since the Unix epoch.
    pub(super) ms: u64,
    /// Whether the log has whole seconds only.
    pub(super) is_whole: bool,
}

impl Stamp {
    fn new(ms: i64, is_whole: bool) -> Option<Self> {
        let ms = u64::try_from(ms).ok().filter(|_| ms <= LATEST_MS)?;
        Some(Self { ms, is_whole })
    }

    /// Reads `10/Oct/2000:13:55:36 -0700`, also with a fraction of the second.
    pub(super) fn common(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let time = strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).ok()?;
        Self::of(time.to_timestamp().ok()?, text)
    }

    fn of(time: Timestamp, text: &str) -> Option<Self> {
        Self::new(time.as_millisecond(), !text.contains(['.', ',']))
    }

    /// Reads the times of JSON logs: RFC 3339, the form of the common log, or seconds (with a fraction), milli-, micro-
    /// or nanoseconds since the Unix epoch. The size of a number decides its unit.
    pub(super) fn json(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => match number.as_i64() {
                Some(whole) => Self::epoch(whole),
                None => Self::seconds(number.as_f64()?),
            },
            Value::String(text) => Self::text(text.trim()),
            _ => None,
        }
    }

    fn text(text: &str) -> Option<Self> {
        if let Ok(whole) = text.parse() {
            return Self::epoch(whole);
        }
        if let Ok(seconds) = text.parse() {
            return Self::seconds(seconds);
        }
        if let Some(time) = parse_date(text) {
            return Self::of(time, text);
        }
        Self::common(text.trim_matches(['[', ']']).as_bytes())
    }

    fn epoch(number: i64) -> Option<Self> {
        match number {
            0..100_000_000_000 => Self::new(number * 1_000, true),
            100_000_000_000..100_000_000_000_000 => Self::new(number, false),
            100_000_000_000_000..100_000_000_000_000_000 => Self::new(number / 1_000, false),
            100_000_000_000_000_000.. => Self::new(number / 1_000_000, false),
            _ => None,
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the range was checked")]
    fn seconds(seconds: f64) -> Option<Self> {
        let ms = (seconds * 1_000.0).floor();
        (0.0..1e14).contains(&ms).then_some(())?;
        Self::new(ms as i64, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(stamp: Option<Stamp>) -> Option<(u64, bool)> {
        stamp.map(|stamp| (stamp.ms, stamp.is_whole))
    }

    #[test]
    fn times_of_the_common_log_are_read() {
        for (text, expected) in [
            ("10/Oct/2000:13:55:36 -0700", Some((971_211_336_000, true))),
            ("10/Oct/2000:20:55:36 +0000", Some((971_211_336_000, true))),
            (
                "10/Oct/2000:20:55:36.25 +0000",
                Some((971_211_336_250, false)),
            ),
            ("01/Jan/1970:00:00:00 +0000", Some((0, true))),
            ("01/Jan/1970:00:00:00 +0100", None),
            ("31/Feb/2000:00:00:00 +0000", None),
            ("10/Okt/2000:13:55:36 -0700", None),
            ("10/Oct/2000:13:55:36", None),
            ("10/Oct/2000:24:55:36 +0000", None),
            ("", None),
        ] {
            assert_eq!(ms(Stamp::common(text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn times_of_json_logs_are_read() {
        let second = Some((971_211_336_000, true));
        let fraction = Some((971_211_336_250, false));
        for (json, expected) in [
            ("971211336", second),
            ("971211336.25", fraction),
            ("\"971211336.250\"", fraction),
            ("971211336250", fraction),
            ("971211336250000", fraction),
            ("971211336250000000", fraction),
            ("\"2000-10-10T20:55:36Z\"", second),
            ("\"2000-10-10T13:55:36-07:00\"", second),
            ("\"2000-10-10T20:55:36.25Z\"", fraction),
            ("\"2000-10-10 20:55:36\"", second),
            ("\"2000-10-10 20:55:36,250\"", fraction),
            ("\"10/Oct/2000:13:55:36 -0700\"", second),
            ("-1", None),
            ("1e300", None),
            ("\"yesterday\"", None),
            ("null", None),
        ] {
            let value = serde_json::from_str(json).unwrap();
            assert_eq!(ms(Stamp::json(&value)), expected, "{json}");
        }
    }
}
