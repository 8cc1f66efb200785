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
//!
//! # Trying a policy out
//!
//! A [shadow](Policy::shadow) decides, charges and reports, and never refuses:
//!
//! ```
//! use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let [now, later] = [Policy::parse("now", "100/1h")?, Policy::parse("later", "50/1h")?.shadow()];
//! let charges = |cost| [&now, &later].map(|policy| Charge::new(policy, Key::new("user", "alice"), cost));
//!
//! let decision = limiter.check(charges(60)).await?;
//! assert!(decision.is_allowed());
//! assert!(!decision.usage().shadow().unwrap().is_allowed());                   // it would have been refused
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What shadows answer is what would happen if they counted, all of them together:
//!
//! - They are a check of their own, all or nothing, which the other policies' check knows nothing of.
//! - It is made when the other policies have admitted the request, and not otherwise: a refused request is charged nowhere,
//!   and so it would be if the shadows counted. That is a second call of the store, within the same deadline.
//! - What goes wrong there is told to the [observer](Limiter::observer), and to nobody else.

mod deadline;
mod line;
mod turns;

use std::{fmt, future::ready, sync::Arc, time::Duration};

use crate::{
    charge::{Charge, Check, Settlement},
    decision::{Decision, Usage},
    error::StoreError,
    key::Key,
    observe::{Call, Observer},
    policy::Policy,
    store::{Answer, Store},
};
pub(crate) use deadline::{WithinDeadline, by};

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

/// A store, a deadline, a failure policy and an observer; cheap to clone.
///
/// A store that has to be waited for, as Redis has, needs a tokio runtime whose timers are enabled, for the deadline; outside
/// of one its futures panic. A `MemoryStore` answers at once and needs none.
#[derive(Clone)]
pub struct Limiter {
    store: Arc<dyn Store>,
    deadline: Duration,
    failure_policy: FailurePolicy,
    observer: Option<Arc<dyn Observer>>,
    lines: Arc<line::Lines>,
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            deadline: DEFAULT_DEADLINE,
            failure_policy: FailurePolicy::default(),
            observer: None,
            lines: Arc::default(),
        }
    }

    /// Sets how long one call may take, whatever it waits for: a connection, a reconnection, the answer.
    ///
    /// The default is 100 ms. A call that is cut off ends in [`Timeout`](crate::StoreErrorKind::Timeout); what it asked for may still be done.
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

    /// Sets who is told of each decision and each failure. The default is nobody; a pair is told one after the other.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// What to do when the store cannot decide.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.failure_policy
    }

    /// Decides these charges together and charges them if all fit; [shadows](self#trying-a-policy-out) among them never refuse.
    ///
    /// # Errors
    ///
    /// When the store could not decide within the deadline: see [`StoreErrorKind`](crate::StoreErrorKind). It is for the caller to follow
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
            Err(error) => self.passes(&error),
        }
    }

    /// Waits until these charges are admitted, to stay within somebody else's limits; at most about as long as `most`.
    ///
    /// Callers of this limiter and its clones that wait for the same policies and keys are admitted in order of arrival: only the first
    /// of them asks the store, and asks again when the store said that there would be room. Other processes compete with it;
    /// the limit holds for all together. [`Decision::Denied`] when it would take longer than `most`, or for ever: at
    /// once, when that is known at once, and with nothing charged.
    ///
    /// The line moves on by one call of the store for each caller: about a thousand admissions a second, when a call takes a millisecond.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let theirs = Policy::parse("their-api", "2/100ms,3/1h")?;
    /// let call = || [Charge::new(&theirs, Key::new("account", "ours"), 1)];
    ///
    /// let start = std::time::Instant::now();
    /// for _ in 0..3 {
    ///     assert!(limiter.wait(call(), Duration::from_secs(5)).await?.is_allowed());
    /// }
    /// assert!(start.elapsed() >= Duration::from_millis(100));
    /// assert!(!limiter.wait(call(), Duration::from_secs(5)).await?.is_allowed());     // an hour is too long
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check): the deadline is that of each call of the store, not of the waiting.
    pub async fn wait(
        &self,
        charges: impl IntoIterator<Item = Charge>,
        most: Duration,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        self.wait_for(&check, most).await
    }

    pub(crate) async fn wait_for(
        &self,
        check: &Check,
        most: Duration,
    ) -> Result<Decision, StoreError> {
        line::wait(self, check, most).await
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
        let answer = async { self.within_deadline(self.ask(&check)).await };
        self.watched(Call::Peek, &check, answer, |watch, _| watch.done())
            .await
            .map(|decision| decision.usage().clone())
    }

    /// Gives each charge of an admitted check its final cost: what the work turned out to cost, or 0 to take it back.
    ///
    /// The difference is added to or taken from the step that was charged, if that still counts: even above the limit,
    /// never below zero. A check that is not settled keeps its cost. `costs` are in the order of [`Usage::policies`].
    /// What [shadows](Usage::shadow) charged is settled apart, by their own usage.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the deadline; the settlement may have been done, and cannot be tried again.
    /// [`Misuse`](crate::StoreErrorKind::Misuse) when the check was refused or has been settled, or when the number of costs is wrong.
    pub async fn settle(
        &self,
        usage: &Usage,
        costs: impl IntoIterator<Item = u64>,
    ) -> Result<Usage, StoreError> {
        let settlement = Settlement::new(usage, costs)?;
        let answer = async { self.within_deadline(self.store.settle(&settlement)).await };
        self.watched(Call::Settle, usage.check(), answer, |watch, _| watch.done())
            .await
    }

    /// Forgets everything that was charged to `key` under `policy`.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the deadline.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        let answer = async { self.within_deadline(self.store.reset(policy, key)).await };
        let check = Check::new([Charge::new(policy, key.clone(), 0)])?;
        self.watched(Call::Reset, &check, answer, |watch, _| watch.done())
            .await
    }

    /// Asks the store, under the deadline: first for the charges that count, then for shadows.
    pub(crate) fn decide(&self, check: &Check) -> WithinDeadline<Decision> {
        let answer = if self.observer.is_none() && !check.has_shadows() {
            self.ask(check)
        } else {
            self.ask_in_turn(check)
        };
        self.within_deadline(answer)
    }

    #[cold]
    fn ask_in_turn(&self, check: &Check) -> Answer<Decision> {
        let (counting, shadows) = (check.only(false), check.only(true));
        let until = self.until();
        Answer::pending(self.clone().in_turn(counting, ready(shadows), until))
    }

    /// Asks the store; a check of nothing is allowed without asking.
    fn ask(&self, check: &Check) -> Answer<Decision> {
        if check.charges().is_empty() {
            Answer::ready(Decision::new(check, true, 0, &[]))
        } else {
            self.store.check(check)
        }
    }

    pub(crate) const fn within_deadline<T>(&self, answer: Answer<T>) -> WithinDeadline<T> {
        WithinDeadline::new(answer, self.deadline)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.store)
            .field("deadline", &self.deadline)
            .field("failure_policy", &self.failure_policy)
            .finish_non_exhaustive()
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}
