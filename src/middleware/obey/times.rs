//! The ways in which services write a time to wait. None of them can make these functions panic.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, header};
use jiff::{Timestamp, civil::DateTime, fmt::rfc2822, tz::Offset};

/// Numbers from here on are seconds since the Unix epoch: as a time to wait, 31 years.
const EPOCH_SECONDS: u64 = 1_000_000_000;

/// Numbers from here on are milliseconds since the Unix epoch: as seconds, the year 5138.
const EPOCH_MS: u64 = 100_000_000_000;

const NANOS: u128 = 1_000_000_000;

/// The other service's clock, as time since the Unix epoch.
#[derive(Clone, Copy)]
pub(super) struct Clock(Duration);

impl Clock {
    /// The time in the field `Date`, or else our time: clocks may differ.
    pub(super) fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let date = headers
            .get(header::DATE)
            .and_then(|value| value.to_str().ok());
        let theirs = date.and_then(http_date);
        Self(theirs.unwrap_or_else(|| now.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }

    const fn until(self, then: Duration) -> Duration {
        then.saturating_sub(self.0)
    }
}

/// Reads the form of `Retry-After`: seconds, or an HTTP date.
pub(super) fn seconds_or_date(text: &str, clock: Clock) -> Option<Duration> {
    let seconds = decimal(text, Duration::from_secs(1));
    seconds.or_else(|| Some(clock.until(http_date(text)?)))
}

/// Reads the form of `X-RateLimit-Reset`: seconds, a time as seconds or milliseconds since the Unix epoch, a duration
/// (`6m0s`), or a date.
pub(super) fn any_form(text: &str, clock: Clock) -> Option<Duration> {
    if let Some(seconds) = decimal(text, Duration::from_secs(1)) {
        return Some(match seconds.as_secs() {
            0..EPOCH_SECONDS => seconds,
            EPOCH_SECONDS..EPOCH_MS => clock.until(seconds),
            ms => clock.until(Duration::from_millis(ms)),
        });
    }
    let date = || Some(clock.until(http_date(text).or_else(|| timestamp(text))?));
    duration(text).or_else(date)
}

/// Reads a decimal number of units, without a sign and without an exponent. Large ones are capped.
pub(super) fn decimal(text: &str, unit: Duration) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().unwrap_or(u64::MAX);
    let digits = &fraction[..fraction.len().min(9)];
    let billionths: u128 = format!("{digits:0<9}").parse().ok()?;
    let unit = unit.as_nanos();
    let nanos = unit * u128::from(whole) + unit * billionths / NANOS;
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    let nanos = u32::try_from(nanos % NANOS).ok()?;
    Some(Duration::new(seconds, nanos))
}

/// Reads a duration such as `6m0s`, `1h2m3.5s` or `20ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let is_of_number = |letter: char| letter.is_ascii_digit() || letter == '.';
        let (number, after) = rest.split_at(rest.find(|letter| !is_of_number(letter))?);
        let end = after.find(is_of_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "ns" => Duration::from_nanos(1),
            "us" | "µs" => Duration::from_micros(1),
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3_600),
            "d" => Duration::from_secs(86_400),
            _ => return None,
        };
        sum = sum.saturating_add(decimal(number, unit)?);
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

/// Reads an HTTP date, also in the two obsolete forms, as time since the Unix epoch. The epoch, if it is earlier.
fn http_date(text: &str) -> Option<Duration> {
    let date = match rfc2822::parse(text) {
        Ok(date) => date.timestamp(),
        Err(_) => {
            let forms = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
            let date = |form| DateTime::strptime(form, text).ok();
            let date = forms.into_iter().find_map(date)?;
            Offset::UTC.to_timestamp(date).ok()?
        }
    };
    Some(since_epoch(date))
}

/// Reads a time in the form of RFC 3339.
fn timestamp(text: &str) -> Option<Duration> {
    text.parse().ok().map(since_epoch)
}

fn since_epoch(time: Timestamp) -> Duration {
    let time = time.as_duration();
    Duration::try_from(time).unwrap_or_default()
}

/// The longest time in the lines of a field. A time that is over is none.
pub(super) fn longest(
    headers: &HeaderMap,
    name: &str,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.filter_map(|line| read(line.to_str().ok()?.trim_ascii()));
    lines.max().filter(|wait| !wait.is_zero())
}
