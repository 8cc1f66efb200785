use std::time::Duration;

use http::{HeaderValue, Response, header};

use super::{draft11::Draft11, plan::Plan, x_rate_limit};
use crate::decision::Decision;

/// Which headers tell clients what is left.
///
/// They stand in every response to a request that was charged, save redirections. `Retry-After` stands in every refusal that
/// can ever pass, whatever the style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit`, as in revision 11 of the IETF's draft; one item for each rule.
    ///
    /// ```text
    /// ratelimit-policy: "ip/1s";q=10;w=1, "ip/1h";q=240;w=3600, "user";q=600;w=60
    /// ratelimit: "ip/1s";r=9;t=2, "ip/1h";r=203;t=3591, "user";r=599;t=61
    /// ```
    ///
    /// An item is named after its policy, and after the window if the policy has several rules. `r` is what is left, and
    /// `t` the seconds until nothing counts any more. A refusal lists only the rules that refuse, `t` being the seconds until they would
    /// not. Of a policy that was checked with several keys, the tightest one is told. Windows below one second have no `w`,
    /// and others are rounded up to whole seconds.
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of a single rule: the one that refuses for longest, or
    /// else the one with the smallest share left.
    ///
    /// `Reset` is in seconds from now: the time until the rule would not refuse, or until nothing counts any more.
    XRateLimit,
    /// None but `Retry-After`.
    None,
}

/// A style, with all that can be known before the first request.
#[derive(Clone)]
pub(super) enum Headers {
    Draft11(Draft11),
    XRateLimit,
    None,
}

impl HeaderStyle {
    pub(super) fn prepare(self, plan: &Plan) -> Headers {
        match self {
            Self::Draft11 => {
                let all_known = plan.sources().all(|source| source.fixed().is_some());
                let policies: Vec<_> = plan.policies().collect();
                Headers::Draft11(Draft11::new(policies.iter(), all_known))
            }
            Self::XRateLimit => Headers::XRateLimit,
            Self::None => Headers::None,
        }
    }
}

impl Headers {
    pub(super) fn add<B>(&self, response: &mut Response<B>, decision: &Decision) {
        let redirects = response.status().is_redirection();
        let headers = response.headers_mut();
        match self {
            _ if redirects => {}
            Self::Draft11(draft) => draft.append(headers, decision),
            Self::XRateLimit => x_rate_limit::insert(headers, decision),
            Self::None => {}
        }
        if let Decision::Denied(denial) = decision {
            match denial.retry_after() {
                Some(wait) => headers.insert(header::RETRY_AFTER, delay(wait)),
                None => headers.remove(header::RETRY_AFTER),
            };
        }
    }
}

/// At least 1: clients take 0 for "at once", or for nothing.
fn delay(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

/// Whole seconds, rounded up: a client that comes back early is refused again.
pub(super) const fn seconds(time: Duration) -> u64 {
    let partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(partial as u64)
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
