//! [`Answer`]: reads from an answer of another service whether to wait.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::{
    grpc,
    quota::exhausted,
    times::{Clock, decimal, longest, seconds_or_date},
};

/// The meaning of an answer for our next requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Served,
    /// The other service, or something on the way to it, has failed.
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

/// The codes `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
const GRPC_REFUSED: &str = "8";
const GRPC_UNAVAILABLE: &str = "14";

impl Answer {
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let clock = Clock::of(headers, now);
        let call = headers
            .get("grpc-status")
            .and_then(|value| value.to_str().ok());
        let is_refused = status == StatusCode::TOO_MANY_REQUESTS || call == Some(GRPC_REFUSED);
        let is_unavailable =
            status == StatusCode::SERVICE_UNAVAILABLE || call == Some(GRPC_UNAVAILABLE);
        let notice = |(wait, field)| Notice {
            status,
            wait: Some(wait),
            field: Some(field),
        };
        if is_refused || is_unavailable || status == StatusCode::FORBIDDEN {
            let asked = asked(headers, clock);
            let wait = asked.or_else(|| is_refused.then(|| exhausted(headers, clock, true))?);
            match wait {
                Some(wait) => return Self::Refused(notice(wait)),
                None if is_refused => {
                    let (wait, field) = (None, None);
                    return Self::Refused(Notice {
                        status,
                        wait,
                        field,
                    });
                }
                None => {}
            }
        }
        if is_unavailable || status.is_server_error() {
            return Self::Failed;
        }
        // The fields of a cached answer are of another time.
        let is_cached = headers.contains_key(header::AGE);
        match exhausted(headers, clock, false).filter(|_| !is_cached) {
            Some(wait) => Self::LastOne(notice(wait)),
            None => Self::Served,
        }
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
fn asked(headers: &HeaderMap, clock: Clock) -> Option<(Duration, &'static str)> {
    let ms = |text: &str| decimal(text, Duration::from_millis(1));
    let in_ms = [
        "retry-after-ms",
        "x-ms-retry-after-ms",
        "grpc-retry-pushback-ms",
    ];
    let in_ms = in_ms
        .into_iter()
        .find_map(|name| Some((longest(headers, name, ms)?, name)));
    let retry_after = || {
        let wait = longest(headers, "retry-after", |text| seconds_or_date(text, clock))?;
        Some((wait, "retry-after"))
    };
    let retry_info = || Some((grpc::retry_delay(headers)?, "RetryInfo"));
    in_ms.or_else(retry_after).or_else(retry_info)
}

#[cfg(test)]
mod tests;
