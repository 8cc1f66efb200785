//! The one reader of times to wait, in all forms in which services write them. None of them can make these functions
//! panic.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use jiff::{Timestamp, civil::DateTime, fmt::rfc2822, tz::Offset};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A number that is this long as a time to wait, 31 years, is a time since the Unix epoch.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

const NANOS: u128 = 1_000_000_000;

/// Dates without a zone. In lists, a comma has cut off the day of the week.
const DATES: [&str; 4] = [
    "%d %b %Y %H:%M:%S",
    "%d-%b-%y %H:%M:%S",
    "%d-%b-%Y %H:%M:%S",
    "%a %b %e %H:%M:%S %Y",
];

/// The other service's clock, as time since the Unix epoch.
#[derive(Clone, Copy)]
pub(super) struct TheirClock(Duration);

impl TheirClock {
    /// The time in the field `Date`, or else our time: clocks may differ.
    pub(super) fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let theirs = members(headers, "date").find_map(date);
        Self(theirs.unwrap_or_else(|| now.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// The longest time in a field whose numbers count these units. A time that is over is none.
pub(super) fn longest(
    headers: &HeaderMap,
    name: &str,
    unit: Duration,
    clock: TheirClock,
) -> Option<Duration> {
    let waits = members(headers, name).filter_map(|text| wait(text, unit, clock));
    waits.max()
}

/// More than any service sends.
const MAX_MEMBERS: usize = 64;

/// The first members of the lists in all lines of a field, without parameters and without empty ones.
pub(super) fn members<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let members = lines(headers, name).flat_map(|line| line.split(','));
    let values = members.filter_map(|member| member.split(';').next());
    values
        .map(str::trim_ascii)
        .filter(|value| !value.is_empty())
        .take(MAX_MEMBERS)
}

pub(super) fn lines<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter();
    lines.filter_map(|line| str::from_utf8(line.as_bytes()).ok())
}

/// Reads a number of units, a time since the Unix epoch, a duration (`6m0s`), or a date. A time that is over is none.
pub(super) fn wait(text: &str, unit: Duration, clock: TheirClock) -> Option<Duration> {
    let until = |then: Duration| then.saturating_sub(clock.0);
    let wait = match decimal(text, unit) {
        Some(wait) if wait < EPOCH => wait,
        Some(_) => until(since_epoch(text)?),
        None => duration(text).or_else(|| date(text).map(until))?,
    };
    Some(wait).filter(|wait| !wait.is_zero())
}

/// Reads a number of seconds, milli-, micro- or nanoseconds since the Unix epoch. Its size decides: each unit begins in
/// the year 2001.
fn since_epoch(number: &str) -> Option<Duration> {
    let unit = match decimal(number, SECOND)?.as_secs() {
        0..=1_000_000_000_000 => SECOND,
        1_000_000_000_001..=1_000_000_000_000_000 => Duration::from_millis(1),
        1_000_000_000_000_001..=1_000_000_000_000_000_000 => Duration::from_micros(1),
        _ => Duration::from_nanos(1),
    };
    decimal(number, unit)
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

/// Reads a duration such as `6m0s`, `1h 2m 3.5s`, `20ms` or `30 seconds`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let is_of_number = |letter: char| letter.is_ascii_digit() || letter == '.';
        let (number, after) = rest.split_at(rest.find(|letter| !is_of_number(letter))?);
        let end = after.find(is_of_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit.trim_ascii() {
            "ns" => Duration::from_nanos(1),
            "us" | "µs" => Duration::from_micros(1),
            "ms" => Duration::from_millis(1),
            "s" | "sec" | "second" | "seconds" => SECOND,
            "m" | "min" | "minute" | "minutes" => Duration::from_secs(60),
            "h" | "hour" | "hours" => Duration::from_secs(3_600),
            "d" | "day" | "days" => Duration::from_secs(86_400),
            _ => return None,
        };
        sum = sum.saturating_add(decimal(number, unit)?);
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

/// Reads a date of HTTP, also in the obsolete forms, or of RFC 3339, as time since the Unix epoch. The epoch, if the
/// date is earlier. A date without a zone is one of UTC.
fn date(text: &str) -> Option<Duration> {
    let zoned = rfc2822::parse(text).map(|date| date.timestamp());
    let time = match zoned.or_else(|_| text.parse::<Timestamp>()) {
        Ok(time) => time,
        Err(_) => {
            let text = ["GMT", "UTC", "+0000"].iter().fold(text, |text, zone| {
                text.strip_suffix(zone).unwrap_or(text).trim_ascii_end()
            });
            let mut dates = DATES.iter();
            let date = dates.find_map(|form| DateTime::strptime(form, text).ok());
            let date = date.or_else(|| text.parse().ok())?;
            Offset::UTC.to_timestamp(date).ok()?
        }
    };
    Some(Duration::try_from(time.as_duration()).unwrap_or_default())
}
