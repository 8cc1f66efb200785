//! [`Limiter`]: decides checks over a store, within a timeout and by a failure policy. Works without HTTP.
//!
#![doc = include_str!("../../docs/guide/limiter.md")]

mod bans;
mod breaker;
mod contributors;
mod decide;
mod delivery;
mod denials;
mod fallback;
pub(crate) mod jitter;
mod near_limit;
mod pauses;
mod publisher;
mod refusals;
mod reload;
mod report;
mod reporter;
mod settle;
mod slots;
mod store_call;
mod timeout;
mod wait_queue;

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;

pub use crate::domain::ActualCost;
use crate::{
    background::BackRoom,
    domain::{
        FailurePolicy,
        block::{Block, BlockRequest, BlockedBy, BlockedIdentity},
        charge::Charge,
        check::Check,
        decision::{Decision, Usage},
        error::StoreError,
        key::Key,
        policy::Policy,
    },
    observe::{CallInfo, CallKind, Observer, RequestOutcome},
    outage::Outage,
    store::{MemoryStore, Store, StoreExt, StoreFuture},
};
use breaker::Breaker;
pub(crate) use decide::Resolution;
use fallback::ScaledStore;
#[cfg(feature = "obey")]
pub(crate) use pauses::{Ask, Backoff, Sent};
pub(crate) use settle::PATIENCE as SETTLING;
pub use slots::{Slot, SlotWatch};
use store_call::{Answer, StoreAnswer};
pub(crate) use timeout::LazySleep;
pub(crate) use wait_queue::WhereOpen;

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// A year: longer than any real wait, and far below the limit of `Instant`.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(31_536_000);

/// As many as wait for a minute under a limit of 1,000 a minute.
const DEFAULT_MAX_QUEUE: usize = 1_024;

/// Short enough to use a recovered store again within half a second.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_millis(250);

/// A store, a timeout, a failure policy and an observer; cheap to clone.
///
/// Use the limiter inside a tokio runtime with timers enabled if the store has to wait for a server, as Redis does:
/// elsewhere the futures panic when they start the timeout. A `MemoryStore` answers at once, and needs a runtime only
/// to wait in [`acquire`](Limiter::acquire), to count contributors, and to count the strikes of a [ban](Policy::ban).
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    store: Arc<dyn Store>,
    breaker: Arc<Breaker>,
    /// Checks that the store could not decide.
    outage: Arc<Outage>,
    local: ScaledStore,
    timeout: Duration,
    failure_policy: FailurePolicy,
    /// Whether undecided checks pass even if the failure policy is closed: for shadow layers.
    passes_undecided: bool,
    observer: Option<Arc<dyn Observer>>,
    queues: Arc<wait_queue::WaitQueues>,
    max_queue: usize,
    waits_for_blocks: bool,
    enforces_blocks: bool,
    refusals: Arc<refusals::Refusals>,
    caches_denials: bool,
    denial_clock: refusals::Clock,
    reporter: Arc<reporter::Reporter>,
    counts_denials: bool,
    publishes: bool,
    strikes: Arc<bans::StrikeQueue>,
    pauses: Arc<pauses::Pauses>,
    renewer: Arc<slots::Renewer>,
    background: Arc<BackRoom>,
    /// From 100 on, nothing is noticed.
    near_limit_percent: u8,
    noticed: Arc<near_limit::Noticed>,
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        // A part that fails says nothing about the others, so that the breaker must not stop calls to these.
        let interval = if store.fails_apart() {
            Duration::ZERO
        } else {
            DEFAULT_INTERVAL
        };
        let background = Arc::default();
        let inner = Inner {
            reporter: Arc::new(reporter::Reporter::new(store.clone(), &background)),
            counts_denials: true,
            publishes: publisher::is_published_by(&*store),
            store,
            breaker: Arc::new(Breaker::new(interval)),
            outage: Arc::default(),
            local: ScaledStore {
                store: MemoryStore::new(),
                replicas: NonZeroU32::MIN,
            },
            timeout: DEFAULT_TIMEOUT,
            failure_policy: FailurePolicy::default(),
            passes_undecided: false,
            observer: None,
            queues: Arc::default(),
            max_queue: DEFAULT_MAX_QUEUE,
            waits_for_blocks: false,
            enforces_blocks: true,
            refusals: Arc::default(),
            caches_denials: false,
            denial_clock: refusals::Clock::system(),
            strikes: Arc::default(),
            pauses: Arc::default(),
            renewer: Arc::default(),
            background,
            near_limit_percent: near_limit::DEFAULT_PERCENT,
            noticed: Arc::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Sets how long one store call may take, including the time to connect or reconnect.
    ///
    /// The default is 100 ms, and the most a year. A call that is cut off ends in
    /// [`Timeout`](crate::error::StoreErrorKind::Timeout); what it was made for may still be done.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero: no call could succeed, and under [`FailurePolicy::Open`] no request would be limited.
    #[must_use]
    #[track_caller]
    pub fn timeout(self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to decide"
        );
        self.change(|inner| inner.timeout = timeout.min(FOR_EVER))
    }

    /// Sets the failure policy for policies without their own: what to do when the store [cannot
    /// decide](self#when-the-store-cannot-decide). The default is [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.change(|inner| inner.failure_policy = policy)
    }

    /// Sets how many processes share the limits. When this one decides [locally](FailurePolicy::Local), you get a share
    /// of `1/replicas` of each limit, rounded down, but at least 1 unless the limit is 0.
    ///
    /// The default is 1: every process then admits the whole limit. The number is not discovered; if yours varies, use
    /// the typical one.
    ///
    /// # Panics
    ///
    /// When `replicas` is 0.
    #[must_use]
    #[track_caller]
    pub fn replicas(self, replicas: u32) -> Self {
        let Some(replicas) = NonZeroU32::new(replicas) else {
            panic!("`replicas` must be at least 1");
        };
        self.change(|inner| inner.local.replicas = replicas)
    }

    /// Sets the store that counts [local](FailurePolicy::Local) decisions. The default is a store for 100 000 keys.
    /// Clones of a limiter share the store.
    #[must_use]
    pub fn local_store(self, store: MemoryStore) -> Self {
        self.change(|inner| inner.local.store = store)
    }

    /// Sets how often a store that has failed five times in a row is probed: one call per interval, with each interval
    /// made up to half shorter or longer at random. The default is 250 ms.
    ///
    /// If you use a longer interval, fewer requests wait for a timeout, and the store takes longer to come back into
    /// use. Zero switches the [breaker](self#when-the-store-cannot-decide) off.
    #[must_use]
    pub fn probe_interval(self, interval: Duration) -> Self {
        self.change(|inner| inner.breaker = Arc::new(Breaker::new(interval)))
    }

    /// Sets how many callers of [`acquire`](Self::acquire), or requests under a layer's
    /// [`max_wait`](crate::RateLimitLayer::max_wait), can wait at the same time under the same policies and keys. The
    /// default is 1 024, and the minimum 1.
    ///
    /// One more is denied at once; its denial names the time after which the waiting callers have been served.
    #[must_use]
    pub fn max_queue(self, callers: usize) -> Self {
        self.change(|inner| inner.max_queue = callers)
    }

    /// Sets whether [`acquire`](Self::acquire), and a layer's [`max_wait`](crate::RateLimitLayer::max_wait), wait for a
    /// temporary [block](crate::block) to end. The default is `false`: a blocked identity gets [`Decision::Blocked`] at
    /// once.
    ///
    /// They always wait for a [pause](crate::block#pauses), which another service asked for.
    #[must_use]
    pub fn wait_for_blocks(self, wait: bool) -> Self {
        self.change(|inner| inner.waits_for_blocks = wait)
    }

    /// Sets whether a [block](crate::block#blocks) of an identity denies its requests. The default is `true`.
    ///
    /// With `false`, only checks with a policy that has a [ban](Policy::ban) enforce blocks, for all their identities,
    /// or those of a layer that [looks an identity up](crate::RateLimitLayer::deny_blocked), and [`block`](Self::block)
    /// returns an error. You save Redis one `EXISTS` in each call, but no round trip. A store without blocks decides by
    /// its limits either way.
    #[must_use]
    pub fn enforce_blocks(self, enforce: bool) -> Self {
        self.change(|inner| inner.enforces_blocks = enforce)
    }

    /// Sets whether this limiter repeats denials for a short time, without another call of the store. The default is
    /// `false`. Clones share the denials.
    ///
    #[doc = include_str!("../../docs/guide/deny_cache.md")]
    #[must_use]
    pub fn cache_denials(self, cache: bool) -> Self {
        self.change(|inner| inner.caches_denials = cache)
    }

    /// Measures the age of [cached denials](Self::cache_denials) with `clock` instead of this process's clock. For
    /// tests in which the store uses the same one.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn denial_clock(self, clock: crate::manual_clock::ManualClock) -> Self {
        self.change(|inner| inner.denial_clock = refusals::Clock::Test(clock))
    }

    /// Sets the observer of decisions and failures. The default is none; a pair `(a, b)` notifies `a`, then `b`.
    #[must_use]
    pub fn observer(self, observer: impl Observer) -> Self {
        self.change(|inner| inner.observer = Some(Arc::new(observer)))
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// The limiter of a shadow layer, which passes every undecided request.
    pub(crate) fn pass_undecided(self) -> Self {
        self.change(|inner| inner.passes_undecided = true)
    }

    /// The failure policy for policies without their own.
    #[must_use]
    pub fn failure_policy(&self) -> FailurePolicy {
        self.inner.failure_policy
    }

    /// Decides these charges together, and charges them if all fit. [Shadows](self#trying-a-policy-out) among them
    /// never deny.
    ///
    /// # Errors
    ///
    /// When the store could not decide within the timeout, unless the failure policy is
    /// [`Local`](FailurePolicy::Local): see [`StoreErrorKind`](crate::error::StoreErrorKind). You then have to apply
    /// the policy, or use [`try_acquire`](Self::try_acquire).
    pub async fn check(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        let decision = self.decide(check).await.into_result()?;
        self.count_outcome(&decision);
        Ok(decision)
    }

    /// Decides these charges together, and charges them if all fit; follows the failure policy if the store cannot
    /// decide.
    ///
    /// Returns whether you may go on. An [invalid](crate::error::StoreErrorKind::InvalidRequest) check is not admitted,
    /// whatever the failure policy.
    ///
    /// Slots of a [concurrency policy](crate::Rule::concurrent) could not be returned: use
    /// [`acquire_slot`](Self::acquire_slot), or [`check`](Self::check) and [`hold`](Self::hold).
    pub async fn try_acquire(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        let Ok(check) = Check::new(charges) else {
            return false;
        };
        match self.decide(check).await {
            Resolution::Decided(decision) => {
                self.count_outcome(&decision);
                decision.is_allowed()
            }
            Resolution::Open(_) => true,
            Resolution::Closed(_) => false,
        }
    }

    /// Waits until these charges are admitted, for about `max_wait` at most. Use this to stay within another service's
    /// limits.
    ///
    /// Returns [`Decision::Denied`], with nothing charged, if the wait would be longer than `max_wait` or never end; at
    /// once, if that is known at once. A [blocked](crate::block) identity gets [`Decision::Blocked`] at once, unless
    /// you [wait for blocks](Self::wait_for_blocks) or the block is a [pause](crate::block#pauses). Callers queue, up
    /// to [`max_queue`](Self::max_queue): see
    /// [waiting](self#waiting).
    ///
    /// # Errors
    ///
    /// Like [`check`](Self::check); the timeout limits each store call, not the wait. While the store cannot be reached
    /// or does not answer, the limiter keeps asking until `max_wait` is over, and then returns the last error. Under
    /// [`Local`](FailurePolicy::Local), the memory of this process decides at once.
    pub async fn acquire(
        &self,
        charges: impl IntoIterator<Item = Charge>,
        max_wait: Duration,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        let decision = self.wait(&check, max_wait, WhereOpen::AskAgain).await;
        let decision = decision.into_result()?;
        self.count_outcome(&decision);
        Ok(decision)
    }

    /// The earliest time until a failed store may be back.
    pub(crate) fn retry_interval(&self) -> Duration {
        self.inner.breaker.interval()
    }

    /// Returns the usage under these policies and keys without charging; the costs of the charges are ignored. You find
    /// the usage of shadows in [`Usage::shadow`].
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, unless the failure policy is
    /// [`Local`](FailurePolicy::Local).
    pub async fn peek(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Usage, StoreError> {
        let check = Check::new(charges)?.without_cost();
        let resolution = self.decide_as(CallKind::Peek, check).await;
        Ok(resolution.into_result()?.usage().clone())
    }

    /// Deletes everything charged to `key` under `policy`.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        let charges = [Charge::new(policy, key.clone(), 0)];
        let info = CallInfo::of(CallKind::Reset, &charges);
        // The memory store answers at once, and its result does not matter.
        drop(self.inner.local.store.reset(policy, key));
        let ending = self.inner.refusals.resetting(policy, key);
        let result = self.ask(info, |store| store.reset(policy, key)).await;
        drop(ending);
        // Wake even after an error: the store may have reset the key.
        self.inner.queues.wake(policy, key);
        result
    }

    /// Blocks an identity until a time, unless already blocked for longer; returns the block that now holds. See
    /// [blocks](crate::block#blocks). Pass a [`BlockRequest`] instead of a time to give a reason.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout. The block may have been made all the same, but this process
    /// does not [remember](crate::block#when-the-store-cannot-decide) the block until a check meets it, so block again.
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no blocks, or this limiter
    /// does not [enforce](Self::enforce_blocks) them.
    pub async fn block(
        &self,
        key: &Key,
        block: impl Into<BlockRequest>,
    ) -> Result<Block, StoreError> {
        if !self.inner.enforces_blocks {
            return Err(ENFORCES_NO_BLOCKS);
        }
        let request = block.into();
        if request.source() == BlockedBy::Pause {
            return self.pause(key, request).await;
        }
        self.store_block(key, request).await
    }

    async fn store_block(&self, key: &Key, request: BlockRequest) -> Result<Block, StoreError> {
        let until = request.until();
        // Read before the call: a remembered block must not outlast the store's.
        let now = Instant::now();
        let info = CallInfo::of(CallKind::Block, &[]);
        let block = self.ask(info, |store| store.block(key, request));
        let block = block.await?;
        self.inner.refusals.note_made(key, block, until.span(), now);
        Ok(block)
    }

    /// Ends all blocks of an identity, bans among them, and deletes its strikes.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, or keeps no blocks. The block may then still hold in the
    /// store, but this process forgets the block in any case.
    pub async fn unblock(&self, key: &Key) -> Result<(), StoreError> {
        self.inner.strikes.forget(key);
        let info = CallInfo::of(CallKind::Unblock, &[]);
        let result = self.ask(info, |store| store.unblock(key)).await;
        // Forget even after an error: the store may have unblocked the identity.
        self.inner.refusals.forget(key);
        self.inner.pauses.forget(key);
        self.inner.queues.wake_all(key);
        result
    }

    /// Lists blocked identities, at most `most`, in no order.
    ///
    /// For operators, not for requests: Redis reads an index, in time proportional to the number of blocks, and leaves
    /// out blocks that could not be indexed. A store that decides by [transactions](crate::store::redis::transactions)
    /// scans all keys of the server instead, in small steps with pauses. The limiter's timeout does not apply.
    ///
    /// # Errors
    ///
    /// When the store does not answer, keeps no blocks, or holds one that cannot be read.
    pub async fn blocks(&self, most: usize) -> Result<Vec<BlockedIdentity>, StoreError> {
        self.inner.store.blocks(most).await
    }

    /// Makes a store call that no request waits for, and reports the end to the observer.
    async fn ask<T: StoreAnswer>(
        &self,
        info: CallInfo<'_>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> Result<T, StoreError> {
        let Answer { result, timing } = self.call(|| info, begin).await;
        match &result {
            Ok(_) => self.report_completion(info, false, timing),
            Err(error) => self.report_error(info, error, RequestOutcome::Failed, timing),
        }
        result
    }
}

const ENFORCES_NO_BLOCKS: StoreError = StoreError::invalid_request(
    "this limiter does not enforce blocks: create it without `enforce_blocks(false)`",
);

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner.store)
            .field("timeout", &self.inner.timeout)
            .field("failure_policy", &self.inner.failure_policy)
            .finish_non_exhaustive()
    }
}

/// The argument of [`RateLimitLayer::new`](crate::RateLimitLayer::new): a store, or a [`Limiter`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a store nor a `Limiter`",
    note = "a store has to be connected: `RedisStore::connect(url).await?`; for counts in memory, `MemoryStore::new()`"
)]
pub trait IntoLimiter {
    /// Converts the argument.
    fn into_limiter(self) -> Limiter;
}

#[diagnostic::do_not_recommend]
impl<L: Into<Limiter>> IntoLimiter for L {
    fn into_limiter(self) -> Limiter {
        self.into()
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}
