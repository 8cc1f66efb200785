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
//!     Decision::Denied(_) | Decision::Blocked(_) => unreachable!(),
//! }
//! match limiter.check([Charge::new(&policy, Key::new("user", "alice"), 4)]).await? {
//!     Decision::Allowed(_) | Decision::Blocked(_) => unreachable!(),
//!     Decision::Denied(denial) => {
//!         assert_eq!(denial.policy().name(), "api");
//!         assert_eq!(denial.rule().rule().to_string(), "12/1m");           // the rule with the longest wait
//!         assert!(denial.retry_after().unwrap().as_secs() >= 59);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

pub use crate::window::Count;
use crate::{
    block::{Block, BlockedBy},
    charge::Charge,
    check::Check,
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::{Rule, millis},
};

/// The answer to a check. An error instead of a decision means *could not decide*, never *no*.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Every charge fits every rule of its policy, and all have been charged.
    Allowed(Usage),
    /// At least one charge does not fit, and none has been charged.
    Denied(Denial),
    /// An identity is [blocked](crate::block), and nothing has been charged. Only checks that
    /// [heed blocks](Check::heeds_blocks) are answered so.
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

    /// The same refusal, `age_ms` after the store has answered it, as the answer to `check`; partial if it is an
    /// answer to a part of what was asked.
    pub(crate) fn repeated(&self, check: &Check, age_ms: u64, is_partial: bool) -> Self {
        let repeat = Repeat { age_ms, is_partial };
        match self {
            Self::Allowed(_) => self.clone(),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.repeated(check, repeat),
                ..*denial
            }),
            Self::Blocked(blocked) => Self::Blocked(Blocked {
                retry_after_ms: blocked.retry_after_ms.map(|ms| ms.saturating_sub(age_ms)),
                usage: blocked.usage.repeated(blocked.usage.check(), repeat),
                identity: blocked.identity.clone(),
            }),
        }
    }

    fn moved(&self, moved: impl Fn(u64) -> u64) -> Self {
        match self {
            Self::Allowed(usage) => Self::Allowed(usage.moved(moved)),
            Self::Denied(denial) => Self::Denied(Denial {
                usage: denial.usage.moved(moved),
                ..*denial
            }),
            Self::Blocked(blocked) => Self::Blocked(Blocked {
                retry_after_ms: blocked.retry_after_ms.map(moved),
                ..blocked.clone()
            }),
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

/// What is left under each rule of each charge, right after the decision; cheap to clone.
///
/// The usage of an admitted check is also what it is settled with: see [`Limiter::settle`](crate::Limiter::settle).
#[derive(Clone, Debug)]
pub struct Usage {
    inner: Arc<Inner>,
    shadow: Option<Arc<Decision>>,
}

#[derive(Debug)]
struct Inner {
    check: Check,
    decided_at_ms: u64,
    rules: RuleUsages,
    may_settle: AtomicBool,
    local: AtomicBool,
    leased: AtomicBool,
    may_be_repeated: AtomicBool,
    repeat: Option<Repeat>,
}

/// What is left under each rule. A single one is in one allocation with the rest; more would be long to move.
type RuleUsages = SmallVec<[RuleUsage; 1]>;

/// How a refusal was repeated.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    /// Since the store's answer.
    age_ms: u64,
    /// Whether only a part of what was asked is known to be refused.
    is_partial: bool,
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
        decision.usage().inner.leased.store(true, Ordering::Relaxed);
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
        let waits = usage.policies().enumerate().flat_map(|(charge, it)| {
            let rules = it.rules().iter();
            rules.map(move |rule| (rule.denied_ms, charge))
        });
        // The first, if several are equal.
        let longest = waits
            .enumerate()
            .max_by_key(|(rule, (wait, _))| (*wait, Reverse(*rule)));
        let Some((rule, (Some(_), charge))) = longest else {
            return Err(StoreError::protocol(
                "the store denied a check that fits every rule",
            ));
        };
        Ok(Self::Denied(Denial {
            usage,
            charge,
            rule,
        }))
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

impl Filled<'_> {
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

/// How long a rule denies a cost, in ms: `None` when it fits, [`NEVER_MS`] when it can never fit.
fn denial_ms(rule: &Rule, cost: u64, now_ms: u64, count: Count) -> Option<u64> {
    match rule.limit().checked_sub(cost) {
        None => Some(NEVER_MS),
        Some(room) if count.units(rule) > room => {
            Some(count.fits_at_ms(rule, cost).saturating_sub(now_ms))
        }
        Some(_) => None,
    }
}

const NEVER_MS: u64 = u64::MAX;

impl Usage {
    /// Computes the usage from the counts, one for each rule of each charge. For stores answering a settlement.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the counts are not those of this check.
    pub fn settled(check: &Check, now_ms: u64, counts: &[Count]) -> Result<Self, StoreError> {
        let usage = Self::new(check, true, now_ms, counts)?;
        usage.take_settlement();
        Ok(usage)
    }

    fn new(
        check: &Check,
        admitted: bool,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Self, StoreError> {
        let other_rules =
            || StoreError::protocol("the store counted other rules than were checked");
        let mut usages = RuleUsages::with_capacity(counts.len());
        let mut counts = counts.iter();
        for charge in check.charges() {
            for rule in charge.policy().rules() {
                let count = *counts.next().ok_or_else(other_rules)?;
                let denied_ms = if admitted {
                    None
                } else {
                    denial_ms(rule, charge.cost(), now_ms, count)
                };
                usages.push(RuleUsage::new(*rule, now_ms, count, denied_ms));
            }
        }
        if counts.next().is_some() {
            return Err(other_rules());
        }
        Ok(Self::of(check, now_ms, usages, admitted))
    }

    fn of(
        check: &Check,
        decided_at_ms: u64,
        rules: impl Into<RuleUsages>,
        may_settle: bool,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                check: check.clone(),
                decided_at_ms,
                rules: rules.into(),
                may_settle: AtomicBool::new(may_settle),
                local: AtomicBool::new(false),
                leased: AtomicBool::new(false),
                may_be_repeated: AtomicBool::new(true),
                repeat: None,
            }),
            shadow: None,
        }
    }

    /// The usage of a check whose parts were decided separately; not to be settled.
    pub(crate) fn joined(check: &Check, decided_at_ms: u64, rules: Vec<RuleUsage>) -> Self {
        Self::of(check, decided_at_ms, rules, false)
    }

    /// The usage of a check as if nothing had ever been charged.
    #[cfg(feature = "cluster")]
    pub(crate) fn unused(check: &Check) -> Self {
        let rules = check.rules();
        let usages = rules.map(|(rule, _)| RuleUsage::new(*rule, 0, Count::default(), None));
        Self::joined(check, 0, usages.collect())
    }

    /// The usage of the charges at these places; not to be settled by itself.
    pub(crate) fn pick(&self, charges: &[usize]) -> Self {
        let policies: Vec<PolicyUsage<'_>> = self.policies().collect();
        let rules = charges.iter().flat_map(|index| policies[*index].rules);
        Self::joined(
            &self.check().pick(charges),
            self.decided_at_ms(),
            rules.copied().collect(),
        )
    }

    /// What is left under each policy that was checked, in the order of the charges.
    ///
    /// A policy is listed once for each key that it was checked with.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'_>> + Clone {
        let mut rest = &self.inner.rules[..];
        self.inner.check.charges().iter().map(move |charge| {
            let (rules, others) = rest.split_at(charge.policy().rules().len());
            rest = others;
            PolicyUsage {
                policy: charge.policy(),
                rules,
            }
        })
    }

    /// What is left under each rule, in the order of [`policies`](Self::policies).
    pub fn rules(&self) -> impl Iterator<Item = &RuleUsage> {
        self.inner.rules.iter()
    }

    /// What the [shadows](Policy::shadow) among the policies decided, which are not among [`policies`](Self::policies).
    ///
    /// `None` when there are none, when they could not decide, and in a denial, for which no shadow is decided.
    #[must_use]
    pub fn shadow(&self) -> Option<&Decision> {
        self.shadow.as_deref()
    }

    /// The store's clock at the decision, in ms since the Unix epoch.
    ///
    /// A decision about keys that are on several nodes of a cluster has the time of the node that was called first.
    #[must_use]
    pub fn decided_at_ms(&self) -> u64 {
        self.inner.decided_at_ms
    }

    /// Whether the memory of this process has decided, since the store could not. The rules are then this process's
    /// share of the rules that were checked: see [`limiter`](crate::limiter#when-the-store-cannot-decide).
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.inner.local.load(Ordering::Relaxed)
    }

    /// Whether a [`DenyCache`](crate::store::DenyCache) has repeated a refusal, without another call of the store.
    ///
    /// Times have aged since the store's answer, and what is [left](RuleUsage::remaining) is as it was then.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.inner.repeat.is_some()
    }

    /// Whether the store was not called, so that the answer says nothing about whether it works: a refusal was
    /// repeated, or what was leased was spent.
    pub(crate) fn spares_call(&self) -> bool {
        self.is_repeated() || self.inner.leased.load(Ordering::Relaxed)
    }

    /// Forbids to repeat the denial: units that were charged lie in this process, and the check may fit in them.
    pub(crate) fn forbid_repeats(&self) {
        self.inner.may_be_repeated.store(false, Ordering::Relaxed);
    }

    pub(crate) fn may_be_repeated(&self) -> bool {
        self.inner.may_be_repeated.load(Ordering::Relaxed)
    }

    /// The same usage, and that of the shadows, as one that the memory of this process has made.
    pub(crate) fn local(self) -> Self {
        self.inner.local.store(true, Ordering::Relaxed);
        if let Some(shadow) = self.shadow() {
            shadow.usage().inner.local.store(true, Ordering::Relaxed);
        }
        self
    }

    pub(crate) fn with_shadow(mut self, decision: Decision) -> Self {
        self.shadow = Some(Arc::new(decision));
        self
    }

    /// The check that this is the usage of. For stores.
    #[must_use]
    pub fn check(&self) -> &Check {
        &self.inner.check
    }

    /// Whether both came from the same decision, and not from one like it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn repeated(&self, check: &Check, repeat: Repeat) -> Self {
        let age_ms = repeat.age_ms;
        Self {
            inner: Arc::new(Inner {
                check: check.clone(),
                decided_at_ms: self.decided_at_ms().saturating_add(age_ms),
                rules: self.rules().map(|rule| rule.repeated(age_ms)).collect(),
                may_settle: AtomicBool::new(false),
                local: AtomicBool::new(self.is_local()),
                leased: AtomicBool::new(false),
                may_be_repeated: AtomicBool::new(true),
                repeat: Some(repeat),
            }),
            shadow: None,
        }
    }

    /// To be shown, not to be settled.
    fn moved(&self, moved: impl Fn(u64) -> u64) -> Self {
        let rules: RuleUsages = self.rules().map(|rule| rule.moved(&moved)).collect();
        let usage = Self::of(self.check(), self.decided_at_ms(), rules, false);
        usage.inner.local.store(self.is_local(), Ordering::Relaxed);
        Self {
            shadow: self.shadow.clone(),
            ..usage
        }
    }

    /// Answers `true` once for an admission, and then always `false`, also to its clones.
    pub(crate) fn take_settlement(&self) -> bool {
        self.inner.may_settle.swap(false, Ordering::Relaxed)
    }
}

/// What is left under one policy for one key.
#[derive(Clone, Copy, Debug)]
pub struct PolicyUsage<'a> {
    policy: &'a Policy,
    rules: &'a [RuleUsage],
}

impl<'a> PolicyUsage<'a> {
    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// What is left under each of its rules, in the policy's order.
    #[must_use]
    pub const fn rules(&self) -> &'a [RuleUsage] {
        self.rules
    }
}

/// What is left under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleUsage {
    rule: Rule,
    remaining: u64,
    reset_after_ms: u64,
    step_end_ms: u64,
    denied_ms: Option<u64>,
}

impl RuleUsage {
    fn new(rule: Rule, now_ms: u64, count: Count, denied_ms: Option<u64>) -> Self {
        // Spared a division, if a step is open.
        let step_end_ms = if count.newest_end_ms > now_ms {
            count.newest_end_ms
        } else {
            rule.step_end_ms(now_ms)
        };
        Self {
            rule,
            remaining: rule.limit().saturating_sub(count.units(&rule)),
            reset_after_ms: count.reset_at_ms(&rule).saturating_sub(now_ms),
            step_end_ms,
            denied_ms,
        }
    }

    /// With times moved; `None` (never) and zero stay as they are.
    fn moved(mut self, moved: impl Fn(u64) -> u64) -> Self {
        if self.reset_after_ms > 0 {
            self.reset_after_ms = moved(self.reset_after_ms);
        }
        if let Some(ms) = self.denied_ms.filter(|ms| *ms != NEVER_MS) {
            self.denied_ms = Some(moved(ms));
        }
        self
    }

    /// As it is so much later, if nothing else was charged.
    fn repeated(mut self, age_ms: u64) -> Self {
        if self.reset_after_ms <= age_ms {
            self.remaining = self.rule.limit();
        }
        self.reset_after_ms = self.reset_after_ms.saturating_sub(age_ms);
        self.denied_ms = match self.denied_ms {
            Some(NEVER_MS) => Some(NEVER_MS),
            // One that others deny for longer than may admit by now.
            ms => ms
                .and_then(|ms| ms.checked_sub(age_ms))
                .filter(|ms| *ms > 0),
        };
        self
    }

    /// The same, so much later and with units that were charged and not used.
    pub(crate) fn later_with_unspent(mut self, age_ms: u64, unspent: u64) -> Self {
        self.remaining = self.remaining.saturating_add(unspent);
        self.moved(|ms| ms.saturating_sub(age_ms).max(1))
    }

    /// The rule.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// The units that still fit.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time until nothing counts any more, whole milliseconds; zero when nothing does.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// Whether this rule denied the check.
    #[must_use]
    pub const fn is_exceeded(&self) -> bool {
        self.denied_ms.is_some()
    }

    /// The time until this rule would admit the same check; `None` when it never would, or does not deny it.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.denied_ms {
            None | Some(NEVER_MS) => None,
            Some(ms) => Some(Duration::from_millis(ms)),
        }
    }

    /// The end of the step that the check was charged to, in ms of the store's clock. For stores, to settle it there.
    #[must_use]
    pub const fn step_end_ms(&self) -> u64 {
        self.step_end_ms
    }
}

/// Why a check was denied, and when the same check would pass; cheap to clone.
#[derive(Clone, Debug)]
pub struct Denial {
    usage: Usage,
    /// The places, among the charges and among all rules, of what denies for longest.
    charge: usize,
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
        &self.usage.check().charges()[self.charge]
    }

    /// The rule that denies for longest: the first of them if several are equal.
    #[must_use]
    pub fn rule(&self) -> &RuleUsage {
        &self.usage.inner.rules[self.rule]
    }

    /// What is left under every rule; nothing was charged.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Whether it tells of one charge only, of those that were asked for: that one is known not to fit. Then
    /// [`retry_after`](Self::retry_after) is the least, since others may deny for longer. Only a
    /// [`DenyCache`](crate::store::DenyCache::any_charge) that was told to denies so.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.usage.inner.repeat.is_some_and(|it| it.is_partial)
    }

    /// The denials of each charge that does not fit, as if it were alone.
    pub(crate) fn parts(&self) -> Vec<Self> {
        let charges = self.usage.policies().enumerate();
        let denying = charges.filter(|(_, it)| it.rules().iter().any(RuleUsage::is_exceeded));
        let parts =
            denying.filter_map(
                |(place, _)| match Decision::of(self.usage.pick(&[place]), false) {
                    Ok(Decision::Denied(part)) => Some(part),
                    _ => None,
                },
            );
        parts.collect()
    }
}

/// A check that was denied since an identity is blocked; nothing was charged.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Who is blocked. Shared: every decision is as large as this one, and most are no blocks.
    identity: Arc<(Key, Block)>,
    retry_after_ms: Option<u64>,
    usage: Usage,
}

impl Blocked {
    /// For stores: `key` is blocked, at this time of the store in ms since the Unix epoch.
    #[must_use]
    pub fn new(key: Key, block: Block, decided_at_ms: u64) -> Self {
        let until = block.until_ms();
        Self {
            identity: Arc::new((key, block)),
            retry_after_ms: until.map(|until| until.saturating_sub(decided_at_ms)),
            usage: Usage::of(&Check::nothing(), decided_at_ms, Vec::new(), false),
        }
    }

    /// Who is blocked. Of several, the one whose block ends last.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.identity.0
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> Block {
        self.identity.1
    }

    /// What clients are told: how long a ban lasts, and nothing of an operator's block.
    pub(crate) fn told_retry_after(&self) -> Option<Duration> {
        self.retry_after().filter(|_| self.is_ban())
    }

    pub(crate) fn is_ban(&self) -> bool {
        self.block().by() == BlockedBy::Ban
    }

    /// Of two answers to one check, the one whose block ends later.
    #[cfg(feature = "cluster")]
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
        self.retry_after_ms.map(Duration::from_millis)
    }
}
