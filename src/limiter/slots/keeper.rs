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
//! has changed is asked again at the next tick of its key.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{Hash, Hasher},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

use super::Holding;
use crate::{
    background::{BackRoom, Task},
    clock::now_ms,
    domain::{
        error::StoreError,
        rule::millis,
        slots::{HeldSlots, Slots},
    },
    limiter::jitter,
    timer::LazySleep,
    warning,
};

/// The most ids in messages of the task that wait for their answers, so that a server has time for others in between.
const MOST_TOGETHER: usize = Slots::MOST;

/// A key's ticks are a twelfth of its window apart, and at most this.
const LONGEST_TICK_MS: u64 = 5_000;

/// From one warning of a lost slot to the next.
const WARNINGS_MS: u64 = 60_000;

/// The slots of the clones of one limiter.
pub(in crate::limiter) struct Keeper {
    entries: Mutex<Entries>,
    /// Notified when a tick is before all others.
    changed: Notify,
    next_number: AtomicU64,
    /// When to warn of a lost slot again.
    warns_at_ms: AtomicU64,
    warned_of_early_expiry: Once,
    background: Arc<BackRoom>,
}

#[derive(Default)]
struct Entries {
    /// The slots of each key, until all of them are returned.
    keys: HashMap<Subject, Group>,
    /// The next tick of each key, and a number that no other key has.
    ticks: BTreeMap<(u64, u64), Subject>,
    has_task: bool,
}

/// The policy and the key of a holding, and where it was granted: such slots are renewed together.
struct Subject(Arc<Holding>);

/// The slots of a key, by the numbers of their holdings.
struct Group {
    all: BTreeMap<u64, Entry>,
    tick: (u64, u64),
}

struct Entry {
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

/// An entry, and with the last of a key what is kept by that: to be dropped without the lock, since limiters and their
/// observers are foreign code.
type Removed = (Entry, Option<Subject>, Option<(Subject, Group)>);

/// The work of a tick: messages without an answer yet are sent again.
#[derive(Default)]
struct Due {
    returns: Vec<Arc<Holding>>,
    renewals: Vec<Arc<Holding>>,
    lost: Vec<Arc<Holding>>,
    /// Those that were not returned before they expired.
    gone: Vec<Arc<Holding>>,
}

impl Keeper {
    pub(in crate::limiter) fn new(background: &Arc<BackRoom>) -> Self {
        Self {
            entries: Mutex::default(),
            changed: Notify::new(),
            next_number: AtomicU64::new(0),
            warns_at_ms: AtomicU64::new(0),
            warned_of_early_expiry: Once::new(),
            background: Arc::clone(background),
        }
    }

    /// The number of a further holding.
    pub(super) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the slots of a holding until they are lost or returned.
    pub(super) fn add(self: &Arc<Self>, holding: &Arc<Holding>) {
        self.set(holding, None);
    }

    /// Returns the slots of a holding, where it ends. Those that the store does not hold yet once more after this time: the
    /// return may have overtaken the check that takes them.
    pub(super) fn end(self: &Arc<Self>, holding: &Arc<Holding>, again_after: Duration) {
        let ended = Ended {
            until_ms: now_ms().saturating_add(holding.window_ms),
            _task: self.background.begin(),
        };
        self.set(holding, Some(ended));
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

    /// Notes held or ended slots. Starts the task, or wakes it if the key's tick is the next of all.
    fn set(self: &Arc<Self>, holding: &Arc<Holding>, ended: Option<Ended>) {
        let mut entries = self.lock();
        let (before, is_first) = entries.set(Arc::clone(holding), ended);
        let is_new = !mem::replace(&mut entries.has_task, true);
        drop(entries);
        drop(before); // without the lock: limiters and their observers are foreign code
        if is_new {
            let running = Running {
                keeper: Arc::clone(self),
                has_ended: false,
            };
            self.background.spawn(run(running));
        } else if is_first {
            self.changed.notify_one();
        }
    }

    /// All slots that are held, which a process returns at its end.
    pub(super) fn held(&self) -> Vec<Arc<Holding>> {
        let entries = self.lock();
        let all = entries.keys.values().flat_map(|group| group.all.values());
        let held = all.filter(|entry| entry.ended.is_none());
        held.map(|entry| Arc::clone(&entry.holding)).collect()
    }

    pub(super) fn warn_of_early_expiry(&self) {
        self.warned_of_early_expiry
            .call_once(warning::slots_expire_too_early);
    }

    pub(super) fn warn_of_loss(&self) {
        let now_ms = now_ms();
        let next = |at_ms: u64| (at_ms <= now_ms).then_some(now_ms + WARNINGS_MS);
        let warns = self.warns_at_ms.fetch_update(Relaxed, Relaxed, next);
        if warns.is_ok() {
            warning::slot_lost();
        }
    }

    /// The holdings of a key at its tick, by messages: returns and renewals.
    fn look(self: &Arc<Self>) -> Option<(Messages, Messages)> {
        let due = self.lock().due(now_ms())?;
        self.lose(&due.lost);
        self.forget(&due.gone);
        Some((messages(due.returns), messages(due.renewals)))
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

    fn forget(&self, holdings: &[Arc<Holding>]) {
        let mut entries = self.lock();
        let gone = holdings.iter().map(|holding| entries.remove(holding));
        let gone: SmallVec<[_; 1]> = gone.collect();
        drop(entries);
        drop(gone); // without the lock
    }

    /// Returns slots of one key.
    async fn give_back(&self, holdings: &[Arc<Holding>]) -> Result<HeldSlots, StoreError> {
        let (first, slots) = message(holdings);
        let limiter = &first.limiter;
        let answer = limiter.give_back(&slots, first.is_local).await;
        if answer.is_ok() {
            self.forget(holdings);
        }
        answer
    }

    async fn renew(self: &Arc<Self>, holdings: &[Arc<Holding>]) {
        let (first, slots) = message(holdings);
        let asked_at_ms = now_ms();
        let limiter = &first.limiter;
        let Ok(answer) = limiter.renew(&slots, first.is_local).await else {
            return;
        };
        let mut are_held = answer.held().iter();
        let lost = holdings.iter().filter(|holding| {
            let are_held = are_held.by_ref().take(holding.slots());
            let is_lost = are_held.filter(|is_held| !**is_held).count() > 0;
            is_lost || !holding.renewed(asked_at_ms)
        });
        self.lose(&lost.cloned().collect::<Vec<_>>());
    }

    /// When the next tick is. `None` if the task ends, since there are no slots.
    fn next_ms(&self) -> Option<u64> {
        let mut entries = self.lock();
        let next = entries.ticks.first_key_value().map(|(tick, _)| tick.0);
        entries.has_task = next.is_some();
        next
    }
}

impl Entries {
    /// Returns what was noted before, to be dropped without the lock, and whether the key is new and its tick the next of
    /// all.
    fn set(&mut self, holding: Arc<Holding>, ended: Option<Ended>) -> (Option<Entry>, bool) {
        let (subject, number) = (Subject(Arc::clone(&holding)), holding.number);
        let mut is_first = false;
        let group = self.keys.entry(subject).or_insert_with(|| {
            let tick = (now_ms() + holding.tick_ms(), number);
            let first = self.ticks.first_key_value();
            is_first = first.is_none_or(|(first, _)| tick < *first);
            self.ticks.insert(tick, Subject(Arc::clone(&holding)));
            Group {
                all: BTreeMap::new(),
                tick,
            }
        });
        let before = group.all.insert(number, Entry { holding, ended });
        (before, is_first)
    }

    fn remove(&mut self, holding: &Arc<Holding>) -> Option<Removed> {
        let subject = Subject(Arc::clone(holding));
        let group = self.keys.get_mut(&subject)?;
        let entry = group.all.remove(&holding.number)?;
        let last = group.all.is_empty().then_some(group.tick);
        let tick = last.and_then(|tick| self.ticks.remove(&tick));
        let key = last.and_then(|_| self.keys.remove_entry(&subject));
        Some((entry, tick, key))
    }

    /// The work of the first key, if its tick has come.
    fn due(&mut self, now_ms: u64) -> Option<Due> {
        let first = self.ticks.first_entry();
        let (tick, subject) = first.filter(|it| it.key().0 <= now_ms)?.remove_entry();
        let group = self.keys.get_mut(&subject)?;
        let (due, next_ms) = group.due(&subject.0, now_ms);
        group.tick = (next_ms, tick.1);
        self.ticks.insert(group.tick, subject);
        Some(due)
    }
}

impl Group {
    /// The work to do now, and when to look again.
    fn due(&self, one: &Holding, now_ms: u64) -> (Due, u64) {
        let (mut due, mut least_ms) = (Due::default(), u64::MAX);
        for Entry { holding, ended } in self.all.values() {
            match ended {
                Some(ended) if ended.until_ms > now_ms => due.returns.push(Arc::clone(holding)),
                Some(_) => due.gone.push(Arc::clone(holding)),
                None => match holding.left_ms() {
                    Some(0) => due.lost.push(Arc::clone(holding)),
                    Some(left_ms) if holding.is_renewed => least_ms = least_ms.min(left_ms),
                    _ => {}
                },
            }
        }
        // Before a third of the window has passed, at another time for each key and renewal: so that slots that were taken
        // in one moment are not renewed in one.
        let rest_ms = one.window_ms - one.window_ms / 3 + one.random_ms();
        let (wait_ms, tick_ms) = (least_ms.saturating_sub(rest_ms), one.tick_ms());
        if wait_ms > 0 {
            return (due, now_ms.saturating_add(wait_ms.min(tick_ms)));
        }
        // Together with those that would be due soon.
        let soon_ms = rest_ms + one.window_ms / 6;
        let is_due = |Entry { holding, ended }: &Entry| {
            let left_ms = holding.left_ms().unwrap_or(0);
            ended.is_none() && holding.is_renewed && (1..=soon_ms).contains(&left_ms)
        };
        let renewed = self.all.values().filter(|entry| is_due(entry));
        due.renewals
            .extend(renewed.map(|it| Arc::clone(&it.holding)));
        (due, now_ms.saturating_add(tick_ms))
    }
}

impl Holding {
    /// From one tick to the next.
    fn tick_ms(&self) -> u64 {
        (self.window_ms / 12).clamp(1, LONGEST_TICK_MS)
    }

    /// A part of the last quarter of a third of the window.
    fn random_ms(&self) -> u64 {
        millis(jitter::random_up_to(Duration::from_millis(
            self.window_ms / 12,
        )))
    }
}

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.0.window_ms, it.0.is_local);
        self.0.charge.is_twin_of(&other.0.charge) && of(self) == of(other)
    }
}

impl Eq for Subject {}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.charge.policy().name(), self.0.charge.key()).hash(state);
    }
}

type Messages = Vec<Vec<Arc<Holding>>>;

/// Cuts holdings of one key into messages.
fn messages(holdings: Vec<Arc<Holding>>) -> Messages {
    let (mut messages, mut ids) = (Messages::new(), 0);
    for holding in holdings {
        ids += holding.slots();
        match messages.last_mut() {
            Some(last) if ids <= Slots::MOST => last.push(holding),
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
    let (first, ids) = (
        &holdings[0],
        holdings.iter().flat_map(|it| it.charge.slots()),
    );
    let charge = &first.charge;
    (
        first,
        Slots::new(charge.policy(), charge.key(), ids.collect()),
    )
}

/// The task. If its runtime ends, or it has found no place, the next slot starts another.
struct Running {
    keeper: Arc<Keeper>,
    has_ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.keeper.lock().has_task = false;
        }
    }
}

async fn run(mut running: Running) {
    let keeper = &Arc::clone(&running.keeper);
    let places = Arc::new(Semaphore::new(MOST_TOGETHER));
    while let Some(next_ms) = keeper.next_ms() {
        let wait = Duration::from_millis(next_ms.saturating_sub(now_ms()));
        let _ = timeout(wait, keeper.changed.notified()).await;
        while let Some((returns, renewals)) = keeper.look() {
            let returns = returns.into_iter().map(|holdings| (holdings, true));
            let renewals = renewals.into_iter().map(|holdings| (holdings, false));
            for (holdings, is_return) in returns.chain(renewals) {
                send(keeper, &places, holdings, is_return).await;
            }
        }
    }
    running.has_ended = true;
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
