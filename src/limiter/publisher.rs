//! [`Publisher`]: publishes the policies of a limiter in its store, for operators' tools.
//!
//! ```text
//!  decision ──▶ note: seen before?          on the request's path: a load for each charge, no lock
//!                  │ no
//!                  ▼
//!               policies ──▶ task: Operation::Publish, after some seconds, and again every five minutes
//! ```

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{sleep, timeout},
};

use super::Limiter;
use crate::{
    domain::{
        FailurePolicy,
        charge::Charge,
        check::Check,
        error::{StoreError, StoreErrorKind},
        operation::Operation,
        policy::Policy,
        published::PublishedPolicy,
    },
    limiter::jitter,
    store::Store,
    warning,
};

/// How many policies a process publishes.
const MAX_POLICIES: usize = 256;

/// From a new policy to its publication. The delay collects others that follow.
const DELAY: Duration = Duration::from_secs(5);

/// From one publication to the next; much shorter than the store's retention.
const REFRESH: Duration = Duration::from_secs(300);

/// From a failed publication to the next, doubled each time up to `REFRESH`.
const RETRY: Duration = Duration::from_secs(10);

/// How long one publication may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The number of marks: a power of two.
const SEEN: usize = 256;

/// Each policy, with a flag for use since the last publication: a policy that a reload has replaced is not published
/// again.
type Known = HashMap<Policy, (PublishedPolicy, bool)>;

/// The policies of one limiter and its clones.
pub(super) struct Publisher {
    store: Arc<dyn Store>,
    /// Marks of known policies and kinds. The value of a mark determines its place: that one or the next.
    seen: [AtomicU64; SEEN],
    known: Mutex<Known>,
    running: Arc<AtomicBool>,
    /// Wakes the task for a new policy, or after the limiter is dropped.
    changed: Arc<Notify>,
    has_failed: AtomicBool,
    /// The store has answered that it publishes nothing.
    is_off: AtomicBool,
}

impl Publisher {
    /// Returns `None` over a store that publishes nothing.
    pub(super) fn new(store: &Arc<dyn Store>) -> Option<Arc<Self>> {
        if let Some(Err(error)) = store.execute(Operation::Publish(Vec::new())).known()
            && error.kind() == StoreErrorKind::InvalidRequest
        {
            return None;
        }
        Some(Arc::new(Self {
            store: Arc::clone(store),
            seen: [const { AtomicU64::new(0) }; SEEN],
            known: Mutex::default(),
            running: Arc::default(),
            changed: Arc::default(),
            has_failed: AtomicBool::new(false),
            is_off: AtomicBool::new(false),
        }))
    }

    /// Notes the policies of a decided check. A known charge costs one load, if its mark is at the first place.
    pub(super) fn note(self: &Arc<Self>, check: &Check, on_failure: FailurePolicy) {
        // Skip peeks: the readiness probe that the docs show uses its own failure policy.
        let charges = check.all_charges().iter();
        for charge in charges.filter(|charge| charge.cost() > 0) {
            let mark = mark(charge);
            let [first, second] = self.places(mark);
            if first.load(Relaxed) != mark && second.load(Relaxed) != mark {
                // No check looks up the blocks of a shadow's keys.
                let enforces_blocks = check.enforces_blocks() && !charge.policy().is_shadow();
                self.add(charge, mark, enforces_blocks, on_failure);
            }
        }
    }

    fn places(&self, mark: u64) -> [&AtomicU64; 2] {
        let place = (mark >> 32) as usize % SEEN;
        [&self.seen[place], &self.seen[(place + 1) % SEEN]]
    }

    #[cold]
    fn add(
        self: &Arc<Self>,
        charge: &Charge,
        mark: u64,
        enforces_blocks: bool,
        on_failure: FailurePolicy,
    ) {
        let policy = charge.policy();
        // Requests do not wait for each other: the next request tries again.
        let Ok(mut known) = self.known.try_lock() else {
            return;
        };
        let is_full = known.len() >= MAX_POLICIES;
        if policy.rules().is_empty() || is_full && !known.contains_key(policy) {
            return;
        }
        let entry = known.entry(policy.clone());
        // Mark only the policy that the map keeps alive: the address of any other may be reused.
        let is_kept = match &entry {
            std::collections::hash_map::Entry::Occupied(it) => {
                it.key().address() == policy.address()
            }
            std::collections::hash_map::Entry::Vacant(_) => true,
        };
        let mut is_new = false;
        let (published, is_used) = entry.or_insert_with(|| {
            is_new = true;
            let failure = policy.failure_policy().unwrap_or(on_failure);
            let policy = policy.clone().on_failure(failure);
            (PublishedPolicy::new(policy, enforces_blocks), true)
        });
        *is_used = true;
        if enforces_blocks {
            published.enforce_blocks();
        }
        is_new |= published.add_kind(charge.key().kind());
        drop(known);
        if is_kept {
            let [first, second] = self.places(mark);
            let place = if first.load(Relaxed) == 0 {
                first
            } else {
                second
            };
            place.store(mark, Relaxed);
        }
        if is_new {
            self.ensure_running();
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a runtime, nothing is published.
    fn ensure_running(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.running.swap(true, AcqRel) {
            let running = Running(Arc::clone(&self.running));
            let changed = Arc::clone(&self.changed);
            drop(runtime.spawn(run(Arc::downgrade(self), changed, running)));
        }
    }

    async fn publish(&self) -> Result<(), StoreError> {
        if self.is_off.load(Relaxed) {
            return Ok(());
        }
        let policies = self.used();
        if policies.is_empty() {
            return Ok(());
        }
        let answer = self.store.execute(Operation::Publish(policies));
        let result = timeout(TIMEOUT, answer).await;
        let result = result.unwrap_or(Err(TOO_LATE)).map(drop);
        // A store that does not know this operation will not learn it.
        if let Err(error) = &result
            && error.kind() == StoreErrorKind::InvalidRequest
        {
            self.is_off.store(true, Relaxed);
            return Ok(());
        }
        if result.is_ok() {
            self.forget_uses();
        }
        // Warn about the first failure only.
        let had_failed = self.has_failed.swap(result.is_err(), Relaxed);
        if let (Err(error), false) = (&result, had_failed) {
            warning::policies_not_published(error);
        }
        result
    }
}

impl Publisher {
    fn used(&self) -> Vec<PublishedPolicy> {
        let known = self.lock();
        let used = known.values().filter(|(_, is_used)| *is_used);
        used.map(|(policy, _)| policy.clone()).collect()
    }

    /// Makes the next request under each policy note the policy again.
    fn forget_uses(&self) {
        let mut known = self.lock();
        known.values_mut().for_each(|(_, is_used)| *is_used = false);
        self.seen.iter().for_each(|mark| mark.store(0, Relaxed));
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// Marks the task as ended when dropped, also when the runtime aborts the task.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Publishes until the limiter is dropped.
async fn run(publisher: Weak<Publisher>, changed: Arc<Notify>, _running: Running) {
    let mut retry = RETRY;
    loop {
        sleep(jitter::around(DELAY)).await;
        let Some(publisher) = publisher.upgrade() else {
            return;
        };
        let pause = match publisher.publish().await {
            Ok(()) => {
                retry = RETRY;
                jitter::around(REFRESH)
            }
            Err(_) => {
                // Wait twice as long after each failure, but keep to the normal interval.
                retry = (retry * 2).min(REFRESH);
                sleep_without(publisher, retry / 2).await;
                continue;
            }
        };
        drop(publisher);
        let _ = timeout(pause, changed.notified()).await;
    }
}

/// Waits without keeping the publisher alive.
async fn sleep_without(publisher: Arc<Publisher>, pause: Duration) {
    drop(publisher);
    sleep(pause).await;
}

/// Identifies a policy and a kind of keys; never 0.
fn mark(charge: &Charge) -> u64 {
    let kind = charge.key().kind();
    let address = charge.policy().address() ^ (kind.as_ptr() as u64).rotate_left(32);
    (address ^ kind.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

impl Limiter {
    /// Sets whether to publish the policies in the store, for operators' tools. The default is `true`.
    ///
    /// A task publishes each policy some seconds after its first use, and again every five minutes while you use the
    /// policy; the store keeps them for a day. Published are the name, rules, ban and failure policy, whether the
    /// policy is a shadow and enforces blocks, and the kinds of its keys, but never the value of a key. A limiter
    /// publishes at most 256 policies. Requests do not wait for the task, and its failures give one warning. A memory
    /// store publishes nothing.
    #[must_use]
    pub fn publish_policies(self, publish: bool) -> Self {
        self.change(|inner| {
            inner.publisher = match publish {
                true => Publisher::new(&inner.store),
                false => None,
            };
        })
    }

    /// Publishes the known policies now.
    ///
    /// # Errors
    ///
    /// When the store could not publish them within a second.
    #[cfg(feature = "test-util")]
    pub async fn policies_published(&self) -> Result<(), StoreError> {
        match &self.inner.publisher {
            Some(publisher) => publisher.publish().await,
            None => Ok(()),
        }
    }
}

const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the policies were not published in time",
);
