//! Races between a question and its answer, and between layers.

use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::FutureExt;
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, StoreError,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{CallFuture, Check, Leases, Operation, Reply, StoreExt, StoreFuture},
};
use tokio::sync::Notify;

use support::history::START_MS;

/// Executes operations at once, and can hold the answers back.
#[derive(Clone, Debug)]
struct Slow {
    store: MemoryStore,
    holds_checks: Arc<AtomicBool>,
    holds_calls: Arc<AtomicBool>,
    holds_resets: Arc<AtomicBool>,
    /// Whether resets are only executed when this is notified.
    delays_resets: Arc<AtomicBool>,
    delay: Arc<Notify>,
    /// Whether settlements are never answered.
    hangs_settlements: Arc<AtomicBool>,
    settlements: Arc<AtomicUsize>,
    fails_checks: Arc<AtomicBool>,
    /// An identity with a stored value that cannot be read.
    unreadable: Option<Key>,
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
        if check
            .keys()
            .any(|key| self.unreadable.as_ref() == Some(key))
        {
            let kind = StoreErrorKind::Protocol;
            return StoreFuture::ready(Err(StoreError::new(kind, "it cannot be read")));
        }
        self.hold(&self.holds_checks, self.store.check(check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Settle(_) => {
                self.settlements.fetch_add(1, SeqCst);
                if self.hangs_settlements.load(SeqCst) {
                    return StoreFuture::pending(pending());
                }
                self.store.execute(operation)
            }
            Operation::Reset { .. } if self.delays_resets.load(SeqCst) => {
                let this = self.clone();
                StoreFuture::pending(async move {
                    this.delay.notified().await;
                    this.store.execute(operation).await
                })
            }
            Operation::Reset { .. } => self.hold(&self.holds_resets, self.store.execute(operation)),
            other => self.store.execute(other),
        }
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.hold(&self.holds_calls, self.store.call(operations))
    }
}

struct World {
    clock: ManualClock,
    store: Slow,
    leases: Leases,
    limiter: Limiter,
}

impl World {
    fn new() -> Self {
        Self::with(|store, clock| Leases::new(store).clock(clock))
    }

    fn with(leases: impl FnOnce(Slow, ManualClock) -> Leases) -> Self {
        let clock = ManualClock::new(START_MS);
        let store = Slow {
            store: MemoryStore::new().clock(clock.clone()),
            holds_checks: Arc::default(),
            holds_calls: Arc::default(),
            holds_resets: Arc::default(),
            delays_resets: Arc::default(),
            delay: Arc::default(),
            hangs_settlements: Arc::default(),
            settlements: Arc::default(),
            unreadable: None,
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

    /// Checks until there is a fresh lease at the beginning of a step of a second. Returns the number of checks.
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

    /// The end of the current step of a second.
    fn next_second(&self) -> u64 {
        self.clock.now_ms() / 1_000 * 1_000 + 1_000
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
async fn the_end_of_a_process_waits_for_a_lease_that_is_on_its_way() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    let admitted = world.warm_up(&alice).await;
    world.store.holds_calls.store(true, SeqCst);
    world.clock.set(world.next_second());
    assert!(world.check(&alice).await.is_allowed());
    let mut returned = pin!(world.leases.return_unspent());
    for _ in 0..5 {
        assert!(futures::poll!(&mut returned).is_pending());
        background().await;
    }
    world.store.answers.notify_waiters();
    returned.await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - admitted - 1);
}

#[tokio::test]
async fn a_lease_that_is_asked_for_during_a_reset_is_spent_or_returned() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.store.holds_resets.store(true, SeqCst);
    let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
    for _ in 0..5 {
        assert!(futures::poll!(&mut reset).is_pending());
        background().await;
    }
    assert_eq!(
        world.left(&alice[0]).await,
        100_000,
        "the store has forgotten"
    );
    for _ in 0..100 {
        assert!(world.check(&alice).await.is_allowed());
    }
    world.store.answers.notify_waiters();
    reset.await.unwrap();
    assert!(world.check(&alice).await.is_allowed());
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - 101);
}

#[tokio::test(start_paused = true)]
async fn a_reset_waits_for_a_lease_that_is_on_its_way_and_nothing_of_it_is_spent_or_returned_later()
{
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.store.holds_calls.store(true, SeqCst);
    world.clock.set(world.next_second());
    assert!(world.check(&alice).await.is_allowed());
    world.store.holds_calls.store(false, SeqCst);
    let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
    for _ in 0..5 {
        assert!(futures::poll!(&mut reset).is_pending());
        background().await;
    }
    assert!(
        world.left(&alice[0]).await < 100_000,
        "it was not reset yet"
    );
    world.store.answers.notify_waiters();
    reset.await.unwrap();
    assert!(world.check(&alice).await.is_allowed());
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_after_a_reset_which_could_not_wait_for_it_is_dropped() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.store.holds_calls.store(true, SeqCst);
    world.clock.set(world.next_second());
    assert!(world.check(&alice).await.is_allowed());
    world.store.holds_calls.store(false, SeqCst);
    world
        .limiter
        .reset(alice[0].policy(), alice[0].key())
        .await
        .unwrap();
    // A return of the lease would now take units from later charges.
    let check = Check::new(alice.clone()).unwrap();
    assert!(world.store.store.check(&check).await.unwrap().is_allowed());
    world.store.answers.notify_waiters();
    background().await;
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - 1);
}

/// A lease that is fetched during a reset may be charged before that: over another connection, for instance.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_reset_may_have_deleted_is_not_spent() {
    for is_hot_before in [true, false] {
        let world = World::new();
        let alice = [charge(&policies().0, "alice")];
        if is_hot_before {
            world.warm_up(&alice).await;
            world.store.holds_calls.store(true, SeqCst);
            world.clock.set(world.next_second());
            assert!(world.check(&alice).await.is_allowed());
            world.store.holds_calls.store(false, SeqCst);
        }
        world.store.delays_resets.store(true, SeqCst);
        let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
        // The reset gives up the lease that is being fetched.
        for _ in 0..3 {
            assert!(futures::poll!(&mut reset).is_pending());
            tokio::time::advance(Duration::from_millis(30)).await;
        }
        world.store.answers.notify_waiters();
        background().await;
        world.warm_up(&alice).await;
        world.store.delay.notify_waiters();
        reset.await.unwrap();
        for _ in 0..10 {
            assert!(world.check(&alice).await.is_allowed());
        }
        assert!(
            world.left(&alice[0]).await <= 100_000 - 10,
            "{is_hot_before}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_identity_is_leased_under_a_changed_policy() {
    let world = World::new();
    let policy = |limit| Policy::parse("all", &format!("{limit}/1m")).unwrap();
    world.warm_up(&[charge(&policy(100_000), "alice")]).await;
    let changed = [charge(&policy(200_000), "alice")];
    for _ in 0..30 {
        for _ in 0..50 {
            assert!(world.check(&changed).await.is_allowed());
        }
        world.clock.set(world.next_second());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.warm_up(&changed).await;
    world.store.holds_checks.store(true, SeqCst);
    let decision = world.limiter.check(changed).now_or_never();
    assert!(decision.is_some(), "the store was asked");
}

#[tokio::test]
async fn an_identity_that_cannot_be_read_does_not_keep_others_from_being_leased() {
    let mut store = None;
    let world = World::with(|slow, clock| {
        let unreadable = Some(Key::new("user", "mallory"));
        let slow = Slow { unreadable, ..slow };
        store = Some(slow.clone());
        Leases::new(slow).clock(clock)
    });
    let (all, _) = policies();
    let alice = [charge(&all, "alice")];
    let admitted = world.warm_up(&alice).await;
    for spent in 1..=50 {
        assert!(
            world
                .limiter
                .check([charge(&all, "mallory")])
                .await
                .is_err()
        );
        // A decision without a wait does not come from the store.
        world.store.holds_checks.store(true, SeqCst);
        let decision = world.limiter.check(alice.clone()).now_or_never();
        assert!(decision.unwrap().unwrap().is_allowed(), "{spent}");
        world.store.holds_checks.store(false, SeqCst);
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - admitted - 50);
}

#[tokio::test(start_paused = true)]
async fn where_the_store_is_too_slow_for_one_limiter_none_spends_units() {
    let world = World::new();
    let (all, own) = policies();
    let alice = [charge(&all, "alice")];
    world.warm_up(&alice).await;
    let limiter = |ms| Limiter::new(world.leases.clone()).timeout(Duration::from_millis(ms));
    let (hasty, patient) = (limiter(30), limiter(5_000));
    assert!(patient.check(alice.clone()).await.unwrap().is_allowed());
    world.store.holds_checks.store(true, SeqCst);
    let mut late = pin!(hasty.check([alice[0].clone(), charge(&own, "bob")]));
    assert!(futures::poll!(&mut late).is_pending());
    world.clock.advance(Duration::from_millis(30));
    assert_eq!(late.await.unwrap_err().kind(), StoreErrorKind::Timeout);
    world.store.fails_checks.store(true, SeqCst);
    assert!(patient.check(alice.clone()).await.is_err(), "it was spent");
}

#[tokio::test(start_paused = true)]
async fn leases_are_returned_while_the_store_hangs_for_many_others() {
    let world = World::new();
    let (all, _) = policies();
    let names: Vec<&'static str> = (0..200).map(|it| &*format!("{it}").leak()).collect();
    let checks = async |names: &[&'static str]| {
        for _ in 0..40 {
            world.clock.advance(Duration::from_millis(5));
            for name in names {
                let check = Check::new([charge(&all, name)]).unwrap();
                assert!(world.leases.check(&check).await.unwrap().is_allowed());
            }
            background().await;
        }
        world.clock.set(world.next_second() + 1_000);
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    world.store.hangs_settlements.store(true, SeqCst);
    checks(&names).await;
    assert!(world.store.settlements.load(SeqCst) > 0);
    world.store.hangs_settlements.store(false, SeqCst);
    checks(&["alice"]).await;
    assert_eq!(world.left(&charge(&all, "alice")).await, 100_000 - 40);
}

#[tokio::test]
async fn a_block_ends_a_lease_that_is_on_its_way() {
    let world = World::new();
    let (all, _) = policies();
    let alice = [charge(&all, "alice")];
    let admitted = world.warm_up(&alice).await;
    let limiter = world.limiter.clone();
    // The lease ends with the step. The next one is charged, and its answer is under way.
    world.store.holds_calls.store(true, SeqCst);
    world.clock.set(world.next_second());
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

/// A limiter that caches denials over the leases, and a hot identity without units in the store: its units are in this process.
async fn exhausted(world: &World, charge: &Charge) -> Limiter {
    let check = Check::new([Charge::new(
        charge.policy(),
        charge.key().clone(),
        world.left(charge).await,
    )])
    .unwrap();
    assert!(world.store.store.check(&check).await.unwrap().is_allowed());
    let limiter = Limiter::new(world.leases.clone()).cache_denials(true);
    let limiter = limiter.denial_clock(world.clock.clone());
    limiter.timeout(Duration::from_secs(60))
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_a_lease_comes_that_was_on_its_way() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.store.holds_calls.store(true, SeqCst);
    world.clock.set(world.next_second());
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
    // The lease is over, and has not been returned yet.
    world.clock.set(world.next_second());
    assert!(!limiter.check(alice.clone()).await.unwrap().is_allowed());
    world.leases.return_unspent().await;
    assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_denial_is_repeated_where_no_units_lie_here() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.leases.return_unspent().await;
    let limiter = exhausted(&world, &alice[0]).await;
    for is_cached in [false, true, true] {
        let decision = limiter.check(alice.clone()).await.unwrap();
        assert_eq!(decision.usage().is_cached(), is_cached);
    }
}

#[tokio::test(start_paused = true)]
async fn spending_leased_units_does_not_close_the_breaker() {
    let world = World::new();
    let (all, own) = policies();
    let alice = [charge(&all, "alice")];
    world.warm_up(&alice).await;
    world.store.fails_checks.store(true, SeqCst);
    // The breaker counts one failure in each half of the timeout.
    let limiter = world.limiter.clone().timeout(Duration::from_millis(2));
    for _ in 0..5 {
        assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
        assert!(limiter.check([charge(&own, "bob")]).await.is_err());
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let error = limiter.check([charge(&own, "bob")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
}
