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
//! assert_eq!((alice.last_minute(), alice.last_hour()), (3, 3));
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
//! - Requests that a [shadow](Policy::shadow) would have denied are not counted: use an observer. Charges of a cost of
//!   0 are not counted. If a caller waits, only the end of the wait is counted, not each attempt.
//!
//! The last minute is that minute and up to 10 s before it, and the last hour that hour and up to 10 minutes before it.
//! The newest second of *other* processes is missing.
//!
//! # Accuracy and cost
//!
//! In each second, a process counts 64 identities. A new one then replaces the one with the fewest denials in that
//! second, whose denials are lost: a flood of made-up identities does not displace those that are denied often. For each
//! sixth of a minute and of an hour, a store adds up these counts, and keeps the 512 identities with the most denials: in
//! Redis in at most 14 sorted sets that expire, together below 2 MB, however many processes and policies you have. So in
//! a flood of more than 512 identities, a new identity is listed only with the last minute, until it has more denials in
//! one second than the lowest of the 512 has in ten minutes, or until the next ten minutes begin. A report that the
//! store does not answer is lost. A key of more than 2 KB is not counted.
//!
//! No request waits for a report, and an admission costs nothing. A denial costs some tens of nanoseconds. A task in the
//! [background](crate::limiter#background-work) sends the reports. It ends after a second without any, but stays while it
//! has policies to [publish](crate::Limiter::publish_policies). Use
//! [`Limiter::count_denials`](crate::Limiter::count_denials) to switch all of this off. For stores that keep no denials,
//! such as [transactions](crate::store::redis::transactions), the counting is off.
//!
//! In Redis, your user needs [separate rights](crate::store::redis::deployment#the-least-rights) for this.

use std::{collections::HashMap, fmt};

#[cfg(doc)]
use crate::domain::policy::Policy;
use crate::domain::{block::BLOCKS, report::Ranking};

/// Spans of the last minute have this length, and those of the last hour are longer.
pub(crate) const SPAN_OF_MINUTE_MS: u64 = 10_000;

/// An identity that was denied, under one policy or by a block. `Debug` does not show the value.
#[derive(Clone, PartialEq, Eq)]
pub struct DeniedIdentity {
    policy: Option<String>,
    identity: String,
    last_minute: u64,
    last_hour: u64,
}

impl DeniedIdentity {
    /// Adds up the rankings of the last minute and hour. The list is sorted by the denials in the last minute, then in
    /// the last hour, most first.
    pub(crate) fn list(rankings: Vec<Ranking>) -> Vec<Self> {
        let mut by_member = HashMap::<String, [u64; 2]>::new();
        for ranking in rankings {
            let period = usize::from(ranking.span.length_ms > SPAN_OF_MINUTE_MS);
            for (member, units) in ranking.members {
                let sum = &mut by_member.entry(member).or_default()[period];
                *sum = sum.saturating_add(units);
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
        let mut list: Vec<_> = list.filter(|it| it.last_hour > 0).collect();
        list.sort_unstable_by(|a, b| {
            let counts = (b.last_minute, b.last_hour).cmp(&(a.last_minute, a.last_hour));
            counts.then_with(|| (&a.identity, &a.policy).cmp(&(&b.identity, &b.policy)))
        });
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

    /// Returns the number of denials in the last 60 to 70 s.
    #[must_use]
    pub const fn last_minute(&self) -> u64 {
        self.last_minute
    }

    /// Returns the number of denials in the last 60 to 70 minutes: at least that of the last minute.
    #[must_use]
    pub const fn last_hour(&self) -> u64 {
        self.last_hour
    }
}

/// Shows the kind alone: the value is data of a client.
impl fmt::Debug for DeniedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.identity.split('=').next().unwrap_or_default();
        let (policy, counts) = (&self.policy, [self.last_minute, self.last_hour]);
        write!(f, "DeniedIdentity({policy:?} {kind}=…: {counts:?})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::report::{DENIED_WITHIN, Span};

    /// The rankings of a span of the minute, and of one of the hour.
    fn rankings<const M: usize, const H: usize>(
        minute: [(&str, u64); M],
        hour: [(&str, u64); H],
    ) -> Vec<Ranking> {
        let member = |(user, denied): &(&str, u64)| (format!("api user={user}"), *denied);
        let members: [Vec<_>; 2] =
            [&minute[..], &hour[..]].map(|it| it.iter().map(member).collect());
        let rankings = DENIED_WITHIN.iter().zip(members);
        let ranking = |(rule, members)| Ranking {
            span: Span::at(rule, 0),
            members,
            total: 0,
        };
        rankings.map(ranking).collect()
    }

    fn list(rankings: Vec<Ranking>) -> Vec<(String, u64, u64)> {
        let list = DeniedIdentity::list(rankings).into_iter();
        let list = list.map(|it| (it.identity()[5..].into(), it.last_minute(), it.last_hour()));
        list.collect()
    }

    #[test]
    fn spans_are_added_up_and_those_denied_most_in_the_last_minute_come_first() {
        let mut all = rankings(
            [("a", 1), ("b", 2)],
            [("a", 5), ("b", 2), ("c", 70), ("d", 0)],
        );
        all.extend(rankings([("a", 4)], [("b", 1)]));
        let expected = [("a", 5, 5), ("b", 2, 3), ("c", 0, 70)];
        assert_eq!(
            list(all),
            expected.map(|(user, minute, hour)| (user.into(), minute, hour))
        );
    }

    #[test]
    fn the_hour_contains_the_minute() {
        let all = rankings([("new", 9), ("some", 5)], [("some", 2), ("none", 0)]);
        let expected = [("new", 9, 9), ("some", 5, 5)];
        assert_eq!(
            list(all),
            expected.map(|(user, minute, hour)| (user.into(), minute, hour))
        );
    }

    #[test]
    fn debug_shows_no_identity() {
        let denials = DeniedIdentity::list(rankings([("alice", 1)], []));
        let text = format!("{denials:?}");
        assert!(text.contains("user=…") && !text.contains("alice"), "{text}");
    }
}
