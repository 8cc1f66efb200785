//! What an observer is notified of: views without a key.

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

/// What a store is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// To decide and charge.
    Check,
    /// To tell what is left.
    Peek,
    /// To give an admitted check its final cost.
    Settle,
    /// To reset a key.
    Reset,
    /// To block an identity.
    Block,
    /// To end its blocks.
    Unblock,
}

impl CallKind {
    /// How many there are.
    #[cfg(feature = "metrics")]
    pub(crate) const COUNT: usize = Self::Unblock as usize + 1;

    /// In one lower-case word: `check`, `peek`, `settle`, `reset`, `block`, `unblock`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Settle => "settle",
            Self::Reset => "reset",
            Self::Block => "block",
            Self::Unblock => "unblock",
        }
    }
}

/// What happened to a request that the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// It went on, unlimited: the failure policy is open, or only shadows apply.
    Passed,
    /// The memory of this process has decided: the failure policy is local.
    Local,
    /// It was rejected.
    Rejected,
    /// No request waited for the answer: the caller of whatever is no check got the error.
    Failed,
}

impl RequestOutcome {
    /// In one lower-case word: `passed`, `local`, `rejected`, `failed`.
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

/// How long a call took, and when it ended: known already, so that an observer need not read the clock again.
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

    /// Of what took no time.
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
    charges: &'a [Charge],
    /// The policy of a check that could not be built, if it is known.
    unbuilt: Option<&'a Policy>,
    shadow: bool,
    shares_call: bool,
}

impl<'a> CallInfo<'a> {
    /// The call for a check, without the shadows beside policies that count.
    pub(crate) fn new(kind: CallKind, check: &'a Check) -> Self {
        match check.charges() {
            [] => Self::of(kind, check.shadow_charges()),
            counting => Self::of(kind, counting),
        }
    }

    /// The call for charges of one kind: all of them shadows, or none.
    pub(crate) fn of(kind: CallKind, charges: &'a [Charge]) -> Self {
        Self {
            kind,
            charges,
            unbuilt: None,
            shadow: charges.first().is_some_and(|it| it.policy().is_shadow()),
            shares_call: false,
        }
    }

    /// The same, where there was an event for the call already.
    pub(crate) const fn shared(mut self, shares_call: bool) -> Self {
        self.shares_call = shares_call;
        self
    }

    /// A check that was never sent, since it could not be built.
    pub(crate) const fn never_sent(policy: Option<&'a Policy>, shadow: bool) -> Self {
        Self {
            kind: CallKind::Check,
            charges: &[],
            unbuilt: policy,
            shadow,
            shares_call: false,
        }
    }

    /// What the store is called for.
    #[must_use]
    pub const fn kind(&self) -> CallKind {
        self.kind
    }

    /// The policies that are checked, each once.
    pub fn policies(&self) -> impl Iterator<Item = &'a Policy> + use<'a> {
        let policies = self.charges.iter().map(Charge::policy);
        distinct(policies).chain(self.unbuilt)
    }

    /// The names of the policies, separated by commas.
    #[must_use]
    pub fn names(&self) -> impl fmt::Display + use<'a> {
        Names(*self)
    }

    /// Whether the policies are [shadows](Policy::shadow): they have an event of their own.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether these are shadows beside policies that count, which had their event before: it was one call for all.
    #[must_use]
    pub const fn shares_call(&self) -> bool {
        self.shares_call
    }
}

/// The policies, each once. There are few.
pub(super) fn distinct<'a>(
    policies: impl Iterator<Item = &'a Policy> + Clone,
) -> impl Iterator<Item = &'a Policy> + Clone {
    let all = policies.clone();
    policies.enumerate().filter_map(move |(index, policy)| {
        let is_first = all.clone().take(index).all(|it| !it.is_same(policy));
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

/// Charges hold keys, and are therefore not shown.
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
    /// Gives access to the keys: no method returns it.
    pub(crate) decision: &'a Decision,
}

impl<'a> DecisionEvent<'a> {
    /// The call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// How long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Whether the memory of this process has decided, since the store could not: an [`ErrorEvent`] came before.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.decision.usage().is_local()
    }

    /// Whether a [`DenyCache`](crate::store::DenyCache) has repeated a denial: the store was not called.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.decision.usage().is_repeated()
    }

    /// Whether every charge fitted. A shadow that denies lets the request pass all the same.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// What is left under each policy; a policy is listed once for each key that it was checked with.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'a>> + Clone + use<'a> {
        self.decision.usage().policies()
    }

    /// Every rule that denies, with its policy; each as often as there are keys that it denies.
    pub fn denials(&self) -> impl Iterator<Item = (&'a Policy, &'a RuleUsage)> + use<'a> {
        self.policies().flat_map(|usage| {
            let denying = usage.rules().iter().filter(|rule| rule.is_exceeded());
            denying.map(move |rule| (usage.policy(), rule))
        })
    }

    /// The rule that denies for longest, with its policy.
    #[must_use]
    pub fn denied_by(&self) -> Option<(&'a Policy, &'a RuleUsage)> {
        match self.decision {
            Decision::Allowed(_) | Decision::Blocked(_) => None,
            Decision::Denied(denial) => Some((denial.policy(), denial.rule())),
        }
    }
}

/// A call that decides nothing was answered.
#[derive(Clone, Copy, Debug)]
pub struct CompletionEvent<'a> {
    pub(crate) call: CallInfo<'a>,
    pub(crate) timing: Timing,
    pub(crate) local: bool,
}

impl<'a> CompletionEvent<'a> {
    /// The call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// How long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Whether the memory of this process has answered, and not the store: since that could not, or as a
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
    /// The call.
    #[must_use]
    pub const fn call(&self) -> &CallInfo<'a> {
        &self.call
    }

    /// How long the limiter waited.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.timing.latency
    }

    /// Why there is no answer.
    #[must_use]
    pub const fn error(&self) -> &'a StoreError {
        self.error
    }

    /// What happened to the request, by the failure policy; a caller of [`Limiter`](crate::Limiter) may do otherwise.
    #[must_use]
    pub const fn outcome(&self) -> RequestOutcome {
        self.outcome
    }
}

/// The breaker in front of the store has opened or closed.
#[derive(Clone, Copy, Debug)]
pub struct BreakerEvent<'a> {
    /// What opened it; `None` when it has closed.
    pub(crate) error: Option<&'a StoreError>,
}

impl<'a> BreakerEvent<'a> {
    /// Whether it is open now: the store is not called any more, except for probes.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.error.is_some()
    }

    /// The last of the failures that opened it.
    #[must_use]
    pub const fn error(&self) -> Option<&'a StoreError> {
        self.error
    }
}

/// A limit found no key in a request, the key could not be looked up, or the service is
/// [misconfigured](crate::error::ExtractErrorKind::Misconfigured).
#[derive(Clone, Copy, Debug)]
pub struct MissingKey<'a> {
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) shadow: bool,
    pub(crate) error: &'a ExtractError,
    pub(crate) outcome: RequestOutcome,
}

impl<'a> MissingKey<'a> {
    /// The policy that lacks a key; `None` when the policy is not known either.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.policy
    }

    /// Whether that policy, or the whole layer, is a [shadow](Policy::shadow).
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Why it lacks one.
    #[must_use]
    pub const fn error(&self) -> &'a ExtractError {
        self.error
    }

    /// What happened to the request.
    #[must_use]
    pub const fn outcome(&self) -> RequestOutcome {
        self.outcome
    }
}

/// What a request was blocked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockSource {
    /// A deny list of a layer.
    List,
    /// An operator's [block](crate::block).
    Operator,
    /// A [ban](crate::block#bans).
    Ban,
}

impl BlockSource {
    /// In one lower-case word: `list`, `operator`, `ban`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Operator => "operator",
            Self::Ban => "ban",
        }
    }
}

impl From<BlockedBy> for BlockSource {
    fn from(by: BlockedBy) -> Self {
        match by {
            BlockedBy::Operator => Self::Operator,
            BlockedBy::Ban => Self::Ban,
        }
    }
}

/// A request, or one of its keys, was on a deny list or is blocked in the store, and the request was rejected.
#[derive(Clone, Copy, Debug)]
pub struct BlockEvent<'a> {
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) source: BlockSource,
}

impl<'a> BlockEvent<'a> {
    /// What it was blocked by.
    #[must_use]
    pub const fn source(&self) -> BlockSource {
        self.source
    }

    /// The policy whose key is on a list; `None` when that is unknown, when the request is on a list as a whole, or
    /// when an identity is blocked.
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
    /// The policy that denied it too often.
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The block that holds now: the ban, or one that ends later.
    #[must_use]
    pub const fn block(&self) -> Block {
        self.block
    }
}
