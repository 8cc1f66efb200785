//! [`HeaderStyle`]: the quota headers of responses.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    draft11::{self, Draft11},
    grpc_answer,
    seconds::{from_epoch, http_date, milliseconds, retry_after},
    single_rule::{self, Reset, Shown, SingleRule},
};
use crate::{
    domain::decision::{Decision, Share},
    middleware::admit::LayerConfig,
};

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// All headers of all [`HeaderStyle`]s, and those of other answers of the layers: `Retry-After`, the challenge of a 401, the
/// codings of a 415, and the status of a gRPC call with its message, details and pushback. Browsers hide them from pages of
/// other origins unless the response exposes them.
///
/// For `Access-Control-Expose-Headers`. Pass the array to a `CorsLayer` of tower-http, *outside* the limit:
/// `CorsLayer::new().expose_headers(EXPOSED_HEADERS)`.
///
/// The headers of [`X_RATE_LIMIT_BY_UNIT`](HeaderStyle::X_RATE_LIMIT_BY_UNIT) are those of requests and tokens. Add
/// those of your other units.
pub const EXPOSED_HEADERS: [HeaderName; 22] = [
    header::RETRY_AFTER,
    RETRY_AFTER_MS,
    header::WWW_AUTHENTICATE,
    header::ACCEPT_ENCODING,
    grpc_answer::STATUS,
    grpc_answer::MESSAGE,
    grpc_answer::DETAILS,
    grpc_answer::PUSHBACK,
    draft11::RATELIMIT,
    draft11::RATELIMIT_POLICY,
    single_rule::LIMIT,
    single_rule::REMAINING,
    single_rule::RESET,
    single_rule::X_LIMIT,
    single_rule::X_REMAINING,
    single_rule::X_RESET,
    single_rule::LIMIT_REQUESTS,
    single_rule::REMAINING_REQUESTS,
    single_rule::RESET_REQUESTS,
    single_rule::LIMIT_TOKENS,
    single_rule::REMAINING_TOKENS,
    single_rule::RESET_TOKENS,
];

/// Whether the response looks like another service's denial: from a layer further in whose extensions a middleware has
/// dropped, or from a service behind this one. Its quota headers explain that denial.
pub(in crate::middleware) fn is_denial<B>(response: &Response<B>) -> bool {
    let denies = matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE
    );
    denies && has_quota(response.headers())
}

#[cold] // the names are made here
fn has_quota(headers: &HeaderMap) -> bool {
    let is_quota = |name: &HeaderName| name.as_str().contains("ratelimit");
    let mut quota = EXPOSED_HEADERS.into_iter().filter(is_quota);
    quota.any(|name| headers.contains_key(name))
}

/// The quota headers of responses.
///
/// By default they are in every response to a charged request, except redirections; a 304 has them. `Retry-After` is in
/// every response to a denied request that can pass later, in any style, and in every 503.
///
/// ```
/// use sluicegate::middleware::HeaderStyle;
///
/// let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT_EPOCH).only_below(20);
/// assert_ne!(style, HeaderStyle::default());
/// ```
///
/// | style | headers | tells of |
/// |---|---|---|
/// | [`DRAFT_11`](Self::DRAFT_11) | `RateLimit`, `RateLimit-Policy` | every rule, by name |
/// | [`DRAFT_6`](Self::DRAFT_6) | `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` | the tightest rule |
/// | [`X_RATE_LIMIT`](Self::X_RATE_LIMIT) | `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` | the tightest rule |
/// | [`X_RATE_LIMIT_BY_UNIT`](Self::X_RATE_LIMIT_BY_UNIT) | `X-RateLimit-Limit-Requests`, `X-RateLimit-Remaining-Tokens`, … | the tightest rule of each unit |
/// | [`RETRY_AFTER_MS`](Self::RETRY_AFTER_MS) | `retry-after-ms` | the wait |
///
/// The tightest rule is the denying one with the longest wait, or else the one with the smallest share left. Nested
/// layers show the tightest of all their rules, or else the rule that denies. A [hidden](crate::Policy::hidden) policy is
/// in no header.
///
/// # Long times
///
/// A quota of a month can deny for weeks. `Retry-After` and the fields of all styles then count seconds, too, as RFC
/// 9110 allows for any time: a date is right only where the clocks of the client, of this machine and of the store
/// agree, and more clients read seconds. Whole years fit into the fields that clients keep in 32 bits. Only gRPC's
/// pushback has no room for more than 24 days. If your clients read dates, send long times as such in `Retry-After`:
/// [`dates_from`](Self::dates_from).
///
/// A rule with a window over a year, such as credits of `500/36500d@fixed`, is a stock: no field names a time of that
/// rule, and a denial by it has no `Retry-After`.
///
/// # Client support
///
/// Most clients use only `Retry-After`. The newest draft differs from revisions 0 to 7, which libraries use today.
/// npm's `ratelimit-header-parser` 0.1 parses any `RateLimit` as draft 7's, and then ignores all other headers: for its
/// users, send [`DRAFT_6`](Self::DRAFT_6) or [`X_RATE_LIMIT`](Self::X_RATE_LIMIT) without `DRAFT_11`.
///
/// [`X_RATE_LIMIT_BY_UNIT`](Self::X_RATE_LIMIT_BY_UNIT) and [`RETRY_AFTER_MS`](Self::RETRY_AFTER_MS) are for chat
/// services: see [clients of language models](crate::middleware::costs#clients-of-language-models).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct HeaderStyle {
    draft11: bool,
    shadows: bool,
    single: SingleRule,
    below: Option<u8>,
    dates_from: Option<Duration>,
    retry_after_ms: bool,
}

impl HeaderStyle {
    /// No headers, except `Retry-After`.
    pub const NONE: Self = Self {
        draft11: false,
        shadows: false,
        single: SingleRule::NONE,
        below: None,
        dates_from: None,
        retry_after_ms: false,
    };

    /// `RateLimit-Policy` and `RateLimit`, as in revision 11 of the IETF's draft, with one item for each rule. The
    /// default.
    ///
    /// ```text
    /// ratelimit-policy: "ip/1s";q=10;w=1, "ip/1h";q=240;w=3600, "user";q=600;w=60
    /// ratelimit: "ip/1s";r=9;t=2, "ip/1h";r=203;t=3591, "user";r=599;t=61
    /// ```
    ///
    /// An item has the name of its policy, and the window if the policy has several rules. `r` is the number of units
    /// left, and `t` the seconds until no unit counts any more. The response to a denied request lists only the
    /// exceeded rules; there, `t` is the seconds until the rule would admit the request. For a policy checked with
    /// several keys, the key with the longest wait is listed, or else the one with the least left. Windows below one
    /// second have no `w`, and others are rounded up to whole seconds. A [concurrency rule](crate::Rule::concurrent)
    /// has neither `w` nor `t`, and the unit `qu="concurrent-requests"`.
    ///
    /// `t` may be more than `w`: units are counted in [steps](crate#rules), a sixtieth of the window by default, and
    /// are given back a window after the *end* of their step. A unit charged at the beginning of a step under `600/1m`
    /// counts for 61 s.
    ///
    /// Under a [calendar rule](crate::Rule::per_month), `w` is the length of the current period, and `t` the time to
    /// its end.
    ///
    /// `RateLimit-Policy` lists all policies of the layer, even if their limit does not apply to the request, for
    /// instance because an extractor skips the request; for a closure or a table of routes, the chosen policy, and of
    /// [alternatives](crate::RateLimitLayer::limit_first_of) the one that was charged.
    /// `RateLimit` lists the checked policies. Nested layers each add their items, also to the denial of a layer further in.
    /// If the rules of a layer would make a list longer than 1 KiB, both fields list the tightest checked rules, as many as
    /// fit.
    /// [Shadows](crate::Policy::shadow) are left out, unless you use [`with_shadows`](Self::with_shadows).
    pub const DRAFT_11: Self = Self {
        draft11: true,
        ..Self::NONE
    };

    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, as in revisions 0 to 6 of the draft, for the
    /// tightest rule.
    ///
    /// `Reset` is in seconds from now: until the rule would admit the request, or until no unit counts any more.
    pub const DRAFT_6: Self = Self::single(SingleRule {
        draft6: true,
        ..SingleRule::NONE
    });

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, for the tightest rule.
    ///
    /// `Reset` is in seconds from now: until the rule would admit the request, or until no unit counts any more.
    pub const X_RATE_LIMIT: Self = Self::single(SingleRule {
        x_rate_limit: Some(Reset::Delta),
        ..SingleRule::NONE
    });

    /// Like [`X_RATE_LIMIT`](Self::X_RATE_LIMIT), with `Reset` in seconds since the Unix epoch, as GitHub uses: by this
    /// machine's clock, which may differ from the client's.
    pub const X_RATE_LIMIT_EPOCH: Self = Self::single(SingleRule {
        x_rate_limit: Some(Reset::Epoch),
        ..SingleRule::NONE
    });

    /// `X-RateLimit-Limit-Requests`, `X-RateLimit-Remaining-Requests` and `X-RateLimit-Reset-Requests`, the same with
    /// `Tokens`, and so on: the tightest rule of each [unit](crate::Policy::unit), in the form that client libraries of
    /// language models read.
    ///
    /// ```text
    /// x-ratelimit-limit-requests: 60            x-ratelimit-limit-tokens: 10000
    /// x-ratelimit-remaining-requests: 59        x-ratelimit-remaining-tokens: 9500
    /// x-ratelimit-reset-requests: 1m1s          x-ratelimit-reset-tokens: 6m0s
    /// ```
    ///
    /// `Reset` is the time until the rule would admit the request, or until no unit counts any more: hours, minutes and
    /// whole seconds, as `25h0m0s`, `6m0s` or `1s`, rounded up. Slots of [concurrency rules](crate::Rule::concurrent)
    /// are left out.
    pub const X_RATE_LIMIT_BY_UNIT: Self = Self::single(SingleRule {
        by_unit: true,
        ..SingleRule::NONE
    });

    /// `retry-after-ms` beside each `Retry-After`: the exact wait in milliseconds, without rounding up to a second. The
    /// client libraries of OpenAI read it first.
    ///
    /// ```text
    /// retry-after: 13
    /// retry-after-ms: 12345
    /// ```
    ///
    /// Many of these clients wait for less than 60 s only. The layer warns once when a denial is longer: see [which rules
    /// keep below](crate::middleware::costs#clients-of-language-models).
    pub const RETRY_AFTER_MS: Self = Self {
        retry_after_ms: true,
        ..Self::NONE
    };

    const fn single(single: SingleRule) -> Self {
        Self {
            single,
            ..Self::NONE
        }
    }

    /// Sends the headers of both styles. If both have `X-RateLimit-Reset`, `other`'s kind wins.
    pub const fn and(self, other: Self) -> Self {
        Self {
            draft11: self.draft11 || other.draft11,
            shadows: self.shadows || other.shadows,
            single: self.single.and(other.single),
            below: match other.below {
                None => self.below,
                below => below,
            },
            dates_from: match other.dates_from {
                None => self.dates_from,
                from => from,
            },
            retry_after_ms: self.retry_after_ms || other.retry_after_ms,
        }
    }

    /// Lists [shadows](crate::Policy::shadow) in the headers of [`DRAFT_11`](Self::DRAFT_11), with the parameter
    /// `sluicegate-shadow`. By default no header shows them.
    ///
    /// Clients may ignore an unknown parameter: a client that honours `RateLimit` then stops at a limit that does not
    /// count yet. Use this only if you control the clients.
    pub const fn with_shadows(mut self) -> Self {
        self.shadows = true;
        self
    }

    /// Sends the headers only in responses to denied requests.
    pub const fn only_on_denial(self) -> Self {
        self.only_below(0)
    }

    /// Sends the headers in responses to denied requests, and when less than this share (in percent) of some rule's
    /// limit is left. From 100 on, in all responses to charged requests.
    pub const fn only_below(mut self, percent: u8) -> Self {
        self.below = Some(percent);
        self
    }

    /// Sends `Retry-After` of a denial as an HTTP date if the wait is at least so long, and in seconds if it is
    /// shorter. The default is never.
    ///
    /// The date is by this machine's clock, and rounded up to a whole second. See [long times](Self#long-times).
    ///
    /// ```text
    /// retry-after: Tue, 01 Dec 2026 00:00:00 GMT
    /// ```
    pub const fn dates_from(mut self, wait: Duration) -> Self {
        self.dates_from = Some(wait);
        self
    }

    /// Whether the clients are those that ignore long waits.
    pub(in crate::middleware) const fn sends_ms(self) -> bool {
        self.retry_after_ms
    }

    /// Prepares the headers once, before the first request; without a layer, for a decision of which no policy is known
    /// in advance.
    pub(in crate::middleware) fn prepare(self, config: Option<&LayerConfig>) -> Headers {
        let draft11 = || Draft11::new(config, self.shadows);
        Headers {
            style: self,
            draft11: self.draft11.then(draft11),
        }
    }
}

impl Default for HeaderStyle {
    fn default() -> Self {
        Self::DRAFT_11
    }
}

/// A style, with all parts that can be prepared before the first request.
#[derive(Clone)]
pub(in crate::middleware) struct Headers {
    pub(in crate::middleware) style: HeaderStyle,
    draft11: Option<Draft11>,
}

impl Headers {
    /// Adds the headers of a decision to those of inner layers, and notes which rules are shown then.
    pub(in crate::middleware) fn add(
        &self,
        headers: &mut HeaderMap,
        status: StatusCode,
        decision: &Decision,
        shown: &mut Option<Shown>,
    ) {
        if self.tells(status, decision) {
            if let Some(draft) = &self.draft11 {
                draft.append(headers, decision);
            }
            self.style.single.insert(headers, decision, shown);
        }
        let wait = match decision {
            Decision::Allowed(_) => return,
            Decision::Denied(denial) => denial.shown_retry_after(),
            Decision::Blocked(blocked) => blocked.shown_retry_after(),
        };
        match wait {
            Some(wait) => {
                let is_long = self.style.dates_from.is_some_and(|from| wait >= from);
                let date = is_long.then(|| http_date(from_epoch(wait))).flatten();
                let value = date.unwrap_or_else(|| retry_after(wait));
                self.insert_wait(headers, value, wait);
            }
            // An inner layer may have set the headers, but this decision names no time.
            None => {
                headers.remove(header::RETRY_AFTER);
                headers.remove(RETRY_AFTER_MS);
            }
        }
    }

    /// Adds the items of an admission to the lists of a layer further in that has denied the request, and the headers of
    /// units that the denial does not name. Headers for one rule stay those of the rule that denies.
    pub(in crate::middleware) fn add_to_denial(
        &self,
        headers: &mut HeaderMap,
        status: StatusCode,
        decision: &Decision,
    ) {
        if !self.tells(status, decision) {
            return;
        }
        if let Some(draft) = &self.draft11 {
            draft.append(headers, decision);
        }
        self.style.single.insert_missing(headers, decision);
    }

    /// Adds the wait of a response without a decision, unless your response has one.
    pub(super) fn add_wait(&self, headers: &mut HeaderMap, wait: impl FnOnce() -> Duration) {
        if !headers.contains_key(header::RETRY_AFTER) {
            let wait = wait();
            self.insert_wait(headers, retry_after(wait), wait);
        }
    }

    fn insert_wait(&self, headers: &mut HeaderMap, value: HeaderValue, wait: Duration) {
        headers.insert(header::RETRY_AFTER, value);
        if self.style.retry_after_ms {
            headers.insert(RETRY_AFTER_MS, milliseconds(wait).into());
        }
    }

    fn tells(&self, status: StatusCode, decision: &Decision) -> bool {
        // A layer without headers passes on the values of inner layers unchanged.
        let has_headers = self.draft11.is_some() || self.style.single != SingleRule::NONE;
        let redirects = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
        let blocked = matches!(decision, Decision::Blocked(_));
        let below = self.style.below;
        let wanted = || below.is_none_or(|percent| is_below(percent, decision));
        has_headers && !redirects && !blocked && wanted()
    }
}

/// Whether the decision is a denial, or leaves less than this share under some rule.
fn is_below(percent: u8, decision: &Decision) -> bool {
    match decision {
        Decision::Denied(_) | Decision::Blocked(_) => true,
        Decision::Allowed(usage) => usage
            .policies()
            .filter(|of_policy| !of_policy.policy().is_hidden())
            .flat_map(|of_policy| of_policy.rules())
            .any(|rule| rule.share() < Share::of(percent.into(), 100)),
    }
}
