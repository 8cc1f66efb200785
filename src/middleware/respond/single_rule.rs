//! Headers that describe a single rule: `X-RateLimit-*`, and those of the draft's revisions before 8.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    draft11::{RATELIMIT, RATELIMIT_POLICY},
    seconds::seconds,
};
use crate::domain::{
    decision::{Decision, RuleUsage, Usage},
    rule::Rule,
};

pub(super) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Only draft 7's `RateLimit` starts like this.
const COMBINED: &[u8] = b"limit=";

/// The headers to send; all describe the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SingleRule {
    pub(super) draft6: bool,
    pub(super) draft7: bool,
    pub(super) x_rate_limit: Option<Reset>,
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
    limit: u64,
    remaining: u64,
    reset: Option<Duration>,
}

impl SingleRule {
    pub(super) const NONE: Self = Self {
        draft6: false,
        draft7: false,
        x_rate_limit: None,
    };

    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            draft6: self.draft6 || other.draft6,
            draft7: self.draft7 || other.draft7,
            x_rate_limit: match other.x_rate_limit {
                None => self.x_rate_limit,
                reset => reset,
            },
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
        let own = Sent::of(decision, style);
        let sent = match (inner, own) {
            (Some(inner), Some(own)) if own.is_tighter_than(&inner) => own,
            (Some(inner), _) => Sent { style, ..inner },
            (None, own) => own?,
        };
        sent.insert(headers);
        if self.draft7 {
            append_policy(headers, decision.usage());
        }
        Some(sent)
    }
}

impl Sent {
    /// The denying rule with the longest wait, or else the one with the smallest share left; of several, the first.
    fn of(decision: &Decision, style: SingleRule) -> Option<Self> {
        let sent = |usage: &RuleUsage, reset| Self {
            style,
            limit: usage.rule().limit(),
            remaining: usage.remaining(),
            reset,
        };
        match decision {
            Decision::Allowed(usage) => usage
                .rules()
                .map(|usage| sent(usage, Some(usage.reset_after())))
                .reduce(|least, it| {
                    if it.is_tighter_than(&least) {
                        it
                    } else {
                        least
                    }
                }),
            Decision::Denied(denial) => Some(sent(denial.rule(), denial.retry_after())),
            Decision::Blocked(_) => None,
        }
    }

    /// Whether a smaller share of its limit is left; without a division.
    fn is_tighter_than(&self, other: &Self) -> bool {
        let share = |a: &Self, b: &Self| u128::from(a.remaining) * u128::from(b.limit);
        share(self, other) < share(other, self)
    }

    fn insert(&self, headers: &mut HeaderMap) {
        if self.style.draft6 {
            let reset = self.reset.map(seconds);
            self.insert_as([LIMIT, REMAINING, RESET], reset, headers);
        }
        if let Some(kind) = self.style.x_rate_limit {
            let reset = self.reset.map(|time| kind.after(time));
            self.insert_as([X_LIMIT, X_REMAINING, X_RESET], reset, headers);
        }
        if self.style.draft7 {
            self.insert_combined(headers);
        }
    }

    fn insert_as(&self, names: [HeaderName; 3], reset_value: Option<u64>, headers: &mut HeaderMap) {
        let [limit, remaining, reset] = names;
        headers.insert(limit, HeaderValue::from(self.limit));
        headers.insert(remaining, HeaderValue::from(self.remaining));
        match reset_value {
            Some(value) => headers.insert(reset, HeaderValue::from(value)),
            None => headers.remove(reset),
        };
    }

    /// Replaces the line of an inner layer; the lines of draft 11 stay, after this one.
    fn insert_combined(&self, headers: &mut HeaderMap) {
        let mut field = format!("limit={}, remaining={}", self.limit, self.remaining);
        if let Some(reset) = self.reset {
            field.push_str(&format!(", reset={}", seconds(reset)));
        }
        let lines = headers.get_all(RATELIMIT).iter();
        let others = lines.filter(|line| !line.as_bytes().starts_with(COMBINED));
        let others: Vec<HeaderValue> = others.cloned().collect();
        if let Ok(field) = HeaderValue::try_from(field) {
            headers.insert(RATELIMIT, field);
        }
        for line in others {
            headers.append(RATELIMIT, line);
        }
    }
}

/// Draft 7's list of all rules, without names. Appended, because each layer adds its own.
fn append_policy(headers: &mut HeaderMap, usage: &Usage) {
    let mut items: Vec<String> = Vec::new();
    for rule in usage.rules().map(RuleUsage::rule) {
        let item = policy_item(&rule);
        if !items.contains(&item) {
            items.push(item);
        }
    }
    if let Ok(field) = HeaderValue::try_from(items.join(", ")) {
        headers.append(RATELIMIT_POLICY, field);
    }
}

fn policy_item(rule: &Rule) -> String {
    let window = rule.quota_window();
    match window.as_secs() {
        0 => rule.limit().to_string(),
        _ => format!("{};w={}", rule.limit(), seconds(window)),
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
