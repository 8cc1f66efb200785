//! [`Decision`]: the answer of a store, and the usage under each rule.
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
pub(crate) use self::tightness::Share;
pub(crate) use self::usage::{Facts, Origin};
pub use self::{
    report::{Report, ReportedBlock, ReportedLimit},
    rule_usage::RuleUsage,
    usage::{PolicyUsage, Usage},
};
pub use crate::domain::window::Count;
use crate::domain::{
    block::{Block, BlockedBy},
    charge::Charge,
    check::{Check, CheckBatch},
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::millis,
};

mod report;
mod rule_usage;
mod tightness;
mod usage;

/// How late a process notices, at most, that another has returned a slot.
const SLOT_RECHECK: Duration = Duration::from_millis(100);

/// The answer to a check. An error instead of a decision means *could not decide*, never *no*.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Decision {
    /// Every charge fits every rule of the policy, and all have been charged.
    Allowed(Usage),
    /// At least one charge does not fit, and none has been charged.
    Denied(Denial),
    /// An identity is [blocked](crate::block), and nothing has been charged. You get this answer only for checks that
    /// [enforce blocks](Check::enforces_blocks).
    Blocked(Blocked),
}

impl Decision {
    /// Adds the decision about the [shadows](Check::shadow_check) of the check. A denial stays unchanged, since no
    /// shadow is decided for a denial. For stores.
    #[must_use]
    pub fn with_shadow(self, shadow: Self) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.with_shadow(shadow)),
            Self::Denied(_) | Self::Blocked(_) => self,
        }
    }

    /// Returns whether the check was allowed.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// Returns the decision with all times longer by this much.
    pub(crate) fn later(&self, by: Duration) -> Self {
        let by_ms = millis(by);
        let later = |ms: u64| ms.saturating_add(by_ms).min(NEVER_MS - 1);
        self.copy(self.usage().check(), 0, |it| it.moved(later), later)
    }

    /// Returns the decision with all times shorter by this much, because it is read later, as the answer to `check`, whose
    /// charges have the same rules.
    pub(crate) fn aged(&self, check: &Check, by: Duration) -> Self {
        let age_ms = millis(by);
        let sooner = |ms: u64| ms.saturating_sub(age_ms).max(1);
        self.copy(check, 0, |it| it.moved(sooner), sooner)
    }

    /// Returns this denial, `age_ms` after the store's answer, as the answer to `check`.
    pub(crate) fn repeated(&self, check: &Check, age_ms: u64) -> Self {
        if self.is_allowed() {
            return self.clone();
        }
        let sooner = |ms: u64| ms.saturating_sub(age_ms);
        let mut repeated = self.copy(check, age_ms, |it| it.repeated(age_ms), sooner);
        repeated.usage_mut().repeat();
        repeated
    }

    /// Returns a denial with this wait under each concurrency rule that has no slot, since one may be returned at any
    /// time; `None` if there is no such rule.
    pub(crate) fn with_slot_wait(&self, wait: Duration) -> Option<Self> {
        let Self::Denied(Denial { usage, .. }) = self else {
            return None;
        };
        let lacks_slot = |it: &RuleUsage| it.is_exceeded() && it.rule().is_concurrency();
        if !usage.rules().any(lacks_slot) {
            return None;
        }
        let waiting = |it: RuleUsage| it.with_slot_wait(millis(wait));
        Self::of(usage.copy(usage.check(), 0, waiting), false).ok()
    }

    /// Returns a copy with other figures: of a block, which is about no rules, with this time until its end.
    fn copy(
        &self,
        check: &Check,
        later_ms: u64,
        rule: impl Fn(RuleUsage) -> RuleUsage,
        time: impl Fn(u64) -> u64,
    ) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.copy(check, later_ms, rule)),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.copy(check, later_ms, rule),
                ..*denial
            }),
            Self::Blocked(Blocked { identity, usage }) => Self::Blocked(Blocked {
                identity: Arc::new(Identity {
                    key: identity.key.clone(),
                    retry_after_ms: identity.retry_after_ms.map(time),
                    ..**identity
                }),
                usage: usage.copy(usage.check(), later_ms, rule),
            }),
        }
    }

    /// Returns the decision as one of this process's memory.
    pub(crate) fn local(mut self) -> Self {
        self.usage_mut().note_origin(Origin::Local);
        self
    }

    /// Returns the usage, of which the maker of the answer may say more.
    pub(crate) fn usage_mut(&mut self) -> &mut Usage {
        match self {
            Self::Allowed(usage) => usage,
            Self::Denied(denial) => &mut denial.usage,
            Self::Blocked(blocked) => &mut blocked.usage,
        }
    }

    /// Returns the usage, also for a denial. If the check is blocked, the usage is empty.
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
    /// Computes the decision from the counts, one for each rule of each charge: for an admission, the counts *after*
    /// the charge. `now_ms` is the store's clock at the check. For stores.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the counts do not match this check, or when the check
    /// was denied although all rules have room.
    pub fn new(
        check: &Check,
        admitted: bool,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Self, StoreError> {
        Self::of(Usage::new(check, admitted, now_ms, counts)?, admitted)
    }

    /// Joins the decision of a check whose parts were decided separately, or paid with leased units.
    pub(crate) fn joined(
        check: &Check,
        admitted: bool,
        decided_at_ms: u64,
        rules: Vec<RuleUsage>,
        facts: Facts,
    ) -> Result<Self, StoreError> {
        let mut usage = Usage::of(check, decided_at_ms, rules, admitted);
        usage.note(|noted| *noted = facts);
        Self::of(usage, admitted)
    }

    fn of(usage: Usage, admitted: bool) -> Result<Self, StoreError> {
        if admitted {
            return Ok(Self::Allowed(usage));
        }
        let waits = usage.rules().map(RuleUsage::denied_ms);
        // Choose the first rule if several have the longest wait.
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

/// How many of several identical checks were admitted, and the count under each rule afterwards.
pub(crate) struct BatchOutcome<'a> {
    pub(crate) check: &'a Check,
    pub(crate) count: u16,
    pub(crate) admitted: u16,
    pub(crate) now_ms: u64,
    pub(crate) counts: &'a [Count],
    pub(crate) blocked: Option<Blocked>,
}

impl<'a> BatchOutcome<'a> {
    /// Creates the result of checks that no block denies.
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

    /// Returns the decision of a single check, and of the shadows. Errors of shadows are ignored.
    pub(crate) fn decision(
        self,
        shadows: Option<BatchOutcome<'_>>,
    ) -> Result<Decision, StoreError> {
        if let Some(blocked) = self.blocked {
            return Ok(Decision::Blocked(blocked));
        }
        let is_admitted = self.admitted == 1;
        let decision = Decision::new(self.check, is_admitted, self.now_ms, self.counts)?;
        let shadows = shadows.filter(|_| is_admitted);
        let shadow = shadows.and_then(|it| it.decision(None).ok());
        Ok(shadow.into_iter().fold(decision, Decision::with_shadow))
    }

    /// Computes the decisions of a batch. If some checks are denied, the counts say when one of them fits.
    fn each(&self, batch: &CheckBatch) -> Result<Vec<Decision>, StoreError> {
        // At the time of an earlier check, the costs of the later ones were not charged yet.
        let counts_then = |later: u16| -> Vec<Count> {
            let counts = self.counts.iter().zip(self.check.rules());
            let counts = counts
                .map(|(count, (rule, cost))| count.before(rule, cost.saturating_mul(later.into())));
            counts.collect()
        };
        let admitted = self.admitted.min(self.count);
        let decided = (0..self.count).map(|place| match admitted.checked_sub(place + 1) {
            Some(later) => Decision::new(batch.nth(place), true, self.now_ms, &counts_then(later)),
            None => Decision::new(self.check, false, self.now_ms, self.counts),
        });
        decided.collect()
    }

    /// Returns all decisions of a batch, with the shadows of those that were admitted. Errors of shadows are ignored.
    pub(crate) fn decisions(
        self,
        batch: &CheckBatch,
        shadows: Option<BatchOutcome<'_>>,
    ) -> Result<Vec<Decision>, StoreError> {
        if let Some(blocked) = self.blocked {
            return Ok(vec![Decision::Blocked(blocked); self.count.into()]);
        }
        let decisions = self.each(batch)?;
        let shadows = shadows.and_then(|it| {
            let batch = batch.shadows(it.count)?;
            it.decisions(&batch, None).ok()
        });
        let mut shadows = shadows.into_iter().flatten();
        let decisions = decisions.into_iter();
        Ok(decisions
            .map(|it| shadows.next().into_iter().fold(it, Decision::with_shadow))
            .collect())
    }
}

/// The reason why a check was denied, and when the same check would pass; cheap to clone.
#[derive(Clone, Debug)]
pub struct Denial {
    usage: Usage,
    /// The index, among all rules, of the rule with the longest wait.
    rule: usize,
}

impl Denial {
    /// Returns the time until the same check would be admitted if no other check came first, in whole milliseconds;
    /// `None` if a cost is above a limit, so that the check can never pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.rule().retry_after()
    }

    /// Returns the time that clients may see.
    pub(crate) fn shown_retry_after(&self) -> Option<Duration> {
        self.rule().shown_retry_after()
    }

    /// Returns the same of the rules that do not limit concurrency: zero if none of them denies, `None` if one of them
    /// always will.
    ///
    /// A slot is mostly returned long before the time of [`retry_after`](Self::retry_after), which is the latest. This
    /// is how long a client has to wait in any case.
    #[must_use]
    #[doc(hidden)]
    pub fn retry_after_besides_slots(&self) -> Option<Duration> {
        let rules = self.usage.rules().filter(|it| !it.rule().is_concurrency());
        match rules.filter_map(RuleUsage::denied_ms).max() {
            Some(NEVER_MS) => None,
            wait => Some(Duration::from_millis(wait.unwrap_or(0))),
        }
    }

    /// Returns whether the check lacks slots and nothing else. Such a denial means "not now": any process may return a
    /// slot at any time.
    pub(crate) fn is_by_slots(&self) -> bool {
        let mut denying = self.usage.rules().filter(|it| it.is_exceeded());
        denying.all(|it| it.rule().is_concurrency() && it.retry_after().is_some())
    }

    /// Returns how long to believe this denial without asking the store again: as long as another rule denies, and for
    /// want of a slot at most [`SLOT_RECHECK`]; `None` if the check never passes.
    pub(crate) fn recheck_after(&self) -> Option<Duration> {
        let believed = self.retry_after_besides_slots()?.max(SLOT_RECHECK);
        self.retry_after().map(|wait| wait.min(believed))
    }

    /// Returns the policy with the longest wait.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.charge().policy()
    }

    /// Returns the charge with the longest wait: the policy, the key and the [contributor](crate::contributors).
    #[must_use]
    pub fn charge(&self) -> &Charge {
        let charges = self.usage.check().charges();
        let ends = charges.iter().scan(0, |end, charge| {
            *end += charge.policy().rules().len();
            Some(*end)
        });
        &charges[ends.take_while(|end| *end <= self.rule).count()]
    }

    /// Returns the rule with the longest wait: the first if several are equal.
    #[must_use]
    pub fn rule(&self) -> &RuleUsage {
        self.usage.rule(self.rule)
    }

    /// Returns the usage under every rule; nothing was charged.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// A check that was denied because an identity is blocked; nothing was charged.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Behind a pointer: every decision is as large as this type, and few are blocks.
    identity: Arc<Identity>,
    usage: Usage,
}

/// The identity that is blocked, and for how long after the decision.
#[derive(Debug)]
struct Identity {
    key: Key,
    block: Block,
    retry_after_ms: Option<u64>,
}

impl Blocked {
    /// Creates the answer: `key` is blocked at this time, in ms since the Unix epoch by the store's clock. For stores.
    #[must_use]
    pub fn new(key: Key, block: Block, decided_at_ms: u64) -> Self {
        let until = block.until_ms();
        Self {
            identity: Arc::new(Identity {
                key,
                block,
                retry_after_ms: until.map(|until| until.saturating_sub(decided_at_ms)),
            }),
            usage: Usage::of(&Check::counting([]), decided_at_ms, Vec::new(), false),
        }
    }

    /// Returns the identity that is blocked; if there are several, the one whose block ends last.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.identity.key
    }

    /// Returns the block.
    #[must_use]
    pub fn block(&self) -> Block {
        self.identity.block
    }

    /// Returns the time that clients may see: the rest of a ban or a pause, but not of an operator's block.
    pub(crate) fn shown_retry_after(&self) -> Option<Duration> {
        self.retry_after()
            .filter(|_| !self.is_by(BlockedBy::Operator))
    }

    /// Returns the store's clock at the decision, in ms since the Unix epoch.
    pub(crate) fn decided_at_ms(&self) -> u64 {
        self.usage.decided_at_ms()
    }

    pub(crate) fn is_by(&self, by: BlockedBy) -> bool {
        self.block().source() == by
    }

    /// Chooses between two answers to one check: the block that ends later wins.
    pub(crate) fn or_later(self, other: Self) -> Self {
        match other.block().outlasts(self.block()) {
            true => other,
            false => self,
        }
    }

    /// Returns how long the block lasts after the decision; `None` if it is permanent.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.identity.retry_after_ms.map(Duration::from_millis)
    }
}
