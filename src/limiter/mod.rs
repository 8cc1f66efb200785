//! [`Limiter`]: a store, a timeout and a failure policy; knows no HTTP.
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
//!   and so it would be if the shadows counted. That is a second call of the store, within the same timeout.
//! - What goes wrong there is told to the [observer](Limiter::observer), and to nobody else.
//!
//! # When the store cannot decide
//!
//! The [failure policy](FailurePolicy) speaks: each [policy's own](Policy::on_failure), or else [the
//! limiter's](Limiter::on_failure); of several policies in one check, the strictest. [`Limiter::try_acquire`] and the middleware
//! follow it. [`Limiter::check`], [`acquire`](Limiter::acquire) and [`peek`](Limiter::peek) answer what the memory of this
//! process says where it is `Local`, and an error otherwise.
//!
//! **A breaker** stands before the store. After five failures in a row it opens: one call in each
//! [interval](Limiter::probe_interval), of 125 to 375 ms, is then sent as a probe, and all others fail at once
//! ([`CircuitOpen`](crate::error::StoreErrorKind::CircuitOpen)) instead of waiting for their timeout. A probe that is answered
//! closes it. Timeouts at the whole timeout count (shadows have what is left of it, and theirs do not), and errors by
//! which the store cannot be reached, cannot work, or refuses its user. Not so an error by which it cannot make sense
//! of a request: it has answered. And not so a caller who goes away. Clones of a limiter share the breaker; other
//! limiters over the same store have their own. Over a cluster, whose nodes [fail apart](Store::single_failure_domain), there is
//! no breaker unless you set an interval. Set it to zero before a proxy of several servers.
//!
//! **Local** decisions are made by a `MemoryStore` [of this process](Limiter::local_store), within its
//! [share](Limiter::replicas) of each limit: rounded down, but never to 0.
//!
//! ```
//! # #[cfg(feature = "redis")] {
//! use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, RedisStore};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = RedisStore::connect_lazy("redis://127.0.0.1:1/")?;                        // nobody listens there
//! let limiter = Limiter::new(store).on_failure(FailurePolicy::Local).replicas(4);
//! let pages = Policy::parse("pages", "10/1m")?;
//! let login = Policy::parse("login", "10/1m")?.on_failure(FailurePolicy::Closed);
//! let alice = |policy: &Policy| [Charge::new(policy, Key::new("user", "alice"), 1)];
//!
//! let decision = limiter.check(alice(&pages)).await?;
//! assert!(decision.usage().is_local());
//! assert_eq!(decision.usage().rules().next().unwrap().rule().to_string(), "2/1m");    // a fourth of 10
//! assert!(limiter.try_acquire(alice(&pages)).await);
//! assert!(!limiter.try_acquire(alice(&pages)).await);
//! assert!(!limiter.try_acquire(alice(&login)).await);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - **They tell what was applied.** [`Usage::is_local`] says so, and the rules in a decision, and with them the headers,
//!   are those of the share. A cost above the share is refused without a time.
//! - **What one has decided, it settles.** A local decision is settled in the memory, also when the store is back; a
//!   decision of the store is settled there or, while that cannot be asked, not at all. A [reset](Limiter::reset) reaches
//!   both.
//! - **Shadows** are asked of the memory where the policies that count were.
//! - **At most** so much is admitted in any window, whenever the store goes and comes back: the limit by the store, if it
//!   has kept its data, and the shares of all replicas, which are together no more than the limit again (or one unit for
//!   each replica, where the limit is smaller than their number). What was charged on one side is not known on the other.
//! - **Handing back.** The times of probes are left to chance, so that replicas do not all come back to the store in one
//!   instant. They do so within half a second, if there are requests to probe with.

mod ask;
mod breaker;
mod failing;
mod line;
mod timeout;
mod turns;

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

pub use crate::failure::FailurePolicy;
use crate::{
    charge::Charge,
    check::Check,
    decision::{Decision, Usage},
    error::StoreError,
    key::Key,
    observe::{Call, Observer, Watch},
    policy::Policy,
    settlement::Settlement,
    store::{MemoryStore, Share, Store},
};
use breaker::Breaker;
pub(crate) use breaker::Pass;
pub(crate) use failing::Undecided;
use failing::lost;
pub(crate) use timeout::{WithTimeout, by};

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// Longer than anybody waits, and far from what an `Instant` cannot hold.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// Short enough for a store that is back to be used again within half a second.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(250);

/// A store, a timeout, a failure policy and an observer; cheap to clone.
///
/// A store that has to be waited for, as Redis has, needs a tokio runtime whose timers are enabled, for the timeout; outside
/// of one its futures panic. A `MemoryStore` answers at once and needs none.
#[derive(Clone)]
pub struct Limiter {
    store: Arc<dyn Store>,
    breaker: Arc<Breaker>,
    local: Share,
    timeout: Duration,
    failure_policy: FailurePolicy,
    observer: Option<Arc<dyn Observer>>,
    lines: Arc<line::Lines>,
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        let interval = if store.single_failure_domain() {
            DEFAULT_INTERVAL
        } else {
            Duration::ZERO
        };
        Self {
            store: Arc::new(store),
            breaker: Arc::new(Breaker::new(interval)),
            local: Share {
                store: MemoryStore::new(),
                replicas: NonZeroU32::MIN,
            },
            timeout: DEFAULT_TIMEOUT,
            failure_policy: FailurePolicy::default(),
            observer: None,
            lines: Arc::default(),
        }
    }

    /// Sets how long one call may take, whatever it waits for: a connection, a reconnection, the answer.
    ///
    /// The default is 100 ms, and a year the most. A call that is cut off ends in [`Timeout`](crate::error::StoreErrorKind::Timeout);
    /// what it asked for may still be done.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero: nothing could ever be decided.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to decide"
        );
        self.timeout = timeout.min(FOR_EVER);
        self
    }

    /// Sets what to do when the store [cannot decide](self#when-the-store-cannot-decide), for policies that do not say it themselves. The
    /// default is [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = policy;
        self
    }

    /// Sets how many processes share the limits: where this one decides [locally](FailurePolicy::Local), it admits a share of
    /// `1/replicas`, rounded down, but never to 0 where the limit is not.
    ///
    /// The default is 1: every process then admits the whole limit. Nothing finds the number out; where it varies, take the
    /// usual one.
    ///
    /// # Panics
    ///
    /// When `replicas` is 0.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        let Some(replicas) = NonZeroU32::new(replicas) else {
            panic!("no process would be left to share the limits");
        };
        self.local.replicas = replicas;
        self
    }

    /// Sets where [local](FailurePolicy::Local) decisions are counted. The default is a store of its own for 100 000 keys; clones of a
    /// limiter share it.
    #[must_use]
    pub fn local_store(mut self, store: MemoryStore) -> Self {
        self.local.store = store;
        self
    }

    /// Sets how often a store that has failed five times in a row is asked, to see whether it is back: once in each such interval,
    /// which chance makes up to half shorter or longer. The default is 250 ms.
    ///
    /// A longer one costs fewer requests a timeout, and makes it longer until the store decides again. Zero asks it for every request,
    /// and [suspends](self#when-the-store-cannot-decide) it never.
    #[must_use]
    pub fn probe_interval(mut self, interval: Duration) -> Self {
        self.breaker = Arc::new(Breaker::new(interval));
        self
    }

    /// Sets who is told of each decision and each failure. The default is nobody; a pair is told one after the other.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// What to do when the store cannot decide, under policies that do not say it themselves.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.failure_policy
    }

    /// Decides these charges together and charges them if all fit; [shadows](self#trying-a-policy-out) among them never refuse.
    ///
    /// # Errors
    ///
    /// When the store could not decide within the timeout, and the failure policy is not [`Local`](FailurePolicy::Local): see
    /// [`StoreErrorKind`](crate::error::StoreErrorKind). It is for the caller to follow the policy then, or to use [`try_acquire`](Self::try_acquire).
    pub async fn check(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        Ok(self.decide(&check).await?)
    }

    /// Decides these charges together and follows the failure policy if the store cannot decide.
    pub async fn try_acquire(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        // A check that makes no sense follows no policy.
        let Ok(check) = Check::new(charges) else {
            return false;
        };
        match self.decide(&check).await {
            Ok(decision) => decision.is_allowed(),
            Err(undecided) => undecided.passes,
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
    ///     assert!(limiter.acquire(call(), Duration::from_secs(5)).await?.is_allowed());
    /// }
    /// assert!(start.elapsed() >= Duration::from_millis(100));
    /// assert!(!limiter.acquire(call(), Duration::from_secs(5)).await?.is_allowed());     // an hour is too long
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check): the timeout is that of each call of the store, not of the waiting.
    pub async fn acquire(
        &self,
        charges: impl IntoIterator<Item = Charge>,
        max_wait: Duration,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        Ok(self.wait_for(&check, max_wait).await?)
    }

    pub(crate) async fn wait_for(
        &self,
        check: &Check,
        max_wait: Duration,
    ) -> Result<Decision, Undecided> {
        line::wait(self, check, max_wait).await
    }

    /// Looks at what is left under these policies and keys, at no cost; the charges' own costs do not matter.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, and the failure policy is not [`Local`](FailurePolicy::Local).
    pub async fn peek(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Usage, StoreError> {
        let check = Check::new(charges)?.without_cost();
        let answer = async { self.answer(self.ask(&check)).await };
        let instead = |error| self.instead(&check, error);
        let tell = |watch: &Watch<'_>, decision: &Decision| watch.done(decision.usage().is_local());
        let decision = self
            .watched(Call::Peek, &check, answer, instead, tell)
            .await?;
        Ok(decision.usage().clone())
    }

    /// Gives each charge of an admitted check its final cost: what the work turned out to cost, or 0 to take it back.
    ///
    /// The difference is added to or taken from the step that was charged, if that still counts: even above the limit,
    /// never below zero. A check that is not settled keeps its cost. `costs` are in the order of [`Usage::policies`].
    /// What [shadows](Usage::shadow) charged is settled apart, by their own usage.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout; the settlement may have been done, and cannot be tried again.
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was refused or has been settled, or when the number of costs is wrong.
    pub async fn settle(
        &self,
        usage: &Usage,
        costs: impl IntoIterator<Item = u64>,
    ) -> Result<Usage, StoreError> {
        let settlement = Settlement::new(usage, costs)?;
        let local = usage.is_local();
        let answer = async {
            let asked = if local {
                (None, self.local.settle(&settlement))
            } else {
                self.through(|store| store.settle(&settlement))
            };
            self.answer(asked).await
        };
        let tell = |watch: &Watch<'_>, _: &Usage| watch.done(local);
        let usage = self
            .watched(Call::Settle, usage.check(), answer, lost, tell)
            .await?;
        Ok(if local { usage.local() } else { usage })
    }

    /// Forgets everything that was charged to `key` under `policy`.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        let check = Check::new([Charge::new(policy, key.clone(), 0)])?;
        // Known at once; what it has to forget may be little or nothing.
        drop(self.local.reset(policy, key));
        let answer = async {
            let asked = self.through(|store| store.reset(policy, key));
            self.answer(asked).await
        };
        let tell = |watch: &Watch<'_>, (): &()| watch.done(false);
        Ok(self
            .watched(Call::Reset, &check, answer, lost, tell)
            .await?)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.store)
            .field("timeout", &self.timeout)
            .field("failure_policy", &self.failure_policy)
            .finish_non_exhaustive()
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}
