//! The events that an observer is notified of: views that give no access to a key.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use crate::domain::{
    block::{Block, BlockedBy},
    charge::Charge,
    check::Check,
    decision::{Decision, PolicyUsage, RuleUsage},
    error::{ExtractError, StoreError},
    policy::Policy,
};

/// The purpose of a call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// Decide and charge.
    Check,
    /// Return the remaining quota.
    Peek,
    /// Set the final cost of an admitted check.
    Settle,
    /// Hold slots for longer.
    Renew,
    /// Reset a key.
    Reset,
    /// Block an identity.
    Block,
    /// End the blocks of an identity.
    Unblock,
}

impl CallKind {
    /// The number of kinds.
    #[cfg(feature = "metrics")]
    pub(crate) const COUNT: usize = Self::Unblock as usize + 1;

    /// Returns one lower-case word: `check`, `peek`, `settle`, `renew`, `reset`, `block`, `unblock`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Reset => "reset",
            Self::Block => "block",
            Self::Unblock => "unblock",
        }
    }
}

/// The outcome of a request that the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// The request passed, unlimited: the failure policy is open, or only shadows apply.
    Passed,
    /// The memory of this process decided: the failure policy is local.
    Local,
    /// The request was rejected.
    Rejected,
    /// No request was waiting: the call was not a check, and the caller got the error.
    Failed,
}

impl RequestOutcome {
    /// Returns one lower-case word: `passed`, `local`, `rejected`, `failed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Local => "local",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }

    pub(crate) const fn of(passes: bool) -> Self {
        if passes { Self::Passed } else { Self::Rejected }
    }
}

/// How long a call took, and when it ended, so that an observer need not read the clock again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) latency: Duration,
    #[cfg_attr(
        not(feature = "metrics"),
        expect(dead_code, reason = "read by that observer")
    )]
    pub(crate) ended_at: Instant,
}

impl Timing {
    pub(crate) fn since(start: Instant) -> Self {
        let ended_at = Instant::now();
        Self {
            latency: ended_at.saturating_duration_since(start),
            ended_at,
        }
    }

    /// Returns a timing of zero that ends now, for an answer without a call.
    pub(crate) fn now() -> Self {
        Self {
            latency: Duration::ZERO,
            ended_at: Instant::now(),
        }
    }
}

/// A call of the store, without the keys.
#[derive(Clone, Copy)]
pub struct CallInfo<'a> {
    kind: CallKind,
    pub(super) charges: &'a [Charge],
    /// The final cost of each charge, if this is a settlement.
    pub(super) final_costs: &'a [u64],
    /// The policy of a check that could not be built, if the policy is known.
    unbuilt: Option<&'a Policy>,
    shadow: bool,
    shares_call: bool,
}

impl<'a> CallInfo<'a> {
    /// Describes the call for a check, without the shadows beside policies that count.
    pub(crate) fn new(kind: CallKind, check: &'a Check) -> Self {
        match check.charges() {
            [] => Self::of(kind, check.shadow_charges()),
            counting => Self::of(kind, counting),
        }
    }

    /// Describes the call for charges of one kind: either all are shadows, or none.
    pub(crate) fn of(kind: CallKind, charges: &'a [Charge]) -> Self {
        Self {
            kind,
            charges,
            final_costs: &[],
            unbuilt: None,
            shadow: charges
                .first()
                .is_some_and(|first| first.policy().is_shadow()),
            shares_call: false,
        }
    }

    /// Sets whether an earlier event already stands for this call.
    pub(crate) const fn shared(mut self, shares_call: bool) -> Self {
        self.shares_call = shares_call;
        self
    }

    /// Sets the final costs, for a settlement.
    pub(crate) const fn settling(mut self, final_costs: &'a [u64]) -> Self {
        self.final_costs = final_costs;
        self
    }

    /// Describes a check that could not be built and was never sent.
    pub(crate) const fn never_sent(policy: Option<&'a Policy>, shadow: bool) -> Self {
        Self {
            kind: CallKind::Check,
            charges: &[],
            final_costs: &[],
            unbuilt: policy,
            shadow,
            shares_call: false,
        }
    }

    /// Returns the purpose of the call.
    #[must_use]
    pub const fn kind(&self) -> CallKind {
        self.kind
    }

    /// Returns the policies that are checked, each once.
    pub fn policies(&self) -> impl Iterator<Item = &'a Policy> + use<'a> {
        let policies = self.charges.iter().map(Charge::policy);
        distinct(policies).chain(self.unbuilt)
    }

    /// Returns the names of the policies, separated by commas.
    #[must_use]
    pub fn names(&self) -> impl fmt::Display + use<'a> {
        Names(*self)
    }

    /// Returns whether the policies are [shadows](Policy::shadow), which have separate events.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns whether these are shadows beside policies that count: both had one call, and the others' event came
    /// first.
    #[must_use]
    pub const fn shares_call(&self) -> bool {
        self.shares_call
    }
}

/// Returns the policies, each once. Compares each with all before it: there are few.
pub(super) fn distinct<'a>(
    policies: impl Iterator<Item = &'a Policy> + Clone,
) -> impl Iterator<Item = &'a Policy> + Clone {
    let all = policies.clone();
    policies.enumerate().filter_map(move |(index, policy)| {
        let is_first = all
            .clone()
            .take(index)
            .all(|earlier| !earlier.is_same(policy));
        is_first.then_some(policy)
    })
}

struct Names<'a>(CallInfo<'a>);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, policy) in self.0.policies().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{}", policy.name())?;
        }
        Ok(())
    }
}

/// Leaves out the charges, since they hold keys.
impl fmt::Debug for CallInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallInfo")
            .field("kind", &self.kind)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("shadow", &self.shadow)
            .finish()
    }
}

/// A check was allowed or denied.
#[derive(Clone, Copy, Debug)]
pub struct DecisionEvent<'a> {
    pub(crate) call: CallInfo<'a>,
    pub(crate) timing: Timing,
    /// Private: the decision gives access to the keys.
    pub(crate) decision: &'a Decision,
}

impl<'a> DecisionEvent<'a> {
    /// Returns the call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// Returns how long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Returns whether the memory of this process decided, since the store could not: an [`ErrorEvent`] came before.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.decision.usage().is_local()
    }

    /// Returns whether a [`DenyCache`](crate::store::DenyCache) denied without a call of the store.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.decision.usage().is_cached()
    }

    /// Returns whether every charge fitted. A shadow that denies still lets the request pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the usage under each policy; a policy is listed once for each key that was checked.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'a>> + Clone + use<'a> {
        self.decision.usage().policies()
    }

    /// Returns every rule that denies, with its policy; each rule once for every key that it denies.
    pub fn denials(&self) -> impl Iterator<Item = (&'a Policy, &'a RuleUsage)> + use<'a> {
        self.policies().flat_map(|usage| {
            let denying = usage.rules().iter().filter(|rule| rule.is_exceeded());
            denying.map(move |rule| (usage.policy(), rule))
        })
    }

    /// Returns the rule that denies for the longest time, with its policy.
    #[must_use]
    pub fn denied_by(&self) -> Option<(&'a Policy, &'a RuleUsage)> {
        match self.decision {
            Decision::Allowed(_) | Decision::Blocked(_) => None,
            Decision::Denied(denial) => Some((denial.policy(), denial.rule())),
        }
    }
}

/// The store answered a call that is not a decision.
#[derive(Clone, Copy, Debug)]
pub struct CompletionEvent<'a> {
    pub(crate) call: CallInfo<'a>,
    pub(crate) timing: Timing,
    pub(crate) local: bool,
}

impl<'a> CompletionEvent<'a> {
    /// Returns the call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// Returns how long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Returns whether the memory of this process answered instead of the store: the store could not, or a
    /// [`DenyCache`](crate::store::DenyCache) knew of a block.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.local
    }
}

/// The store could not answer.
#[derive(Clone, Copy, Debug)]
pub struct ErrorEvent<'a> {
    pub(crate) call: CallInfo<'a>,
    pub(crate) timing: Timing,
    pub(crate) error: &'a StoreError,
    pub(crate) outcome: RequestOutcome,
}

impl<'a> ErrorEvent<'a> {
    /// Returns the call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// Returns how long the limiter waited.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Returns the reason why there is no answer.
    #[must_use]
    pub const fn error(&self) -> &'a StoreError {
        self.error
    }

    /// Returns the request's outcome under the failure policy; if you call a [`Limiter`](crate::Limiter), you may do
    /// otherwise.
    #[must_use]
    pub const fn outcome(&self) -> RequestOutcome {
        self.outcome
    }
}

/// The breaker in front of the store has opened or closed.
#[derive(Clone, Copy, Debug)]
pub struct BreakerEvent<'a> {
    /// The failure that opened the breaker; `None` when the breaker has closed.
    pub(crate) error: Option<&'a StoreError>,
}

impl<'a> BreakerEvent<'a> {
    /// Returns whether the breaker is open now: the store is not called any more, except for probes.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the last of the failures that opened the breaker.
    #[must_use]
    pub const fn error(&self) -> Option<&'a StoreError> {
        self.error
    }
}

/// An identity has reached a share of a limit.
#[derive(Clone, Copy, Debug)]
pub struct NearLimitEvent<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) rule: &'a RuleUsage,
}

impl<'a> NearLimitEvent<'a> {
    /// Returns the policy, which may be a [shadow](Policy::shadow).
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the usage under the rule, after the check or the settlement that reached the share.
    #[must_use]
    pub const fn rule(&self) -> &'a RuleUsage {
        self.rule
    }
}

/// A limit found no key in a request, the key could not be looked up, or the service is
/// [misconfigured](crate::error::ExtractErrorKind::Misconfigured).
#[derive(Clone, Copy, Debug)]
pub struct MissingKeyEvent<'a> {
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) shadow: bool,
    pub(crate) error: &'a ExtractError,
    pub(crate) outcome: RequestOutcome,
}

impl<'a> MissingKeyEvent<'a> {
    /// Returns the policy that lacks a key; `None` when the policy is also unknown.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.policy
    }

    /// Returns whether that policy, or the whole layer, is a [shadow](Policy::shadow).
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the reason why there is no key.
    #[must_use]
    pub const fn error(&self) -> &'a ExtractError {
        self.error
    }

    /// Returns the outcome of the request.
    #[must_use]
    pub const fn outcome(&self) -> RequestOutcome {
        self.outcome
    }
}

/// The label of a block by a layer's deny list.
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) const DENY_LIST: &str = "list";

/// A request was rejected because the request, or one of its keys, was on a deny list or blocked in the store.
#[derive(Clone, Copy, Debug)]
pub struct BlockEvent<'a> {
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) by: Option<BlockedBy>,
}

impl<'a> BlockEvent<'a> {
    /// Returns the origin of the [block](crate::block); `None` for a deny list of a layer.
    #[must_use]
    pub const fn source(&self) -> Option<BlockedBy> {
        self.by
    }

    /// Returns the label of the origin: `list`, `operator`, `ban`, `pause`.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) fn label(&self) -> &'static str {
        self.by.map_or(DENY_LIST, BlockedBy::as_str)
    }

    /// Returns the policy whose key is on a list; `None` if that is unknown, if the request as a whole is on a list, or
    /// if an identity is blocked.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.policy
    }
}

/// An identity was [banned](crate::block#bans).
#[derive(Clone, Copy, Debug)]
pub struct BanEvent<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) block: Block,
}

impl<'a> BanEvent<'a> {
    /// Returns the policy that denied the identity too often.
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the block that applies now: the ban, or one that ends later.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }
}

/// Another service has asked us to wait, and an account was [paused](crate::block#pauses).
#[derive(Clone, Copy, Debug)]
pub struct PauseEvent<'a> {
    pub(crate) kind: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) length: Duration,
}

impl<'a> PauseEvent<'a> {
    /// Returns the kind of the account's key, such as `account`.
    #[must_use]
    pub const fn kind(&self) -> &'a str {
        self.kind
    }

    /// Returns the [reason](crate::block::BlockRequest::reason), such as `429, retry-after`.
    #[must_use]
    pub const fn reason(&self) -> Option<&'a str> {
        self.reason
    }

    /// Returns the length of the pause. Later answers of the service may lengthen the pause, without another event.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }
}

/// The fate of slots of a [concurrency policy](crate::Rule::concurrent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlotChange {
    /// An admitted check has taken the slots.
    Taken,
    /// The slots are lost, while their holder works: see [`Slot::lost`](crate::limiter::Slot::lost).
    Lost,
    /// The holder does not need the slots any more, lost or not.
    Returned,
}
