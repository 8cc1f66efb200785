//! Races between a question and its answer, and between layers.

use support::prelude::*;

use super::World;

const RULES: &str = "100000/1m";

/// A charge that no lease pays.
fn bob() -> Charge {
    charge(&policy("own", "1/1h"), "bob", 1)
}

impl World {
    /// With a lease of alice that is charged, and the answer held back; and how many units were admitted.
    async fn with_a_lease_on_its_way() -> (Self, [Charge; 1], u64) {
        let (world, alice, admitted) = Self::warm(RULES, 1).await;
        world.holds.calls.store(true, SeqCst);
        world.clock.set(world.next_second());
        assert!(world.admits(&alice).await);
        world.holds.calls.store(false, SeqCst);
        (world, alice, admitted + 1)
    }
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
    assert_eq!(world.left(&alice[0]).await, [100_000 - admitted]);
}

#[tokio::test]
async fn a_lease_that_is_asked_for_during_a_reset_is_spent_or_returned() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    world.holds.resets.store(true, SeqCst);
    let mut reset = pin!(world.leases.reset(alice[0].policy(), alice[0].key()));
    for _ in 0..5 {
        assert!(futures::poll!(&mut reset).is_pending());
        others_run().await;
    }
    let left = world.left(&alice[0]).await;
    assert_eq!(left, [100_000], "the store has forgotten");
    for _ in 0..100 {
        assert!(world.admits(&alice).await);
    }
    world.holds.answers.notify_waiters();
    reset.await.unwrap();
    assert!(world.admits(&alice).await);
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, [100_000 - 101]);
}

#[tokio::test]
async fn a_lease_that_comes_after_a_reset_is_neither_spent_nor_returned() {
    let (world, alice, _) = World::with_a_lease_on_its_way().await;
    let reset = world.limiter.reset(alice[0].policy(), alice[0].key());
    reset.await.unwrap();
    assert!(world.admits(&alice).await);
    // A return of the lease would now take units from later charges.
    world.holds.answers.notify_waiters();
    others_run().await;
    assert!(world.admits(&alice).await);
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, [100_000 - 2]);
}

#[tokio::test]
async fn a_lease_whose_rest_is_on_its_way_back_is_not_spent() {
    let (world, mut random) = (World::new(1), fastrand::Rng::with_seed(1));
    let of = |cost| [charge(&policy("p", RULES), "alice", cost)];
    let mut admitted = world.warm_up(&of(1)).await;
    for _ in 0..20 {
        world.holds.calls.store(true, SeqCst);
        for _ in 0..100 {
            let cost = random.u64(1..30);
            assert!(world.admits(&of(cost)).await);
            admitted += cost;
        }
        world.holds.calls.store(false, SeqCst);
        world.holds.answers.notify_waiters();
        others_run().await;
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&of(1)[0]).await, [100_000 - admitted]);
}

/// A lease that is fetched during a reset may be charged before that: over another connection, for instance.
#[tokio::test]
async fn a_lease_that_a_reset_may_have_deleted_is_not_spent() {
    for is_hot_before in [true, false] {
        let (world, alice, _) = match is_hot_before {
            true => World::with_a_lease_on_its_way().await,
            false => (World::new(1), [charge(&policy("p", RULES), "alice", 1)], 0),
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
            assert!(world.admits(&alice).await);
        }
        let left = world.left(&alice[0]).await[0];
        assert!(left <= 100_000 - 10, "{is_hot_before}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_identity_is_leased_under_a_changed_policy() {
    let (world, ..) = World::warm(RULES, 1).await;
    let changed = [charge(&policy("p", "200000/1m"), "alice", 1)];
    for _ in 0..30 {
        for _ in 0..50 {
            assert!(world.admits(&changed).await);
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
    let (world, alice, admitted) = World::warm(RULES, 1).await;
    let mallory = charge(alice[0].policy(), "mallory", 1);
    for spent in 1..=50 {
        let unreadable = world.limiter.check([mallory.clone()]).await;
        assert!(unreadable.is_err());
        // A decision without a wait does not come from the store.
        world.holds.checks.store(true, SeqCst);
        let decision = world.limiter.check(alice.clone()).now_or_never();
        assert!(decision.unwrap().unwrap().is_allowed(), "{spent}");
        world.holds.checks.store(false, SeqCst);
    }
    world.leases.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, [100_000 - admitted - 50]);
}

#[tokio::test(start_paused = true)]
async fn where_the_store_is_too_slow_for_one_limiter_another_spends_units() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    let limiter = |timeout| support::limiter(world.leases.clone()).timeout(ms(timeout));
    let (hasty, patient) = (limiter(30), limiter(5_000));
    assert!(patient.check(alice.clone()).await.unwrap().is_allowed());
    world.holds.checks.store(true, SeqCst);
    let mut late = pin!(hasty.check([alice[0].clone(), bob()]));
    assert!(futures::poll!(&mut late).is_pending());
    world.clock.advance(ms(30));
    assert_eq!(late.await.unwrap_err().kind(), StoreErrorKind::Timeout);
    world.holds.fails_checks.store(true, SeqCst);
    assert!(patient.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn leases_are_returned_while_the_store_hangs_for_many_others() {
    let (world, all) = (World::new(1), policy("p", RULES));
    let names: Vec<&'static str> = (0..200).map(|it| &*format!("{it}").leak()).collect();
    let checks = async |names: &[&'static str]| {
        for _ in 0..40 {
            world.clock.advance(ms(5));
            for name in names {
                let check = check_of(&all, name, 1);
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
    let left = world.left(&charge(&all, "alice", 1)).await;
    assert_eq!(left, [100_000 - 40]);
}

#[tokio::test]
async fn a_block_ends_a_lease_that_is_on_its_way() {
    let (world, alice, admitted) = World::with_a_lease_on_its_way().await;
    let limiter = world.limiter.clone();
    assert!(world.left(&alice[0]).await[0] < 100_000 - admitted);
    let key = user("alice");
    limiter.block(&key, MINUTE).await.unwrap();
    world.holds.answers.notify_waiters();
    others_run().await;
    let decision = limiter.check(alice.clone()).await.unwrap();
    assert!(is_blocked(&decision));
    let left = world.left(&alice[0]).await;
    assert_eq!(left, [100_000 - admitted], "it was returned");
}

/// A limiter that caches denials over the leases, and a hot identity without units in the store: its units are in this process.
async fn exhausted(world: &World, charge: &Charge) -> Limiter {
    let all = world.left(charge).await[0];
    let all = Charge::new(charge.policy(), charge.key().clone(), all);
    let check = Check::new([all]).unwrap();
    assert!(world.memory.check(&check).await.unwrap().is_allowed());
    let limiter = support::limiter(world.leases.clone()).cache_denials(true);
    let limiter = limiter.denial_clock(world.clock.clone());
    limiter.timeout(MINUTE)
}

#[tokio::test]
async fn units_that_come_back_end_a_repeated_denial_within_a_second() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    let limiter = exhausted(&world, &alice[0]).await;
    // The lease is over, and has not been returned yet.
    world.clock.set(world.next_second());
    assert!(!limiter.check(alice.clone()).await.unwrap().is_allowed());
    world.leases.return_unspent().await;
    let repeated = limiter.check(alice.clone()).await.unwrap();
    assert!(!repeated.is_allowed() && repeated.usage().is_cached());
    world.clock.advance(Duration::from_millis(1_001));
    assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_denial_is_repeated_where_no_units_lie_here() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    world.leases.return_unspent().await;
    let limiter = exhausted(&world, &alice[0]).await;
    for is_cached in [false, true, true] {
        let decision = limiter.check(alice.clone()).await.unwrap();
        assert_eq!(decision.usage().is_cached(), is_cached);
    }
}

#[tokio::test(start_paused = true)]
async fn spending_leased_units_does_not_close_the_breaker() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    world.holds.fails_checks.store(true, SeqCst);
    // The breaker counts one failure in each half of the timeout.
    let limiter = world.limiter.clone().timeout(ms(2));
    for _ in 0..5 {
        assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
        assert!(limiter.check([bob()]).await.is_err());
        advance(ms(1)).await;
    }
    let error = limiter.check([bob()]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
}

#[tokio::test]
async fn a_check_for_which_leased_units_were_spent_leaves_a_block_of_their_identity_known() {
    let (world, alice, _) = World::warm(RULES, 1).await;
    let key = user("alice");
    world.memory.block(&key, HOUR.into()).await.unwrap(); // by another process
    let by_store = [alice[0].clone(), bob()];
    let sees_block = async || {
        let decision = world.limiter.check(by_store.clone()).await.unwrap();
        assert!(is_blocked(&decision), "{decision:?}");
    };
    sees_block().await;
    let decision = world.limiter.check(alice.clone()).await.unwrap();
    assert!(decision.is_allowed(), "leased units: {decision:?}");
    world.holds.fails_checks.store(true, SeqCst);
    sees_block().await;
}
