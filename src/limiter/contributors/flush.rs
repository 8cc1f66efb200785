//! Reports contributors to the store, once a second.

use std::sync::atomic::Ordering::Relaxed;

use tokio::time::timeout;

use super::{Tracker, lock};
use crate::{
    domain::{
        contributors::Contribution,
        error::StoreError,
        key::Key,
        operation::{Operation, answer_of},
        policy::Policy,
    },
    limiter::delivery::{IDLE, TIMEOUT},
    store::{Store, ext},
    warning,
};

/// How many accounts one call reports: some thousand commands.
const CALL: usize = 64;

impl Tracker {
    /// Reports all accounts, and returns whether some were used lately; forgets the others.
    pub(in crate::limiter) async fn flush(&self, store: &dyn Store) -> bool {
        self.flush_all(store).await;
        let now = self.flushes.load(Relaxed);
        for shard in &self.shards {
            lock(shard).retain(|_, account| account.used + IDLE > now);
        }
        self.has_news()
    }

    pub(in crate::limiter) fn has_news(&self) -> bool {
        self.shards.iter().any(|shard| !lock(shard).is_empty())
    }

    async fn flush_all(&self, store: &dyn Store) {
        let Ok(_turn) = timeout(TIMEOUT, self.delivery.turn.lock()).await else {
            return;
        };
        self.flushes.fetch_add(1, Relaxed);
        let mut unsent = Vec::new();
        for shard in &self.shards {
            for account in lock(shard).values_mut() {
                unsent.append(&mut account.take_unsent());
            }
        }
        if unsent.is_empty() {
            return;
        }
        let mut result = Ok(());
        while !unsent.is_empty() {
            let rest = unsent.split_off(unsent.len().min(CALL));
            let call = std::mem::replace(&mut unsent, rest);
            // An error may be about one account only, so go on with the others.
            match timeout(TIMEOUT, self.report(store, call)).await {
                Ok(reported) => result = result.and(reported),
                Err(_) => return, // an outage, which has its own warnings
            }
        }
        match result {
            Ok(()) => self.delivery.succeeded(),
            Err(error) => self.failed(&error),
        }
    }

    /// Reports one account to the store. Waits for a running flush first, which may have begun before the newest
    /// charges.
    pub(super) async fn flush_account(
        &self,
        store: &dyn Store,
        policy: &Policy,
        key: &Key,
    ) -> Result<(), StoreError> {
        let _turn = self.delivery.turn.lock().await;
        let hash = self.hash(policy, key);
        let unsent = match self.shard(hash).get_mut(&hash) {
            Some(account) if account.is(policy, key) => account.take_unsent(),
            _ => return Ok(()),
        };
        if unsent.is_empty() {
            return Ok(());
        }
        self.report(store, unsent).await
    }

    /// Reports contributions. They are lost on an error: the store may have added them, and must not add them twice.
    async fn report(
        &self,
        store: &dyn Store,
        contributions: Vec<Contribution>,
    ) -> Result<(), StoreError> {
        let contribute = Operation::Contribute(contributions.clone());
        let answers = ext::read(store.execute(contribute), answer_of!(Contribute)).await?;
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
        if self.delivery.is_news(error) {
            warning::contributors_lost(error);
        }
    }
}
