//! [`Stamp`]: the time of a log line.

use std::str;

use jiff::{Timestamp, civil, tz};
use serde_json::Value;

/// The store's clock goes no further.
const LATEST_MS: i64 = 1 << 47;

/// When a request was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Since the Unix epoch.
    pub(super) ms: u64,
    /// The log tells whole seconds only.
    pub(super) is_whole: bool,
}

impl Stamp {
    fn new(ms: i64, is_whole: bool) -> Option<Self> {
        let ms = u64::try_from(ms).ok().filter(|_| ms <= LATEST_MS)?;
        Some(Self { ms, is_whole })
    }

    /// Reads `10/Oct/2000:13:55:36 -0700`, also with a fraction of the second before the blank.
    pub(super) fn common(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let (date, zone) = text.split_once(' ')?;
        let (date, fraction) = date
            .split_once('.')
            .map_or((date, None), |(date, it)| (date, Some(it)));
        let &[
            day1,
            day2,
            b'/',
            m1,
            m2,
            m3,
            b'/',
            y1,
            y2,
            y3,
            y4,
            b':',
            ref clock @ ..,
        ] = date.as_bytes()
        else {
            return None;
        };
        let &[h1, h2, b':', min1, min2, b':', s1, s2] = clock else {
            return None;
        };
        const MONTHS: [&[u8; 3]; 12] = [
            b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
            b"Dec",
        ];
        let month = MONTHS.iter().position(|it| **it == [m1, m2, m3])?;
        let year = two(y1, y2)? * 100 + two(y3, y4)?;
        // A leap second is counted as the one before it.
        let (day, second) = (two(day1, day2)?, two(s1, s2)?.min(59));
        let month = i8::try_from(month + 1).ok()?;
        let (day, hour) = (i8::try_from(day).ok()?, i8::try_from(two(h1, h2)?).ok()?);
        let (minute, second) = (
            i8::try_from(two(min1, min2)?).ok()?,
            i8::try_from(second).ok()?,
        );
        let date = civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
        let utc = tz::Offset::UTC.to_timestamp(date).ok()?;
        let ms = utc.as_millisecond() - zone_ms(zone.as_bytes())?;
        match fraction {
            None => Self::new(ms, true),
            Some(digits) => Self::new(ms + fraction_ms(digits)?, false),
        }
    }

    /// Reads what JSON logs write: RFC 3339, the form of the common log, or seconds (with a fraction), milli-, micro- or
    /// nanoseconds since the Unix epoch; which of these it is, is told by the size of the number.
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
        if let Ok(timestamp) = text.parse::<Timestamp>() {
            return Self::new(timestamp.as_millisecond(), !text.contains('.'));
        }
        if let Ok(date) = text.parse::<civil::DateTime>() {
            let timestamp = tz::Offset::UTC.to_timestamp(date).ok()?;
            return Self::new(timestamp.as_millisecond(), !text.contains('.'));
        }
        Self::common(
            text.trim_start_matches('[')
                .trim_end_matches(']')
                .as_bytes(),
        )
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

fn two(ten: u8, one: u8) -> Option<i16> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| i16::from(byte - b'0'));
    Some(digit(ten)? * 10 + digit(one)?)
}

fn zone_ms(zone: &[u8]) -> Option<i64> {
    let &[sign, h1, h2, m1, m2] = zone else {
        return None;
    };
    let minutes = i64::from(two(h1, h2)?) * 60 + i64::from(two(m1, m2)?);
    match sign {
        b'+' => Some(minutes * 60_000),
        b'-' => Some(minutes * -60_000),
        _ => None,
    }
}

fn fraction_ms(digits: &str) -> Option<i64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    is_number.then_some(())?;
    format!("{digits:0<3}").get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(stamp: Option<Stamp>) -> Option<(u64, bool)> {
        stamp.map(|it| (it.ms, it.is_whole))
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
