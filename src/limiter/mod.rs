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
//! A [shadow](Policy::shadow) decides, charges and reports, and never denies:
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
//! assert!(!decision.usage().shadow().unwrap().is_allowed());                   // it would have been denied
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What shadows answer is what would happen if they counted, all of them together:
//!
//! - They are decided in the same call of the store, after the other policies and all or nothing among themselves. The others'
//!   decision does not depend on them.
//! - They are charged only when the other policies have admitted the request: a denied request is charged nowhere, and so it
//!   would be if the shadows counted.
//! - A shadow that cannot be decided is left out: [`Usage::shadow`] is `None`, and nothing else changes.
//!
//! # When the store cannot decide
//!
//! Then the [failure policy](FailurePolicy) applies: each [policy's own](Policy::on_failure), or else [the
//! limiter's](Limiter::on_failure); of several policies in one check, the strictest. [`Limiter::try_acquire`] and the middleware
//! follow it. [`Limiter::check`], [`acquire`](Limiter::acquire) and [`peek`](Limiter::peek) answer what the memory of this
//! process says where it is `Local`, and an error otherwise. A check of shadows alone is allowed whatever fails.
//!
//! **A breaker** stands before the store. After five failures in a row it opens: one call in each
//! [interval](Limiter::probe_interval), of 125 to 375 ms, is then sent as a probe, and all others fail at once
//! ([`CircuitOpen`](crate::error::StoreErrorKind::CircuitOpen)) instead of waiting for their timeout. A probe that is answered
//! closes it. Failures are timeouts, and errors by which the store cannot be reached, cannot work, or denies access. An error
//! by which the store can do nothing with a request is none, since the store has answered; nor is a caller who goes away.
//! Several operations in one call fail once. Clones of a limiter share the breaker; other limiters over the same store have
//! their own. Over a cluster, whose nodes [fail apart](Store::single_failure_domain), there is no breaker unless you set an
//! interval. Set it to zero before a proxy of several servers.
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
//! - **The rules are those that were applied.** [`Usage::is_local`] says that a decision is local; the rules in it, and in the
//!   headers, are those of the share. A cost above the share is denied without a time.
//! - **Settled where it was decided.** A local decision is settled in the memory, also when the store is back; a decision of
//!   the store is settled there or, while the store cannot be called, not at all. A [reset](Limiter::reset) reaches both.
//! - **Shadows** are decided in the memory together with the policies that count.
//! - **At most** so much is admitted in any window, whenever the store goes and comes back: the limit by the store, if it
//!   has kept its data, and the shares of all replicas, which are together no more than the limit again (or one unit for
//!   each replica, where the limit is smaller than their number). Neither side knows what the other has charged.
//! - **Handing back.** The times of probes are random, so that replicas do not all come back to the store in one instant.
//!   They do so within half a second, if there are requests to probe with.

mod breaker;
mod call;
mod decide;
mod fallback;
mod report;
mod settle;
mod timeout;
mod wait_queue;

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

pub use crate::failure::FailurePolicy;
use crate::{
    charge::Charge,
    check::Check,
    decision::{Decision, Usage},
    error::StoreError,
    key::Key,
    observe::{CallInfo, CallKind, Observer, RequestOutcome},
    policy::Policy,
    settlement::Settlement,
    store::{MemoryStore, ScaledStore, Store},
};
use breaker::Breaker;
use call::Answer;
pub(crate) use decide::{DecisionFuture, Resolution};
pub(crate) use timeout::LazySleep;

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
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    store: Arc<dyn Store>,
    breaker: Arc<Breaker>,
    local: ScaledStore,
    timeout: Duration,
    failure_policy: FailurePolicy,
    observer: Option<Arc<dyn Observer>>,
    queues: Arc<wait_queue::WaitQueues>,
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        let interval = if store.single_failure_domain() {
            DEFAULT_INTERVAL
        } else {
            Duration::ZERO
        };
        store.set_timeout(DEFAULT_TIMEOUT);
        let inner = Inner {
            store: Arc::new(store),
            breaker: Arc::new(Breaker::new(interval)),
            local: ScaledStore {
                store: MemoryStore::new(),
                replicas: NonZeroU32::MIN,
            },
            timeout: DEFAULT_TIMEOUT,
            failure_policy: FailurePolicy::default(),
            observer: None,
            queues: Arc::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Sets how long one call may take, whatever it waits for: a connection, a reconnection, the answer.
    ///
    /// The default is 100 ms, and a year the most. A call that is cut off ends in [`Timeout`](crate::error::StoreErrorKind::Timeout);
    /// what it was made for may still be done. The store is [told](Store::set_timeout) of it.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero: nothing could ever be decided.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to decide"
        );
        let timeout = timeout.min(FOR_EVER);
        self.inner.store.set_timeout(timeout);
        self.change(|inner| inner.timeout = timeout)
    }

    /// Sets what to do when the store [cannot decide](self#when-the-store-cannot-decide), for policies that do not say it themselves. The
    /// default is [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.change(|inner| inner.failure_policy = policy)
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
    pub fn replicas(self, replicas: u32) -> Self {
        let Some(replicas) = NonZeroU32::new(replicas) else {
            panic!("no process would be left to share the limits");
        };
        self.change(|inner| inner.local.replicas = replicas)
    }

    /// Sets where [local](FailurePolicy::Local) decisions are counted. The default is a store of its own for 100 000 keys; clones of a
    /// limiter share it.
    #[must_use]
    pub fn local_store(self, store: MemoryStore) -> Self {
        self.change(|inner| inner.local.store = store)
    }

    /// Sets how often a store that has failed five times in a row is called, to see whether it is back: once in each such
    /// interval, made up to half shorter or longer at random. The default is 250 ms.
    ///
    /// With a longer one, fewer requests wait for a timeout, and it takes longer until the store decides again. Zero switches
    /// the [breaker](self#when-the-store-cannot-decide) off.
    #[must_use]
    pub fn probe_interval(self, interval: Duration) -> Self {
        self.change(|inner| inner.breaker = Arc::new(Breaker::new(interval)))
    }

    /// Sets who is told of each decision and each failure. The default is nobody; a pair is told one after the other.
    #[must_use]
    pub fn observer(self, observer: impl Observer) -> Self {
        self.change(|inner| inner.observer = Some(Arc::new(observer)))
    }

    /// What to do when the store cannot decide, under policies that do not say it themselves.
    #[must_use]
    pub fn failure_policy(&self) -> FailurePolicy {
        self.inner.failure_policy
    }

    /// Decides these charges together and charges them if all fit; [shadows](self#trying-a-policy-out) among them never deny.
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
        self.decide(check).await.into_result()
    }

    /// Decides these charges together and charges them if all fit; follows the failure policy if the store cannot decide.
    ///
    /// Answers whether to go on. A check that [makes no sense](crate::error::StoreErrorKind::InvalidRequest) is not admitted, whatever the
    /// failure policy.
    pub async fn try_acquire(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        match Check::new(charges) {
            Ok(check) => self.decide(check).await.passes(),
            Err(_) => false,
        }
    }

    /// Waits until these charges are admitted, to stay within somebody else's limits; at most about as long as `max_wait`.
    ///
    /// Callers of this limiter and its clones that wait for the same policies and keys are admitted in order of arrival: only the
    /// first of them calls the store, and again when the store said that there would be room. [`Decision::Denied`] when it
    /// would take longer than `max_wait`, or for ever: at once, when that is known at once, and with nothing charged.
    ///
    /// A [reset](Self::reset) or a [settlement](Self::settle) that gives something back, through this limiter or a clone, is heard at
    /// once. What other processes give back is noticed within 2 s, since the first caller asks at least that often. Callers
    /// under other policies or rules, and other processes, compete with those that wait; the limits hold for all together.
    ///
    /// A queue moves on by one call of the store for each caller: about a thousand admissions a second, when a call takes a
    /// millisecond.
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
        self.wait(&check, max_wait).await.into_result()
    }

    /// How long one call may take.
    pub(crate) fn timeout_of_calls(&self) -> Duration {
        self.inner.timeout
    }

    pub(crate) async fn wait(&self, check: &Check, max_wait: Duration) -> Resolution {
        wait_queue::wait(self, check, max_wait).await
    }

    /// Looks at what is left under these policies and keys, at no cost; the charges' own costs do not matter. What is left under
    /// shadows is in [`Usage::shadow`].
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, and the failure policy is not [`Local`](FailurePolicy::Local).
    pub async fn peek(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Usage, StoreError> {
        let check = Check::new(charges)?.without_cost();
        let resolution = DecisionFuture::new(self, CallKind::Peek, check).await;
        Ok(resolution.into_result()?.usage().clone())
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
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was denied or has been settled, or when the number of costs is wrong.
    pub async fn settle(
        &self,
        usage: &Usage,
        costs: impl IntoIterator<Item = u64>,
    ) -> Result<Usage, StoreError> {
        let settlement = Settlement::new(usage, costs)?;
        self.settle_one(settlement).await
    }

    /// Forgets everything that was charged to `key` under `policy`.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        let charges = [Charge::new(policy, key.clone(), 0)];
        let info = || CallInfo::of(CallKind::Reset, &charges);
        // Done at once; what it forgets may be little or nothing.
        drop(self.inner.local.reset(policy, key));
        let Answer { result, timing } = self.call(info, |store| store.reset(policy, key)).await;
        match &result {
            Ok(()) => self.report_completion(info(), false, timing),
            Err(error) => self.report_error(info(), error, RequestOutcome::Failed, timing),
        }
        // Also where it has failed: it may have been done.
        self.inner.queues.wake(policy, key);
        result
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner.store)
            .field("timeout", &self.inner.timeout)
            .field("failure_policy", &self.inner.failure_policy)
            .finish_non_exhaustive()
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}
