//! Reports contributors to the store, once a second.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::time::timeout;

use super::{Shared, lock};
use crate::{
    domain::{
        contributors::{Contribution, Contributors},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, answer_of},
        policy::Policy,
    },
    limiter::flusher::{Counter, Flusher, IDLE, TIMEOUT},
    store::{Store, StoreExt, StoreFuture, ext},
    warning,
};

/// How many accounts one call reports: some thousand commands.
const CALL: usize = 64;

/// Reports one account to the store, and then asks it for the contributors.
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

impl Counter for Shared {
    fn flusher(&self) -> &Flusher {
        &self.flusher
    }

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
            match timeout(TIMEOUT, self.report(call)).await {
                Ok(Ok(())) => self.flusher.has_failed.store(false, Relaxed),
                Ok(Err(error)) => return self.failed(&error),
                Err(_) => return self.failed(&TOO_LATE),
            }
        }
    }

    /// Forgets accounts that were not used for a while, and returns whether none are left.
    fn is_idle(&self) -> bool {
        let now = self.flushes.load(Relaxed);
        let mut left = false;
        for shard in &self.shards {
            let mut accounts = lock(shard);
            accounts.retain(|_, account| account.used + IDLE > now);
            left |= !accounts.is_empty();
        }
        !left
    }

    fn has_news(&self) -> bool {
        self.shards.iter().any(|shard| !lock(shard).is_empty())
    }
}

impl Shared {
    /// Reports one account to the store. Waits for a running flush first, which may have begun before the newest
    /// charges.
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
        self.report(unsent).await
    }

    /// Reports contributions. They are lost on an error: the store may have added them, and must not add them twice.
    async fn report(&self, contributions: Vec<Contribution>) -> Result<(), StoreError> {
        let contribute = Operation::Contribute(contributions.clone());
        let answers = ext::read(self.store.execute(contribute), answer_of!(Contribute)).await?;
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
        if self.flusher.is_news(error) {
            warning::contributors_lost(error);
        }
    }
}

const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the store did not take the report of contributors in time",
);
