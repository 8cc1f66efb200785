//! [`Keeper`]: renews and returns the slots of this process.
//!
//! ```text
//!        add ──▶ held ──▶ due: renewed ──▶ held …     returned where the holder ends;
//!                  │         │ not answered            again, if that failed, until an answer comes
//!                  │         └──▶ again, until they expire: lost
//!                  └──▶ ended ──▶ returned
//! ```
//!
//! Messages about slots may come twice, late or never, so one that fails is made again, and none waits for another.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry::Occupied},
    hash::{Hash, Hasher},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

use super::{Holding, Limiter};
use crate::{
    background::{BackRoom, Task},
    clock::now_ms,
    domain::{
        rule::millis,
        slots::{HeldSlots, Slots},
    },
    limiter::jitter,
    warning,
};

/// The most messages of the task that wait for their answers.
const MOST_TOGETHER: usize = 256;

/// From one warning of a lost slot to the next.
const WARNINGS: Duration = Duration::from_secs(60);

/// The slots of the clones of one limiter.
pub(in crate::limiter) struct Keeper {
    entries: Mutex<Entries>,
    /// Notified when an entry is due before all others.
    changed: Notify,
    next_number: AtomicU64,
    /// When a lost slot was last warned about, plus 1.
    warned_ms: AtomicU64,
    has_warned_of_early_expiry: AtomicBool,
    background: Arc<BackRoom>,
}

#[derive(Default)]
struct Entries {
    all: HashMap<u64, Entry>,
    /// When something is to be done about each, and its number; not while a message about it is under way.
    due: BTreeSet<(u64, u64)>,
    /// The numbers of the held slots of each key, which are renewed together.
    held: HashMap<Subject, BTreeSet<u64>>,
    has_task: bool,
}

struct Entry {
    holding: Arc<Holding>,
    due_ms: Option<u64>,
    /// `None` while the slots are held.
    ended: Option<Ended>,
    /// The key of the last held slots, to be dropped with this.
    subject: Option<Subject>,
}

/// Slots to be returned.
struct Ended {
    /// When they have expired anyway.
    until_ms: u64,
    /// From when on the store knows whether they are held: a return may overtake the check that takes the slots.
    known_ms: u64,
    _task: Option<Task>,
}

/// When to renew slots: in the last quarter of a third of their window, at a random moment, so that the slots of many keys
/// are not renewed in one moment because they were taken in one.
const fn renewal_ms(since_ms: u64, window_ms: u64, early: u64) -> u64 {
    let third = window_ms / 3;
    since_ms.saturating_add(third - (third / 4).saturating_mul(early) / 1_000)
}

impl Keeper {
    pub(in crate::limiter) fn new(background: &Arc<BackRoom>) -> Self {
        Self {
            entries: Mutex::default(),
            changed: Notify::new(),
            next_number: AtomicU64::new(0),
            warned_ms: AtomicU64::new(0),
            has_warned_of_early_expiry: AtomicBool::new(false),
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
        let due_ms = holding.next_ms(random());
        let mut entries = self.lock();
        entries.add(Arc::clone(holding), None);
        self.schedule(entries, holding.number, due_ms);
    }

    /// Returns the slots of a holding: at once, where it ends. Those of an unanswered check once more, `known_ms` later.
    pub(super) fn end(self: &Arc<Self>, holding: &Arc<Holding>, known_after_ms: u64) {
        let now_ms = now_ms();
        let ended = Ended {
            until_ms: now_ms.saturating_add(holding.window_ms),
            known_ms: now_ms.saturating_add(known_after_ms),
            _task: self.background.begin(),
        };
        let before = self.lock().add(Arc::clone(holding), Some(ended));
        drop(before);
        let message = Message::new(self, holding, true, now_ms);
        self.background.finish(message.send());
    }

    /// Notes when something is to be done. Starts the task, or wakes it if this is the first to do.
    fn schedule(self: &Arc<Self>, mut entries: MutexGuard<'_, Entries>, number: u64, due_ms: u64) {
        let is_first = entries.schedule(number, due_ms);
        let is_new = !mem::replace(&mut entries.has_task, true);
        drop(entries);
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
        let held = entries.all.values().filter(|entry| entry.ended.is_none());
        held.map(|entry| Arc::clone(&entry.holding)).collect()
    }

    pub(super) fn warn_of_early_expiry(&self) {
        if !self.has_warned_of_early_expiry.swap(true, Relaxed) {
            warning::slots_expire_too_early();
        }
    }

    pub(super) fn warn_of_loss(&self) {
        let (now_ms, last) = (now_ms() + 1, self.warned_ms.load(Relaxed));
        let is_recent = last != 0 && now_ms < last + millis(WARNINGS);
        let warned = &self.warned_ms;
        if !is_recent
            && warned
                .compare_exchange(last, now_ms, Relaxed, Relaxed)
                .is_ok()
        {
            warning::slot_lost();
        }
    }

    /// The messages that are due, at most [`MOST_TOGETHER`], and when the next is.
    fn due(self: &Arc<Self>) -> (Vec<Message>, Option<u64>) {
        let (mut messages, mut lost, now_ms) = (Messages::default(), Vec::new(), now_ms());
        let mut entries = self.lock();
        let mut gone = Vec::new();
        while messages.all.len() < MOST_TOGETHER
            && let Some((holding, ended)) = entries.take_due(now_ms)
        {
            match ended {
                Some(until_ms) if until_ms > now_ms => messages.add(self, &holding, true, now_ms),
                Some(_) => gone.extend(entries.remove(holding.number)),
                None if !holding.is_held() => lost.push(holding),
                None if !holding.is_renewed => {
                    entries.schedule(holding.number, holding.expiry_ms());
                }
                None => {
                    for holding in entries.take_others(&holding) {
                        messages.add(self, &holding, false, now_ms);
                    }
                    messages.add(self, &holding, false, now_ms);
                }
            }
        }
        let next_ms = entries.due.first().map(|due| due.0);
        drop(entries);
        drop(gone); // without the lock: limiters and their observers are foreign code
        self.lose(&lost);
        (messages.all, next_ms)
    }

    /// Notifies the holders, and returns what may be left. A holder's waker is foreign code, and may panic.
    fn lose(self: &Arc<Self>, lost: &[Arc<Holding>]) {
        for holding in lost {
            let is_over = catch_unwind(AssertUnwindSafe(|| holding.lose()));
            if is_over.unwrap_or(true) {
                self.end(holding, 0);
            }
        }
    }

    /// Takes the answer to a return; `None` if there is none. It may have come before the check, and is then made again.
    fn returned(self: &Arc<Self>, message: &Message, answer: Option<&HeldSlots>) {
        let mut were_held = answer.into_iter().flat_map(HeldSlots::held);
        for holding in &message.holdings {
            let ids = usize::try_from(holding.charge.cost()).unwrap_or(0);
            let held = were_held.by_ref().take(ids);
            let was_held = held.filter(|held| !**held).count() == 0;
            let mut entries = self.lock();
            let Some(Some(ended)) = entries.all.get(&holding.number).map(|it| &it.ended) else {
                continue;
            };
            let is_known = was_held || ended.known_ms <= message.asked_at_ms;
            let again_ms = match answer {
                Some(_) => ended.known_ms,
                None => now_ms() + holding.pause_ms(),
            };
            if answer.is_some() && is_known {
                let over = entries.remove(holding.number);
                let is_last = entries.all.is_empty();
                drop(entries);
                drop(over); // without the lock
                if is_last {
                    self.changed.notify_one(); // the task ends
                }
            } else {
                self.schedule(entries, holding.number, again_ms);
            }
        }
    }

    /// Takes the answer to a renewal; `None` if there is none.
    fn renewed(self: &Arc<Self>, message: &Message, answer: Option<&HeldSlots>) {
        let mut are_held = answer.into_iter().flat_map(HeldSlots::held);
        let mut lost = Vec::new();
        let (early, pause_ms) = (random(), message.holdings[0].pause_ms());
        for holding in &message.holdings {
            let ids = usize::try_from(holding.charge.cost()).unwrap_or(0);
            let held = are_held.by_ref().take(ids);
            let is_held = held.filter(|held| !**held).count() == 0;
            let is_lost = match answer {
                Some(_) => !is_held || !holding.renewed(message.asked_at_ms),
                None => !holding.is_held(),
            };
            let due_ms = match answer {
                Some(_) => holding.next_ms(early),
                None => (now_ms() + pause_ms).min(holding.expiry_ms()),
            };
            let entries = self.lock();
            let entry = entries.all.get(&holding.number);
            match entry.filter(|entry| entry.ended.is_none()) {
                Some(_) if is_lost => lost.push(Arc::clone(holding)),
                Some(_) => self.schedule(entries, holding.number, due_ms),
                None => {} // it was returned meanwhile
            }
        }
        self.lose(&lost);
    }

    /// Whether the task ends, since there are no slots.
    fn ends(&self) -> bool {
        let mut entries = self.lock();
        entries.has_task = !entries.all.is_empty();
        !entries.has_task
    }
}

impl Entries {
    fn add(&mut self, holding: Arc<Holding>, ended: Option<Ended>) -> Option<Entry> {
        let number = holding.number;
        let entry = Entry {
            holding,
            due_ms: None,
            ended,
            subject: None,
        };
        let before = self.remove(number);
        if entry.ended.is_none() {
            let subject = Subject(Arc::clone(&entry.holding), false);
            self.held.entry(subject).or_default().insert(number);
        }
        self.all.insert(number, entry);
        before
    }

    /// Drop what this returns without the lock: limiters and their observers are foreign code.
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let mut entry = self.all.remove(&number)?;
        if let Some(due_ms) = entry.due_ms {
            self.due.remove(&(due_ms, number));
        }
        let subject = Subject(Arc::clone(&entry.holding), false);
        if entry.ended.is_none()
            && let Occupied(mut held) = self.held.entry(subject)
        {
            held.get_mut().remove(&number);
            if held.get().is_empty() {
                entry.subject = Some(held.remove_entry().0);
            }
        }
        Some(entry)
    }

    /// Returns whether this is the first to do.
    fn schedule(&mut self, number: u64, due_ms: u64) -> bool {
        let Some(entry) = self.all.get_mut(&number) else {
            return false;
        };
        if let Some(before) = entry.due_ms.replace(due_ms) {
            self.due.remove(&(before, number));
        }
        self.due.insert((due_ms, number));
        self.due.first() == Some(&(due_ms, number))
    }

    /// Takes the first out, if something is to be done about it now, with the end of slots to be returned.
    fn take_due(&mut self, now_ms: u64) -> Option<(Arc<Holding>, Option<u64>)> {
        let (due_ms, number) = *self.due.first()?;
        let entry = self.all.get_mut(&number).filter(|_| due_ms <= now_ms)?;
        entry.due_ms = None;
        self.due.pop_first();
        let until_ms = entry.ended.as_ref().map(|ended| ended.until_ms);
        Some((Arc::clone(&entry.holding), until_ms))
    }

    /// Takes out the other held slots of a key, about which no message is under way.
    fn take_others(&mut self, holding: &Arc<Holding>) -> Vec<Arc<Holding>> {
        let Some(numbers) = self.held.get(&Subject(Arc::clone(holding), false)) else {
            return Vec::new();
        };
        let mut others = Vec::new();
        for number in numbers {
            if let Some(entry) = self.all.get_mut(number)
                && entry.holding.is_held()
                && let Some(due_ms) = entry.due_ms.take()
            {
                self.due.remove(&(due_ms, *number));
                others.push(Arc::clone(&entry.holding));
            }
        }
        others
    }
}

/// The part of the span in which slots are renewed, in thousandths.
fn random() -> u64 {
    millis(jitter::random_up_to(Duration::from_millis(1_000)))
}

impl Holding {
    /// When to do something about held slots next.
    fn next_ms(&self, early: u64) -> u64 {
        match self.is_renewed {
            true => renewal_ms(self.since_ms(), self.window_ms, early),
            false => self.expiry_ms(),
        }
    }

    fn expiry_ms(&self) -> u64 {
        self.since_ms().saturating_add(self.window_ms)
    }

    /// How long to wait after a failure.
    fn pause_ms(&self) -> u64 {
        let pause_ms = millis(self.limiter.inner.caller.retry_pause());
        pause_ms.min(self.window_ms / 12).max(1)
    }
}

/// Messages, and by what they are about, which of them has room.
#[derive(Default)]
struct Messages {
    all: Vec<Message>,
    open: HashMap<Subject, usize>,
}

impl Messages {
    fn add(&mut self, keeper: &Arc<Keeper>, holding: &Arc<Holding>, is_return: bool, now_ms: u64) {
        let subject = Subject(Arc::clone(holding), is_return);
        let open = self.open.get(&subject).map(|place| &mut self.all[*place]);
        let ids = holding.charge.cost();
        if let Some(message) = open.filter(|it| it.ids + ids <= Slots::MOST as u64) {
            message.ids += ids;
            message.holdings.push(Arc::clone(holding));
            return;
        }
        self.open.insert(subject, self.all.len());
        let message = Message::new(keeper, holding, is_return, now_ms);
        self.all.push(message);
    }
}

/// What a message is about: the policy and key of a holding, where it was granted, and whether it is a return.
struct Subject(Arc<Holding>, bool);

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.0.window_ms, it.0.is_local, it.1);
        self.0.charge.is_twin_of(&other.0.charge) && of(self) == of(other)
    }
}

impl Eq for Subject {}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.charge.policy().name(), self.0.charge.key(), self.1).hash(state);
    }
}

/// A message about slots of one key.
struct Message {
    keeper: Arc<Keeper>,
    holdings: Vec<Arc<Holding>>,
    ids: u64,
    is_return: bool,
    asked_at_ms: u64,
    is_answered: bool,
}

impl Message {
    fn new(
        keeper: &Arc<Keeper>,
        holding: &Arc<Holding>,
        is_return: bool,
        asked_at_ms: u64,
    ) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            ids: holding.charge.cost(),
            holdings: vec![Arc::clone(holding)],
            is_return,
            asked_at_ms,
            is_answered: false,
        }
    }

    async fn send(mut self) {
        let first = &self.holdings[0];
        let (limiter, charge): (&Limiter, _) = (&first.limiter, &first.charge);
        let ids = self.holdings.iter().flat_map(|it| it.charge.slots());
        let slots = Slots::new(charge.policy(), charge.key(), ids.collect());
        let answer = match self.is_return {
            true => limiter.give_back(&slots, first.is_local).await,
            false => limiter.renew(&slots, first.is_local).await,
        };
        self.is_answered = true;
        self.answer(answer.as_ref().ok());
    }

    fn answer(&self, answer: Option<&HeldSlots>) {
        match self.is_return {
            true => self.keeper.returned(self, answer),
            false => self.keeper.renewed(self, answer),
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(None); // there was no place for it, or an observer has panicked
        }
    }
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
    let keeper = Arc::clone(&running.keeper);
    let places = Arc::new(Semaphore::new(MOST_TOGETHER));
    loop {
        let (messages, next_ms) = keeper.due();
        for message in messages {
            let place = Arc::clone(&places).acquire_owned().await;
            // In a task of its own, as an observer may panic.
            keeper.background.spawn(async move {
                message.send().await;
                drop(place);
            });
        }
        match next_ms {
            None if keeper.ends() => {
                running.has_ended = true;
                return;
            }
            None => keeper.changed.notified().await,
            Some(next_ms) => {
                let wait = Duration::from_millis(next_ms.saturating_sub(now_ms()));
                let _ = timeout(wait, keeper.changed.notified()).await;
            }
        }
    }
}
