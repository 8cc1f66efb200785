//! [`MemoryStore`]: the counts of one process, in memory.
//!
//! ```text
//! (policy, key) ──▶ token ──▶ shard ──▶ entry ──▶ queue of each rule ──▶ steps
//!                   128-bit   a lock              one for each spec      (end, units so far)
//!                   hash
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use self::{
    blocks::Blocks, clock::Clock, locked::Locked, reports::Reported, shard::Shard, token::Tokens,
};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::StoreError,
        operation::{Operation, Reply},
    },
    lock::lock,
    store::{Store, StoreFuture, engine},
};

mod blocks;
mod clock;
mod locked;
mod reports;
mod shard;
mod standing;
mod token;

const DEFAULT_CAPACITY: usize = 100_000;

/// Enough that threads rarely meet, and few enough that a check can look at each.
const MAX_SHARDS: usize = 16;

/// A store for fewer keys than this has one shard: hashing would fill several too unevenly.
const MIN_SHARD: usize = 1_024;

/// Keeps the counts in the memory of this process; cheap to clone. Clones share their counts.
///
/// Use this store for services of one process, for tests, and for local decisions while Redis is down. The store
/// answers at once, runs nothing in the background, and for a known key allocates only the answer.
/// ```
/// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = Limiter::new(MemoryStore::new().capacity(10_000));
/// let policy = Policy::parse("login", "1/1d")?;
/// let login = |user: &str| [Charge::new(&policy, Key::new("user", user), 1)];
///
/// assert!(limiter.check(login("alice")).await?.is_allowed());
/// assert!(!limiter.check(login("alice")).await?.is_allowed());
/// assert!(limiter.check(login("bob")).await?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// **Clock.** The store reads the date once, when you create it. From there it counts with a clock that never steps
/// back and ignores corrections of the date. After a correction, or after the machine slept, fixed windows are early or
/// late by the same amount.
///
/// **Restarts.** A restart forgets all counts. For counts that survive it without Redis, see the store over SQLite on the
/// page of [stores](crate::store#a-store-of-your-own).
///
/// **Memory.** The store keeps no key in clear, only a hash of 128 bits that is different in each process, and a short
/// label of each blocked identity for [lists](crate::Limiter::blocks). A key with one rule takes some 180 to 330 bytes,
/// depending on how full its part of the table is. Each further rule takes some 150 bytes, and each step that counts
/// takes 16. A rule has at most `window / precision + 1` steps, and never more than its limit. New keys drop keys that
/// no longer count.
///
/// **When the store is full**, a new key replaces a key that no longer counts. If there is none, the new key replaces
/// the key that has used the smallest share of its limits, measured at that key's latest charge, to about a factor of
/// two. A key at its limit, under which not one unit fits, is never forgotten, nor is a slot that is held. So a flood of made-up keys (spoofed
/// addresses, random user names) lifts no limit of a key at its limit and takes no more memory. The store forgets
/// another key only when all other keys have used at least about half of that key's share.
///
/// If all other keys are at their limits, the store cannot decide about a new key. The check returns a
/// [`Full`](crate::error::StoreErrorKind::Full) error, the [failure policy](crate::FailurePolicy) applies to this
/// request, the breaker stays closed, and one warning is logged. Choose `Closed` for policies that protect something,
/// such as logins: new keys are then rejected until a unit fits under one of the others. `Open`, the default, lets them
/// pass uncounted. `Local` counts them in the limiter's [local store](crate::Limiter::local_store), and rejects them
/// when that store is full, too. It is better to choose a capacity above the number of keys that can arrive in one
/// window, or to put a limit on something that your clients cannot make up.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<MemoryCore>,
}

struct MemoryCore {
    capacity: usize,
    clock: Clock,
    tokens: Tokens,
    shards: Box<[Mutex<Shard>]>,
    blocks: Blocks,
    /// A ban holds this from counting the strikes until the block is in place. So does an operation that ends both.
    bans: Mutex<()>,
    reported: Reported,
    /// The last time at which a key found no place.
    full_at_ms: AtomicU64,
}

impl MemoryStore {
    /// Creates an empty store for 100 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self::build(DEFAULT_CAPACITY, Clock::system())
    }

    /// Replaces the store by an empty one for `keys` keys. One key is one identity under one policy.
    ///
    /// The default is 100 000. Keys are spread over up to 16 parts of at least 1024, and a part can be full a little
    /// before the others.
    ///
    /// # Panics
    ///
    /// When `keys` is 0.
    #[must_use]
    #[track_caller]
    pub fn capacity(self, keys: usize) -> Self {
        assert!(keys > 0, "the capacity must be at least one key");
        Self::build(keys, self.inner.clock.clone())
    }

    /// Replaces the store by an empty one that uses `clock` instead of the system's.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        Self::build(self.inner.capacity, Clock::Test(clock))
    }

    /// The number of keys in the store, including some that no longer count.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|it| lock(it).len()).sum()
    }

    /// Whether the store has no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn build(keys: usize, clock: Clock) -> Self {
        let count = 1 << (keys / MIN_SHARD).clamp(1, MAX_SHARDS).ilog2();
        let shards = (0..count).map(|index| {
            let share = keys / count + usize::from(index < keys % count);
            Mutex::new(Shard::new(share))
        });
        Self {
            inner: Arc::new(MemoryCore {
                capacity: keys,
                clock,
                tokens: Tokens::default(),
                shards: shards.collect(),
                blocks: Blocks::new(keys),
                bans: Mutex::default(),
                reported: Reported::default(),
                full_at_ms: AtomicU64::new(u64::MAX),
            }),
        }
    }
}

impl MemoryCore {
    fn execute(&self, operation: &Operation) -> Result<Reply, StoreError> {
        if !operation.is_of_keys() {
            return self.report(operation);
        }
        let counts_strikes = matches!(operation, Operation::Ban { .. } | Operation::Unblock { .. });
        let _alone = counts_strikes.then(|| lock(&self.bans));
        engine::execute(operation, &mut Locked::new(self))
    }

    /// Executes an operation for operators. No check depends on these.
    fn report(&self, operation: &Operation) -> Result<Reply, StoreError> {
        let now_ms = self.clock.now_ms();
        Ok(match operation {
            Operation::ListBlocks { most } => Reply::ListBlocks(self.blocks.list(*most, now_ms)),
            Operation::Report(reports) => {
                for report in reports {
                    self.reported.add(report, now_ms);
                }
                Reply::Report
            }
            Operation::Rankings(account) => {
                Reply::Rankings(self.reported.rankings(account, now_ms))
            }
            other => return Err(other.unsupported()),
        })
    }
}

impl Store for MemoryStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        StoreFuture::ready(engine::check(check, &mut Locked::new(&self.inner)))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        StoreFuture::ready(self.inner.execute(&operation))
    }

    fn is_private(&self) -> bool {
        true
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("capacity", &self.inner.capacity)
            .finish_non_exhaustive()
    }
}
