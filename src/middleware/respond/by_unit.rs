//! `X-RateLimit-{Limit,Remaining,Reset}-{unit}`, as client libraries of language models read them.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::seconds::seconds;
use crate::domain::decision::{Decision, RuleUsage, Share};

pub(super) const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
pub(super) const REMAINING_REQUESTS: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining-requests");
pub(super) const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
pub(super) const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
pub(super) const REMAINING_TOKENS: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining-tokens");
pub(super) const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");

/// Sends the tightest rule of each unit. Where there are such headers, `stays` compares their share with that of the rule.
pub(super) fn insert(
    headers: &mut HeaderMap,
    decision: &Decision,
    stays: impl Fn(Share, Share) -> bool,
) {
    for (unit, rule) in tightest_rules(decision) {
        let Some(names) = names(unit) else {
            continue;
        };
        if sent(headers, &names).is_some_and(|sent| stays(sent, rule.share())) {
            continue;
        }
        let time = match rule.is_exceeded() {
            true => rule.shown_retry_after(),
            false => rule.shown_reset_after(),
        };
        let time = time.and_then(|time| HeaderValue::try_from(duration(time)).ok());
        insert_rule(headers, names, rule.share(), time);
    }
}

/// Slots are left out: no client waits for them by these headers.
fn tightest_rules(decision: &Decision) -> SmallVec<[(&str, &RuleUsage); 4]> {
    let mut tightest: SmallVec<[(&str, &RuleUsage); 4]> = SmallVec::new();
    let policies = decision.usage().policies();
    for of_policy in policies.filter(|usage| !usage.policy().is_hidden()) {
        let unit = of_policy.policy().counted_in();
        let rules = of_policy.rules().iter();
        for rule in rules.filter(|usage| !usage.rule().is_concurrency()) {
            match tightest.iter_mut().find(|(other, _)| *other == unit) {
                Some((_, least)) if rule.tightness() > least.tightness() => *least = rule,
                Some(_) => {}
                None => tightest.push((unit, rule)),
            }
        }
    }
    tightest
}

fn names(unit: &str) -> Option<[HeaderName; 3]> {
    match unit {
        "requests" => Some([LIMIT_REQUESTS, REMAINING_REQUESTS, RESET_REQUESTS]),
        "tokens" => Some([LIMIT_TOKENS, REMAINING_TOKENS, RESET_TOKENS]),
        other => {
            let name = |of: &str| HeaderName::try_from(["x-ratelimit-", of, "-", other].concat());
            Some([
                name("limit").ok()?,
                name("remaining").ok()?,
                name("reset").ok()?,
            ])
        }
    }
}

fn sent(headers: &HeaderMap, [limit, left, _]: &[HeaderName; 3]) -> Option<Share> {
    let number = |name| -> Option<u64> { headers.get(name)?.to_str().ok()?.parse().ok() };
    let (limit, left) = (number(limit)?, number(left)?);
    Some(Share { left, limit })
}

/// In whole seconds, rounded up: some clients read the `m` of `20ms` as minutes.
fn duration(time: Duration) -> String {
    let seconds = seconds(time);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Inserts a limit, how much is left, and a time, which is removed if there is none.
pub(super) fn insert_rule(
    headers: &mut HeaderMap,
    [limit, remaining, reset]: [HeaderName; 3],
    share: Share,
    time: Option<HeaderValue>,
) {
    headers.insert(limit, share.limit.into());
    headers.insert(remaining, share.left.into());
    match time {
        Some(time) => headers.insert(reset, time),
        None => headers.remove(reset),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_hours_minutes_and_seconds() {
        for (ms, expected) in [
            (0, "0s"),
            (1, "1s"),
            (59_999, "1m0s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
            (90_061_000, "25h1m1s"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), expected);
        }
    }
}
