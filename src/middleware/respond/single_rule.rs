//! Headers that describe a single rule: `X-RateLimit-*`, and those of the draft's revisions 0 to 6.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    by_unit::{self, insert_rule},
    seconds::seconds,
};
use crate::domain::decision::{Decision, RuleUsage, Share};

pub(super) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

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

/// The values that a layer has sent in such headers.
#[derive(Clone, Copy, Debug)]
pub(in crate::middleware) struct Sent {
    style: SingleRule,
    share: Share,
    reset: Option<Duration>,
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

    /// Sends the tightest rule of this decision and of an inner layer, also in that layer's style: its headers must not
    /// promise more than is left here.
    pub(super) fn insert(
        self,
        headers: &mut HeaderMap,
        decision: &Decision,
        inner: Option<Sent>,
    ) -> Option<Sent> {
        let style = inner.map_or(self, |inner| inner.style.and(self));
        if style == Self::NONE {
            return None;
        }
        if style.by_unit {
            // A layer further in has sent such headers about the same request: those that are tighter stay.
            let adds = inner.is_some_and(|inner| inner.style.by_unit);
            by_unit::insert(headers, decision, |sent, own| adds && sent <= own);
        }
        let own = Sent::of(decision, style);
        let sent = match (inner, own) {
            (Some(inner), Some(own)) if own.share < inner.share => own,
            (Some(inner), _) => Sent { style, ..inner },
            (None, own) => own?,
        };
        sent.insert(headers);
        Some(sent)
    }
}

impl Sent {
    /// The denying rule with the longest wait, or else the one with the smallest share left; of several, the first.
    fn of(decision: &Decision, style: SingleRule) -> Option<Self> {
        let sent = |usage: &RuleUsage, reset| Self {
            style,
            share: usage.share(),
            reset,
        };
        match decision {
            Decision::Allowed(usage) => usage
                .policies()
                .filter(|of_policy| !of_policy.policy().is_hidden())
                .flat_map(|of_policy| of_policy.rules())
                .min_by_key(|usage| usage.share())
                .map(|usage| sent(usage, usage.shown_reset_after())),
            Decision::Denied(denial) if denial.policy().is_hidden() => None,
            Decision::Denied(denial) => Some(sent(denial.rule(), denial.shown_retry_after())),
            Decision::Blocked(_) => None,
        }
    }

    fn insert(&self, headers: &mut HeaderMap) {
        if self.style.draft6 {
            let reset = self.reset.map(seconds).map(HeaderValue::from);
            insert_rule(headers, [LIMIT, REMAINING, RESET], self.share, reset);
        }
        if let Some(kind) = self.style.x_rate_limit {
            let reset = self.reset.map(|time| kind.after(time).into());
            insert_rule(headers, [X_LIMIT, X_REMAINING, X_RESET], self.share, reset);
        }
    }
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
