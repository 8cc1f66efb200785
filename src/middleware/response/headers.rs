use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, header};

use super::{
    draft11::{self, Draft11},
    seconds::seconds,
    x_rate_limit::{self, Reset},
};
use crate::{decision::Decision, policy::Policy};

/// Every header that a [`HeaderStyle`] sends, and `Retry-After`: browsers hide them from pages of other origins unless
/// the response exposes them.
///
/// For `Access-Control-Expose-Headers`. A `CorsLayer` of tower-http takes the array as it is, and goes *outside* the
/// limit: `CorsLayer::new().expose_headers(EXPOSED_HEADERS)`.
pub const EXPOSED_HEADERS: [HeaderName; 6] = [
    header::RETRY_AFTER,
    draft11::RATELIMIT,
    draft11::RATELIMIT_POLICY,
    x_rate_limit::LIMIT,
    x_rate_limit::REMAINING,
    x_rate_limit::RESET,
];

/// Which headers tell clients their quota.
///
/// By default they are in every response to a request that was charged, except redirections. `Retry-After` is in every
/// response to a denied request that can ever pass, whatever the style.
///
/// ```
/// use sluicegate::middleware::HeaderStyle;
///
/// let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT_EPOCH).only_below(20);
/// assert_ne!(style, HeaderStyle::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderStyle {
    draft11: bool,
    x_rate_limit: Option<Reset>,
    below: Option<u8>,
}

impl HeaderStyle {
    /// No headers, except `Retry-After`.
    pub const NONE: Self = Self {
        draft11: false,
        x_rate_limit: None,
        below: None,
    };

    /// `RateLimit-Policy` and `RateLimit`, as in revision 11 of the IETF's draft, with one item for each rule. The
    /// default.
    ///
    /// ```text
    /// ratelimit-policy: "ip/1s";q=10;w=1, "ip/1h";q=240;w=3600, "user";q=600;w=60
    /// ratelimit: "ip/1s";r=9;t=2, "ip/1h";r=203;t=3591, "user";r=599;t=61
    /// ```
    ///
    /// An item has the name of its policy, and the window if the policy has several rules. `r` is how many units are
    /// left, and `t` the seconds until nothing counts any more. The response to a denied request lists only the
    /// exceeded rules; there, `t` is the seconds until the rule would admit the request. Of a policy that was checked
    /// with several keys, one is listed: that with the longest wait, or else that with the least left. Windows below
    /// one second have no `w`, and others are rounded up to whole seconds.
    pub const DRAFT_11: Self = Self {
        draft11: true,
        ..Self::NONE
    };

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of a single rule: the denying one with
    /// the longest wait, or else the one with the smallest share left.
    ///
    /// `Reset` is in seconds from now: the time until the rule would admit the request, or until nothing counts any
    /// more.
    pub const X_RATE_LIMIT: Self = Self {
        x_rate_limit: Some(Reset::Delta),
        ..Self::NONE
    };

    /// As [`X_RATE_LIMIT`](Self::X_RATE_LIMIT), with `Reset` in seconds since the Unix epoch, as GitHub has it: by
    /// this machine's clock, which may differ from the client's.
    pub const X_RATE_LIMIT_EPOCH: Self = Self {
        x_rate_limit: Some(Reset::Epoch),
        ..Self::NONE
    };

    /// Sends the headers of both. Where both have `X-RateLimit-Reset`, `other`'s kind is sent.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            draft11: self.draft11 || other.draft11,
            x_rate_limit: match other.x_rate_limit {
                None => self.x_rate_limit,
                reset => reset,
            },
            below: match other.below {
                None => self.below,
                below => below,
            },
        }
    }

    /// Sends the headers only in responses to denied requests.
    #[must_use]
    pub const fn only_on_denial(self) -> Self {
        self.only_below(0)
    }

    /// Sends the headers in responses to denied requests, and when less than this share of some rule's limit is left,
    /// in percent.
    ///
    /// # Panics
    ///
    /// When `percent` is above 100.
    #[must_use]
    pub const fn only_below(mut self, percent: u8) -> Self {
        assert!(percent <= 100, "a share is at most 100 percent");
        self.below = Some(percent);
        self
    }

    /// Makes all that can be made before the first request. `all_known` when no request is charged under another
    /// policy than these.
    pub(in crate::middleware) fn prepare(
        self,
        policies: impl Iterator<Item = Policy>,
        all_known: bool,
    ) -> Headers {
        Headers {
            draft11: self.draft11.then(|| {
                let policies: Vec<_> = policies.collect();
                Draft11::new(policies.iter(), all_known)
            }),
            x_rate_limit: self.x_rate_limit,
            below: self.below,
        }
    }
}

impl Default for HeaderStyle {
    fn default() -> Self {
        Self::DRAFT_11
    }
}

/// A style, with all that can be known before the first request.
#[derive(Clone)]
pub(in crate::middleware) struct Headers {
    draft11: Option<Draft11>,
    x_rate_limit: Option<Reset>,
    below: Option<u8>,
}

impl Headers {
    pub(in crate::middleware) fn add<B>(&self, response: &mut Response<B>, decision: &Decision) {
        let redirects = response.status().is_redirection();
        let headers = response.headers_mut();
        if !redirects && self.below.is_none_or(|percent| tells(percent, decision)) {
            if let Some(draft) = &self.draft11 {
                draft.append(headers, decision);
            }
            if let Some(reset) = self.x_rate_limit {
                x_rate_limit::insert(headers, decision, reset);
            }
        }
        if let Decision::Denied(denial) = decision {
            match denial.retry_after() {
                Some(wait) => headers.insert(header::RETRY_AFTER, delay(wait)),
                None => headers.remove(header::RETRY_AFTER),
            };
        }
    }
}

/// Whether the decision is a denial, or leaves less than this share under some rule.
fn tells(percent: u8, decision: &Decision) -> bool {
    match decision {
        Decision::Denied(_) => true,
        Decision::Allowed(usage) => usage
            .rules()
            .any(|it| it.remaining() * 100 < it.rule().limit() * u64::from(percent)),
    }
}

/// At least 1: clients take 0 to mean "at once", or ignore it.
fn delay(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_times_are_rounded_up_to_at_least_a_second() {
        for (ms, expected) in [
            (0, "1"),
            (1, "1"),
            (1_000, "1"),
            (1_001, "2"),
            (59_999, "60"),
        ] {
            assert_eq!(delay(Duration::from_millis(ms)), expected, "{ms} ms");
        }
    }
}
