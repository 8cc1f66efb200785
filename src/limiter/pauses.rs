//! [`Pauses`]: the pauses that this process knows, so that its callers begin in order when one ends.
//!
//! ```text
//! pause ──▶ end ──▶ a caller that waits begins in each interval ──▶ all
//!   ▲                              │
//!   └────────── refused again ◀────┘
//! ```
//!
//! The store alone says whether an account is paused. This file says when callers that [wait](super::wait_queue) ask the
//! store.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use super::{Limiter, jitter, timeout::FOR_EVER};
use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedBy},
        check::Check,
        decision::Blocked,
        error::StoreError,
        key::Key,
        rule::millis,
    },
    observe::Event,
    warning,
};

/// Callers under more accounts begin all at once.
const MAX_KNOWN: usize = 10_000;

/// A pause ends later than another only if by more than this: all answers of one burst name about the same end.
const SAME: Duration = Duration::from_millis(50);

/// The shortest time from one caller to the next.
const LEAST: Duration = Duration::from_millis(100);

/// All callers have begun so long after the end of a pause.
const LAST: Duration = Duration::from_secs(30);

/// The paused accounts that this process knows. Clones of a limiter share them.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// How many accounts are known. Written under the lock.
    known: AtomicUsize,
    accounts: Mutex<HashMap<Key, Account>>,
    /// Notified when an account is paused otherwise than before.
    changed: Notify,
}

/// An account in a pause, or with callers that begin after a pause.
#[derive(Debug)]
struct Account {
    /// The end by the store's clock, and since when it is known; `None` until the store has answered.
    stored: Option<(u64, Instant)>,
    /// Whether the store did not get the pause, so that the next refusal has to write it.
    is_unwritten: bool,
    length: Duration,
    ends: Instant,
    /// `None` until the pause has ended.
    turns: Option<Turns>,
}

/// When callers begin after a pause.
#[derive(Clone, Copy, Debug)]
struct Turns {
    interval: Duration,
    next: Instant,
    /// When all have begun that waited at the end.
    over: Instant,
}

/// When an account opens for a caller.
#[derive(Clone, Copy)]
pub(super) struct Opens {
    pub(super) at: Instant,
    /// Whether no other caller gets this time. Otherwise the store does not have the pause yet.
    pub(super) is_turn: bool,
}

/// Pauses an account, here at once and then in the store.
pub(super) async fn pause(
    limiter: &Limiter,
    key: &Key,
    request: BlockRequest,
) -> Result<Block, StoreError> {
    note_pause(limiter, key, None, &request);
    store_pause(limiter, key, request).await
}

/// Notes a pause, and reports it if the account was not paused. Returns whether it is longer than before.
fn note_pause(limiter: &Limiter, key: &Key, label: Option<&str>, request: &BlockRequest) -> bool {
    let length = request.until().span().unwrap_or_default();
    let (is_longer, is_new) = limiter.inner.memory.pauses.lengthen(key, length);
    if is_new {
        let (kind, reason) = (key.kind(), request.details().reason());
        warning::paused(kind, label, reason, length);
        limiter.events().report(|| Event::Pause {
            kind,
            label,
            reason,
            length,
        });
    }
    is_longer
}

/// If the store fails, the pause holds in this process while the store cannot decide.
async fn store_pause(
    limiter: &Limiter,
    key: &Key,
    request: BlockRequest,
) -> Result<Block, StoreError> {
    let length = request.until().span().unwrap_or_default();
    let now = Instant::now();
    let result = limiter.store_block(key, request).await;
    let memory = &limiter.inner.memory;
    if result.is_err() {
        let block = Block::begin(length.into(), BlockedBy::Pause, our_now_ms());
        memory.refusals.note_longer(key, block, length, now);
    }
    let until_ms = result.as_ref().ok();
    let until_ms = until_ms.map(|block| block.until_ms().unwrap_or(u64::MAX));
    memory.pauses.stored(key, until_ms);
    result
}

#[cfg(feature = "obey")]
impl Limiter {
    /// Pauses an account unless it is paused for as long. Returns the call that stores the pause.
    pub(crate) fn pause_longer(
        &self,
        key: &Key,
        label: Option<&str>,
        request: BlockRequest,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let (limiter, key) = (self.clone(), key.clone());
        note_pause(self, &key, label, &request).then_some(async move {
            // The limiter has reported an error, and the pause holds here all the same.
            let _ = store_pause(&limiter, &key, request).await;
        })
    }
}

impl Pauses {
    /// When a caller with this deadline may ask the store, if not now; an error if too late. `turn` is one that it has
    /// got and that a change may have ended. `waiting` says how many wait under a key.
    pub(super) fn begin(
        &self,
        check: &Check,
        deadline: Instant,
        turn: Option<Instant>,
        waiting: impl Fn(&Key) -> usize,
    ) -> Result<Option<Opens>, Blocked> {
        if self.known.load(Acquire) == 0 {
            return Ok(None);
        }
        let now = Instant::now();
        let mut accounts = self.lock();
        for key in check.keys() {
            let is_over = |account: &mut Account| account.is_over(now, || waiting(key));
            if accounts.get_mut(key).is_some_and(is_over) {
                accounts.remove(key);
            }
        }
        self.known.store(accounts.len(), Release);
        let Some((key, opens)) = last_to_open(&accounts, check, now) else {
            return Ok(None);
        };
        if let Some(at) = turn.filter(|_| opens.is_turn) {
            return Ok(Some(Opens { at, ..opens }));
        }
        if opens.at > deadline {
            return Err(blocked(key, opens.at, now));
        }
        for key in check.keys().filter(|_| opens.is_turn) {
            if let Some(turns) = accounts.get_mut(key).and_then(|it| it.turns.as_mut()) {
                turns.take(opens.at);
            }
        }
        Ok(Some(opens))
    }

    /// The denial of a caller that has no more time, if it may not ask the store.
    pub(super) fn blocked(&self, check: &Check) -> Option<Blocked> {
        let (now, accounts) = (Instant::now(), self.lock());
        let (key, opens) = last_to_open(&accounts, check, now)?;
        (opens.at > now).then(|| blocked(key, opens.at, now))
    }

    /// Whether an account of this check is paused until after the deadline, as far as this process knows.
    pub(super) fn outlast(&self, check: &Check, deadline: Instant) -> bool {
        self.any(check, |account| account.ends > deadline)
    }

    /// Whether callers under an account of this check go one after the other.
    pub(super) fn are_known(&self, check: &Check) -> bool {
        let now = Instant::now();
        self.any(check, |account| now < account.ends + LAST)
    }

    fn any(&self, check: &Check, is_meant: impl Fn(&Account) -> bool) -> bool {
        if self.known.load(Acquire) == 0 {
            return false;
        }
        let accounts = self.lock();
        let mut known = check.keys().filter_map(|key| accounts.get(key));
        known.any(is_meant)
    }

    /// Becomes ready when an account is paused otherwise than now.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Pauses an account, unless it is paused for as long. Returns whether that changes the end, and whether the account
    /// was not paused.
    fn lengthen(&self, key: &Key, length: Duration) -> (bool, bool) {
        let now = Instant::now();
        let mut ends = now + length.min(FOR_EVER);
        let accounts = self.lock();
        let known = accounts.get(key).filter(|account| account.ends > now);
        let is_new = known.is_none();
        let changes = known.is_none_or(|it| it.is_unwritten || ends > it.ends + SAME);
        ends = ends.max(known.map_or(ends, |it| it.ends));
        if changes {
            self.set(accounts, key, Account::paused(None, ends, now), now);
        }
        (changes, is_new)
    }

    /// Notes a pause, if there is room for another account, and lets those that wait look again.
    fn set(
        &self,
        mut accounts: MutexGuard<'_, HashMap<Key, Account>>,
        key: &Key,
        account: Account,
        now: Instant,
    ) {
        if accounts.len() >= MAX_KNOWN {
            accounts.retain(|_, account| account.ends > now);
        }
        if accounts.len() < MAX_KNOWN || accounts.contains_key(key) {
            accounts.insert(key.clone(), account);
        }
        self.known.store(accounts.len(), Release);
        drop(accounts);
        self.changed.notify_waiters();
    }

    /// Notes the store's answer to a pause: its end by the store's clock.
    fn stored(&self, key: &Key, until_ms: Option<u64>) {
        if let Some(account) = self.lock().get_mut(key) {
            match until_ms {
                Some(until_ms) => account.stored = Some((until_ms, Instant::now())),
                None => account.is_unwritten = account.stored.is_none(),
            }
        }
        self.changed.notify_waiters();
    }

    /// Learns a pause from the store's answer, and returns its end.
    pub(super) fn see(&self, blocked: &Blocked) -> Instant {
        let now = Instant::now();
        let until_ms = blocked.block().until_ms().unwrap_or(u64::MAX);
        let ends = now + blocked.retry_after().unwrap_or_default().min(FOR_EVER);
        let accounts = self.lock();
        let known = accounts.get(blocked.key());
        let same = known.filter(|it| it.stored.is_some_and(|(known_ms, _)| known_ms == until_ms));
        // The known end is an estimate.
        if same.is_none_or(|it| it.ends < ends) {
            let mut account = Account::paused(Some((until_ms, now)), ends, now);
            account.length = same.map_or(account.length, |it| it.length);
            self.set(accounts, blocked.key(), account, now);
        }
        ends
    }

    /// Forgets a pause that the store had when it was asked, and has no longer: it has admitted the check.
    pub(super) fn see_admitted(&self, check: &Check, asked: Instant) {
        let (now, knew) = (Instant::now(), |since| since <= asked);
        let is_ended = |it: &Account| now < it.ends && it.stored.is_some_and(|it| knew(it.1));
        if self.any(check, is_ended) {
            let ended = |key: &&Key| self.lock().get(*key).is_some_and(&is_ended);
            check.keys().filter(ended).for_each(|key| self.forget(key));
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        let mut accounts = self.lock();
        accounts.remove(key);
        self.known.store(accounts.len(), Release);
        drop(accounts);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The account of this check that opens last.
fn last_to_open<'c>(
    accounts: &HashMap<Key, Account>,
    check: &'c Check,
    now: Instant,
) -> Option<(&'c Key, Opens)> {
    let known = check.keys().filter_map(|key| {
        let account = accounts.get(key)?;
        let at = match account.turns {
            Some(turns) => turns.next.min(account.ends + LAST).max(now),
            // The store is asked during a pause that it has: it may know that the pause was ended.
            None if account.stored.is_some() => return None,
            None => account.ends,
        };
        let is_turn = account.turns.is_some();
        Some((key, Opens { at, is_turn }))
    });
    known.max_by_key(|(_, opens)| (opens.at, !opens.is_turn))
}

fn blocked(key: &Key, opens: Instant, now: Instant) -> Blocked {
    let wait = opens.saturating_duration_since(now).max(LEAST);
    let now_ms = our_now_ms();
    let block = Block::begin(wait.into(), BlockedBy::Pause, now_ms);
    Blocked::new(key.clone(), block, now_ms)
}

fn our_now_ms() -> u64 {
    millis(UNIX_EPOCH.elapsed().unwrap_or_default())
}

impl Account {
    fn paused(stored: Option<(u64, Instant)>, ends: Instant, now: Instant) -> Self {
        Self {
            stored,
            is_unwritten: false,
            length: ends.saturating_duration_since(now),
            ends,
            turns: None,
        }
    }

    /// Whether all may begin. `waiting` says how many wait: they get their turns at the end of the pause.
    fn is_over(&mut self, now: Instant, waiting: impl FnOnce() -> usize) -> bool {
        if now < self.ends {
            return false;
        }
        if self.turns.is_none() {
            let waiting = u32::try_from(waiting()).unwrap_or(u32::MAX).max(1);
            if waiting == 1 && now > self.ends + SAME {
                return true; // this caller has come since
            }
            self.turns = Some(Turns::new(self.length, self.ends, waiting));
        }
        let all = self.turns.map_or(now, |turns| turns.next.max(turns.over));
        now >= all.min(self.ends + LAST)
    }
}

impl Turns {
    /// For so many callers that wait at the end of a pause: within a fifth of its length, if they are few.
    fn new(length: Duration, ends: Instant, waiting: u32) -> Self {
        let interval = (length / 5 / waiting).max(LEAST).min(LAST / waiting);
        let first = ends + jitter::random_up_to(interval);
        Self {
            interval,
            next: first,
            over: first + interval * waiting,
        }
    }

    /// Gives this turn to a caller. One that is a little late does not delay the next.
    fn take(&mut self, turn: Instant) {
        self.next = self.next.max(turn - self.interval / 2) + self.interval;
    }
}
