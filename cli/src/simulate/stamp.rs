//! [`Stamp`]: the time of a log line.

use std::str;

use jiff::Timestamp;
use jiff::fmt::strtime;

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

    /// The time when a request began that ended at this time. A time in whole seconds counts as the middle of its second.
    pub(super) fn before(self, duration_ms: u64) -> Self {
        let Self { ms, is_whole } = self;
        let ms = match is_whole {
            true => (ms + 500).saturating_sub(duration_ms) / 1_000 * 1_000,
            false => ms.saturating_sub(duration_ms),
        };
        Self { ms, is_whole }
    }

    /// Reads `10/Oct/2000:13:55:36 -0700`, also with a fraction of the second, and in UTC without an offset.
    fn common(text: &str) -> Option<Self> {
        let text = Some(text).filter(|it| it.get(2..3) == Some("/"))?;
        let form = "%d/%b/%Y:%H:%M:%S%.f %z";
        let time =
            strtime::parse(form, text).or_else(|_| strtime::parse(form, format!("{text} +0000")));
        Self::of(time.ok()?.to_timestamp().ok()?, text)
    }

    fn of(time: Timestamp, text: &str) -> Option<Self> {
        Self::new(time.as_millisecond(), !text.contains(['.', ',']))
    }

    /// Reads the form of the common log, RFC 3339, or seconds (with a fraction), milli-, micro- or nanoseconds since the
    /// Unix epoch. The size of a number decides its unit.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text.trim_ascii()).ok()?;
        if let Some(stamp) = Self::common(text) {
            return Some(stamp);
        }
        if let Ok(whole) = text.parse() {
            return Self::epoch(whole);
        }
        if let Ok(seconds) = text.parse() {
            return Self::seconds(seconds);
        }
        // A date and a time of their own are two fields, between which may be a tab.
        Self::of(parse_date(&text.replace('\t', " "))?, text)
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

/// Reads a duration in ms: a number of `unit`, or with its own unit, as `0.25`, `12ms` and `3 μs`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the range is checked
pub(super) fn duration(text: &[u8], unit: &str) -> Option<u64> {
    let text = str::from_utf8(text).ok()?.trim();
    let end = text.find(|char: char| !(char.is_ascii_digit() || char == '.'));
    let (count, own) = text.split_at(end.unwrap_or(text.len()));
    let own = Some(own.trim()).filter(|own| !own.is_empty());
    let unit = own.unwrap_or(unit);
    let in_ms = match unit {
        "s" => 1e3,
        "ms" => 1.0,
        "us" | "µs" | "μs" => 1e-3,
        "ns" => 1e-6,
        _ => return None,
    };
    let ms = count.parse::<f64>().ok()? * in_ms;
    (ms < 1e12).then_some(ms.round() as u64)
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
            ("10/Oct/2000:20:55:36", Some((971_211_336_000, true))),
            ("10/Oct/2000:24:55:36 +0000", None),
            ("", None),
        ] {
            assert_eq!(ms(Stamp::common(text)), expected, "{text}");
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
            let text = json.trim_matches('"');
            assert_eq!(ms(Stamp::read(text.as_bytes())), expected, "{json}");
        }
    }

    #[test]
    fn a_request_began_its_duration_before_it_ended() {
        for (text, lasted, began) in [
            ("1000.250", 100, (1_000_150, false)),
            // A whole second stands for all of its moments: half of a second less is the same.
            ("1000", 500, (1_000_000, true)),
            ("1000", 501, (999_000, true)),
            ("1000", 60_000, (940_000, true)),
            ("1000", 2_000_000, (0, true)),
        ] {
            let stamp = Stamp::read(text.as_bytes()).unwrap();
            assert_eq!(
                ms(Some(stamp.before(lasted))),
                Some(began),
                "{text} {lasted}"
            );
        }
    }

    #[test]
    fn durations_have_the_unit_of_their_field_or_their_own() {
        for (text, unit, ms) in [
            ("0.25", "s", Some(250)),
            ("12", "ms", Some(12)),
            ("1500", "us", Some(2)),
            ("2500000", "ns", Some(3)),
            ("12ms", "s", Some(12)),
            ("0 ms", "s", Some(0)),
            ("1.5 s", "ms", Some(1_500)),
            ("900 \u{3bc}s", "s", Some(1)),
            ("-", "s", None),
            ("-1", "ms", None),
            ("1 h", "s", None),
            ("1e300", "s", None),
        ] {
            assert_eq!(duration(text.as_bytes(), unit), ms, "{text}");
        }
    }
}
