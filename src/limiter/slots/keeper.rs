//! [`Keeper`]: renews and returns the slots of this process, in one task of the back room.
//!
//! Slots of one key under one policy are a group, and at most one exchange about a group is under way. Each message says
//! all that is to be done now. As messages may come twice, an exchange that fails is made again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::{Holding, Limiter};
use crate::{
    background::{BackRoom, Task},
    clock::now_ms,
    domain::{
        charge::Charge,
        rule::millis,
        slots::{HeldSlots, SlotId, Slots},
    },
    limiter::jitter,
    warning,
};

/// The most groups whose messages begin together.
const MOST_TOGETHER: usize = 256;

/// From one warning of a lost slot to the next.
const WARNINGS: Duration = Duration::from_secs(60);

const NEVER: u64 = u64::MAX;

/// The slots of the clones of one limiter.
#[derive(Default)]
pub(in crate::limiter) struct Keeper {
    groups: Mutex<Groups>,
    /// Notified when a group is due before all others.
    changed: Notify,
    /// When a lost slot was last warned about, plus 1.
    warned_ms: AtomicU64,
    has_warned_of_early_expiry: AtomicBool,
    background: Weak<BackRoom>,
}

#[derive(Default)]
struct Groups {
    all: HashMap<u64, Group>,
    ids: HashMap<GroupKey, u64>,
    /// The groups about which no message is under way, by when they are due.
    due: BTreeSet<(u64, u64)>,
    next_id: u64,
    has_task: bool,
    /// How many slots wait to be returned, and a task that counts until there are none.
    returning: usize,
    counted: Option<Task>,
    /// Groups without slots and an ended count. They are dropped without the lock, since limiters and their observers are
    /// foreign code.
    over: (Vec<Group>, Option<Task>),
}

/// The slots of one key under one policy, all with one expiry, granted by the store or by this process's memory.
#[derive(Clone)]
struct GroupKey {
    charge: Charge,
    window_ms: u64,
    is_local: bool,
}

struct Group {
    key: GroupKey,
    limiter: Limiter,
    /// The slots that are held, by their first id.
    held: BTreeMap<SlotId, Arc<Holding>>,
    /// The slots to be returned.
    ended: BTreeMap<SlotId, Ended>,
    /// The earliest time when one of them is to be returned.
    return_ms: u64,
    /// The earliest time when one of them is to be renewed.
    renew_ms: u64,
    /// The earliest time when one of them has expired.
    expiry_ms: u64,
    /// Nothing is sent before this time, after a failure.
    retry_ms: u64,
    /// How much earlier than necessary to renew next.
    early: u64,
    /// How many slots of a holding that several messages renew have been answered, by its first id.
    answered: BTreeMap<SlotId, u64>,
    /// How many messages are under way.
    asking: usize,
    /// Whether a renewal is among them, and whether one of them has failed.
    renews: bool,
    has_failed: bool,
    due_ms: Option<u64>,
}

/// A slot to be returned.
struct Ended {
    due_ms: u64,
    /// When it has expired anyway.
    until_ms: u64,
    /// From when on the store knows whether it is held: a return may overtake the check that takes the slot.
    known_ms: u64,
}

/// When to renew slots: in the last quarter of a third of their window, at a random moment. Otherwise all processes
/// would renew in one moment the slots that were taken together.
fn renewal_ms(since_ms: u64, window_ms: u64, early: u64) -> u64 {
    let third = window_ms / 3;
    since_ms.saturating_add(third - (third / 4).saturating_mul(early) / MOST_EARLY)
}

const MOST_EARLY: u64 = 1_000;

/// A random moment of that quarter. Groups that are renewed together share it, and so stay together.
fn random_early() -> u64 {
    millis(jitter::random_up_to(Duration::from_millis(MOST_EARLY)))
}

impl Keeper {
    pub(in crate::limiter) fn new(background: &Arc<BackRoom>) -> Self {
        Self {
            background: Arc::downgrade(background),
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the slots of a holding until they are lost or returned.
    pub(super) fn add(self: &Arc<Self>, holding: &Arc<Holding>) {
        let Some(first) = holding.charge.slots().next() else {
            return;
        };
        let mut groups = self.lock();
        let id = groups.group_of(&holding.charge, &holding.limiter, holding.is_local);
        holding.group.store(id, Relaxed);
        if let Some(group) = groups.all.get_mut(&id) {
            group.held.insert(first, Arc::clone(holding));
            group.note_times_of(holding, random_early());
        }
        self.schedule(groups, id);
    }

    /// Returns the slots of a holding.
    pub(super) fn end(self: &Arc<Self>, holding: &Holding) {
        self.return_from(self.lock(), holding.group.load(Relaxed), &holding.charge, 0);
    }

    /// Returns the slots of a charge that may have been admitted, although the answer never came.
    pub(super) fn give_back(self: &Arc<Self>, charge: &Charge, limiter: &Limiter, is_local: bool) {
        let mut groups = self.lock();
        let id = groups.group_of(charge, limiter, is_local);
        let known_ms = match is_local {
            true => 0,
            false => now_ms().saturating_add(millis(limiter.inner.caller.timeout())),
        };
        self.return_from(groups, id, charge, known_ms);
    }

    fn return_from(
        self: &Arc<Self>,
        mut groups: MutexGuard<'_, Groups>,
        id: u64,
        charge: &Charge,
        known_ms: u64,
    ) {
        let Some(group) = groups.all.get_mut(&id) else {
            return; // without a runtime it was given up
        };
        let returned = group.end(charge, known_ms);
        groups.returning += returned;
        if let Some(room) = self.background.upgrade() {
            groups.counted.get_or_insert_with(|| room.begin());
        }
        self.schedule(groups, id);
    }

    /// Puts a group in order. Starts the task, or wakes it if the group is the first.
    fn schedule(self: &Arc<Self>, mut groups: MutexGuard<'_, Groups>, id: u64) {
        let is_first = groups.schedule(id);
        let is_new = !groups.has_task && groups.all.contains_key(&id);
        groups.has_task |= is_new;
        unlock(groups);
        let Some(room) = self.background.upgrade() else {
            return;
        };
        if is_new {
            room.spawn(run(Running::new(self, false)));
        } else if is_first {
            self.changed.notify_one();
            room.resume();
        }
    }

    /// Without a runtime, slots are neither renewed nor returned, and expire.
    #[cold]
    fn do_without(&self) {
        let groups = mem::take(&mut *self.lock());
        drop(groups);
    }

    /// All slots that are held, which a process returns at its end.
    pub(super) fn held(&self) -> Vec<Arc<Holding>> {
        let groups = self.lock();
        let held = groups.all.values().flat_map(|group| group.held.values());
        held.cloned().collect()
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

    /// The messages about groups that are due, and how long until the next is.
    fn due(self: &Arc<Self>) -> (Vec<Message>, Option<Duration>) {
        let (mut messages, mut lost, now_ms) = (Vec::new(), Vec::new(), now_ms());
        let early = random_early();
        let mut groups = self.lock();
        for _ in 0..MOST_TOGETHER {
            let Some(&(due_ms, id)) = groups.due.first() else {
                break;
            };
            let due = groups
                .all
                .get_mut(&id)
                .filter(|it| it.is_due(due_ms, now_ms));
            let Some(group) = due else {
                break;
            };
            let before = group.ended.len();
            group.early = early;
            let (returned, renewed) = group.begin(now_ms, &mut lost);
            let after = group.ended.len();
            for (ids, is_return) in [(returned, true), (renewed, false)] {
                messages.extend(ids.chunks(Slots::MOST).map(|ids| {
                    group.asking += 1;
                    group.renews |= !is_return;
                    group.message(self, id, ids, is_return, now_ms)
                }));
            }
            groups.count(before, after);
            groups.schedule(id);
        }
        let next_ms = groups.due.first().map(|due| due.0.saturating_sub(now_ms));
        unlock(groups);
        lose(&lost);
        (messages, next_ms.map(Duration::from_millis))
    }

    /// Takes the answer to a message; `None` if there is none.
    fn answered(self: &Arc<Self>, message: &Message, answer: Option<&HeldSlots>) {
        let mut lost = Vec::new();
        let mut groups = self.lock();
        if let Some(group) = groups.all.get_mut(&message.group) {
            let before = group.ended.len();
            group.answered(message, answer, &mut lost);
            let after = group.ended.len();
            groups.count(before, after);
        }
        self.schedule(groups, message.group);
        lose(&lost);
    }

    /// Whether the task ends, since there are no slots.
    fn ends(&self) -> bool {
        let mut groups = self.lock();
        let ends = groups.all.is_empty();
        groups.has_task = !ends;
        ends
    }
}

fn unlock(mut groups: MutexGuard<'_, Groups>) {
    let over = mem::take(&mut groups.over);
    drop(groups);
    drop(over);
}

/// Notifies the holders. A holder's waker is foreign code, and may panic.
fn lose(lost: &[Arc<Holding>]) {
    for holding in lost {
        let _ = catch_unwind(AssertUnwindSafe(|| holding.lose()));
    }
}

impl Groups {
    fn group_of(&mut self, charge: &Charge, limiter: &Limiter, is_local: bool) -> u64 {
        let rule = charge.policy().rules().first();
        let key = GroupKey {
            charge: charge.clone(),
            window_ms: rule.map_or(0, |rule| millis(rule.window())),
            is_local,
        };
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        self.next_id += 1;
        self.ids.insert(key.clone(), self.next_id);
        let group = Group {
            key,
            limiter: limiter.clone(),
            held: BTreeMap::new(),
            ended: BTreeMap::new(),
            return_ms: NEVER,
            renew_ms: NEVER,
            expiry_ms: NEVER,
            retry_ms: 0,
            early: 0,
            answered: BTreeMap::new(),
            asking: 0,
            renews: false,
            has_failed: false,
            due_ms: None,
        };
        self.all.insert(self.next_id, group);
        self.next_id
    }

    /// Puts a group in order, or forgets it if it has no slots. Returns whether it is the first, or was the last.
    fn schedule(&mut self, id: u64) -> bool {
        let Some(group) = self.all.get_mut(&id) else {
            return false;
        };
        if let Some(before) = group.due_ms.take() {
            self.due.remove(&(before, id));
        }
        if group.asking > 0 {
            return false; // until the answers
        }
        if group.held.is_empty() && group.ended.is_empty() {
            if let Some(group) = self.all.remove(&id) {
                self.ids.remove(&group.key);
                self.over.0.push(group);
            }
            return self.all.is_empty(); // then the task ends
        }
        let due_ms = group.next_ms();
        group.due_ms = Some(due_ms);
        self.due.insert((due_ms, id));
        self.due.first() == Some(&(due_ms, id))
    }

    /// Counts the slots to be returned, of a group that had `before` of them.
    fn count(&mut self, before: usize, after: usize) {
        self.returning = (self.returning + after).saturating_sub(before);
        if self.returning == 0 {
            self.over.1 = self.counted.take();
        }
    }
}

impl Group {
    /// Notes when to act for a holding.
    fn note_times_of(&mut self, holding: &Holding, early: u64) {
        let since_ms = holding.since_ms();
        let window_ms = self.key.window_ms;
        self.expiry_ms = self.expiry_ms.min(since_ms.saturating_add(window_ms));
        if holding.is_renewed {
            self.renew_ms = self.renew_ms.min(renewal_ms(since_ms, window_ms, early));
        }
    }

    fn note_times(&mut self) {
        (self.renew_ms, self.expiry_ms) = (NEVER, NEVER);
        let (held, early) = (mem::take(&mut self.held), self.early);
        held.values()
            .for_each(|holding| self.note_times_of(holding, early));
        self.held = held;
    }

    /// Lets the slots of a charge be returned. Returns how many were added.
    fn end(&mut self, charge: &Charge, known_ms: u64) -> usize {
        let before = self.ended.len();
        let until_ms = now_ms().saturating_add(self.key.window_ms);
        let ended = |id| {
            let ended = Ended {
                due_ms: 0,
                until_ms,
                known_ms,
            };
            (id, ended)
        };
        self.ended.extend(charge.slots().map(ended));
        self.return_ms = 0;
        if let Some(first) = charge.slots().next() {
            self.held.remove(&first);
        }
        self.ended.len() - before
    }

    fn next_ms(&self) -> u64 {
        self.renew_ms
            .min(self.return_ms)
            .max(self.retry_ms)
            .min(self.expiry_ms)
    }

    /// Whether to act now. Slots are renewed earlier together with others, by half of the quarter over which renewals
    /// are spread: after a few windows, a process renews all slots that it keeps in a few calls.
    fn is_due(&self, due_ms: u64, now_ms: u64) -> bool {
        let early_ms = due_ms.saturating_sub(now_ms);
        let may_be_early = due_ms == self.renew_ms && due_ms < self.return_ms;
        early_ms == 0 || may_be_early && early_ms <= self.key.window_ms / 24
    }

    /// Takes out the slots that have expired. Returns the ids to return, and those to renew.
    fn begin(&mut self, now_ms: u64, lost: &mut Vec<Arc<Holding>>) -> (Vec<SlotId>, Vec<SlotId>) {
        if self.expiry_ms <= now_ms {
            // This process was stopped, or the store did not answer. If the store still has them, others may at once.
            let expired = self.held.values().filter(|holding| !holding.is_held());
            let expired: Vec<_> = expired.cloned().collect();
            for holding in &expired {
                self.end(&holding.charge, 0);
            }
            lost.extend(expired);
            self.note_times();
        }
        self.ended.retain(|_, ended| ended.until_ms > now_ms);
        if self.retry_ms > now_ms {
            return (Vec::new(), Vec::new());
        }
        let mut renewed = Vec::new();
        if self.renew_ms <= now_ms.saturating_add(self.key.window_ms / 24) {
            self.renew_ms = NEVER; // until the answer
            self.answered.clear();
            let held = self.held.values().filter(|holding| holding.is_renewed);
            renewed.extend(held.flat_map(|holding| holding.charge.slots()));
        }
        // The answer decides about the slots that are due now.
        let due = self.ended.values().map(|ended| ended.due_ms);
        let later = due.filter(|due_ms| *due_ms > now_ms).min();
        self.return_ms = later.unwrap_or(NEVER);
        let returned = self.ended.iter();
        let returned = returned.filter(|(_, ended)| ended.due_ms <= now_ms);
        (returned.map(|(id, _)| *id).collect(), renewed)
    }

    fn message(
        &self,
        keeper: &Arc<Keeper>,
        group: u64,
        ids: &[SlotId],
        is_return: bool,
        asked_at_ms: u64,
    ) -> Message {
        let (policy, key) = (self.key.charge.policy(), self.key.charge.key());
        Message {
            keeper: Arc::clone(keeper),
            limiter: self.limiter.clone(),
            group,
            slots: Slots::new(policy, key, ids.to_vec()),
            is_return,
            is_local: self.key.is_local,
            asked_at_ms,
            is_answered: false,
        }
    }

    fn answered(
        &mut self,
        message: &Message,
        answer: Option<&HeldSlots>,
        lost: &mut Vec<Arc<Holding>>,
    ) {
        self.asking -= 1;
        self.has_failed |= answer.is_none();
        match answer {
            Some(answer) if message.is_return => self.returned(message, answer),
            Some(answer) => self.renewed(message, answer, lost),
            None => {}
        }
        if self.asking == 0 {
            let pause_ms = mem::take(&mut self.has_failed).then(|| self.pause_ms());
            self.retry_ms = pause_ms.map_or(0, |pause_ms| now_ms().saturating_add(pause_ms));
            let due = self.ended.values().map(|ended| ended.due_ms);
            self.return_ms = due.min().unwrap_or(NEVER);
            if mem::take(&mut self.renews) {
                self.note_times();
            }
        }
    }

    /// Takes the answer to a return. It may have come before the check, and is then made again.
    fn returned(&mut self, message: &Message, answer: &HeldSlots) {
        for (id, was_held) in message.slots.ids().iter().zip(answer.held()) {
            if let Some(ended) = self.ended.get_mut(id) {
                ended.due_ms = ended.known_ms;
                if *was_held || ended.known_ms <= message.asked_at_ms {
                    self.ended.remove(id);
                }
            }
        }
    }

    /// Takes the answer to a renewal. A holding whose slots several messages renew is renewed by the last of their
    /// answers.
    fn renewed(&mut self, message: &Message, answer: &HeldSlots, lost: &mut Vec<Arc<Holding>>) {
        let answers = message.slots.ids().iter().zip(answer.held());
        let answers: BTreeMap<_, _> = answers.collect();
        let mut gone = Vec::new();
        for (first, holding) in &self.held {
            let ids = holding.charge.slots();
            let known: SmallVec<[bool; 1]> = ids
                .filter_map(|id| answers.get(&id).map(|held| **held))
                .collect();
            if known.is_empty() {
                continue;
            }
            let mut answered = known.len() as u64;
            if answered < holding.charge.cost() {
                let before = self.answered.entry(*first).or_insert(0);
                *before += answered;
                answered = *before;
            }
            let is_whole = answered == holding.charge.cost();
            if known.contains(&false) || is_whole && !holding.renewed(message.asked_at_ms) {
                gone.push(Arc::clone(holding));
            }
        }
        for holding in gone {
            self.end(&holding.charge, 0);
            lost.push(holding);
        }
    }

    /// How long to wait after a failure.
    fn pause_ms(&self) -> u64 {
        let pause_ms = millis(self.limiter.inner.caller.retry_pause());
        pause_ms.min(self.key.window_ms / 12).max(1)
    }
}

impl PartialEq for GroupKey {
    fn eq(&self, other: &Self) -> bool {
        self.charge.is_twin_of(&other.charge)
            && (self.window_ms, self.is_local) == (other.window_ms, other.is_local)
    }
}

impl Eq for GroupKey {}

impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.charge.policy().name(), self.charge.key()).hash(state);
    }
}

/// A message about slots of a group.
struct Message {
    keeper: Arc<Keeper>,
    limiter: Limiter,
    group: u64,
    slots: Slots,
    is_return: bool,
    is_local: bool,
    asked_at_ms: u64,
    is_answered: bool,
}

impl Message {
    /// Sends it in a task of its own, as an observer may panic.
    async fn send(mut self) {
        let answer = match self.is_return {
            true => self.limiter.give_back(&self.slots, self.is_local).await,
            false => self.limiter.renew(&self.slots, self.is_local).await,
        };
        self.is_answered = true;
        self.keeper.answered(&self, answer.as_ref().ok());
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if !self.is_answered {
            self.keeper.answered(self, None); // its runtime has ended, or an observer has panicked
        }
    }
}

/// The task, which ends when there are no slots. If its runtime ends first, it goes on in the next.
struct Running {
    keeper: Arc<Keeper>,
    /// Whether it waits for another runtime.
    is_kept: bool,
    has_ended: bool,
}

impl Running {
    fn new(keeper: &Arc<Keeper>, is_kept: bool) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            is_kept,
            has_ended: false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match self.keeper.background.upgrade() {
            _ if self.has_ended => {}
            Some(room) if !self.is_kept => room.keep(run(Self::new(&self.keeper, true))),
            _ => self.keeper.do_without(), // there is no other runtime
        }
    }
}

async fn run(mut running: Running) {
    running.is_kept = false;
    while !running.has_ended {
        let (messages, wait) = running.keeper.due();
        let has_sent = !messages.is_empty();
        for message in messages {
            if let Some(room) = running.keeper.background.upgrade() {
                room.spawn(message.send());
            }
        }
        match wait {
            Some(_) if has_sent => yield_now().await,
            None if running.keeper.ends() => running.has_ended = true,
            None => running.keeper.changed.notified().await,
            Some(wait) => {
                let _ = timeout(wait, running.keeper.changed.notified()).await;
            }
        }
    }
}
