//! What goes wrong between a question and its answer, and what stores around stores do to each other.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Waker},
    time::Duration,
};

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, StoreError, Usage,
    block::{Block, BlockedBy, Until},
    error::StoreErrorKind,
    store::{CallFuture, Check, DenyCache, Leases, Operation, Settlement, StoreFuture},
    test_util::TestClock,
};
use tokio::sync::Notify;

use crate::common::history::START_MS;

/// Does what it is asked for at once, and can keep its answers to itself.
#[derive(Clone, Debug)]
struct Slow {
    store: MemoryStore,
    holds_checks: Arc<AtomicBool>,
    holds_calls: Arc<AtomicBool>,
    fails_checks: Arc<AtomicBool>,
    answers: Arc<Notify>,
}

impl Slow {
    fn hold<T: Send + 'static>(
        &self,
        holds: &AtomicBool,
        answer: StoreFuture<T>,
    ) -> StoreFuture<T> {
        if !holds.load(SeqCst) {
            return answer;
        }
        let answers = Arc::clone(&self.answers);
        StoreFuture::pending(async move {
            answers.notified().await;
            answer.await
        })
    }
}

impl Store for Slow {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        if self.fails_checks.load(SeqCst) {
            let kind = StoreErrorKind::Unavailable;
            return StoreFuture::ready(Err(StoreError::new(kind, "it is down")));
        }
        self.hold(&self.holds_checks, self.store.check(check))
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.store.settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    fn block(&self, key: &Key, until: Until, by: BlockedBy) -> StoreFuture<Block> {
        self.store.block(key, until, by)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.hold(&self.holds_calls, self.store.call(operations))
    }
}

struct World {
    clock: TestClock,
    store: Slow,
    leases: Leases,
    limiter: Limiter,
}

impl World {
    fn new() -> Self {
        Self::with(|store, clock| Leases::new(store).clock(clock))
    }

    fn with(leases: impl FnOnce(Slow, TestClock) -> Leases) -> Self {
        let clock = TestClock::new(START_MS);
        let store = Slow {
            store: MemoryStore::new().clock(clock.clone()),
            holds_checks: Arc::default(),
            holds_calls: Arc::default(),
            fails_checks: Arc::default(),
            answers: Arc::default(),
        };
        let leases = leases(store.clone(), clock.clone());
        let limiter = Limiter::new(leases.clone()).timeout(Duration::from_secs(60));
        Self {
            clock,
            store,
            leases,
            limiter,
        }
    }

    async fn check(&self, charges: &[Charge]) -> Decision {
        self.clock.advance(Duration::from_millis(1));
        let decision = self.limiter.check(charges.to_vec()).await.unwrap();
        background().await;
        decision
    }

    /// So often that a lease is there, fresh from the beginning of a step of a second. Answers how often.
    async fn warm_up(&self, charges: &[Charge]) -> u64 {
        for _ in 0..2_000 {
            assert!(self.check(charges).await.is_allowed());
        }
        self.clock.set(self.clock.now_ms() / 1_000 * 1_000 + 1_000);
        for _ in 0..100 {
            assert!(self.check(charges).await.is_allowed());
        }
        2_100
    }

    async fn left(&self, charge: &Charge) -> u64 {
        let check = Check::new([Charge::new(charge.policy(), charge.key().clone(), 0)]).unwrap();
        let decision = self.store.store.check(&check).await.unwrap();
        decision.usage().rules().next().unwrap().remaining()
    }
}

async fn background() {
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

fn charge(policy: &Policy, key: &'static str) -> Charge {
    Charge::new(policy, Key::new("user", key), 1)
}

fn policies() -> (Policy, Policy) {
    let all = Policy::parse("all", "100000/1m").unwrap();
    let own = Policy::parse("own", "1/1h").unwrap();
    (all, own)
}

#[tokio::test]
async fn who_leaves_before_the_rest_is_decided_takes_nothing_of_a_shared_lease() {
    let world = World::new();
    let (all, own) = policies();
    let everybody = charge(&all, "everybody");
    let admitted = world.warm_up(std::slice::from_ref(&everybody)).await;
    let both = [everybody.clone(), charge(&own, "mallory")];
    assert!(world.check(&both).await.is_allowed());
    world.store.holds_checks.store(true, SeqCst);
    for _ in 0..50 {
        let check = pin!(world.limiter.check(both.clone()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(check.poll(&mut cx).is_pending());
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&everybody).await, 100_000 - admitted - 1);
}

#[tokio::test]
async fn a_block_ends_a_lease_that_is_on_its_way() {
    let world = World::new();
    let (all, _) = policies();
    let alice = [charge(&all, "alice")];
    let admitted = world.warm_up(&alice).await;
    let limiter = world.limiter.clone();
    // The lease ends with the step. The next is charged, and its answer is on its way.
    world.store.holds_calls.store(true, SeqCst);
    world
        .clock
        .set(world.clock.now_ms() / 1_000 * 1_000 + 1_000);
    assert!(world.check(&alice).await.is_allowed());
    assert!(world.left(&alice[0]).await < 100_000 - admitted - 1);
    let key = Key::new("user", "alice");
    limiter.block(&key, Duration::from_secs(60)).await.unwrap();
    world.store.holds_calls.store(false, SeqCst);
    world.store.answers.notify_waiters();
    background().await;
    let decision = limiter.check(alice.clone()).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)));
    assert_eq!(
        world.left(&alice[0]).await,
        100_000 - admitted - 1,
        "it was returned"
    );
}

#[tokio::test]
async fn a_denial_that_tells_of_one_charge_only_passes_through() {
    let world = World::with(|store, clock| {
        let cache = DenyCache::new(store).any_charge().clock(clock.clone());
        Leases::new(cache).clock(clock)
    });
    let (all, own) = policies();
    let everybody = charge(&all, "everybody");
    world.warm_up(std::slice::from_ref(&everybody)).await;
    let other = Policy::parse("other", "100/1h,1000/1d").unwrap();
    assert!(world.check(&[charge(&own, "mallory")]).await.is_allowed());
    assert!(!world.check(&[charge(&own, "mallory")]).await.is_allowed());
    let all_three = [
        charge(&other, "mallory"),
        everybody,
        charge(&own, "mallory"),
    ];
    let Decision::Denied(denial) = world.check(&all_three).await else {
        panic!("it does not fit");
    };
    assert_eq!(denial.policy().name(), "own");
    assert!(denial.is_partial());
    let usage = denial.usage();
    assert!(usage.is_repeated());
    for (charge, of_policy) in usage.check().charges().iter().zip(usage.policies()) {
        assert_eq!(of_policy.rules().len(), charge.policy().rules().len());
    }
}

#[tokio::test]
async fn a_refusal_that_is_repeated_within_says_nothing_about_the_store() {
    let world = World::with(|store, clock| {
        let cache = DenyCache::new(store).clock(clock.clone());
        Leases::new(cache).clock(clock)
    });
    let (all, own) = policies();
    let everybody = charge(&all, "everybody");
    world.warm_up(std::slice::from_ref(&everybody)).await;
    let both = [everybody, charge(&own, "mallory")];
    assert!(world.check(&both).await.is_allowed());
    assert!(!world.check(&both).await.usage().is_repeated());
    let decision = world.check(&both).await;
    assert!(!decision.is_allowed() && decision.usage().is_repeated());
}

/// A cache around the leases, and one hot identity of which the store has nothing left, as units lie in this process.
async fn exhausted(world: &World, charge: &Charge) -> Limiter {
    let check = Check::new([Charge::new(
        charge.policy(),
        charge.key().clone(),
        world.left(charge).await,
    )])
    .unwrap();
    assert!(world.store.store.check(&check).await.unwrap().is_allowed());
    let cache = DenyCache::new(world.leases.clone()).clock(world.clock.clone());
    Limiter::new(cache).timeout(Duration::from_secs(60))
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_a_lease_comes_that_was_on_its_way() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.store.holds_calls.store(true, SeqCst);
    let next_second = world.clock.now_ms() / 1_000 * 1_000 + 1_000;
    world.clock.set(next_second);
    assert!(world.check(&alice).await.is_allowed());
    let limiter = exhausted(&world, &alice[0]).await;
    assert!(!limiter.check(alice.clone()).await.unwrap().is_allowed());
    world.store.answers.notify_waiters();
    background().await;
    assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_what_was_unspent_has_been_returned() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    let limiter = exhausted(&world, &alice[0]).await;
    // Its lease is over, and nobody has returned it yet.
    world
        .clock
        .set(world.clock.now_ms() / 1_000 * 1_000 + 1_000);
    assert!(!limiter.check(alice.clone()).await.unwrap().is_allowed());
    world.leases.return_unspent().await;
    assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_what_another_check_held_is_put_back() {
    let world = World::new();
    let (all, own) = policies();
    let everybody = [charge(&all, "everybody")];
    let admitted = world.warm_up(&everybody).await;
    let unspent = 100_000 - admitted - world.left(&everybody[0]).await;
    let limiter = exhausted(&world, &everybody[0]).await;
    world.store.holds_checks.store(true, SeqCst);
    let both = [everybody[0].clone(), charge(&own, "bob")];
    let mut held: Vec<_> = (0..unspent)
        .map(|_| Box::pin(world.limiter.check(both.clone())))
        .collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(!held.is_empty());
    for check in &mut held {
        assert!(check.as_mut().poll(&mut cx).is_pending());
    }
    world.store.holds_checks.store(false, SeqCst);
    assert!(!limiter.check(everybody.clone()).await.unwrap().is_allowed());
    drop(held);
    assert!(limiter.check(everybody.clone()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_denial_is_repeated_where_no_units_lie_here() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.leases.return_unspent().await;
    let limiter = exhausted(&world, &alice[0]).await;
    for is_repeated in [false, true, true] {
        let decision = limiter.check(alice.clone()).await.unwrap();
        assert_eq!(decision.usage().is_repeated(), is_repeated);
    }
}

#[tokio::test]
async fn what_is_spent_here_does_not_close_the_breaker() {
    let world = World::new();
    let (all, own) = policies();
    let alice = [charge(&all, "alice")];
    world.warm_up(&alice).await;
    world.store.fails_checks.store(true, SeqCst);
    for _ in 0..5 {
        assert!(world.check(&alice).await.is_allowed());
        assert!(world.limiter.check([charge(&own, "bob")]).await.is_err());
    }
    let error = world
        .limiter
        .check([charge(&own, "bob")])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
}
