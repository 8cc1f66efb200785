//! Telling the store: a task that runs while there is something to tell, and what it does once a second.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{Shared, lock};
use crate::{
    contributors::{Contribution, Contributors},
    error::{StoreError, StoreErrorKind},
    key::Key,
    policy::Policy,
    store::StoreFuture,
    warning,
};

const INTERVAL: Duration = Duration::from_secs(1);

/// How long one call may take; what it was to tell is lost then. As long as a flush may be late.
const TIMEOUT: Duration = Duration::from_secs(1);

/// So many are told in one call: some thousand commands.
const CALL: usize = 64;

/// After so many flushes without anything to tell, an account is forgotten; and the task ends where none is left.
const IDLE: u64 = 10;

/// The task that flushes, and what it has met.
#[derive(Default)]
pub(super) struct Flusher {
    running: Arc<AtomicBool>,
    /// Where the task was spawned, for what is to be told when the limiter is dropped.
    runtime: Mutex<Option<Handle>>,
    /// One flush at a time: what the store answers is about what it was told last.
    turn: tokio::sync::Mutex<()>,
    has_failed: AtomicBool,
}

/// Notes that the task has ended, however it did: it may be aborted with its runtime.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Flusher {
    /// Spawns the task, unless it runs. Outside of a runtime there is none.
    pub(super) fn ensure_running(&self, shared: &Arc<Shared>) {
        if !self.running.load(Relaxed) {
            self.spawn(shared);
        }
    }

    #[cold]
    fn spawn(&self, shared: &Arc<Shared>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.running.swap(true, AcqRel) {
            return;
        }
        let running = Running(Arc::clone(&self.running));
        let mut last = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(runtime.clone());
        drop(last);
        runtime.spawn(run(Arc::downgrade(shared), running));
    }

    /// Tells what was not told yet, in the background and if there is a runtime.
    pub(super) fn flush_last(&self, shared: &Arc<Shared>) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = runtime.take() else {
            return;
        };
        let shared = Arc::clone(shared);
        runtime.spawn(async move { shared.flush().await });
    }
}

/// Flushes once a second until the limiter is dropped, or nothing happens any more.
async fn run(shared: Weak<Shared>, running: Running) {
    loop {
        sleep(INTERVAL).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.flush().await;
        if shared.forget_idle() {
            continue;
        }
        drop(running);
        // Whoever counted just before has seen a running task.
        if shared.has_accounts() {
            shared.flusher.ensure_running(&shared);
        }
        return;
    }
}

/// Tells the store of one account, and then asks it who has contributed.
pub(super) fn contributors(
    shared: Arc<Shared>,
    policy: Policy,
    key: Key,
) -> StoreFuture<Contributors> {
    StoreFuture::pending(async move {
        shared.flush_account(&policy, &key).await?;
        shared.store.contributors(&policy, &key).await
    })
}

impl Shared {
    /// Tells the store of all accounts.
    async fn flush(&self) {
        let _turn = self.flusher.turn.lock().await;
        self.flushes.fetch_add(1, Relaxed);
        let mut unsent = Vec::new();
        for shard in &self.shards {
            for account in lock(shard).values_mut() {
                unsent.append(&mut account.take_unsent());
            }
        }
        while !unsent.is_empty() {
            let rest = unsent.split_off(unsent.len().min(CALL));
            let call = std::mem::replace(&mut unsent, rest);
            match timeout(TIMEOUT, self.tell(call)).await {
                Ok(Ok(())) => self.flusher.has_failed.store(false, Relaxed),
                Ok(Err(error)) => return self.failed(&error),
                Err(_) => return self.failed(&too_late()),
            }
        }
    }

    /// Tells the store of one account, after a flush that is under way: that one may have begun before the newest charges.
    async fn flush_account(&self, policy: &Policy, key: &Key) -> Result<(), StoreError> {
        let _turn = self.flusher.turn.lock().await;
        let hash = self.hash(policy, key);
        let unsent = match self.shard(hash).get_mut(&hash) {
            Some(account) if account.is(policy, key) => account.take_unsent(),
            _ => return Ok(()),
        };
        if unsent.is_empty() {
            return Ok(());
        }
        self.tell(unsent).await
    }

    /// What cannot be told is lost: it may have been added, and must not be added twice.
    async fn tell(&self, contributions: Vec<Contribution>) -> Result<(), StoreError> {
        let answers = self.store.contribute(&contributions).await?;
        let mut first_error = Ok(());
        for (contribution, answer) in contributions.iter().zip(answers) {
            match answer {
                Ok(kept) => self.note(contribution, &kept),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error
    }

    #[cold]
    fn failed(&self, error: &StoreError) {
        if !self.flusher.has_failed.swap(true, Relaxed) {
            warning::contributors_lost(error);
        }
    }

    /// Forgets accounts that nobody has used for a while, and answers whether any are left.
    fn forget_idle(&self) -> bool {
        let now = self.flushes.load(Relaxed);
        let mut left = false;
        for shard in &self.shards {
            let mut accounts = lock(shard);
            accounts.retain(|_, account| account.used + IDLE > now);
            left |= !accounts.is_empty();
        }
        left
    }

    fn has_accounts(&self) -> bool {
        self.shards.iter().any(|shard| !lock(shard).is_empty())
    }
}

const fn too_late() -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        "the store was not told of contributors in time",
    )
}
