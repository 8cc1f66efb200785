//! [`Limiter`]: decides checks over a store, within a timeout and by a failure policy. Works without HTTP.
//!
#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/limiter.md"))]

mod bans;
mod breaker;
mod decide;
mod events;
mod fallback;
mod first_of;
mod given_back;
mod guarded_store;
pub(crate) mod jitter;
mod late;
pub(crate) mod meter;
pub(crate) mod outage;
mod pauses;
mod publisher;
mod refusals;
mod reload;
mod reporter;
mod settle;
mod slots;
mod tallies;
mod timeout;
mod usage_of;
mod wait_queue;

use std::{fmt, num::NonZeroU32, slice, sync::Arc, time::Duration};

use tokio::time::Instant;

#[cfg(doc)]
use crate::domain::decision::{Decision, Usage};
use crate::{
    background::BackRoom,
    domain::{
        FailurePolicy,
        block::{Block, BlockRequest, BlockedBy, BlockedIdentity},
        charge::Charge,
        contributors::Contributors,
        denials::DeniedIdentity,
        error::StoreError,
        key::Key,
        operation::{Operation, answer_of},
        policy::Policy,
        report::{Account, Ranking},
        wanted::{COUNTS, NOTICES, OBSERVER},
    },
    observe::{CallInfo, CallKind, Observer},
    store::{MemoryStore, Store, StoreFuture},
};
pub use crate::{background::Background, domain::ActualCost};
use breaker::Breaker;
pub(crate) use breaker::DEFAULT_INTERVAL;
pub(crate) use decide::Resolution;
pub(crate) use events::Events;
use events::{NO_PERCENT, NOTICE_PERCENT};
use fallback::Fallback;
use guarded_store::{GuardedStore, To};
pub use slots::{Slot, SlotWatch};
pub(crate) use timeout::{FOR_EVER, SETTLING};
pub(crate) use wait_queue::WhereOpen;

/// As many as wait for a minute under a limit of 1,000 a minute.
const DEFAULT_MAX_QUEUE: usize = 1_024;

/// A store, a timeout, a failure policy and an observer; cheap to clone.
///
/// Use the limiter inside a tokio runtime with timers enabled if the store has to wait for a server: over Redis, a check
/// elsewhere is an error, and over other stores the futures panic when they start the timeout. A `MemoryStore` answers at
/// once, and needs a runtime only to wait in [`acquire`](Limiter::acquire).
///
/// You can share one limiter between runtimes: over Redis, each has a
/// [connection](crate::store::redis::deployment#connections) of its own. Work that no request waits for is done in [one
/// thread](self#background-work) of the process.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<LimiterCore>,
}

#[derive(Clone)]
struct LimiterCore {
    guarded: Arc<GuardedStore>,
    fallback: Fallback,
    /// The bits of [`wanted`](crate::domain::wanted) that the settings set.
    wanted: u8,
    notice_percent: u8,
    max_queue: usize,
    waits_for_blocks: bool,
    enforces_blocks: bool,
    counts_denials: bool,
    caches_denials: bool,
    /// Whether a check whose caller leaves costs nothing.
    refunds_left: bool,
    denial_clock: refusals::DenialClock,
    shared: Arc<Shared>,
}

/// The clones of a limiter share this: the memory about identities, and the work that no request waits for.
struct Shared {
    refusals: refusals::Refusals,
    pauses: pauses::Pauses,
    queues: wait_queue::WaitQueues,
    background: Arc<BackRoom>,
    reports: Arc<reporter::Reports>,
    strikes: bans::StrikeQueue,
    keeper: Arc<slots::Keeper>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reports.flush_rest();
    }
}

impl Limiter {
    /// Creates a limiter over `store`.
    pub fn new(store: impl Store) -> Self {
        let (store, start): (Arc<dyn Store>, _) = (Arc::new(store), Instant::now());
        let background = Arc::default();
        let shared = Shared {
            refusals: refusals::Refusals::default(),
            pauses: pauses::Pauses::default(),
            queues: wait_queue::WaitQueues::default(),
            reports: Arc::new(reporter::Reports::new(store.clone(), &background)),
            strikes: bans::StrikeQueue::new(),
            keeper: Arc::new(slots::Keeper::new(&background)),
            background,
        };
        let inner = LimiterCore {
            fallback: Fallback::default(),
            wanted: 0,
            notice_percent: NOTICE_PERCENT,
            max_queue: DEFAULT_MAX_QUEUE,
            waits_for_blocks: false,
            enforces_blocks: true,
            counts_denials: true,
            caches_denials: false,
            refunds_left: false,
            denial_clock: Arc::new(move || start.elapsed()),
            guarded: Arc::new(GuardedStore::new(store)),
            shared: Arc::new(shared),
        };
        Self {
            inner: Arc::new(inner),
        }
        .change(|_| {})
    }

    fn change(mut self, change: impl FnOnce(&mut LimiterCore)) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        change(inner);
        let is_observed = inner.guarded.events.is_observed();
        let bit = |bit, is_set| if is_set { bit } else { 0 };
        inner.wanted = bit(OBSERVER, is_observed)
            | bit(NOTICES, is_observed && inner.notice_percent < NO_PERCENT)
            | bit(COUNTS, inner.counts_denials);
        self
    }

    fn change_store(self, change: impl FnOnce(&mut GuardedStore)) -> Self {
        self.change(|inner| change(Arc::make_mut(&mut inner.guarded)))
    }

    /// Sets how long one store call may take, including the time to connect or reconnect.
    ///
    /// The default is 100 ms, and the most a year. A call that is cut off ends in
    /// [`Timeout`](crate::error::StoreErrorKind::Timeout), and may still be done: see [late answers](self#late-answers).
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
        self.change_store(|store| store.timeout = timeout.min(FOR_EVER))
    }

    /// Sets the failure policy for policies without their own: what to do when the store [cannot
    /// decide](self#when-the-store-cannot-decide). The default is [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.change(|inner| inner.fallback.policy = policy)
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
        self.change(|inner| inner.fallback.replicas = replicas)
    }

    /// Sets the store that counts [local](FailurePolicy::Local) decisions. The default is a store for 100 000 keys.
    /// Clones of a limiter share the store.
    #[must_use]
    pub fn local_store(self, store: MemoryStore) -> Self {
        self.change(|inner| inner.fallback.local = store)
    }

    /// Sets how often a store that has failed five times in a row is probed: one call per interval, with each interval
    /// made up to half shorter or longer at random. The default is 250 ms.
    ///
    /// If you use a longer interval, fewer requests wait for a timeout, and the store takes longer to come back into
    /// use. Zero switches the [breaker](self#when-the-store-cannot-decide) off.
    #[must_use]
    pub fn probe_interval(self, interval: Duration) -> Self {
        self.change_store(|store| store.breaker = Arc::new(Breaker::new(interval)))
    }

    /// Sets how many callers of [`acquire`](Self::acquire), or requests under a layer's
    /// [`max_wait`](crate::RateLimitLayer::max_wait), can wait at the same time under the same policies and keys. The
    /// default is 1 024, and the minimum 1.
    ///
    /// One more is denied at once, for as long as the first that waits.
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

    /// Sets the share of a limit, in percent, of which an observer gets a notice when an identity has used it. The default
    /// is 80. From 100 on, there are no notices.
    ///
    /// See [notice before the limit](crate::limiter#notice-before-the-limit).
    #[must_use]
    pub fn near_limit_at(self, percent: u8) -> Self {
        self.change(|inner| inner.notice_percent = percent)
    }

    /// Sets whether to count [denials](crate::denials) and report them to the store. The default is `true`.
    #[must_use]
    pub fn count_denials(self, count: bool) -> Self {
        self.change(|inner| inner.counts_denials = count)
    }

    /// Sets whether to publish the policies in the store, for operators' tools. The default is `true`.
    ///
    /// A task publishes each policy some seconds after its first use, and again every five minutes while you use the
    /// policy, and when the store has connected again; the store keeps them for a day. A policy that a
    /// [reload](crate::policies::ReloadablePolicies::replace) has replaced is taken back. Published are the name, rules, ban and failure policy, whether the
    /// policy is a shadow and enforces blocks, and the kinds of its keys, but never the value of a key. A limiter
    /// publishes at most 256 policies. Requests do not wait for the task, and its failures give one warning. A memory
    /// store publishes nothing. The last call holds for the limiter and its clones.
    #[must_use]
    pub fn publish_policies(self, publish: bool) -> Self {
        let reports = &self.inner.shared.reports;
        reports.policies.switch(publish, &*reports.store);
        self
    }

    /// Sets how this process is called where operators see [the holders of slots](crate::middleware::concurrency#see-the-holders-of-slots), or
    /// that it publishes no name: `None`. The default is the name of the host and the id of the process, `web-3:4711`.
    ///
    /// It is published with the policies, and only if one of them has slots: up to 64 printable ASCII characters
    /// without spaces; other characters are left out. The last call holds for the limiter and its clones.
    #[must_use]
    pub fn process_label(self, label: Option<&str>) -> Self {
        self.inner.shared.reports.policies.set_label(label);
        self
    }

    /// Sets whether this limiter repeats denials for a short time, without another call of the store. The default is
    /// `false`. Clones share the denials.
    ///
    #[doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/deny_cache.md"))]
    #[must_use]
    pub fn cache_denials(self, cache: bool) -> Self {
        self.change(|inner| inner.caches_denials = cache)
    }

    /// Measures the age of [cached denials](Self::cache_denials) with `clock` instead of this process's clock. For
    /// tests in which the store uses the same one.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn denial_clock(self, clock: crate::manual_clock::ManualClock) -> Self {
        let now = move || Duration::from_millis(clock.now_ms());
        self.change(|inner| inner.denial_clock = Arc::new(now))
    }

    /// Sets the observer of decisions and failures. The default is none; a pair `(a, b)` notifies `a`, then `b`.
    #[must_use]
    pub fn observer(self, observer: impl Observer) -> Self {
        self.change_store(|store| store.events = Events(Some(Arc::new(observer))))
    }

    /// Sets where the work is done that no request waits for: settlements, renewals and returns of slots, late answers,
    /// strikes and reports. The default is [`Background::Thread`]; tests that pause the clock of their runtime need
    /// [`Here`](Background::Here). The last call holds for the limiter and its clones, from its next work on.
    #[must_use]
    pub fn background(self, place: Background) -> Self {
        self.inner.shared.background.set(place);
        self
    }

    /// The limiter of a layer that refunds unanswered requests.
    pub(crate) fn refund_left(self) -> Self {
        self.change(|inner| inner.refunds_left = true)
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.inner.guarded.timeout
    }

    /// The limiter of a shadow layer, which passes every undecided request.
    pub(crate) fn pass_undecided(self) -> Self {
        self.change(|inner| inner.fallback.passes_undecided = true)
    }

    /// The failure policy for policies without their own.
    #[must_use]
    pub fn failure_policy(&self) -> FailurePolicy {
        self.inner.fallback.policy
    }

    /// The failure policy of one policy, or the default if the policy is unknown or has none.
    pub(crate) fn failure_policy_of(&self, policy: Option<&Policy>) -> FailurePolicy {
        self.inner.fallback.policy_of(policy)
    }

    /// Whether identities can be blocked, and pauses stored.
    #[cfg(feature = "obey")]
    pub(crate) fn enforces_blocks(&self) -> bool {
        self.inner.enforces_blocks
    }

    /// The observer.
    pub(crate) fn events(&self) -> &Events {
        &self.inner.guarded.events
    }

    /// The earliest time until a failed store may be back.
    pub(crate) fn retry_interval(&self) -> Duration {
        self.inner.guarded.breaker.interval()
    }

    /// Deletes everything charged to `key` under `policy`. For all policies, see [`reset_all`](Self::reset_all).
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        self.reset_each(slice::from_ref(policy), key).await
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
            return self.pause(key, None, request).1.await;
        }
        self.store_block(key, request).await
    }

    async fn store_block(&self, key: &Key, request: BlockRequest) -> Result<Block, StoreError> {
        let until = request.until();
        // Read before the call: a remembered block must not outlast the store's.
        let now = Instant::now();
        let info = CallInfo::of(CallKind::Block, &[]);
        let begin = |store: &dyn Store| {
            let key = key.clone();
            store.execute(Operation::Block { key, request })
        };
        let (guarded, to) = (&self.inner.guarded, To::Store(self.call_timeout()));
        let block = guarded.ask(to, info, begin, answer_of!(Block)).await?;
        let refusals = &self.inner.shared.refusals;
        refusals.note_made(key, block, until.span(), now);
        Ok(block)
    }

    /// Ends all blocks of an identity, bans among them, and deletes its strikes.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, or keeps no blocks. The block may then still hold in the
    /// store, but this process forgets the block in any case.
    pub async fn unblock(&self, key: &Key) -> Result<(), StoreError> {
        self.inner.shared.strikes.forget(key);
        let info = CallInfo::of(CallKind::Unblock, &[]);
        let begin = |store: &dyn Store| store.execute(Operation::Unblock { key: key.clone() });
        let (guarded, to) = (&self.inner.guarded, To::Store(self.call_timeout()));
        let result = guarded.ask(to, info, begin, |_| Some(())).await;
        // Forget even after an error: the store may have unblocked the identity.
        let shared = &self.inner.shared;
        shared.refusals.forget(key);
        shared.pauses.forget(key);
        shared.queues.wake_all(key);
        result
    }

    /// Lists blocked identities, at most `most`, in no order.
    ///
    /// For operators, not for requests: Redis reads an index, in time proportional to the number of blocks, and leaves
    /// out blocks that could not be indexed. The limiter's timeout does not apply.
    ///
    /// # Errors
    ///
    /// When the store does not answer, keeps no blocks, or holds one that cannot be read.
    pub async fn blocks(&self, most: usize) -> Result<Vec<BlockedIdentity>, StoreError> {
        let list = Operation::ListBlocks { most };
        let blocks = self.inner.guarded.store.execute(list);
        blocks.read(answer_of!(ListBlocks)).await
    }

    /// Lists the identities that any process denied within the last hour, sorted by their denials in the last minute,
    /// most first: see [`denials`](crate::denials).
    ///
    /// This process reports its newest denials first; those of other processes are up to about a second old. An
    /// observer is notified of a [peek](crate::observe::CallKind::Peek). For operators, not for requests.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no denials.
    pub async fn denials(&self) -> Result<Vec<DeniedIdentity>, StoreError> {
        let rankings = self.rankings(&[], Account::Denials).await?;
        Ok(DeniedIdentity::list(rankings))
    }

    /// Lists the contributors to the charges of `key` under `policy`, in the current window and across all processes:
    /// see [`contributors`](crate::contributors).
    ///
    /// The limiter first reports the newest contributions of this process. Those of the last second or so of other
    /// processes may be missing. The observer sees a [peek](crate::observe::CallKind::Peek).
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no contributors.
    pub async fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let charges = [Charge::new(policy, key.clone(), 0)];
        let (policy, key) = (policy.clone(), key.clone());
        let account = Account::Contributors { policy, key };
        let rankings = self.rankings(&charges, account).await?;
        Ok(Contributors::of(rankings))
    }

    /// Reports the newest counts, and then reads those of an account by all processes.
    async fn rankings(
        &self,
        charges: &[Charge],
        account: Account,
    ) -> Result<Vec<Ranking>, StoreError> {
        let reports = Arc::clone(&self.inner.shared.reports);
        let begin = |_: &dyn Store| {
            StoreFuture::pending(async move {
                reports.flush_account(&account).await?;
                reports.store.execute(Operation::Rankings(account)).await
            })
        };
        let info = CallInfo::of(CallKind::Peek, charges);
        let (guarded, to) = (&self.inner.guarded, To::Store(self.call_timeout()));
        guarded.ask(to, info, begin, answer_of!(Rankings)).await
    }

    /// Publishes the known policies now.
    ///
    /// # Errors
    ///
    /// When the store could not publish them within a second.
    #[cfg(feature = "manual-clock")]
    #[doc(hidden)]
    pub async fn policies_published(&self) -> Result<(), StoreError> {
        let reports = &self.inner.shared.reports;
        reports.policies.publish(&*reports.store).await
    }
}

const ENFORCES_NO_BLOCKS: StoreError = StoreError::invalid_request(
    "this limiter does not enforce blocks: create it without `enforce_blocks(false)`",
);

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner.guarded.store)
            .field("timeout", &self.inner.guarded.timeout)
            .field("failure_policy", &self.inner.fallback.policy)
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
