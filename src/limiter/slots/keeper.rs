//! [`Keeper`]: renews and returns the slots of this process.
//!
//! ```text
//!  add ──▶ held ──▶ ended, and returned at once ──▶ answered: forgotten
//!            │ due          │ no answer
//!            ▼              ▼
//!        at a tick: renewed, or returned again, until they have expired
//! ```
//!
//! Messages about slots may come twice, late or never. So the keeper does not remember which are under way: what no answer
//! has changed is asked again at the next tick. Each key has moments, a quarter of its window apart, at which all of its
//! slots are renewed together.

use std::{
    collections::{BTreeMap, btree_map},
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{Arc, Mutex, Once, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::Holding;
use crate::{
    background::{BackRoom, Task},
    clock::now_ms,
    domain::{
        charge::Charge,
        error::StoreError,
        slots::{HeldSlots, Slots},
    },
    limiter::outage::Outage,
    lock::lock,
    observe::CallKind,
    timer::LazySleep,
};

/// The most ids in messages of the task that wait for their answers, so that a server has time for others in between.
const MOST_TOGETHER: usize = Slots::MOST;

/// Ticks are a twelfth of the window apart, and at most this.
const LONGEST_TICK_MS: u64 = 5_000;

/// The slots of the clones of one limiter.
pub(in crate::limiter) struct Keeper {
    entries: Mutex<BTreeMap<Due, KeptHolding>>,
    /// Notified when an entry is due before all others.
    changed: Notify,
    hasher: RandomState,
    /// Its permit is free while no task runs; taken and given back under the lock.
    task: Arc<Semaphore>,
    /// Slots that are lost.
    pub(super) losses: Outage,
    pub(super) warned_of_early_expiry: Once,
    background: Arc<BackRoom>,
}

/// When to look at a holding; the hash of its key, so that those of a key are together; and its address.
type Due = (u64, u64, usize);

struct KeptHolding {
    holding: Arc<Holding>,
    /// `None` while the slots are held.
    ended: Option<Ended>,
}

/// Slots to be returned.
struct Ended {
    /// When they have expired anyway.
    until_ms: u64,
    _task: Option<Task>,
}

/// The work that is due: messages without an answer yet are sent again.
#[derive(Default)]
struct Work {
    returns: Vec<Arc<Holding>>,
    renewals: Vec<Arc<Holding>>,
    lost: Vec<Arc<Holding>>,
    /// Those that were not returned before they expired.
    gone: Vec<KeptHolding>,
}

impl Keeper {
    pub(in crate::limiter) fn new(background: &Arc<BackRoom>) -> Self {
        Self {
            entries: Mutex::default(),
            changed: Notify::new(),
            hasher: RandomState::new(),
            task: Arc::new(Semaphore::new(1)),
            losses: Outage::default(),
            warned_of_early_expiry: Once::new(),
            background: Arc::clone(background),
        }
    }

    /// The hash of the key of a holding.
    pub(super) fn subject(&self, charge: &Charge) -> u64 {
        self.hasher.hash_one((charge.policy().name(), charge.key()))
    }

    /// Renews the slots of a holding until they are lost or returned.
    pub(super) fn add(self: &Arc<Self>, holding: &Arc<Holding>) {
        self.set(holding, None, holding.moment_after(now_ms()));
    }

    /// Returns the slots of a holding, where it ends. Those that the store does not hold yet once more after this time: the
    /// return may have overtaken the check that takes them.
    pub(super) fn end(self: &Arc<Self>, holding: &Arc<Holding>, again_after: Duration) {
        let now_ms = now_ms();
        let ended = Ended {
            until_ms: now_ms.saturating_add(holding.window_ms),
            _task: self.background.begin(),
        };
        self.set(holding, Some(ended), now_ms + holding.tick_ms());
        let (keeper, holding) = (Arc::clone(self), Arc::clone(holding));
        self.background.finish(async move {
            let holdings = [Arc::clone(&holding)];
            let mut returned = keeper.give_back(&holdings).await;
            // The runtime that the slot was dropped with has not sent it.
            if returned.as_ref().is_err_and(StoreError::is_unsent) {
                returned = keeper.give_back(&holdings).await;
            }
            let were_held = returned.is_ok_and(|slots| slots.are_held());
            if !were_held && !again_after.is_zero() {
                LazySleep::new(again_after).await;
                keeper.end(&holding, Duration::ZERO);
            }
        });
    }

    /// Notes held or ended slots. Starts the task, or wakes it if these are new and due before all others: slots that end
    /// are returned anyway, and wait for the next look.
    fn set(self: &Arc<Self>, holding: &Arc<Holding>, ended: Option<Ended>, due_ms: u64) {
        let mut entries = lock(&self.entries);
        let before = entries.remove(&holding.due());
        let entry = KeptHolding {
            holding: Arc::clone(holding),
            ended,
        };
        insert(&mut entries, entry, due_ms);
        let first = entries.first_key_value();
        let is_first = first.is_some_and(|(first, _)| *first == holding.due());
        let wakes = is_first && before.is_none();
        let task = Arc::clone(&self.task).try_acquire_owned();
        drop(entries);
        drop(before); // without the lock: limiters and their observers are foreign code
        if let Ok(task) = task {
            self.background.spawn(run(Arc::clone(self), task));
        } else if wakes {
            self.changed.notify_one();
        }
    }

    /// All slots that are held, which a process returns at its end.
    pub(super) fn held(&self) -> Vec<Arc<Holding>> {
        let entries = lock(&self.entries);
        let held = entries.values().filter(|entry| entry.ended.is_none());
        held.map(|entry| Arc::clone(&entry.holding)).collect()
    }

    /// The work of some entries at a time, so that nothing waits long for the lock. `None` if nothing is due.
    fn due(&self) -> Option<Work> {
        let now_ms = now_ms();
        let (mut work, mut number, mut entries) = (Work::default(), 0, lock(&self.entries));
        while number < Slots::MOST
            && let Some(first) = entries.first_entry()
            && first.key().0 <= now_ms
        {
            let entry = first.remove();
            let holding = || Arc::clone(&entry.holding);
            number += 1;
            match (&entry.ended, entry.holding.left_ms()) {
                (Some(ended), _) if ended.until_ms <= now_ms => {
                    work.gone.push(entry);
                    continue;
                }
                (Some(_), _) => work.returns.push(holding()),
                (None, Some(0)) => work.lost.push(holding()),
                (None, Some(_)) if entry.holding.is_renewed => work.renewals.push(holding()),
                (None, _) => {}
            }
            let next_ms = now_ms + entry.holding.tick_ms();
            insert(&mut entries, entry, next_ms);
        }
        (number > 0).then_some(work)
    }

    /// Notifies the holders, and returns what may be left. A holder's waker is foreign code, and may panic.
    fn lose(self: &Arc<Self>, lost: &[Arc<Holding>]) {
        for holding in lost {
            let is_over = catch_unwind(AssertUnwindSafe(|| holding.lose()));
            if is_over.unwrap_or(true) {
                self.end(holding, Duration::ZERO);
            }
        }
    }

    /// Returns slots of one key.
    async fn give_back(&self, holdings: &[Arc<Holding>]) -> Result<HeldSlots, StoreError> {
        let (first, slots) = message(holdings);
        let answer = first.limiter.give_back(&slots, first.is_local).await;
        if answer.is_ok() {
            let mut entries = lock(&self.entries);
            let gone = holdings.iter().map(|it| entries.remove(&it.due()));
            let gone: Vec<_> = gone.collect();
            drop(entries);
            drop(gone); // without the lock
        }
        answer
    }

    async fn renew(self: &Arc<Self>, holdings: &[Arc<Holding>]) {
        let (first, slots) = message(holdings);
        let asked_at_ms = now_ms();
        let (limiter, is_local) = (&first.limiter, first.is_local);
        let answer = limiter.change_slots(CallKind::Renew, &slots, is_local);
        let Ok(answer) = answer.await else {
            return;
        };
        let mut are_held = answer.held().iter();
        let lost = holdings.iter().filter(|holding| {
            let are_held = are_held.by_ref().take(holding.slots());
            let is_lost = are_held.filter(|is_held| !**is_held).count() > 0;
            is_lost || !holding.renewed(asked_at_ms)
        });
        let lost: Vec<_> = lost.cloned().collect();
        self.lose(&lost);
        if lost.is_empty() {
            self.losses.ends();
        }
        let mut entries = lock(&self.entries);
        for holding in holdings {
            let place = entries.entry(holding.due());
            if let btree_map::Entry::Occupied(held) = place
                && held.get().ended.is_none()
            {
                let held = held.remove();
                insert(&mut entries, held, holding.moment_after(asked_at_ms));
            }
        }
    }

    /// When something is due. `None` if the task ends, since there are no slots.
    fn next_ms(&self, task: &mut Option<OwnedSemaphorePermit>) -> Option<u64> {
        let entries = lock(&self.entries);
        let next = entries.first_key_value().map(|(due, _)| due.0);
        if next.is_none() {
            *task = None;
        }
        next
    }
}

fn insert(entries: &mut BTreeMap<Due, KeptHolding>, entry: KeptHolding, due_ms: u64) {
    entry.holding.due_ms.store(due_ms, Relaxed);
    entries.insert(entry.holding.due(), entry);
}

impl Holding {
    /// Its place among the entries, under whose lock the time changes.
    fn due(&self) -> Due {
        let address = ptr::from_ref(self).addr();
        (self.due_ms.load(Relaxed), self.subject, address)
    }

    /// From one tick to the next.
    fn tick_ms(&self) -> u64 {
        (self.window_ms / 12).clamp(1, LONGEST_TICK_MS)
    }

    /// The first moment of the key that is a twelfth of the window away: before a third has passed. Other keys have other
    /// moments, so that slots that were taken together are not renewed in one.
    fn moment_after(&self, now_ms: u64) -> u64 {
        let (apart_ms, from_ms) = ((self.window_ms / 4).max(1), now_ms + self.window_ms / 12);
        from_ms + apart_ms - (from_ms + self.subject % apart_ms) % apart_ms
    }

    /// Whether one message has slots of both.
    fn is_with(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.subject, it.window_ms, it.is_local);
        of(self) == of(other) && self.charge.is_twin_of(&other.charge)
    }
}

/// Cuts holdings into messages, each about one key.
fn messages(holdings: Vec<Arc<Holding>>) -> Vec<Vec<Arc<Holding>>> {
    let (mut messages, mut ids) = (Vec::<Vec<Arc<Holding>>>::new(), 0);
    for holding in holdings {
        ids += holding.slots();
        match messages.last_mut() {
            Some(last) if ids <= Slots::MOST && last[0].is_with(&holding) => last.push(holding),
            _ => {
                ids = holding.slots();
                messages.push(vec![holding]);
            }
        }
    }
    messages
}

/// The slots of holdings of one key, and the first of these.
fn message(holdings: &[Arc<Holding>]) -> (&Holding, Slots) {
    let first = &holdings[0];
    let ids = holdings.iter().flat_map(|it| it.charge.slots()).collect();
    let slots = Slots::new(first.charge.policy(), first.charge.key(), ids);
    (first, slots)
}

/// The task. If its runtime ends, or it has found no place, the next slot starts another.
async fn run(keeper: Arc<Keeper>, task: OwnedSemaphorePermit) {
    let (keeper, mut task) = (&keeper, Some(task));
    let places = Arc::new(Semaphore::new(MOST_TOGETHER));
    while let Some(next_ms) = keeper.next_ms(&mut task) {
        // Timers do not see that the machine was suspended, and `now_ms` does.
        let wait_ms = next_ms.saturating_sub(now_ms()).min(LONGEST_TICK_MS);
        let wait = Duration::from_millis(wait_ms);
        let _ = timeout(wait, keeper.changed.notified()).await;
        while let Some(work) = keeper.due() {
            keeper.lose(&work.lost);
            for (holdings, is_return) in [(work.returns, true), (work.renewals, false)] {
                for message in messages(holdings) {
                    send(keeper, &places, message, is_return).await;
                }
            }
        }
    }
}

/// Sends a message when there is a place for it: in a task of its own, as an observer may panic.
async fn send(
    keeper: &Arc<Keeper>,
    places: &Arc<Semaphore>,
    holdings: Vec<Arc<Holding>>,
    is_return: bool,
) {
    let ids = holdings.iter().map(|it| it.slots()).sum::<usize>();
    let ids = u32::try_from(ids.min(MOST_TOGETHER)).unwrap_or(1);
    let place = Arc::clone(places).acquire_many_owned(ids).await;
    let sending = Arc::clone(keeper);
    keeper.background.spawn(async move {
        match is_return {
            true => drop(sending.give_back(&holdings).await),
            false => sending.renew(&holdings).await,
        }
        drop(place);
    });
}
