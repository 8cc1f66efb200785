//! [`Decision`]: what a store answers, and what is left under each rule.
//!
//! ```
//! use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, Policy};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let policy = Policy::parse("api", "10/1s,12/1m")?;
//!
//! match limiter.check([Charge::new(&policy, Key::new("user", "alice"), 9)]).await? {
//!     Decision::Allowed(usage) => {
//!         let left: Vec<u64> = usage.rules().map(|rule| rule.remaining()).collect();
//!         assert_eq!(left, [1, 3]);
//!     }
//!     _ => unreachable!(),
//! }
//! match limiter.check([Charge::new(&policy, Key::new("user", "alice"), 4)]).await? {
//!     Decision::Denied(denial) => {
//!         assert_eq!(denial.policy().name(), "api");
//!         assert_eq!(denial.rule().rule().to_string(), "12/1m");           // the rule with the longest wait
//!         assert!(denial.retry_after().unwrap().as_secs() >= 59);
//!     }
//!     _ => unreachable!(),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{cmp::Reverse, sync::Arc, time::Duration};

use self::rule_usage::NEVER_MS;
pub use self::{
    rule_usage::RuleUsage,
    usage::{PolicyUsage, Usage},
};
pub use crate::domain::window::Count;
use crate::domain::{
    block::{Block, BlockedBy},
    charge::Charge,
    check::Check,
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::millis,
};

mod rule_usage;
mod usage;

/// The answer to a check. An error instead of a decision means *could not decide*, never *no*.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Decision {
    /// Every charge fits every rule of its policy, and all have been charged.
    Allowed(Usage),
    /// At least one charge does not fit, and none has been charged.
    Denied(Denial),
    /// An identity is [blocked](crate::block), and nothing has been charged. Only checks that
    /// [enforce blocks](Check::enforces_blocks) are answered so.
    Blocked(Blocked),
}

impl Decision {
    /// Adds what the [shadows](Check::shadow_check) of the check decided; for a denial no shadow is decided, and it
    /// stays as it is. For stores.
    #[must_use]
    pub fn with_shadow(self, shadow: Self) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.with_shadow(shadow)),
            Self::Denied(_) | Self::Blocked(_) => self,
        }
    }

    fn with_any_shadow(self, shadow: Option<Self>) -> Self {
        match shadow {
            Some(shadow) => self.with_shadow(shadow),
            None => self,
        }
    }

    /// Whether the check was allowed.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The same decision, with every time to wait longer by this much.
    pub(crate) fn later(&self, by: Duration) -> Self {
        let by_ms = millis(by);
        self.moved(|ms| ms.saturating_add(by_ms).min(NEVER_MS - 1))
    }

    /// The same decision, as it is when read this much later.
    pub(crate) fn aged(&self, by: Duration) -> Self {
        let by_ms = millis(by);
        self.moved(|ms| ms.saturating_sub(by_ms).max(1))
    }

    /// The same refusal, `age_ms` after the store has answered it, as the answer to `check`.
    pub(crate) fn repeated(&self, check: &Check, age_ms: u64) -> Self {
        match self {
            Self::Allowed(_) => self.clone(),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.repeated(check, age_ms),
                ..*denial
            }),
            Self::Blocked(blocked) => Self::Blocked(Blocked {
                usage: blocked.usage.repeated(blocked.usage.check(), age_ms),
                ..blocked.moved(|ms| ms.saturating_sub(age_ms))
            }),
        }
    }

    /// The same decision as one about `check`, whose charges with rules are those that were decided.
    pub(crate) fn about(self, check: &Check) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.about(check)),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.about(check),
                ..denial
            }),
            Self::Blocked(blocked) => Self::Blocked(blocked),
        }
    }

    fn moved(&self, moved: impl Fn(u64) -> u64) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.moved(moved)),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.moved(moved),
                ..*denial
            }),
            Self::Blocked(blocked) => Self::Blocked(blocked.moved(moved)),
        }
    }

    /// The same decision, as one that the memory of this process has made.
    pub(crate) fn local(self) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.local()),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.local(),
                ..denial
            }),
            Self::Blocked(blocked) => Self::Blocked(Blocked {
                usage: blocked.usage.local(),
                ..blocked
            }),
        }
    }

    /// What is left, allowed or not. Of a blocked check, no policy is looked at.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        match self {
            Self::Allowed(usage) => usage,
            Self::Denied(denial) => &denial.usage,
            Self::Blocked(blocked) => &blocked.usage,
        }
    }
}

impl Decision {
    /// Computes the decision from the counts, one for each rule of each charge: of an admission, *after* the charges
    /// were added. For stores; `now_ms` is the store's clock at the check.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the counts are not those of this check, or deny
    /// nothing though it was denied.
    pub fn new(
        check: &Check,
        admitted: bool,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Self, StoreError> {
        Self::of(Usage::new(check, admitted, now_ms, counts)?, admitted)
    }

    /// The decision of a check whose parts were decided apart.
    pub(crate) fn joined(
        check: &Check,
        admitted: bool,
        decided_at_ms: u64,
        rules: Vec<RuleUsage>,
    ) -> Result<Self, StoreError> {
        Self::of(Usage::of(check, decided_at_ms, rules, admitted), admitted)
    }

    /// The admission of a check for which nothing but leased units was spent.
    pub(crate) fn leased(
        check: &Check,
        decided_at_ms: u64,
        rules: Vec<RuleUsage>,
    ) -> Result<Self, StoreError> {
        let decision = Self::joined(check, true, decided_at_ms, rules)?;
        decision.usage().mark_leased();
        Ok(decision)
    }

    /// Computes the decisions of a fill: of `count` identical checks, the first `admitted` were admitted. For stores.
    ///
    /// `counts` has one count for each rule of each charge, taken after all of them were charged; where some are
    /// denied, each count tells when the cost of one more check fits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn fill(
        check: &Check,
        count: u16,
        admitted: u16,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Vec<Self>, StoreError> {
        // Each of those that came before the last had left as many costs uncharged as came after it.
        let counts_then = |later: u16| -> Vec<Count> {
            let counts = counts.iter().zip(check.rules());
            let counts = counts
                .map(|(count, (rule, cost))| count.before(rule, cost.saturating_mul(later.into())));
            counts.collect()
        };
        let admissions = (0..admitted.min(count))
            .rev()
            .map(|later| Self::new(check, true, now_ms, &counts_then(later)));
        let denials = (admitted..count).map(|_| Self::new(check, false, now_ms, counts));
        admissions.chain(denials).collect()
    }

    fn of(usage: Usage, admitted: bool) -> Result<Self, StoreError> {
        if admitted {
            return Ok(Self::Allowed(usage));
        }
        let waits = usage.rules().map(RuleUsage::denied_ms);
        // The first, if several are equal.
        let longest = waits
            .enumerate()
            .max_by_key(|(rule, wait)| (*wait, Reverse(*rule)));
        let Some((rule, Some(_))) = longest else {
            return Err(StoreError::protocol(
                "the store denied a check that fits every rule",
            ));
        };
        Ok(Self::Denied(Denial { usage, rule }))
    }
}

/// How many of some identical checks were admitted, and the count under each rule after that.
pub(crate) struct Filled<'a> {
    pub(crate) check: &'a Check,
    pub(crate) count: u16,
    pub(crate) admitted: u16,
    pub(crate) now_ms: u64,
    pub(crate) counts: &'a [Count],
    pub(crate) blocked: Option<Blocked>,
}

impl<'a> Filled<'a> {
    /// Of checks that no block denies.
    pub(crate) const fn new(
        check: &'a Check,
        count: u16,
        admitted: u16,
        now_ms: u64,
        counts: &'a [Count],
    ) -> Self {
        Self {
            check,
            count,
            admitted,
            now_ms,
            counts,
            blocked: None,
        }
    }

    /// The decision of a single check, and of its shadows. What went wrong with these is dropped.
    pub(crate) fn decision(self, shadows: Option<Filled<'_>>) -> Result<Decision, StoreError> {
        if let Some(blocked) = self.blocked {
            return Ok(Decision::Blocked(blocked));
        }
        let is_admitted = self.admitted == 1;
        let decision = Decision::new(self.check, is_admitted, self.now_ms, self.counts)?;
        let shadows = shadows.filter(|_| is_admitted);
        Ok(decision.with_any_shadow(shadows.and_then(|it| it.decision(None).ok())))
    }

    /// The decisions of all, and of the shadows of those that were admitted. What went wrong with shadows is dropped.
    pub(crate) fn decisions(
        self,
        shadows: Option<Filled<'_>>,
    ) -> Result<Vec<Decision>, StoreError> {
        let Self { check, count, .. } = self;
        if let Some(blocked) = self.blocked {
            return Ok(vec![Decision::Blocked(blocked); count.into()]);
        }
        let decisions = Decision::fill(check, count, self.admitted, self.now_ms, self.counts)?;
        let shadows = shadows.and_then(|it| it.decisions(None).ok());
        let mut shadows = shadows.into_iter().flatten();
        let decisions = decisions.into_iter();
        Ok(decisions
            .map(|it| it.with_any_shadow(shadows.next()))
            .collect())
    }
}

/// Why a check was denied, and when the same check would pass; cheap to clone.
#[derive(Clone, Debug)]
pub struct Denial {
    usage: Usage,
    /// The place among all rules of the one that denies for longest.
    rule: usize,
}

impl Denial {
    /// The time until the same check would be admitted if no other check came first, in whole milliseconds; `None` for
    /// never, when a cost is above a limit.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.rule().retry_after()
    }

    /// The policy that denies for longest.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.charge().policy()
    }

    /// The charge that is denied for longest: the policy, the key and who [contributes](crate::contributors).
    #[must_use]
    pub fn charge(&self) -> &Charge {
        let charges = self.usage.check().charges();
        let ends = charges.iter().scan(0, |end, charge| {
            *end += charge.policy().rules().len();
            Some(*end)
        });
        &charges[ends.take_while(|end| *end <= self.rule).count()]
    }

    /// The rule that denies for longest: the first of them if several are equal.
    #[must_use]
    pub fn rule(&self) -> &RuleUsage {
        self.usage.rule(self.rule)
    }

    /// What is left under every rule; nothing was charged.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// A check that was denied since an identity is blocked; nothing was charged.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Apart: every decision is as large as this one, and most are no blocks.
    identity: Arc<Identity>,
    usage: Usage,
}

/// Who is blocked, and for how long from the decision on.
#[derive(Debug)]
struct Identity {
    key: Key,
    block: Block,
    retry_after_ms: Option<u64>,
}

impl Blocked {
    /// For stores: `key` is blocked, at this time of the store in ms since the Unix epoch.
    #[must_use]
    pub fn new(key: Key, block: Block, decided_at_ms: u64) -> Self {
        let until = block.until_ms();
        Self {
            identity: Arc::new(Identity {
                key,
                block,
                retry_after_ms: until.map(|until| until.saturating_sub(decided_at_ms)),
            }),
            usage: Usage::of(&Check::nothing(), decided_at_ms, Vec::new(), false),
        }
    }

    /// Who is blocked. Of several, the one whose block ends last.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.identity.key
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> Block {
        self.identity.block
    }

    /// What clients are told: how long a ban lasts, and nothing of an operator's block.
    pub(crate) fn told_retry_after(&self) -> Option<Duration> {
        self.retry_after().filter(|_| self.is_ban())
    }

    /// The store's clock at the decision, in ms since the Unix epoch.
    pub(crate) fn decided_at_ms(&self) -> u64 {
        self.usage.decided_at_ms()
    }

    pub(crate) fn is_ban(&self) -> bool {
        self.block().by() == BlockedBy::Ban
    }

    /// Of two answers to one check, the one whose block ends later.
    pub(crate) fn or_later(self, other: Self) -> Self {
        if self.block().or_later(other.block()) == self.block() {
            self
        } else {
            other
        }
    }

    /// How long the block lasts from the decision on; `None` if it is for ever.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.identity.retry_after_ms.map(Duration::from_millis)
    }

    fn moved(&self, moved: impl Fn(u64) -> u64) -> Self {
        let Identity { key, block, .. } = &*self.identity;
        Self {
            identity: Arc::new(Identity {
                key: key.clone(),
                block: *block,
                retry_after_ms: self.identity.retry_after_ms.map(moved),
            }),
            usage: self.usage.clone(),
        }
    }
}
