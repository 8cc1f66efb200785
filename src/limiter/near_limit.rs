//! Notices which check takes an identity past a share of a limit, so that you can warn a client before a denial.
//!
//! ```text
//!   used before < share of the limit <= used after        this check is the one, whichever replica made it
//! ```
//!
//! A store decides one check after the other, so that one check of a period passes the share, and no replica has to ask
//! the others. If counts can fall and rise again, [`Noticed`] keeps this process from repeating itself.

use std::sync::Arc;

use super::events::Events;
use crate::{
    bounded::Sets,
    domain::{
        charge::Charge,
        decision::{Decision, RuleUsage, Usage},
        rule::{Rule, millis},
        settlement::Settlement,
    },
    observe::Event,
};

/// The share of a limit, in percent, by default.
const DEFAULT_PERCENT: u8 = 80;

/// More than pass a share within their windows, mostly.
const MAX_NOTICES: usize = 4_096;

/// The last notices of this process: until when each holds, in ms since the Unix epoch. A notice that was given up for
/// another may come again.
#[derive(Debug)]
struct Noticed(Sets<u64>);

/// The notices of a limiter.
#[derive(Clone, Debug)]
pub(super) struct Notices {
    /// From 100 on, nothing is noticed.
    pub(super) percent: u8,
    last: Arc<Noticed>,
}

impl Default for Notices {
    fn default() -> Self {
        Self {
            percent: DEFAULT_PERCENT,
            last: Arc::default(),
        }
    }
}

impl Default for Noticed {
    fn default() -> Self {
        Self(Sets::new(MAX_NOTICES))
    }
}

impl Noticed {
    /// Returns whether there was no notice that still holds, and remembers this one until that time.
    fn is_first(&self, charge: &Charge, rule: &Rule, now_ms: u64, until_ms: u64) -> bool {
        let hash = self.0.hash((charge.policy().name(), charge.key(), rule));
        self.0.update(
            hash,
            |until_ms| *until_ms,
            |last| {
                let holds = last.is_some_and(|last| *last > now_ms);
                (!holds).then_some(until_ms)
            },
        )
    }
}

impl Notices {
    /// Notices the rules that a check, or its shadows, took past the share.
    pub(super) fn notice_check(&self, decision: &Decision, events: &Events) {
        let Decision::Allowed(usage) = decision else {
            return; // nothing was charged
        };
        // Leased units were charged before, and each process sees a part of the counts.
        let is_leased = usage.spares_call();
        self.notice(usage, |_, charge| charge.cost(), is_leased, events);
        if let Some(Decision::Allowed(shadow)) = usage.shadow() {
            self.notice(shadow, |_, charge| charge.cost(), false, events);
        }
    }

    /// Notices the rules that a settlement to these costs took past the share, from the costs that were charged.
    pub(super) fn notice_settled(&self, settlement: &Settlement, settled: &Usage, events: &Events) {
        let (charged, costs) = (settlement.check().charges(), settlement.costs());
        let added = |index: usize, _: &Charge| costs[index].saturating_sub(charged[index].cost());
        self.notice(settled, added, false, events);
    }

    /// `added` is what each charge has added to the usage. A leased check is noticed if it finds the share passed.
    fn notice(
        &self,
        usage: &Usage,
        added: impl Fn(usize, &Charge) -> u64,
        is_leased: bool,
        events: &Events,
    ) {
        let percent = self.percent;
        // This process's memory has counted a part of the requests only.
        if percent >= 100 || usage.is_local() {
            return;
        }
        let now_ms = usage.decided_at_ms();
        let charges = usage.check().charges().iter().enumerate();
        let mut noticed = Vec::new();
        let mut place = 0;
        for ((index, charge), of_policy) in charges.zip(usage.policies()) {
            let added = added(index, charge);
            for rule in of_policy.rules() {
                if has_passed(rule, added, percent, is_leased) {
                    let until_ms = now_ms.saturating_add(millis(rule.reset_after()));
                    if self.last.is_first(charge, &rule.rule(), now_ms, until_ms) {
                        noticed.push(place);
                        let policy = charge.policy();
                        events.report(|| Event::NearLimit { policy, rule });
                    }
                }
                place += 1;
            }
        }
        if !noticed.is_empty() {
            usage.mark_near_limit(noticed.into());
        }
    }
}

/// Whether the units that were added took the usage to this share of the limit, or past it.
fn has_passed(usage: &RuleUsage, added: u64, percent: u8, is_leased: bool) -> bool {
    let limit = usage.rule().limit();
    let used = limit.saturating_sub(usage.remaining());
    // Mostly this is all.
    if !is_near(used, limit, percent) {
        return false;
    }
    let before = used.saturating_sub(added);
    // Slots are taken and returned all the time.
    added > 0 && !usage.rule().is_concurrency() && (is_leased || !is_near(before, limit, percent))
}

/// Whether these units are at least this share of the limit.
const fn is_near(used: u64, limit: u64, percent: u8) -> bool {
    used > 0 && used * 100 >= limit * percent as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{key::Key, policy::Policy};

    #[test]
    fn a_notice_holds_until_its_time_for_one_identity_policy_and_rule() {
        let noticed = Noticed::default();
        let [api, other] = ["api", "other"].map(|name| Policy::parse(name, "10/1m").unwrap());
        let alice = |policy: &Policy| Charge::new(policy, Key::new("user", "alice"), 1);
        let bob = Charge::new(&api, Key::new("user", "bob"), 1);
        let rule = api.rules()[0];
        assert!(noticed.is_first(&alice(&api), &rule, 1_000, 2_000));
        assert!(!noticed.is_first(&alice(&api), &rule, 1_999, 9_000));
        assert!(noticed.is_first(&bob, &rule, 1_000, 2_000));
        assert!(noticed.is_first(&alice(&other), &rule, 1_000, 2_000));
        assert!(noticed.is_first(&alice(&api), &rule.with_limit(20), 1_000, 2_000));
        assert!(
            noticed.is_first(&alice(&api), &rule, 2_000, 3_000),
            "its time is over"
        );
    }

    #[test]
    fn memory_is_bounded_and_a_displaced_notice_may_come_again() {
        let noticed = Noticed::default();
        let policy = Policy::parse("api", "10/1m").unwrap();
        let rule = policy.rules()[0];
        let users: Vec<_> = (0..100_000)
            .map(|user: u32| Charge::new(&policy, Key::new("user", user.to_string()), 1))
            .collect();
        let first = |charge: &&Charge| noticed.is_first(charge, &rule, 1_000, u64::MAX);
        assert_eq!(users.iter().filter(first).count(), 100_000);
        let again = users.iter().filter(first).count();
        assert!(again > 90_000 && noticed.0.len() == MAX_NOTICES);
    }

    #[test]
    fn of_threads_that_pass_together_one_is_first() {
        let noticed = Noticed::default();
        let policy = Policy::parse("api", "10/1m").unwrap();
        let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
        let firsts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| noticed.is_first(&charge, &policy.rules()[0], 1, 2)))
                .collect();
            let firsts = threads.into_iter().map(|thread| thread.join().unwrap());
            firsts.filter(|is_first| *is_first).count()
        });
        assert_eq!(firsts, 1);
    }
}
