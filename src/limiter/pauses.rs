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
    sync::{Mutex, MutexGuard},
    time::{Duration, UNIX_EPOCH},
};

use tokio::{sync::Notify, time::Instant};

use super::{FOR_EVER, Limiter, jitter};
use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedBy},
        check::Check,
        decision::Blocked,
        error::StoreError,
        key::Key,
        rule::millis,
    },
    lock::lock,
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
    accounts: Mutex<HashMap<Key, Account>>,
    /// Notified when an account is paused otherwise than before.
    pub(super) changed: Notify,
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
    starts: Option<Starts>,
}

/// When callers begin after a pause.
#[derive(Clone, Copy, Debug)]
struct Starts {
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

impl Limiter {
    /// Pauses an account, here at once, and reports that if it was not paused. Returns whether the pause is longer than
    /// before, and the call that stores it. If the store fails, the pause holds here while the store cannot decide.
    pub(crate) fn pause(
        &self,
        key: &Key,
        label: Option<&str>,
        request: BlockRequest,
    ) -> (
        bool,
        impl Future<Output = Result<Block, StoreError>> + Send + 'static,
    ) {
        let length = request.until().span().unwrap_or_default();
        let (is_longer, is_new) = self.inner.shared.pauses.lengthen(key, length);
        if is_new {
            let (kind, reason) = (key.kind(), request.details().reason());
            warning::paused(kind, label, reason, length);
            self.events().report(|| Event::Pause {
                kind,
                label,
                reason,
                length,
            });
        }
        let (limiter, key) = (self.clone(), key.clone());
        let store = async move {
            let now = Instant::now();
            let stored = limiter.store_block(&key, request).await;
            let shared = &limiter.inner.shared;
            if stored.is_err() {
                let block = Block::begin(length.into(), BlockedBy::Pause, our_now_ms());
                shared.refusals.note_longer(&key, block, length, now);
            }
            shared.pauses.stored(&key, stored.as_ref().ok());
            stored
        };
        (is_longer, store)
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
        let (now, mut accounts) = (Instant::now(), lock(&self.accounts));
        if accounts.is_empty() {
            return Ok(None);
        }
        for key in check.keys() {
            let is_over = |account: &mut Account| account.is_over(now, || waiting(key));
            if accounts.get_mut(key).is_some_and(is_over) {
                accounts.remove(key);
            }
        }
        let Some((key, opens)) = last_to_open(&accounts, check, now) else {
            return Ok(None);
        };
        if let Some(at) = turn.filter(|_| opens.is_turn) {
            return Ok(Some(Opens { at, ..opens }));
        }
        if opens.at > deadline {
            let (rest, now_ms) = (opens.at.saturating_duration_since(now), our_now_ms());
            let block = Block::begin(rest.max(LEAST).into(), BlockedBy::Pause, now_ms);
            return Err(Blocked::new(key.clone(), block, now_ms));
        }
        for key in check.keys().filter(|_| opens.is_turn) {
            if let Some(starts) = accounts.get_mut(key).and_then(|it| it.starts.as_mut()) {
                starts.take(opens.at);
            }
        }
        Ok(Some(opens))
    }

    /// Whether an account of this check is paused until after the deadline, as far as this process knows.
    pub(super) fn outlast(&self, check: &Check, deadline: Instant) -> bool {
        self.last_end(check).is_some_and(|ends| ends > deadline)
    }

    /// Whether callers under an account of this check go one after the other.
    pub(super) fn are_known(&self, check: &Check) -> bool {
        let now = Instant::now();
        self.last_end(check).is_some_and(|ends| now < ends + LAST)
    }

    fn last_end(&self, check: &Check) -> Option<Instant> {
        let accounts = lock(&self.accounts);
        let known = check.keys().filter_map(|key| accounts.get(key));
        known.map(|account| account.ends).max()
    }

    /// Pauses an account, unless it is paused for as long. Returns whether that changes the end, and whether the account
    /// was not paused.
    fn lengthen(&self, key: &Key, length: Duration) -> (bool, bool) {
        let now = Instant::now();
        let mut ends = now + length.min(FOR_EVER);
        let accounts = lock(&self.accounts);
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
        drop(accounts);
        self.changed.notify_waiters();
    }

    /// Notes the store's answer to a pause: its end by the store's clock.
    fn stored(&self, key: &Key, block: Option<&Block>) {
        if let Some(account) = lock(&self.accounts).get_mut(key) {
            match block {
                Some(block) => account.stored = Some((until_ms(block), Instant::now())),
                None => account.is_unwritten = account.stored.is_none(),
            }
        }
        self.changed.notify_waiters();
    }

    /// Learns a pause from the store's answer, and returns its end.
    pub(super) fn see(&self, blocked: &Blocked) -> Instant {
        let (now, until_ms) = (Instant::now(), until_ms(&blocked.block()));
        let ends = now + blocked.retry_after().unwrap_or_default().min(FOR_EVER);
        let accounts = lock(&self.accounts);
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
        let now = Instant::now();
        let was_known = |it: &Account| it.stored.is_some_and(|(_, since)| since <= asked);
        self.forget_if(check.keys(), |it| now < it.ends && was_known(it));
    }

    pub(super) fn forget(&self, key: &Key) {
        self.forget_if([key], |_| true);
    }

    fn forget_if<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Key>,
        is_over: impl Fn(&Account) -> bool,
    ) {
        let mut accounts = lock(&self.accounts);
        let before = accounts.len();
        for key in keys {
            if accounts.get(key).is_some_and(&is_over) {
                accounts.remove(key);
            }
        }
        let is_changed = accounts.len() < before;
        drop(accounts);
        if is_changed {
            self.changed.notify_waiters();
        }
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
        let at = match account.starts {
            Some(starts) => starts.next.min(account.ends + LAST).max(now),
            // The store is asked during a pause that it has: it may know that the pause was ended.
            None if account.stored.is_some() => return None,
            None => account.ends,
        };
        let is_turn = account.starts.is_some();
        Some((key, Opens { at, is_turn }))
    });
    known.max_by_key(|(_, opens)| (opens.at, !opens.is_turn))
}

/// The end by the store's clock.
fn until_ms(block: &Block) -> u64 {
    block.until_ms().unwrap_or(u64::MAX)
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
            starts: None,
        }
    }

    /// Whether all may begin. `waiting` says how many wait: they get their turns at the end of the pause.
    fn is_over(&mut self, now: Instant, waiting: impl FnOnce() -> usize) -> bool {
        if now < self.ends {
            return false;
        }
        if self.starts.is_none() {
            let waiting = u32::try_from(waiting()).unwrap_or(u32::MAX).max(1);
            if waiting == 1 && now > self.ends + SAME {
                return true; // this caller has come since
            }
            self.starts = Some(Starts::new(self.length, self.ends, waiting));
        }
        let all = |starts: Starts| starts.next.max(starts.over);
        now >= self.starts.map_or(now, all).min(self.ends + LAST)
    }
}

impl Starts {
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
