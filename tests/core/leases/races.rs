//! Races between a question and its answer, and between layers.

use support::prelude::*;

/// What a store does that executes operations at once and can hold the answers back.
#[derive(Debug, Default)]
struct Holds {
    checks: AtomicBool,
    calls: AtomicBool,
    resets: AtomicBool,
    /// Whether resets are only executed when this is notified.
    delays_resets: AtomicBool,
    delay: Arc<Notify>,
    /// Whether settlements are never answered.
    hangs_settlements: AtomicBool,
    settlements: AtomicUsize,
    fails_checks: AtomicBool,
    answers: Arc<Notify>,
}

impl Holds {
    fn fate(&self, asked: &Asked<'_>) -> Fate {
        let held = |is_held: &AtomicBool| match is_held.load(SeqCst) {
            true => Fate::Held(self.answers.clone()),
            false => Fate::Answered,
        };
        match asked {
            Asked::Check(_) if self.fails_checks.load(SeqCst) => Fate::unavailable(),
            // The value of this identity cannot be read.
            Asked::Check(check) if check.keys().any(|it| *it == user("mallory")) => {
                Fate::Fails(StoreError::new(StoreErrorKind::Protocol, "unreadable"))
            }
            Asked::Check(_) => held(&self.checks),
            Asked::Execute(Operation::Settle(_)) => {
                self.settlements.fetch_add(1, SeqCst);
                match self.hangs_settlements.load(SeqCst) {
                    true => Fate::Hangs,
                    false => Fate::Answered,
                }
            }
            Asked::Execute(Operation::Reset { .. }) => match self.delays_resets.load(SeqCst) {
                true => Fate::Delayed(self.delay.clone()),
                false => held(&self.resets),
            },
            Asked::Call(_) => held(&self.calls),
            Asked::Execute(_) => Fate::Answered,
        }
    }
}

struct World {
    clock: ManualClock,
    memory: MemoryStore,
    holds: Arc<Holds>,
    leases: Leases,
    limiter: Limiter,
}

impl World {
    fn new() -> Self {
        let ((memory, clock), holds) = (memory(), Arc::<Holds>::default());
        let store = Fated::by_call(memory.clone(), {
            let holds = Arc::clone(&holds);
            move |asked| holds.fate(asked)
        });
        let leases = support::leases(store).clock(clock.clone());
        let limiter = support::limiter(leases.clone()).timeout(MINUTE);
        Self {
            clock,
            memory,
            holds,
            leases,
            limiter,
        }
    }

    /// With a lease of alice that is charged, and the answer held back; and how many units were admitted.
    async fn with_a_lease_on_its_way() -> (Self, [Charge; 1], u64) {
        let world = Self::new();
        let alice = [charge(&policies().0, "alice")];
        let admitted = world.warm_up(&alice).await;
        world.holds.calls.store(true, SeqCst);
        world.clock.set(world.next_second());
        assert!(world.check(&alice).await.is_allowed());
        world.holds.calls.store(false, SeqCst);
        (world, alice, admitted + 1)
    }

    async fn check(&self, charges: &[Charge]) -> Decision {
        self.clock.advance(ms(1));
        let decision = self.limiter.check(charges.to_vec()).await.unwrap();
        others_run().await;
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
        let decision = self.memory.check(&check).await.unwrap();
        remaining(decision.usage())[0]
    }
}

fn charge(policy: &Policy, key: &'static str) -> Charge {
    Charge::new(policy, Key::new("user", key), 1)
}

fn policies() -> (Policy, Policy) {
    let all = policy("all", "100000/1m");
    let own = policy("own", "1/1h");
    (all, own)
}

#[tokio::test]
async fn the_end_of_a_process_waits_for_a_lease_that_is_on_its_way() {
    let (world, alice, admitted) = World::with_a_lease_on_its_way().await;
    let mut returned = pin!(world.leases.return_unspent());
    for _ in 0..5 {
        assert!(futures::poll!(&mut returned).is_pending());
        others_run().await;
    }
    world.holds.answers.notify_waiters();
    returned.await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - admitted);
}

#[tokio::test]
async fn a_lease_that_is_asked_for_during_a_reset_is_spent_or_returned() {
    let world = World::new();
    let alice = [charge(&policies().0, "alice")];
    world.warm_up(&alice).await;
    world.holds.resets.store(true, SeqCst);
    let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
    for _ in 0..5 {
        assert!(futures::poll!(&mut reset).is_pending());
        others_run().await;
    }
    let left = world.left(&alice[0]).await;
    assert_eq!(left, 100_000, "the store has forgotten");
    for _ in 0..100 {
        assert!(world.check(&alice).await.is_allowed());
    }
    world.holds.answers.notify_waiters();
    reset.await.unwrap();
    assert!(world.check(&alice).await.is_allowed());
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - 101);
}

#[tokio::test]
async fn a_lease_that_comes_after_a_reset_is_neither_spent_nor_returned() {
    let (world, alice, _) = World::with_a_lease_on_its_way().await;
    let reset = world.limiter.reset(alice[0].policy(), alice[0].key());
    reset.await.unwrap();
    assert!(world.check(&alice).await.is_allowed());
    // A return of the lease would now take units from later charges.
    world.holds.answers.notify_waiters();
    others_run().await;
    assert!(world.check(&alice).await.is_allowed());
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - 2);
}

#[tokio::test]
async fn a_lease_whose_rest_is_on_its_way_back_is_not_spent() {
    let (world, mut random) = (World::new(), fastrand::Rng::with_seed(1));
    let of = |cost| [Charge::new(&policies().0, user("alice"), cost)];
    let mut admitted = world.warm_up(&of(1)).await;
    for _ in 0..20 {
        world.holds.calls.store(true, SeqCst);
        for _ in 0..100 {
            let cost = random.u64(1..30);
            assert!(world.check(&of(cost)).await.is_allowed());
            admitted += cost;
        }
        world.holds.calls.store(false, SeqCst);
        world.holds.answers.notify_waiters();
        others_run().await;
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&of(1)[0]).await, 100_000 - admitted);
}

/// A lease that is fetched during a reset may be charged before that: over another connection, for instance.
#[tokio::test]
async fn a_lease_that_a_reset_may_have_deleted_is_not_spent() {
    for is_hot_before in [true, false] {
        let (world, alice, _) = match is_hot_before {
            true => World::with_a_lease_on_its_way().await,
            false => (World::new(), [charge(&policies().0, "alice")], 0),
        };
        world.holds.delays_resets.store(true, SeqCst);
        let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
        assert!(futures::poll!(&mut reset).is_pending());
        world.holds.answers.notify_waiters();
        others_run().await;
        world.warm_up(&alice).await;
        world.holds.delay.notify_waiters();
        reset.await.unwrap();
        for _ in 0..10 {
            assert!(world.check(&alice).await.is_allowed());
        }
        let left = world.left(&alice[0]).await;
        assert!(left <= 100_000 - 10, "{is_hot_before}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_identity_is_leased_under_a_changed_policy() {
    let world = World::new();
    let policy = |limit| policy("all", &format!("{limit}/1m"));
    world.warm_up(&[charge(&policy(100_000), "alice")]).await;
    let changed = [charge(&policy(200_000), "alice")];
    for _ in 0..30 {
        for _ in 0..50 {
            assert!(world.check(&changed).await.is_allowed());
        }
        world.clock.set(world.next_second());
        sleep(SECOND).await;
    }
    world.warm_up(&changed).await;
    world.holds.checks.store(true, SeqCst);
    let decision = world.limiter.check(changed).now_or_never();
    assert!(decision.is_some(), "the store was asked");
}

#[tokio::test]
async fn an_identity_that_cannot_be_read_does_not_keep_others_from_being_leased() {
    let world = World::new();
    let (all, _) = policies();
    let alice = [charge(&all, "alice")];
    let admitted = world.warm_up(&alice).await;
    for spent in 1..=50 {
        let unreadable = world.limiter.check([charge(&all, "mallory")]).await;
        assert!(unreadable.is_err());
        // A decision without a wait does not come from the store.
        world.holds.checks.store(true, SeqCst);
        let decision = world.limiter.check(alice.clone()).now_or_never();
        assert!(decision.unwrap().unwrap().is_allowed(), "{spent}");
        world.holds.checks.store(false, SeqCst);
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, 100_000 - admitted - 50);
}

#[tokio::test(start_paused = true)]
async fn where_the_store_is_too_slow_for_one_limiter_another_spends_units() {
    let world = World::new();
    let (all, own) = policies();
    let alice = [charge(&all, "alice")];
    world.warm_up(&alice).await;
    let limiter = |timeout| support::limiter(world.leases.clone()).timeout(ms(timeout));
    let (hasty, patient) = (limiter(30), limiter(5_000));
    assert!(patient.check(alice.clone()).await.unwrap().is_allowed());
    world.holds.checks.store(true, SeqCst);
    let mut late = pin!(hasty.check([alice[0].clone(), charge(&own, "bob")]));
    assert!(futures::poll!(&mut late).is_pending());
    world.clock.advance(ms(30));
    assert_eq!(late.await.unwrap_err().kind(), StoreErrorKind::Timeout);
    world.holds.fails_checks.store(true, SeqCst);
    assert!(patient.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn leases_are_returned_while_the_store_hangs_for_many_others() {
    let world = World::new();
    let (all, _) = policies();
    let names: Vec<&'static str> = (0..200).map(|it| &*format!("{it}").leak()).collect();
    let checks = async |names: &[&'static str]| {
        for _ in 0..40 {
            world.clock.advance(ms(5));
            for name in names {
                let check = Check::new([charge(&all, name)]).unwrap();
                assert!(world.leases.check(&check).await.unwrap().is_allowed());
            }
            others_run().await;
        }
        world.clock.set(world.next_second() + 1_000);
        sleep(SECOND).await;
    };
    world.holds.hangs_settlements.store(true, SeqCst);
    checks(&names).await;
    assert!(world.holds.settlements.load(SeqCst) > 0);
    world.holds.hangs_settlements.store(false, SeqCst);
    checks(&["alice"]).await;
    assert_eq!(world.left(&charge(&all, "alice")).await, 100_000 - 40);
}

#[tokio::test]
async fn a_block_ends_a_lease_that_is_on_its_way() {
    let (world, alice, admitted) = World::with_a_lease_on_its_way().await;
    let limiter = world.limiter.clone();
    assert!(world.left(&alice[0]).await < 100_000 - admitted);
    let key = user("alice");
    limiter.block(&key, MINUTE).await.unwrap();
    world.holds.answers.notify_waiters();
    others_run().await;
    let decision = limiter.check(alice.clone()).await.unwrap();
    assert!(is_blocked(&decision));
    let left = world.left(&alice[0]).await;
    assert_eq!(left, 100_000 - admitted, "it was returned");
}

/// A limiter that caches denials over the leases, and a hot identity without units in the store: its units are in this process.
async fn exhausted(world: &World, charge: &Charge) -> Limiter {
    let all = world.left(charge).await;
    let all = Charge::new(charge.policy(), charge.key().clone(), all);
    let check = Check::new([all]).unwrap();
    assert!(world.memory.check(&check).await.unwrap().is_allowed());
    let limiter = support::limiter(world.leases.clone()).cache_denials(true);
    let limiter = limiter.denial_clock(world.clock.clone());
    limiter.timeout(MINUTE)
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_a_lease_comes_that_was_on_its_way() {
    let (world, alice, _) = World::with_a_lease_on_its_way().await;
    let limiter = exhausted(&world, &alice[0]).await;
    assert!(!limiter.check(alice.clone()).await.unwrap().is_allowed());
    world.holds.answers.notify_waiters();
    others_run().await;
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
    world.holds.fails_checks.store(true, SeqCst);
    // The breaker counts one failure in each half of the timeout.
    let limiter = world.limiter.clone().timeout(ms(2));
    for _ in 0..5 {
        assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
        assert!(limiter.check([charge(&own, "bob")]).await.is_err());
        advance(ms(1)).await;
    }
    let error = limiter.check([charge(&own, "bob")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
}
