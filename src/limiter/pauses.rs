//! [`Pauses`]: the pauses that this process knows, so that its callers return one after the other.
//!
//! ```text
//! pause ──▶ end ──▶ up to 5 % later: one request at a time ──▶ one more for each that is served ──▶ all
//!   ▲                                        │                               │
//!   └──────────────────────────── refused again ◀────────────────────────────┘
//! ```
//!
//! The store alone says whether an account is paused. This file says how callers that [wait](super::wait_queue) begin
//! after the end, if a layer [follows](Sent) the answers of the other service.

#[cfg(feature = "obey")]
mod sent;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use smallvec::SmallVec;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use super::{Limiter, jitter, resolution::Resolution, timeout::FOR_EVER};
#[cfg(feature = "obey")]
pub(crate) use sent::{Ask, Backoff, Sent};

use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedBy},
        check::Check,
        decision::{Blocked, Decision},
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

/// How long an admitted request may take to leave before the next may leave.
const HANDOVER: Duration = Duration::from_secs(2);

/// How long one request may wait for its answer before the next may leave.
#[cfg(feature = "obey")]
const ANSWER: Duration = Duration::from_secs(30);

/// A recovery after a pause ends when the service has served this many requests. Then all may leave.
#[cfg(feature = "obey")]
const ALL: usize = 256;

/// A recovery also ends this long after the first request could leave, whatever was served: an account that is used
/// seldom recovers, and so do callers whose answers no layer sees. A service that still refuses begins another pause.
const RECOVERY: Duration = Duration::from_secs(60);

/// The wait of a caller that has no more time while other requests are under way.
const PROBED: Duration = Duration::from_secs(1);

/// The paused accounts that this process knows. Clones of a limiter share them.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// How many accounts are known. Written under the lock.
    known: AtomicUsize,
    accounts: Mutex<HashMap<Key, Account>>,
    /// Whether a layer reports the answers of the other service.
    is_followed: AtomicBool,
    /// Accounts under which such a layer has seen a request: at most [`MAX_KNOWN`].
    followed: RwLock<HashSet<Key>>,
    /// Notified when a request of a paused account ends.
    changed: Notify,
    /// Notified when an account is paused for longer than before.
    paused: Notify,
}

/// An account that is paused, that recovers from a pause, or that may be refused without a time again.
#[derive(Debug)]
struct Account {
    /// The end by the store's clock, and since when it is known; `None` until the store has answered.
    stored: Option<(u64, Instant)>,
    /// Whether the store did not get the pause, so that the next refusal has to write it.
    is_unwritten: bool,
    ends: Instant,
    /// When the first request may leave: a little after the end.
    starts: Instant,
    /// Whether the account is paused, or limits its requests under way after a pause.
    recovers: bool,
    /// How many requests were served since the last pause: one more may be under way at a time.
    served: usize,
    under_way: SmallVec<[UnderWay; 1]>,
    /// How many requests were ever under way.
    numbers: u64,
    /// How often the account was refused without a time, less the successes since.
    #[cfg(feature = "obey")]
    doublings: u32,
}

/// A request that others wait for.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    number: u64,
    stage: Stage,
    /// Until when the others wait.
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The store decides.
    Asked,
    Admitted,
    /// A layer has seen the request, and will see its answer.
    #[cfg(feature = "obey")]
    Left,
}

/// Whether a check may go to the store.
pub(super) enum Entry<'a> {
    /// No account of the check is paused.
    Free,
    /// As one of few, until its request has ended.
    Counted(Place<'a>),
    Hold(Hold<'a>),
}

/// Why a check may not go to the store yet.
pub(super) struct Hold<'a> {
    pub(super) until: Instant,
    pub(super) changed: Notified<'a>,
    blocked: Blocked,
}

/// The right to send one of few requests, given back when dropped.
pub(super) struct Place<'a> {
    pauses: &'a Pauses,
    /// The paused accounts, and the number of the request under each.
    keys: SmallVec<[(Key, u64); 1]>,
    asked: Instant,
}

/// Pauses an account, here at once and then in the store.
pub(super) async fn pause(
    limiter: &Limiter,
    key: &Key,
    request: BlockRequest,
) -> Result<Block, StoreError> {
    let now = Instant::now();
    let ends = now + request.until().span().unwrap_or_default().min(FOR_EVER);
    let pauses = &limiter.inner.memory.pauses;
    let change = pauses.change(key, now, |account| account.lengthen(ends, now));
    // Without room for another account, each pause counts as new.
    if change.is_none_or(|(_, is_new)| is_new) {
        report_pause(limiter, key, None, &request);
    }
    pauses.paused.notify_waiters();
    store_pause(limiter, key, request).await
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
    match &result {
        Ok(block) => memory.pauses.confirm(key, *block),
        Err(_) => {
            let block = Block::begin(length.into(), BlockedBy::Pause, our_now_ms());
            memory.refusals.note_longer(key, block, length, now);
            memory.pauses.write_failed(key);
        }
    }
    result
}

fn report_pause(limiter: &Limiter, key: &Key, label: Option<&str>, request: &BlockRequest) {
    let (kind, reason) = (key.kind(), request.details().reason());
    let length = request.until().span().unwrap_or_default();
    warning::paused(kind, label, reason, length);
    limiter.events().report(|| Event::Pause {
        kind,
        label,
        reason,
        length,
    });
}

impl Hold<'_> {
    /// The denial of a caller that has no more time.
    pub(super) fn into_decision(self) -> Decision {
        Decision::Blocked(self.blocked).local()
    }
}

impl Pauses {
    /// Lets a check go to the store, unless too many requests of one of its accounts are under way.
    pub(super) fn enter(&self, check: &Check) -> Entry<'_> {
        if self.known.load(Acquire) == 0 {
            return Entry::Free;
        }
        let now = Instant::now();
        let mut accounts = self.lock();
        let mut keys = SmallVec::<[&Key; 1]>::new();
        for key in check.deniable_keys() {
            let Some(account) = accounts.get_mut(key) else {
                continue;
            };
            if !account.still_recovers(now) {
                continue;
            }
            if account.forget_overdue(now) && !self.has_followed(key) {
                // No layer follows the requests of this account.
                accounts.remove(key);
                self.known.store(accounts.len(), Release);
                continue;
            }
            if let Some(until) = account.holds_until(now) {
                // Listens from before any change on, since that needs the lock.
                let changed = self.changed.notified();
                let blocked = account.blocked(key, now);
                return Entry::Hold(Hold {
                    until,
                    changed,
                    blocked,
                });
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Entry::Free;
        }
        let until = now + FOR_EVER; // the place is given back when the store has answered
        let keys = keys.into_iter().filter_map(|key| {
            let number = accounts.get_mut(key)?.begin(until);
            Some((key.clone(), number))
        });
        Entry::Counted(Place {
            pauses: self,
            keys: keys.collect(),
            asked: now,
        })
    }

    /// Whether an account of this check is paused until after the deadline, as far as this process knows.
    pub(super) fn outlast(&self, check: &Check, deadline: Instant) -> bool {
        if self.known.load(Acquire) == 0 {
            return false;
        }
        let accounts = self.lock();
        let mut known = check.deniable_keys().filter_map(|key| accounts.get(key));
        known.any(|account| account.recovers && account.starts > deadline)
    }

    /// Becomes ready when an account is paused for longer than before.
    pub(super) fn next_pause(&self) -> Notified<'_> {
        self.paused.notified()
    }

    fn has_followed(&self, key: &Key) -> bool {
        let followed = self.followed.read().unwrap_or_else(PoisonError::into_inner);
        followed.contains(key)
    }

    /// Whether callers under an account of this check go one after the other.
    pub(super) fn is_recovering(&self, check: &Check) -> bool {
        if self.known.load(Acquire) == 0 {
            return false;
        }
        let accounts = self.lock();
        let mut keys = check.deniable_keys();
        keys.any(|key| accounts.get(key).is_some_and(|account| account.recovers))
    }

    /// Notes the end by the store's clock.
    fn confirm(&self, key: &Key, block: Block) {
        let until_ms = block.until_ms().unwrap_or(u64::MAX);
        let now = Instant::now();
        self.change(key, now, |account| account.stored = Some((until_ms, now)));
    }

    fn write_failed(&self, key: &Key) {
        self.edit(|accounts| {
            if let Some(account) = accounts.get_mut(key) {
                account.is_unwritten = account.stored.is_none();
            }
        });
    }

    /// Learns a pause from the store's answer, and returns when the first caller may begin.
    pub(super) fn see(&self, blocked: &Blocked) -> Instant {
        let now = Instant::now();
        let until_ms = blocked.block().until_ms().unwrap_or(u64::MAX);
        let ends = now + blocked.retry_after().unwrap_or_default().min(FOR_EVER);
        let seen = self.change(blocked.key(), now, |account| {
            let is_known = account.stored.is_some_and(|(known, _)| known == until_ms);
            if !is_known {
                account.pause(ends, now);
                account.stored = Some((until_ms, now));
            } else if account.starts < ends {
                // The known end was an estimate.
                account.postpone(ends);
            }
            (account.starts, is_known)
        });
        let (starts, is_known) = seen.unwrap_or((ends, true));
        if !is_known {
            self.paused.notify_waiters();
        }
        starts
    }

    pub(super) fn forget(&self, key: &Key) {
        self.edit(|accounts| accounts.remove(key));
    }

    /// Changes an account, which may be new; `None` if there is no room for another.
    fn change<T>(
        &self,
        key: &Key,
        now: Instant,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        self.edit(|accounts| {
            if accounts.len() >= MAX_KNOWN && !accounts.contains_key(key) {
                accounts.retain(|_, account| account.starts > now);
                if accounts.len() >= MAX_KNOWN {
                    return None;
                }
            }
            let account = accounts.entry(key.clone());
            Some(change(account.or_insert_with(|| Account::new(now))))
        })
    }

    /// Changes accounts, and lets the callers on hold look again.
    fn edit<T>(&self, edit: impl FnOnce(&mut HashMap<Key, Account>) -> T) -> T {
        let mut accounts = self.lock();
        let edited = edit(&mut accounts);
        self.known.store(accounts.len(), Release);
        drop(accounts);
        self.changed.notify_waiters();
        edited
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    const fn new(now: Instant) -> Self {
        Self {
            stored: None,
            is_unwritten: false,
            ends: now,
            starts: now,
            recovers: false,
            served: 0,
            under_way: SmallVec::new_const(),
            numbers: 0,
            #[cfg(feature = "obey")]
            doublings: 0,
        }
    }

    /// Pauses until then, unless the account is paused for as long. Returns whether the end changes, and whether the
    /// account was not paused.
    fn lengthen(&mut self, ends: Instant, now: Instant) -> (bool, bool) {
        let is_new = !self.recovers || self.ends <= now;
        let changes = is_new || self.is_unwritten || ends > self.ends + SAME;
        if changes {
            self.pause(ends.max(self.ends), now);
        }
        (changes, is_new)
    }

    fn pause(&mut self, ends: Instant, now: Instant) {
        let length = ends.saturating_duration_since(now);
        self.ends = ends;
        self.starts = ends + jitter::random_up_to(length / 20);
        self.begin_recovery();
        self.stored = None;
        self.is_unwritten = false;
    }

    /// Moves the end of the same pause, and with it the time that was drawn for the first request.
    fn postpone(&mut self, ends: Instant) {
        self.starts += ends.saturating_duration_since(self.ends);
        self.ends = ends;
        self.begin_recovery();
    }

    fn begin_recovery(&mut self) {
        self.recovers = true;
        self.served = 0;
        self.under_way.clear();
    }

    fn still_recovers(&mut self, now: Instant) -> bool {
        self.recovers &= now < self.starts + RECOVERY;
        self.recovers
    }

    /// Counts a request, and returns its number.
    fn begin(&mut self, until: Instant) -> u64 {
        self.numbers += 1;
        self.under_way.push(UnderWay {
            number: self.numbers,
            stage: Stage::Asked,
            until,
        });
        self.numbers
    }

    fn end(&mut self, number: u64) {
        self.under_way.retain(|request| request.number != number);
    }

    /// Returns whether one of them was admitted and never seen by a layer.
    fn forget_overdue(&mut self, now: Instant) -> bool {
        let mut is_unseen = false;
        self.under_way.retain(|request| {
            is_unseen |= request.until <= now && request.stage == Stage::Admitted;
            request.until > now
        });
        is_unseen
    }

    /// Until when a check may not go to the store. It may during a pause that the store has: the store may know that
    /// the pause was ended.
    fn holds_until(&self, now: Instant) -> Option<Instant> {
        let is_known_here_alone = self.stored.is_none();
        if (is_known_here_alone || self.ends <= now) && self.starts > now {
            return Some(self.starts);
        }
        let is_full = self.under_way.len() > self.served;
        let first = self.under_way.iter().map(|request| request.until).min();
        first.filter(|_| is_full)
    }

    fn blocked(&self, key: &Key, now: Instant) -> Blocked {
        let wait = match self.starts.saturating_duration_since(now) {
            Duration::ZERO => PROBED,
            wait => wait,
        };
        let now_ms = our_now_ms();
        let block = Block::begin(wait.into(), BlockedBy::Pause, now_ms);
        Blocked::new(key.clone(), block, now_ms)
    }
}

fn our_now_ms() -> u64 {
    millis(UNIX_EPOCH.elapsed().unwrap_or_default())
}

impl Place<'_> {
    /// Notes the store's answer. An admitted request counts until it has ended.
    pub(super) fn answered(mut self, resolution: &Resolution) {
        let leaves = match resolution {
            Resolution::Decided(decision) => decision.is_allowed(),
            Resolution::Open(..) => true,
            Resolution::Closed(_) => false,
        };
        if !leaves {
            return;
        }
        let now = Instant::now();
        let is_followed = self.pauses.is_followed.load(Relaxed);
        let keys = std::mem::take(&mut self.keys);
        self.pauses.edit(|accounts| {
            for (key, number) in &keys {
                if !is_followed {
                    accounts.remove(key);
                }
                let Some(account) = accounts.get_mut(key) else {
                    continue;
                };
                // The store knew of the pause when it was asked, and no longer has it.
                if account.stored.is_some_and(|(_, since)| since <= self.asked) {
                    account.ends = account.ends.min(now);
                    account.starts = account.starts.min(now);
                }
                let mut under_way = account.under_way.iter_mut();
                if let Some(this) = under_way.find(|request| request.number == *number) {
                    this.stage = Stage::Admitted;
                    this.until = now + HANDOVER;
                }
            }
        });
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        self.pauses.edit(|accounts| {
            for (key, number) in &self.keys {
                if let Some(account) = accounts.get_mut(key) {
                    account.end(*number);
                }
            }
        });
    }
}
