//! [`DeniedIdentity`]: how often identities were denied within the last minute and hour.
//!
//! Metrics count the denials of a policy, but name no identities. So each process counts the denials of each identity
//! under each policy, and reports them to the store about once a second. [`Limiter::denials`](crate::Limiter::denials)
//! adds up the reports of
//! all processes, as do `top --denied`, `explain` and `inspect` of the [operators' tool](crate::operating):
//!
//! ```
//! use sluicegate::{Key, Charge, Limiter, MemoryStore, Policy};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let policy = Policy::parse("api", "2/1h")?;
//! for _ in 0..5 {
//!     limiter.check([Charge::new(&policy, Key::new("user", "alice"), 1)]).await?;
//! }
//! let denials = limiter.denials().await?;
//! let alice = denials.first().unwrap();
//! assert_eq!((alice.policy(), alice.identity()), (Some("api"), "user=alice"));
//! assert_eq!((alice.last_minute().denied(), alice.last_minute().total()), (3, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What is counted
//!
//! - A request that a policy denies, for each policy and identity that the request exceeds. It does not matter whether
//!   the store, a [deny cache](crate::Limiter::cache_denials) or this process ([locally](crate::Usage::is_local)) has
//!   decided.
//! - A request that a [block](crate::block) or a ban denies, for the identity and under no policy. Requests that a
//!   layer's own deny list denies are not counted.
//! - A request that is admitted under a policy, if that policy has denied the identity within the hour before, in the
//!   same process: so you can see which share is denied.
//! - Requests that a [shadow](Policy::shadow) would have denied are not counted: use an observer. Charges of a cost of
//!   0 are not counted. If a caller waits, only the end of the wait is counted, not each attempt.
//!
//! The last minute is that minute and up to 10 s before it, and the last hour that hour and up to 10 minutes before it.
//! The newest second of *other* processes is missing.
//!
//! # Accuracy and cost
//!
//! A process counts up to 4 096 identities. The counts are exact for about a thousand. With more, a new identity
//! displaces one with few denials, so that the counts of both may be too low; a flood of made-up identities does not
//! displace those that are denied often. For each sixth of a minute and of an hour, a store keeps the 512 identities with
//! the most denials: in Redis in at most 14 sorted sets that expire, together below 2 MB, however many processes and
//! policies you have. Each report competes with these sums. So in a flood of more than 512 identities, a new identity
//! is listed only with the last minute, until it has more denials in one second than the lowest of the 512 has in ten
//! minutes, or until the next ten minutes begin. A report that the store does not answer is lost. A key of more than 2
//! KB is not counted.
//!
//! No request waits for a report. As long as a process has denied no request within the hour, an admission costs one
//! load from memory; afterwards an admission costs a look into a table, and a denial some tens of nanoseconds. Threads
//! seldom wait for each other, for as short a time. A task in the [background](crate::limiter#background-work) sends the
//! reports. It ends after ten seconds without any, but stays while it has policies to
//! [publish](crate::Limiter::publish_policies). Use [`Limiter::count_denials`](crate::Limiter::count_denials) to switch
//! all of this off. For stores that keep no denials, such as [transactions](crate::store::redis::transactions), the
//! counting is off.
//!
//! In Redis, your user needs [separate rights](crate::store::redis::deployment#the-least-rights) for this.

use std::{cmp::Reverse, collections::HashMap, fmt};

#[cfg(doc)]
use crate::domain::policy::Policy;
use crate::domain::{block::BLOCKS, report::Ranking};

/// The units of a denial; an admission is one unit. A store adds and drops both counts of an identity together. It
/// counts exactly up to 2^53 units: 67 million denials and 134 million admissions of one identity in ten minutes.
pub(crate) const DENIED: u64 = 1 << 27;

/// Spans of the last minute are not longer, and those of the last hour are.
const SPAN_OF_MINUTE_MS: u64 = 10_000;

/// An identity that was denied, under one policy or by a block. `Debug` does not show the value.
#[derive(Clone, PartialEq, Eq)]
pub struct DeniedIdentity {
    policy: Option<String>,
    identity: String,
    last_minute: RequestCounts,
    last_hour: RequestCounts,
}

/// How many requests were denied and admitted in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    denied: u64,
    admitted: u64,
}

impl DeniedIdentity {
    /// Adds up the rankings of the last minute and hour. The list is sorted by the denials in the last minute, then in
    /// the last hour, most first.
    pub(crate) fn list(rankings: Vec<Ranking>) -> Vec<Self> {
        let mut by_member = HashMap::<String, [RequestCounts; 2]>::new();
        for ranking in rankings {
            let period = usize::from(ranking.span.length_ms > SPAN_OF_MINUTE_MS);
            for (member, units) in ranking.members {
                let sum = &mut by_member.entry(member).or_default()[period];
                *sum = sum.plus(RequestCounts::new(units / DENIED, units % DENIED));
            }
        }
        let list = by_member.into_iter();
        let list = list.filter_map(|(member, [last_minute, last_hour])| {
            let (policy, identity) = member.split_once(' ')?;
            Some(Self {
                policy: (policy != BLOCKS).then(|| policy.to_owned()),
                identity: identity.to_owned(),
                last_minute,
                // The hour's sets may have had no room for an identity that the minute's sets still keep.
                last_hour: last_hour.max(last_minute),
            })
        });
        let mut list: Vec<_> = list
            .filter(|identity| identity.last_hour.denied > 0)
            .collect();
        list.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        list
    }

    /// Returns the name of the policy that denied the identity; `None` for a [block](crate::block) or a ban.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the kind and value: `user=alice`, or `api-key=#` and a hash if the value is long, unusual or secret.
    /// Over Redis, the store's keys and the operators' tool use this name.
    ///
    /// This is data of a client: do not log it or use it in metrics unless you are allowed to.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the requests of the last 60 to 70 s.
    #[must_use]
    pub const fn last_minute(&self) -> RequestCounts {
        self.last_minute
    }

    /// Returns the requests of the last 60 to 70 minutes: at least those of the last minute.
    #[must_use]
    pub const fn last_hour(&self) -> RequestCounts {
        self.last_hour
    }

    fn order(&self) -> impl Ord {
        (
            Reverse((self.last_minute.denied, self.last_hour.denied)),
            &self.identity,
            &self.policy,
        )
    }
}

impl RequestCounts {
    /// Creates the counts from the numbers of denied and admitted requests.
    #[must_use]
    pub const fn new(denied: u64, admitted: u64) -> Self {
        Self { denied, admitted }
    }

    /// Returns how many requests were denied.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.denied
    }

    /// Returns how many requests were admitted. Requests before the first denial are unknown, and requests under a
    /// block are not counted.
    #[must_use]
    pub const fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Returns how many requests were denied or admitted.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.denied.saturating_add(self.admitted)
    }

    /// Returns the larger number of both, for each field.
    fn max(self, other: Self) -> Self {
        Self {
            denied: self.denied.max(other.denied),
            admitted: self.admitted.max(other.admitted),
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            denied: self.denied.saturating_add(other.denied),
            admitted: self.admitted.saturating_add(other.admitted),
        }
    }
}

/// Shows the kind alone: the value is data of a client.
impl fmt::Debug for DeniedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.identity.split('=').next().unwrap_or_default();
        f.debug_struct("DeniedIdentity")
            .field("policy", &self.policy)
            .field("identity", &format_args!("{kind}=…"))
            .field("last_minute", &self.last_minute)
            .field("last_hour", &self.last_hour)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::report::{Account, DENIED_WITHIN, Span};

    /// The rankings of a span of the minute, and of one of the hour.
    fn rankings<const M: usize, const H: usize>(
        minute: [(&str, u64, u64); M],
        hour: [(&str, u64, u64); H],
    ) -> Vec<Ranking> {
        let member = |(user, denied, admitted): &(&str, u64, u64)| {
            (format!("api user={user}"), denied * DENIED + admitted)
        };
        let members: [Vec<_>; 2] =
            [&minute[..], &hour[..]].map(|it| it.iter().map(member).collect());
        let spans = DENIED_WITHIN.map(|rule| Span::at(&rule, 0));
        let rankings = spans.into_iter().zip(members);
        let ranking = |(span, members)| Ranking::new(&Account::Denials, span, members, 0, 0);
        rankings.map(ranking).collect()
    }

    #[test]
    fn spans_are_added_up_and_those_denied_most_in_the_last_minute_come_first() {
        let mut all = rankings(
            [("a", 1, 0), ("b", 2, 9)],
            [("a", 5, 1), ("b", 2, 9), ("c", 70, 1), ("d", 0, 5)],
        );
        all.extend(rankings([("a", 4, 1)], [("b", 1, 0)]));
        let denials = DeniedIdentity::list(all);
        let list = denials.iter().map(|identity| {
            let (minute, hour) = (identity.last_minute(), identity.last_hour());
            (
                &identity.identity()[5..],
                minute.denied(),
                minute.total(),
                hour.total(),
            )
        });
        let list: Vec<_> = list.collect();
        assert_eq!(list, [("a", 5, 6, 6), ("b", 2, 11, 12), ("c", 0, 0, 71)]);
    }

    #[test]
    fn the_hour_contains_the_minute() {
        let minute = [("new", 9, 3), ("some", 5, 1)];
        let denials = DeniedIdentity::list(rankings(minute, [("some", 2, 7), ("none", 0, 7)]));
        let list = denials
            .iter()
            .map(|identity| (&identity.identity()[5..], identity.last_hour()));
        let list: Vec<_> = list.collect();
        let expected = [
            ("new", RequestCounts::new(9, 3)),
            ("some", RequestCounts::new(5, 7)),
        ];
        assert_eq!(list, expected);
    }

    #[test]
    fn debug_shows_no_identity() {
        let denials = DeniedIdentity::list(rankings([("alice", 1, 0)], []));
        let text = format!("{denials:?}");
        assert!(text.contains("user=…") && !text.contains("alice"), "{text}");
    }
}
