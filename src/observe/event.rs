//! What an observer is told: views without a key.

use std::time::Duration;

use crate::{
    check::Check,
    decision::{Decision, PolicyUsage, RuleUsage},
    error::{ExtractError, StoreError},
    policy::Policy,
};

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// To decide and charge.
    Check,
    /// To tell what is left.
    Peek,
    /// To give an admitted check its final cost.
    Settle,
    /// To forget.
    Reset,
}

impl Call {
    /// In one lower-case word: `check`, `peek`, `settle`, `reset`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Settle => "settle",
            Self::Reset => "reset",
        }
    }
}

/// What became of a request that could not be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It went on, unlimited: the failure policy is open, or only a shadow failed.
    Passed,
    /// The memory of this process has answered: the failure policy is local.
    Local,
    /// It was refused.
    Refused,
    /// No request waited for it: a peek, a settlement, a reset.
    Lost,
}

impl Outcome {
    /// In one lower-case word: `passed`, `local`, `refused`, `lost`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Local => "local",
            Self::Refused => "refused",
            Self::Lost => "lost",
        }
    }

    pub(super) const fn of(passes: bool) -> Self {
        if passes { Self::Passed } else { Self::Refused }
    }
}

/// What a store is asked, without the keys.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub(super) call: Call,
    pub(super) policies: Vec<&'a Policy>,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(call: Call, check: &'a Check) -> Self {
        let mut policies: Vec<&Policy> = Vec::with_capacity(check.charges().len());
        for charge in check.charges() {
            if !policies.iter().any(|it| it.is_same(charge.policy())) {
                policies.push(charge.policy());
            }
        }
        Self { call, policies }
    }

    /// What the store is asked to do.
    #[must_use]
    pub const fn call(&self) -> Call {
        self.call
    }

    /// Under which policies, each once.
    #[must_use]
    pub fn policies(&self) -> &[&'a Policy] {
        &self.policies
    }

    /// The names of the policies, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.policies.iter().map(|it| it.name()).collect();
        names.join(",")
    }

    /// Whether the policies are [shadows](Policy::shadow): they are never checked together with others.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.policies
            .first()
            .is_some_and(|policy| policy.is_shadow())
    }
}

/// A check was allowed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    pub(super) asked: &'a Asked<'a>,
    pub(super) latency: Duration,
    /// Leads to the keys, and is therefore not shown.
    pub(super) decision: &'a Decision,
}

impl<'a> Decided<'a> {
    /// What was asked.
    #[must_use]
    pub const fn asked(&self) -> &'a Asked<'a> {
        self.asked
    }

    /// How long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.latency
    }

    /// Whether the memory of this process has decided, since the store could not: [`Failed`] was told of that before.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.decision.usage().is_local()
    }

    /// Whether every charge fitted. A shadow that refuses lets the request pass all the same.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// What is left under each policy; a policy stands here once for each key that it was checked with.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'a>> + use<'a> {
        self.decision.usage().policies()
    }

    /// Every rule that refuses, with its policy; each as often as there are keys that it refuses.
    pub fn refusals(&self) -> impl Iterator<Item = (&'a Policy, &'a RuleUsage)> + use<'a> {
        self.policies().flat_map(|usage| {
            let refusing = usage.rules().iter().filter(|rule| rule.is_exceeded());
            refusing.map(move |rule| (usage.policy(), rule))
        })
    }

    /// The rule that refuses for longest, with its policy.
    #[must_use]
    pub fn refused_by(&self) -> Option<(&'a Policy, &'a RuleUsage)> {
        match self.decision {
            Decision::Allowed(_) => None,
            Decision::Denied(denial) => Some((denial.policy(), denial.rule())),
        }
    }
}

/// A call that decides nothing was answered.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    pub(super) asked: &'a Asked<'a>,
    pub(super) latency: Duration,
    pub(super) local: bool,
}

impl<'a> Done<'a> {
    /// What was asked.
    #[must_use]
    pub const fn asked(&self) -> &'a Asked<'a> {
        self.asked
    }

    /// How long the answer took.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.latency
    }

    /// Whether the memory of this process has answered, and not the store.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.local
    }
}

/// The store could not answer.
#[derive(Clone, Copy, Debug)]
pub struct Failed<'a> {
    pub(super) asked: &'a Asked<'a>,
    pub(super) latency: Duration,
    pub(super) error: &'a StoreError,
    pub(super) outcome: Outcome,
}

impl<'a> Failed<'a> {
    /// What was asked.
    #[must_use]
    pub const fn asked(&self) -> &'a Asked<'a> {
        self.asked
    }

    /// How long it was waited for.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        self.latency
    }

    /// Why there is no answer.
    #[must_use]
    pub const fn error(&self) -> &'a StoreError {
        self.error
    }

    /// What became of the request; told as the failure policy has it, which a caller of [`Limiter`](crate::Limiter) may
    /// overrule.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// The breaker in front of the store has switched.
#[derive(Clone, Copy, Debug)]
pub struct Switched<'a> {
    error: Option<&'a StoreError>,
}

impl<'a> Switched<'a> {
    /// Open by this error, or closed.
    pub(crate) const fn new(error: Option<&'a StoreError>) -> Self {
        Self { error }
    }

    /// Whether it is open now: the store is not asked any more, except for probes.
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

/// A request did not say who is asking, or that could not be found out.
#[derive(Clone, Copy, Debug)]
pub struct MissingKey<'a> {
    pub(super) policy: Option<&'a Policy>,
    pub(super) shadow: bool,
    pub(super) error: &'a ExtractError,
    pub(super) outcome: Outcome,
}

impl<'a> MissingKey<'a> {
    pub(crate) const fn new(
        policy: Option<&'a Policy>,
        shadow: bool,
        error: &'a ExtractError,
        passes: bool,
    ) -> Self {
        Self {
            policy,
            shadow,
            error,
            outcome: Outcome::of(passes),
        }
    }

    /// The policy that lacks a key; `None` when that is unknown, too.
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

    /// What became of the request.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// A request, or one of its keys, was on a deny list.
#[derive(Clone, Copy, Debug)]
pub struct Blocked<'a> {
    policy: Option<&'a Policy>,
    outcome: Outcome,
}

impl<'a> Blocked<'a> {
    pub(crate) const fn new(policy: Option<&'a Policy>, passes: bool) -> Self {
        Self {
            policy,
            outcome: Outcome::of(passes),
        }
    }

    /// The policy whose key is on the list; `None` when that is unknown, or when the request is on a list as a whole.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.policy
    }

    /// What became of the request: it passes when the whole layer is a [shadow](Policy::shadow), or when only a shadow has
    /// looked the key up.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }
}
