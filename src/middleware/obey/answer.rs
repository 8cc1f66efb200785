//! [`Answer`]: reads from an answer of another service whether to wait.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::{
    grpc,
    meaning::Meaning,
    quota::used_up,
    times::{SECOND, TheirClock, longest, members},
};

/// The meaning of an answer for our next requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Served,
    /// The other service, or something on the way to it, has failed; or the answer is about this request alone.
    Failed,
    /// We are asked to wait.
    Refused(Notice),
    /// The request was served, and the next will not be for a time.
    LastOne(Notice),
}

/// For how long to wait, and which field says so.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    status: StatusCode,
    /// `None` if no field says for how long.
    pub(super) wait: Option<Duration>,
    field: Option<&'static str>,
}

/// Fields with a time to wait, and the units of their numbers.
const ASKS: [(&str, Duration); 7] = [
    ("retry-after-ms", MILLISECOND),
    ("x-ms-retry-after-ms", MILLISECOND),
    ("x-amz-retry-after", MILLISECOND),
    (PUSHBACK, MILLISECOND),
    ("retry-after", SECOND),
    ("x-ratelimit-retry-after", SECOND),
    ("x-rate-limit-retry-after-seconds", SECOND),
];

const MILLISECOND: Duration = Duration::from_millis(1);

const PUSHBACK: &str = "grpc-retry-pushback-ms";

impl Answer {
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let (clock, meaning) = (TheirClock::of(headers, now), Meaning::of(status, headers));
        let notice = |named: Option<(Duration, &'static str)>| {
            let (wait, field) = named.unzip();
            Notice {
                status,
                wait,
                field,
            }
        };
        let quota = used_up(headers, clock, meaning);
        let asks = meaning != Meaning::Served;
        let asked = asks.then(|| asked(headers, clock)).flatten();
        let is_refused = match meaning {
            Meaning::Served => false,
            Meaning::ServedUnlessAsked | Meaning::FailedUnlessAsked => asked.is_some(),
            Meaning::MayRefuse => asked.is_some() || quota.is_some(),
            Meaning::Refused => true,
        };
        if is_refused {
            return match asked.or(quota.flatten()) {
                None if forbids_retry(headers) => Self::Failed,
                named => Self::Refused(notice(named)),
            };
        }
        if meaning > Meaning::ServedUnlessAsked {
            return Self::Failed;
        }
        // The fields of a cached answer are of another time.
        let is_cached = headers.contains_key(header::AGE);
        let named = quota.flatten().filter(|_| !is_cached);
        named.map_or(Self::Served, |named| Self::LastOne(notice(Some(named))))
    }
}

impl Notice {
    /// Such as `429, retry-after`. No text of the other service is part of it.
    pub(super) fn reason(&self) -> String {
        let (status, field) = (self.status.as_str(), self.field.unwrap_or("no time"));
        format!("{status}, {field}")
    }
}

/// The time that the other service asks us to wait.
fn asked(headers: &HeaderMap, clock: TheirClock) -> Option<(Duration, &'static str)> {
    let mut asks = ASKS.into_iter();
    let wait = asks.find_map(|(name, unit)| Some((longest(headers, name, unit, clock)?, name)));
    wait.or_else(|| Some((grpc::retry_delay(headers)?, "RetryInfo")))
}

/// Whether a pushback below zero says that this call must not be sent again: that is no time for the other calls.
fn forbids_retry(headers: &HeaderMap) -> bool {
    members(headers, PUSHBACK).any(|pushback| pushback.starts_with('-'))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
