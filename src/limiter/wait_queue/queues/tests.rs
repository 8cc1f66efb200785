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
    assert!(limiter.inner.memory.queues.lock().by_check.is_empty());
}

/// Notes whether the lock of all queues is free when a caller is woken.
struct Waking {
    limiter: Limiter,
    is_free: AtomicBool,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        let lock = self.limiter.inner.memory.queues.all.try_lock();
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
        .memory
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
    let keys = || limiter.inner.memory.queues.lock().by_key.len();
    assert_eq!(keys(), 0);
    {
        let mut waiting =
            [0, 1].map(|_| Box::pin(limiter.decide_within(&check, FOR_EVER, WhereOpen::AskAgain)));
        let mut context = Context::from_waker(Waker::noop());
        for caller in &mut waiting {
            assert!(pin!(caller).poll(&mut context).is_pending());
        }
        assert_eq!(keys(), 2);
    }
    assert_eq!(keys(), 0);
}
