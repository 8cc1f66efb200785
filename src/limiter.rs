//! [`Limiter`]: a store, a deadline and a failure policy; knows no HTTP.
//!
//! For handlers, jobs and protocols that the middleware does not cover:
//!
//! ```
//! use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, Rule};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let mails = Policy::new("mails", [Rule::per_hour(100)])?;
//! let to = |user: &str, mails_: u64| Charge::new(&mails, Key::new("user", user), mails_);
//!
//! assert!(limiter.check([to("alice", 60)]).await?.is_allowed());
//! assert!(!limiter.check([to("alice", 60)]).await?.is_allowed());              // charged nowhere
//!
//! let usage = limiter.peek([to("alice", 0)]).await?;
//! assert_eq!(usage.rules().next().unwrap().remaining(), 40);
//!
//! // A check can be settled once with what it really cost.
//! let decision = limiter.check([to("alice", 40)]).await?;
//! let usage = limiter.settle(decision.usage(), [5]).await?;
//! assert_eq!(usage.rules().next().unwrap().remaining(), 35);
//!
//! limiter.reset(&mails, &Key::new("user", "alice")).await?;
//! assert!(limiter.check([to("alice", 100)]).await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::{
    charge::{Charge, Check, Settlement},
    decision::{Decision, Usage},
    error::{StoreError, StoreErrorKind},
    key::Key,
    policy::Policy,
    store::{Answer, Store},
};

const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// What to do with a request when the store cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let it pass, unlimited: the service stays up when the store does not.
    #[default]
    Open,
    /// Refuse it: better no answer than an unlimited one, for instance at a login.
    Closed,
}

/// A store, a deadline and a failure policy; cheap to clone.
///
/// A store that has to be waited for, as Redis has, needs a tokio runtime whose timers are enabled, for the deadline; outside
/// of one its futures panic. A `MemoryStore` answers at once and needs none.
#[derive(Clone, Debug)]
pub struct Limiter {
    store: Arc<dyn Store>,
    deadline: Duration,
    failure_policy: FailurePolicy,
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            deadline: DEFAULT_DEADLINE,
            failure_policy: FailurePolicy::default(),
        }
    }

    /// Sets how long one call may take, whatever it waits for: a connection, a reconnection, the answer.
    ///
    /// The default is 100 ms. A call that is cut off ends in [`StoreErrorKind::Timeout`]; what it asked for may still be done.
    ///
    /// # Panics
    ///
    /// When `deadline` is zero: nothing could ever be decided.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        assert!(
            !deadline.is_zero(),
            "a deadline of zero leaves no time to decide"
        );
        self.deadline = deadline;
        self
    }

    /// Sets what to do when the store cannot decide. The default is [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = policy;
        self
    }

    /// What to do when the store cannot decide.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.failure_policy
    }

    /// Decides these charges together and charges them if all fit.
    ///
    /// # Errors
    ///
    /// When the store could not decide within the deadline: see [`StoreErrorKind`]. It is for the caller to follow
    /// [`failure_policy`](Self::failure_policy) then, or to use [`admits`](Self::admits).
    pub async fn check(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        self.decide(&check).await
    }

    /// Decides these charges together and follows the failure policy if the store cannot decide.
    pub async fn admits(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        match self.check(charges).await {
            Ok(decision) => decision.is_allowed(),
            Err(error) => {
                error.kind() != StoreErrorKind::Misuse && self.failure_policy == FailurePolicy::Open
            }
        }
    }

    /// Looks at what is left under these policies and keys, at no cost; the charges' own costs do not matter.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the deadline.
    pub async fn peek(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Usage, StoreError> {
        let check = Check::new(charges)?.without_cost();
        self.decide(&check)
            .await
            .map(|decision| decision.usage().clone())
    }

    /// Gives each charge of an admitted check its final cost: what the work turned out to cost, or 0 to take it back.
    ///
    /// The difference is added to or taken from the step that was charged, if that still counts: even above the limit,
    /// never below zero. A check that is not settled keeps its cost. `costs` are in the order of [`Usage::policies`].
    ///
    /// # Errors
    ///
    /// When the store could not answer within the deadline; the settlement may have been done, and cannot be tried again.
    /// [`StoreErrorKind::Misuse`] when the check was refused or has been settled, or when the number of costs is wrong.
    pub async fn settle(
        &self,
        usage: &Usage,
        costs: impl IntoIterator<Item = u64>,
    ) -> Result<Usage, StoreError> {
        let settlement = Settlement::new(usage, costs)?;
        self.within_deadline(self.store.settle(&settlement)).await
    }

    /// Forgets everything that was charged to `key` under `policy`.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the deadline.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        self.within_deadline(self.store.reset(policy, key)).await
    }

    /// Asks the store, under the deadline.
    pub(crate) fn decide(&self, check: &Check) -> WithinDeadline<Decision> {
        self.within_deadline(self.ask(check))
    }

    /// Asks the store; a check of nothing is allowed without asking.
    pub(crate) fn ask(&self, check: &Check) -> Answer<Decision> {
        if check.charges().is_empty() {
            Answer::ready(Decision::new(check, true, 0, &[]))
        } else {
            self.store.check(check)
        }
    }

    pub(crate) fn within_deadline<T>(&self, answer: Answer<T>) -> WithinDeadline<T> {
        WithinDeadline {
            answer,
            deadline: self.deadline,
            sleep: None,
        }
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}

pin_project! {
    /// An answer, or [`StoreErrorKind::Timeout`] when the deadline comes first.
    ///
    /// The timer is made when the answer is first waited for, so that an answer that is known at once costs none.
    #[derive(Debug)]
    pub(crate) struct WithinDeadline<T> {
        answer: Answer<T>,
        deadline: Duration,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl<T> Future for WithinDeadline<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(result) = Pin::new(this.answer).poll(cx) {
            return Poll::Ready(result);
        }
        if this.sleep.is_none() {
            this.sleep.set(Some(tokio::time::sleep(*this.deadline)));
        }
        match this.sleep.as_pin_mut().map(|sleep| sleep.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(StoreError::new(
                StoreErrorKind::Timeout,
                "no answer within the deadline",
            ))),
            _ => Poll::Pending,
        }
    }
}
