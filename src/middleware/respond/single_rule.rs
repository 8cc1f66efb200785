//! Headers that describe a single rule, of all or of each unit: `X-RateLimit-*`, and those of the draft's revisions 0 to 6.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::seconds::{from_epoch, seconds};
use crate::domain::{
    decision::{Decision, RuleUsage, Share},
    policy::Policy,
};

pub(super) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

pub(super) const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
pub(super) const REMAINING_REQUESTS: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining-requests");
pub(super) const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
pub(super) const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
pub(super) const REMAINING_TOKENS: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining-tokens");
pub(super) const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");

/// The headers to send; all describe the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SingleRule {
    pub(super) draft6: bool,
    pub(super) x_rate_limit: Option<Reset>,
    /// One rule for each unit.
    pub(super) by_unit: bool,
}

/// The unit of `X-RateLimit-Reset`: seconds from now, or since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reset {
    Delta,
    Epoch,
}

/// The rules that such headers show, of one layer or of several around each other.
#[derive(Clone, Debug)]
pub(in crate::middleware) struct Shown {
    style: SingleRule,
    rules: SmallVec<[ShownRule; 1]>,
}

/// The numbers of a rule that headers show.
#[derive(Clone, Debug)]
pub(super) struct ShownRule {
    /// A policy of the unit that the rule stands for; `None` if it stands for all.
    unit: Option<Policy>,
    share: Share,
    limit: u64,
    remaining: u64,
    /// Until the rule would admit the request, or until no unit counts any more.
    time: Option<Duration>,
}

impl SingleRule {
    pub(super) const NONE: Self = Self {
        draft6: false,
        x_rate_limit: None,
        by_unit: false,
    };

    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            draft6: self.draft6 || other.draft6,
            x_rate_limit: match other.x_rate_limit {
                None => self.x_rate_limit,
                reset => reset,
            },
            by_unit: self.by_unit || other.by_unit,
        }
    }

    /// Sends the tightest rules of this decision and of an inner layer, also in that layer's style: its headers must not
    /// promise more than is left here.
    pub(super) fn insert(
        self,
        headers: &mut HeaderMap,
        decision: &Decision,
        shown: &mut Option<Shown>,
    ) {
        let style = shown.as_ref().map_or(self, |inner| inner.style.and(self));
        if style == Self::NONE {
            return;
        }
        let mut rules = shown.take().map(|inner| inner.rules).unwrap_or_default();
        for own in style.rules(decision) {
            match rules.iter_mut().find(|it| it.unit() == own.unit()) {
                Some(inner) if own.share < inner.share => *inner = own,
                Some(_) => {}
                None => rules.push(own),
            }
        }
        rules.iter().for_each(|rule| rule.insert(style, headers));
        *shown = (!rules.is_empty()).then_some(Shown { style, rules });
    }

    /// Sends the tightest rules of units that no header names yet.
    pub(super) fn insert_missing(self, headers: &mut HeaderMap, decision: &Decision) {
        for rule in self.rules(decision) {
            let names = rule.unit().and_then(names);
            if names.is_some_and(|[limit, ..]| !headers.contains_key(limit)) {
                rule.insert(self, headers);
            }
        }
    }

    /// The tightest rule: the denying one with the longest wait, or else the one with the smallest share left; of several,
    /// the first. And the tightest of each unit.
    fn rules(self, decision: &Decision) -> SmallVec<[ShownRule; 1]> {
        let of_units = match self.by_unit {
            true => tightest_rules(decision),
            false => SmallVec::new(),
        };
        let of_units = of_units.into_iter();
        let of_units = of_units.map(|(policy, rule)| ShownRule::of(Some(policy), rule));
        let of_all = match decision {
            _ if !self.draft6 && self.x_rate_limit.is_none() => None,
            Decision::Allowed(usage) => usage
                .policies()
                .filter(|of_policy| !of_policy.policy().is_hidden())
                .flat_map(|of_policy| of_policy.rules())
                .min_by_key(|usage| usage.share()),
            Decision::Denied(denial) if denial.policy().is_hidden() => None,
            Decision::Denied(denial) => Some(denial.rule()),
            Decision::Blocked(_) => None,
        };
        let of_all = of_all.map(|rule| ShownRule::of(None, rule));
        of_all.into_iter().chain(of_units).collect()
    }
}

impl ShownRule {
    fn of(unit: Option<&Policy>, rule: &RuleUsage) -> Self {
        Self {
            unit: unit.cloned(),
            share: rule.share(),
            limit: rule.rule().limit(),
            remaining: rule.remaining(),
            time: match rule.is_exceeded() {
                true => rule.shown_retry_after(),
                false => rule.shown_reset_after(),
            },
        }
    }

    fn unit(&self) -> Option<&str> {
        self.unit.as_ref().map(Policy::counted_in)
    }

    fn insert(&self, style: SingleRule, headers: &mut HeaderMap) {
        let mut insert = |[limit, remaining, reset]: [HeaderName; 3], time: Option<HeaderValue>| {
            headers.insert(limit, self.limit.into());
            headers.insert(remaining, self.remaining.into());
            match time {
                Some(time) => headers.insert(reset, time),
                None => headers.remove(reset),
            };
        };
        if let Some(unit) = self.unit() {
            let time = self.time.map(duration);
            let time = time.and_then(|time| HeaderValue::try_from(time).ok());
            return names(unit).map_or((), |names| insert(names, time));
        }
        if style.draft6 {
            let time = self.time.map(seconds).map(HeaderValue::from);
            insert([LIMIT, REMAINING, RESET], time);
        }
        if let Some(kind) = style.x_rate_limit {
            let time = self.time.map(match kind {
                Reset::Delta => seconds,
                Reset::Epoch => from_epoch,
            });
            let time = time.map(HeaderValue::from);
            insert([X_LIMIT, X_REMAINING, X_RESET], time);
        }
    }
}

/// The tightest rule of each unit, beside a policy of that unit. Slots are left out: no client waits for them by these headers.
fn tightest_rules(decision: &Decision) -> SmallVec<[(&Policy, &RuleUsage); 4]> {
    let mut tightest: SmallVec<[(&Policy, &RuleUsage); 4]> = SmallVec::new();
    let policies = decision.usage().policies();
    for of_policy in policies.filter(|usage| !usage.policy().is_hidden()) {
        let policy = of_policy.policy();
        let is_same = |other: &Policy| other.counted_in() == policy.counted_in();
        let rules = of_policy.rules().iter();
        for rule in rules.filter(|usage| !usage.rule().is_concurrency()) {
            match tightest.iter_mut().find(|(other, _)| is_same(other)) {
                Some((_, least)) if rule.tightness() > least.tightness() => *least = rule,
                Some(_) => {}
                None => tightest.push((policy, rule)),
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
