//! The events that an observer is notified of: views that give no access to a key.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{
    block::{Block, BlockedBy},
    charge::Charge,
    check::Check,
    decision::{Decision, PolicyUsage, RuleUsage},
    error::{ExtractError, StoreError},
    policy::Policy,
    words::words,
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
    /// Return slots.
    Return,
    /// Reset a key.
    Reset,
    /// Block an identity.
    Block,
    /// End the blocks of an identity.
    Unblock,
}

words!(
    /// Returns one lower-case word: `check`, `peek`, `settle`, `renew`, `return`, `reset`, `block`, `unblock`.
    CallKind: Check "check", Peek "peek", Settle "settle", Renew "renew", Return "return",
        Reset "reset", Block "block", Unblock "unblock"
);

/// The outcome of a request that the store did not decide.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// use sluicegate::observe::{Event, Observer, RequestOutcome};
///
/// /// Counts the requests that passed unlimited, and those that were rejected, for want of an answer.
/// #[derive(Default)]
/// struct Failures {
///     unlimited: AtomicU64,
///     rejected: AtomicU64,
/// }
///
/// impl Observer for Failures {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Error { outcome, .. } = event {
///             let count = match outcome {
///                 RequestOutcome::Passed => &self.unlimited,
///                 RequestOutcome::Rejected => &self.rejected,
///                 _ => return, // this process decided, or no request waited
///             };
///             count.fetch_add(1, Relaxed);
///         }
///     }
/// }
/// ```
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

words!(
    /// Returns one lower-case word: `passed`, `local`, `rejected`, `failed`.
    RequestOutcome: Passed "passed", Local "local", Rejected "rejected", Failed "failed"
);

impl RequestOutcome {
    pub(crate) const fn of(passes: bool) -> Self {
        if passes { Self::Passed } else { Self::Rejected }
    }
}

/// How long a call took.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timing {
    /// How long the limiter waited for the answer; zero when there was no call.
    pub latency: Duration,
    /// When the answer arrived, or the limiter gave up.
    // `MetricsObserver` need not read the clock again.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code))]
    pub(crate) ended_at: std::time::Instant,
}

impl Timing {
    pub(crate) fn since(start: Instant) -> Self {
        let ended_at = Instant::now();
        Self {
            latency: ended_at.saturating_duration_since(start),
            ended_at: ended_at.into_std(),
        }
    }

    /// Returns a timing of zero that ends now, for an answer without a call.
    pub(crate) fn now() -> Self {
        Self::since(Instant::now())
    }
}

/// A call of the store, without the keys.
#[derive(Clone, Copy, Debug)]
pub struct CallInfo<'a> {
    /// The purpose of the call.
    pub kind: CallKind,
    /// Whether the policies are [shadows](Policy::shadow), which have separate events.
    pub shadow: bool,
    /// Whether these are shadows beside policies that count: both had one call, and the others' event came first.
    #[doc(hidden)] // for observers that count calls
    pub shares_call: bool,
    /// Private, as all that follow: charges have keys.
    pub(crate) charges: &'a [Charge],
    /// The final cost of each charge, if this is a settlement; only `MetricsObserver` reads them.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code))]
    pub(crate) final_costs: &'a [u64],
    /// The policy of a check that could not be built, if the policy is known.
    pub(crate) unbuilt: Option<&'a Policy>,
}

impl<'a> CallInfo<'a> {
    /// Describes the call for a check, without the shadows beside policies that count.
    pub(crate) fn new(kind: CallKind, check: &'a Check) -> Self {
        match check.ruled() {
            [] => Self::of(kind, check.shadow_charges()),
            counting => Self::of(kind, counting),
        }
    }

    /// Describes the call for charges of one kind: either all are shadows, or none.
    pub(crate) fn of(kind: CallKind, charges: &'a [Charge]) -> Self {
        let first = charges.first();
        Self {
            kind,
            shadow: first.is_some_and(|first| first.policy().is_shadow()),
            shares_call: false,
            charges,
            final_costs: &[],
            unbuilt: None,
        }
    }

    /// Returns the policies that are checked, each once.
    pub fn policies(&self) -> impl Iterator<Item = &'a Policy> + use<'a> {
        let policies = self.charges.iter().map(Charge::policy);
        distinct(policies).chain(self.unbuilt)
    }

    /// Returns the names of the policies, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.policies().map(Policy::name).collect();
        names.join(",")
    }
}

/// Returns the policies, each once. Compares each with all before it: there are few.
pub(super) fn distinct<'a>(
    policies: impl Iterator<Item = &'a Policy> + Clone,
) -> impl Iterator<Item = &'a Policy> + Clone {
    let all = policies.clone();
    let is_first = move |(index, policy): &(usize, &Policy)| {
        let mut earlier = all.clone().take(*index);
        earlier.all(|earlier| !earlier.is_same(policy))
    };
    policies.enumerate().filter(is_first).map(|(_, it)| it)
}

/// A decision, without the keys.
#[derive(Clone, Copy, Debug)]
pub struct DecisionView<'a>(pub(crate) &'a Decision);

impl<'a> DecisionView<'a> {
    /// Returns whether the memory of this process decided, since the store could not: an [`Event::Error`] came before.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.0.usage().is_local()
    }

    /// Returns whether a [deny cache](crate::Limiter::cache_denials) denied without a call of the store.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.0.usage().is_cached()
    }

    /// Returns whether every charge fitted. A shadow that denies still lets the request pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.0.is_allowed()
    }

    /// Returns the usage under each policy; a policy is listed once for each key that was checked.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'a>> + Clone + use<'a> {
        self.0.usage().policies()
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
        match self.0 {
            Decision::Allowed(_) | Decision::Blocked(_) => None,
            Decision::Denied(denial) => Some((denial.policy(), denial.rule())),
        }
    }
}

/// An event that an [`Observer`](super::Observer) is notified of. No field gives access to a key.
///
/// Later versions may add events, and fields: match with `..`, and with `_`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A [`RateLimitLayer`](crate::RateLimitLayer) that limits by this policy was put around a service.
    ///
    /// You get one for each policy that the layer knows before the first request: not for policies from a closure or a
    /// look-up, and not again after a reload.
    Policy(&'a Policy),

    /// A check was allowed or denied.
    #[non_exhaustive]
    Decision {
        /// The call.
        call: CallInfo<'a>,
        /// How long the answer took.
        timing: Timing,
        /// The decision.
        decision: DecisionView<'a>,
    },

    /// A call that decides nothing was answered: a peek, a settlement, a reset, a block; or a check was blocked.
    #[non_exhaustive]
    Completion {
        /// The call.
        call: CallInfo<'a>,
        /// How long the answer took.
        timing: Timing,
        /// Whether the memory of this process answered instead of the store: the store could not, or a
        /// [deny cache](crate::Limiter::cache_denials) knew of a block.
        local: bool,
    },

    /// The store could not answer within the timeout, was not called, or the check could not be built.
    #[non_exhaustive]
    Error {
        /// The call.
        call: CallInfo<'a>,
        /// How long the limiter waited.
        timing: Timing,
        /// The reason why there is no answer.
        error: &'a StoreError,
        /// The request's outcome under the failure policy; if you call a [`Limiter`](crate::Limiter), you may do
        /// otherwise.
        outcome: RequestOutcome,
    },

    /// The breaker in front of the store has opened: the store is not called any more, except for probes.
    ///
    /// Clones of a limiter share one breaker. If they have different observers, the observer of the clone that opens
    /// the breaker is notified, even when another clone closes the breaker.
    #[non_exhaustive]
    BreakerOpened {
        /// The last of the failures that opened the breaker.
        error: &'a StoreError,
    },

    /// The breaker in front of the store has closed.
    BreakerClosed,

    /// A limit found no key in a request, the key could not be looked up, or the service is
    /// [misconfigured](crate::error::ExtractErrorKind::Misconfigured).
    #[non_exhaustive]
    MissingKey {
        /// The policy that lacks a key; `None` when the policy is also unknown.
        policy: Option<&'a Policy>,
        /// Whether that policy, or the whole layer, is a [shadow](Policy::shadow).
        shadow: bool,
        /// The reason why there is no key.
        error: &'a ExtractError,
        /// The outcome of the request.
        outcome: RequestOutcome,
    },

    /// A request was rejected because the request, or one of its keys, was on a deny list or blocked in the store.
    #[non_exhaustive]
    Blocked {
        /// The policy whose key is on a list; `None` if that is unknown, if the request as a whole is on a list, or if
        /// an identity is blocked.
        policy: Option<&'a Policy>,
        /// The origin of the [block](crate::block); `None` for a deny list of a layer.
        source: Option<BlockedBy>,
    },

    /// An identity has used a share of a limit, 80 % by default: see
    /// [notice before the limit](crate::limiter#notice-before-the-limit). You get at most one in a window for a policy.
    #[non_exhaustive]
    NearLimit {
        /// The policy, which may be a [shadow](Policy::shadow).
        policy: &'a Policy,
        /// The usage under the rule, after the check or the settlement: of several, the one that counts longest.
        rule: &'a RuleUsage,
    },

    /// An identity was [banned](crate::block#bans) because the limiter denied it too often.
    #[non_exhaustive]
    Ban {
        /// The policy that denied the identity too often.
        policy: &'a Policy,
        /// The ban.
        block: Block,
    },

    /// Another service has asked us to wait, and an account was [paused](crate::block#pauses). You get one for each
    /// pause in each process that was asked.
    #[non_exhaustive]
    Pause {
        /// The kind of the account's key, such as `account`.
        kind: &'a str,
        /// The [label](crate::middleware::ObeyLayer::label) of the account; `None` if there is none, or if your code has
        /// made the pause.
        label: Option<&'a str>,
        /// The [reason](crate::block::BlockRequest::reason), such as `429, retry-after`.
        reason: Option<&'a str>,
        /// The length of the pause. Later answers of the service may lengthen the pause, without another event.
        length: Duration,
    },

    /// A request or a job has taken slots of a [concurrency policy](crate::Rule::concurrent), has lost them, or does not
    /// need them any more.
    #[non_exhaustive]
    Slots {
        /// The policy.
        policy: &'a Policy,
        /// The number of slots, for one key.
        slots: u64,
        /// The fate of the slots.
        change: SlotChange,
    },

    /// The store has admitted a check after its timeout, or after its caller had left: see [late
    /// answers](crate::limiter#late-answers). There is no other event about that decision, or about its settlement.
    LateAnswer,

    /// A caller of [`acquire`](crate::Limiter::acquire), or a request under a layer's
    /// [`max_wait`](crate::RateLimitLayer::max_wait), begins to wait, or has waited. You get none for a caller that is
    /// answered at once.
    #[non_exhaustive]
    Wait {
        /// The check that waits. A check without policies waits for the end of a [block](crate::block).
        call: CallInfo<'a>,
        /// `None` when the wait begins; then the time until the answer, or until the caller left.
        waited: Option<Duration>,
    },
}

/// The label of a block by a layer's deny list.
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(super) const DENY_LIST: &str = "list";

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
