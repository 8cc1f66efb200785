//! `X-RateLimit-*`: the headers from before the standard, for one rule.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::seconds::seconds;
use crate::decision::{Decision, RuleUsage, Usage};

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// What `X-RateLimit-Reset` means: seconds from now, or since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reset {
    Delta,
    Epoch,
}

impl Reset {
    /// Whole seconds, rounded up, as this kind counts them.
    fn after(self, time: Duration) -> u64 {
        match self {
            Self::Delta => seconds(time),
            Self::Epoch => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                seconds(now.unwrap_or_default().saturating_add(time))
            }
        }
    }
}

pub(super) fn insert(headers: &mut HeaderMap, decision: &Decision, reset: Reset) {
    let Some((usage, time)) = (match decision {
        Decision::Allowed(usage) => least_left(usage).map(|it| (it, Some(it.reset_after()))),
        Decision::Denied(denial) => Some((denial.rule(), denial.retry_after())),
    }) else {
        return;
    };
    headers.insert(LIMIT, HeaderValue::from(usage.rule().limit()));
    headers.insert(REMAINING, HeaderValue::from(usage.remaining()));
    match time {
        Some(time) => headers.insert(RESET, HeaderValue::from(reset.after(time))),
        None => headers.remove(RESET),
    };
}

/// The rule with the smallest share left; of several, the first.
fn least_left(usage: &Usage) -> Option<&RuleUsage> {
    usage.rules().reduce(|least, other| {
        // other/limit < least/limit, without a division
        let share =
            |a: &RuleUsage, b: &RuleUsage| u128::from(a.remaining()) * u128::from(b.rule().limit());
        if share(other, least) < share(least, other) {
            other
        } else {
            least
        }
    })
}
