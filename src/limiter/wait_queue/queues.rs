//! [`WaitQueues`]: which queue a caller joins, and which queues wake when units are given back.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{Hash, Hasher},
    mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::turns::Turns;
use crate::{
    domain::{
        check::Check,
        decision::{Decision, Denial},
        key::Key,
        policy::Policy,
    },
    limiter::{FOR_EVER, events::Events},
    lock::lock,
};

/// The queues with waiting callers.
#[derive(Debug, Default)]
pub(in crate::limiter) struct WaitQueues {
    all: Mutex<Queues>,
}

/// Clients may make up identities, and each has a queue: nothing here searches all queues that share a key.
#[derive(Debug, Default)]
struct Queues {
    by_check: HashMap<QueueOf, Arc<WaitQueue>>,
    /// Each queue once under every key that it charges or looks up.
    by_key: HashMap<Key, OfKey>,
    created: u64,
}

/// The queues of one key, the oldest first.
#[derive(Debug, Default)]
struct OfKey {
    queues: BTreeMap<u64, Arc<WaitQueue>>,
    /// The least number of the queue that the next returned slot wakes.
    next: u64,
}

/// A check that is equal to all others with the same policies and keys in the same order.
#[derive(Clone, Debug)]
struct QueueOf(Check);

#[derive(Debug)]
pub(super) struct WaitQueue {
    /// That of the first caller.
    check: QueueOf,
    number: u64,
    /// Written under the lock of all queues.
    tickets: AtomicUsize,
    pub(super) turns: Turns,
    /// The store's last denial of a caller, unless it was for want of a slot, which promises nothing.
    last: Mutex<Option<LastDenial>>,
    /// How often units were given back. Written under the lock of the last denial.
    given_back: AtomicUsize,
    /// Notified when units are given back.
    pub(super) room: Notify,
    /// Notified when the store denies a caller: others may learn that they come too late.
    pub(super) denied: Notify,
}

/// A place in a queue, given up when dropped.
pub(super) struct Ticket<'a> {
    queues: &'a WaitQueues,
    pub(super) queue: Arc<WaitQueue>,
    check: &'a Check,
    /// The observer that knows that the caller waits, and since when.
    pub(super) waits: OnceLock<(Events, Instant)>,
}

impl WaitQueues {
    /// Takes the last place in the queue of the check; returns the queue if it is full.
    pub(super) fn join<'a>(
        &'a self,
        check: &'a Check,
        max_queue: usize,
    ) -> Result<Ticket<'a>, Arc<WaitQueue>> {
        let mut all = lock(&self.all);
        let queue = all.queue(check);
        // The first caller waits for no other, so admit one even if `max_queue` is 0.
        if queue.tickets.load(Relaxed) >= max_queue.max(1) {
            return Err(queue);
        }
        queue.tickets.fetch_add(1, Relaxed);
        Ok(Ticket {
            queues: self,
            queue,
            check,
            waits: OnceLock::new(),
        })
    }

    /// How many callers wait for this key.
    pub(super) fn waiting(&self, key: &Key) -> usize {
        let queues = lock(&self.all).of_key(key, |_| true);
        queues.iter().map(|queue| queue.tickets.load(Relaxed)).sum()
    }

    /// Wakes the callers that wait for this key under a policy of this name, after units or so many slots were given back. A
    /// slot wakes at most one queue, in turn, so that it never wakes the callers of all queues: if it stays unused, the
    /// others ask soon anyway.
    pub(in crate::limiter) fn wake(&self, policy: &Policy, key: &Key, slots: usize) {
        let mut all = lock(&self.all);
        let queues = match policy.is_concurrency() {
            true => all.next_for_slots(policy, key, slots),
            false => all.of_key(key, |queue| queue.charges(policy, key)),
        };
        drop(all); // a waker is foreign code, and may drop a caller that is in a queue
        queues.iter().for_each(|queue| queue.wake());
    }

    /// Wakes the callers that wait for a key, under any policy.
    pub(in crate::limiter) fn wake_all(&self, key: &Key) {
        let queues = lock(&self.all).of_key(key, |_| true);
        queues.iter().for_each(|queue| queue.wake());
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some((events, since)) = self.waits.get() {
            events.wait(self.check, Some(since.elapsed()));
        }
        let mut all = lock(&self.queues.all);
        if self.queue.tickets.fetch_sub(1, Relaxed) == 1 {
            all.forget(&self.queue);
        }
    }
}

impl Queues {
    /// The queue of a check, which may be new.
    fn queue(&mut self, check: &Check) -> Arc<WaitQueue> {
        let check = QueueOf(check.clone());
        if let Some(known) = self.by_check.get(&check) {
            return Arc::clone(known);
        }
        self.created += 1;
        let queue = Arc::new(WaitQueue::new(check.clone(), self.created));
        for key in check.0.keys() {
            let of_key = self.by_key.entry(key.clone()).or_default();
            of_key.queues.insert(queue.number, Arc::clone(&queue));
        }
        self.by_check.insert(check, Arc::clone(&queue));
        queue
    }

    fn of_key(&self, key: &Key, is_meant: impl Fn(&QueueOf) -> bool) -> Vec<Arc<WaitQueue>> {
        let of_key = self.by_key.get(key).into_iter();
        let queues = of_key.flat_map(|it| it.queues.values());
        queues.filter(|it| is_meant(&it.check)).cloned().collect()
    }

    /// The queues whose turn it is to get a returned slot, among those that wait for nothing else.
    fn next_for_slots(
        &mut self,
        policy: &Policy,
        key: &Key,
        returned: usize,
    ) -> Vec<Arc<WaitQueue>> {
        let Some(OfKey { queues, next }) = self.by_key.get_mut(key) else {
            return Vec::new();
        };
        let in_turn = queues.range(*next..).chain(queues.range(..*next));
        let fit = in_turn
            .map(|(_, queue)| queue)
            .filter(|queue| queue.check.charges(policy, key) && queue.valid_denial().is_none());
        let woken: Vec<_> = fit.take(returned).cloned().collect();
        *next = woken.last().map_or(*next, |last| last.number + 1);
        woken
    }

    fn forget(&mut self, queue: &WaitQueue) {
        self.by_check.remove(&queue.check);
        for key in queue.check.0.keys() {
            if let Some(of_key) = self.by_key.get_mut(key) {
                of_key.queues.remove(&queue.number);
                if of_key.queues.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
    }
}

impl QueueOf {
    fn charges(&self, policy: &Policy, key: &Key) -> bool {
        let mut parts = self.parts();
        parts.any(|(its_policy, its_key)| its_policy.name() == policy.name() && its_key == key)
    }

    fn parts(&self) -> impl Iterator<Item = (&Policy, &Key)> {
        let charges = self.0.charges().iter();
        charges.map(|charge| (charge.policy(), charge.key()))
    }
}

impl PartialEq for QueueOf {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.parts().eq(other.parts())
    }
}

impl Eq for QueueOf {}

impl Hash for QueueOf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Policies of one name are few.
        self.parts()
            .for_each(|(policy, key)| (policy.name(), key).hash(state));
    }
}

impl WaitQueue {
    fn new(check: QueueOf, number: u64) -> Self {
        Self {
            check,
            number,
            tickets: AtomicUsize::new(0),
            turns: Turns::new(),
            last: Mutex::default(),
            given_back: AtomicUsize::new(0),
            room: Notify::new(),
            denied: Notify::new(),
        }
    }

    /// Wakes the callers with a turn, since units were given back.
    fn wake(&self) {
        let mut last = lock(&self.last);
        *last = None;
        self.given_back.fetch_add(1, Relaxed);
        drop(last);
        self.room.notify_waiters();
    }

    pub(super) fn given_back(&self) -> usize {
        self.given_back.load(Relaxed)
    }

    /// Stores a denial, unless units were given back during the call: then the denial is out of date for other callers.
    pub(super) fn remember(&self, check: &Check, denial: &Denial, given_back: usize) -> LastDenial {
        let last = LastDenial::new(check, denial);
        let mut known = lock(&self.last);
        if self.given_back() != given_back {
            return last;
        }
        let by_slots = last.denial.is_by_slots();
        let kept = (!by_slots).then(|| last.clone());
        let before = mem::replace(&mut *known, kept);
        drop(known);
        if !by_slots && !before.is_some_and(|before| before.says_the_same_as(&last)) {
            self.denied.notify_waiters();
        }
        last
    }

    /// The last denial, if it holds yet: the callers wait for more than a slot.
    pub(super) fn valid_denial(&self) -> Option<LastDenial> {
        let last = lock(&self.last).clone();
        last.filter(|last| last.until > Instant::now())
    }

    /// The same if it is also true of this check.
    pub(super) fn denial(&self, check: &Check) -> Option<LastDenial> {
        self.valid_denial().filter(|last| last.holds_for(check))
    }
}

/// The shortest sleep. A store that denies and yet promises room now would otherwise make the caller spin.
pub(super) const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since other processes give back units without notice.
pub(super) const RECHECK: Duration = Duration::from_secs(2);

/// The store's denial of a caller with a turn, the time of the denial, and how long the denial surely holds.
#[derive(Clone, Debug)]
pub(super) struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    pub(super) until: Instant,
    /// A slot may be returned sooner than its denial says, and later than this denial surely holds.
    pub(super) ask_again: Instant,
}

impl LastDenial {
    /// A denial that the store has just answered.
    pub(super) fn new(check: &Check, denial: &Denial) -> Self {
        let at = Instant::now();
        let after = |wait: Option<Duration>| wait.unwrap_or_default().clamp(MIN_SLEEP, FOR_EVER);
        Self {
            check: check.clone(),
            denial: denial.clone(),
            at,
            until: at + after(denial.retry_after_besides_slots()),
            ask_again: at + after(denial.recheck_after()).min(RECHECK),
        }
    }

    /// The same denial of another check.
    pub(super) fn decision(&self, check: &Check) -> Decision {
        let denied = Decision::Denied(self.denial.clone());
        let about_it = match self.compares(check, |last, asked| last == asked) {
            true => denied, // its contributors may be others
            false => denied.repeated(check, 0),
        };
        about_it.aged(check, self.at.elapsed())
    }

    /// Whether the other denial was for the same costs, and ends at about the same millisecond.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        let apart = self.until.max(other.until) - self.until.min(other.until);
        apart <= MIN_SLEEP && self.compares(&other.check, |one, another| one == another)
    }

    /// Whether the store denies this check as well: one that costs at least as much.
    pub(super) fn holds_for(&self, check: &Check) -> bool {
        self.compares(check, |last, asked| last <= asked)
    }

    /// Whether all costs compare so; policies and keys are those of the queue.
    fn compares(&self, check: &Check, costs: impl Fn(u64, u64) -> bool) -> bool {
        let mut pairs = self.check.charges().iter().zip(check.charges());
        pairs.all(|(last, asked)| costs(last.cost(), asked.cost()))
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the wait queue's bookkeeping.

    use std::{
        cell::Cell,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::SeqCst},
        },
        task::{Context, Wake, Waker},
    };

    use futures::poll;

    use crate::{
        domain::{charge::Charge, check::Check, key::Key, policy::Policy},
        limiter::{FOR_EVER, Limiter, WhereOpen},
        store::MemoryStore,
    };

    thread_local! {
        /// How often two checks were compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A check under a limit that all users share, which comes first, and one of this user.
    fn shared(user: usize) -> Check {
        let [all, own] = ["all", "own"].map(|name| Policy::parse(name, "1/1h").unwrap());
        Check::new([
            Charge::new(&all, Key::new("service", "all"), 1),
            Charge::new(&own, Key::new("user", user.to_string()), 1),
        ])
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn joining_and_leaving_cost_the_same_however_many_queues_share_a_key() {
        let limiter = Limiter::new(MemoryStore::new());
        let checks: Vec<_> = (0..=1_000).map(shared).collect();
        let wait = |check| Box::pin(limiter.decide_within(check, FOR_EVER, WhereOpen::AskAgain));
        assert!(poll!(wait(&checks[0])).is_ready());
        let mut waiting: Vec<_> = checks[..1_000].iter().map(wait).collect();
        for caller in &mut waiting {
            assert!(poll!(caller.as_mut()).is_pending());
        }
        COMPARED.set(0);
        assert!(poll!(wait(&checks[1_000])).is_pending());
        let mut same = wait(&checks[999]);
        assert!(poll!(same.as_mut()).is_pending());
        drop((waiting, same));
        // One for each that has left, and three for those that came.
        assert!(COMPARED.get() < 1_010, "{}", COMPARED.get());
        assert!(
            limiter
                .inner
                .shared
                .queues
                .all
                .lock()
                .unwrap()
                .by_check
                .is_empty()
        );
    }

    /// Notes whether the lock of all queues is free when a caller is woken.
    struct Waking {
        limiter: Limiter,
        is_free: AtomicBool,
    }

    impl Wake for Waking {
        fn wake(self: Arc<Self>) {
            let lock = self.limiter.inner.shared.queues.all.try_lock();
            self.is_free.store(lock.is_ok(), SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_are_woken_without_the_lock_that_a_caller_who_leaves_takes() {
        let limiter = Limiter::new(MemoryStore::new());
        let check = shared(0);
        let waking = Arc::new(Waking {
            limiter: limiter.clone(),
            is_free: AtomicBool::new(false),
        });
        assert!(
            poll!(pin!(limiter.decide_within(
                &check,
                FOR_EVER,
                WhereOpen::AskAgain
            )))
            .is_ready()
        );
        let mut caller = pin!(limiter.decide_within(&check, FOR_EVER, WhereOpen::AskAgain));
        let waker = Waker::from(Arc::clone(&waking));
        let mut context = Context::from_waker(&waker);
        assert!(caller.as_mut().poll(&mut context).is_pending());
        limiter
            .inner
            .shared
            .queues
            .wake_all(check.charges()[0].key());
        assert!(waking.is_free.load(SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_forgotten_when_the_last_one_leaves() {
        let limiter = Limiter::new(MemoryStore::new());
        let policies = ["api", "all"].map(|name| Policy::parse(name, "1/1h").unwrap());
        let charge = |policy, key| Charge::new(policy, Key::new("user", key), 1);
        let check = Check::new([
            charge(&policies[0], "alice"),
            charge(&policies[1], "alice"),
            charge(&policies[1], "everybody"),
        ])
        .unwrap();
        let decision = limiter
            .decide_within(&check, FOR_EVER, WhereOpen::AskAgain)
            .await
            .into_result();
        assert!(decision.unwrap().is_allowed());
        let keys = || limiter.inner.shared.queues.all.lock().unwrap().by_key.len();
        assert_eq!(keys(), 0);
        {
            let mut waiting = [0, 1]
                .map(|_| Box::pin(limiter.decide_within(&check, FOR_EVER, WhereOpen::AskAgain)));
            let mut context = Context::from_waker(Waker::noop());
            for caller in &mut waiting {
                assert!(pin!(caller).poll(&mut context).is_pending());
            }
            assert_eq!(keys(), 2);
        }
        assert_eq!(keys(), 0);
    }
}
