//! Spending, fetching and returning leases.

use support::prelude::*;

use super::World;

#[tokio::test]
async fn a_hot_identity_costs_at_least_twenty_times_fewer_calls() {
    let world = World::new(1);
    let alice = [charge(&policy("p", "100000/1m"), "alice", 1)];
    for _ in 0..20_000 {
        world.pass(200);
        assert!(world.check(&alice).await.is_allowed());
    }
    let calls = world.calls();
    assert!(calls < 1_000, "{calls}");
    println!("{calls} calls for 20000 requests");
}

/// One process, after checks that give it a lease of alice, and a check that spends a unit of that.
async fn warm(rules: &str, cost: u64) -> (World, [Charge; 1]) {
    let (world, alice, _) = World::warm(rules, cost).await;
    is_spent(&world, &alice).await;
    (world, alice)
}

async fn warm_up(world: &World, charges: &[Charge]) {
    world.warm_up(charges).await;
    is_spent(world, charges).await;
}

async fn is_spent(world: &World, charges: &[Charge]) {
    assert!(world.check(charges).await.is_allowed());
    assert_eq!(world.calls(), 0, "a unit of a lease was spent");
}

#[tokio::test]
async fn leased_units_count_as_used_in_the_answers_that_spend_them_and_in_those_of_the_store() {
    let (world, alice) = warm("100000/1m,1000000/1h", 1).await;
    let in_store = world.left(&alice[0]).await;
    assert!(in_store[0] < 100_000 - 2_102, "in the store it is charged");
    let spent = world.check(&alice).await;
    let reset_after = |it: &Usage| it.rules().next().unwrap().reset_after();
    world.pass(5_000);
    let later = world.check(&alice).await;
    let look = world.limiter.peek(alice.clone()).await.unwrap();
    for usage in [spent.usage(), later.usage(), &look] {
        assert_eq!(remaining(usage), in_store);
    }
    let (early, later) = (reset_after(spent.usage()), reset_after(later.usage()));
    assert_eq!(early, later + ms(5));

    let settled = world.limiter.settle(spent.usage(), |_| 0).await.unwrap();
    let left = [in_store[0] + 1, in_store[1] + 1];
    assert_eq!(remaining(&settled), left);
    let more = [charge(alice[0].policy(), "alice", left[0] + 1)];
    let denied = world.check(&more).await;
    assert!(!denied.is_allowed());
    assert_eq!(remaining(denied.usage()), left);
}

#[tokio::test(start_paused = true)]
async fn unspent_units_are_returned_when_no_more_checks_come() {
    let (world, alice) = warm("100000/1m", 1).await;
    sleep(SECOND).await;
    let in_store = world.left(&alice[0]).await[0];
    assert!(in_store < 100_000 - 2_101, "it can still be spent");
    world.pass(2_000_000);
    sleep(SECOND).await;
    assert_eq!(world.left(&alice[0]).await, [100_000 - 2_101]);
}

#[tokio::test]
async fn a_lease_ends_with_its_period_and_takes_nothing_into_the_next() {
    let world = World::new(1);
    let alice = [charge(&policy("p", "100000/month@UTC"), "alice", 1)];
    let end_ms = 1_701_388_800_000; // 2023-12-01
    world.clock.set(end_ms - 3_100);
    warm_up(&world, &alice).await;
    world.clock.set(end_ms - 2);
    assert!(world.check(&alice).await.is_allowed());
    assert_eq!(world.calls(), 0, "a unit of a lease was spent");
    world.clock.set(end_ms);
    let decision = world.check(&alice).await;
    assert!(world.calls() > 0);
    assert_eq!(remaining(decision.usage()), [99_999]);
    world.return_unspent().await;
    assert_eq!(world.left(&alice[0]).await, [99_999]);
}

#[tokio::test]
async fn a_spent_unit_is_settled_like_any_other() {
    let (world, alice) = warm("100000/1m", 2).await;
    let limiter = &world.limiter;
    let decision = world.check(&alice).await;
    world.return_unspent().await;
    let left = world.left(&alice[0]).await[0];
    let settled = limiter.settle(decision.usage(), |_| 0).await.unwrap();
    assert_eq!(remaining(&settled), [left + 2]);
    let again = limiter.settle(decision.usage(), |_| 0).await;
    assert!(again.is_err(), "once");
    // The settled units are released together with the other units of the charge.
    world.pass(61_000_000);
    assert_eq!(world.left(&alice[0]).await, [100_000]);
}

/// Serves requests one at a time until one is denied, each settled to 5000 before the next begins. Returns the units.
async fn spend_metered(limiter: &Limiter, charges: &[Charge]) -> u64 {
    for requests in 0..1_000 {
        let decision = limiter.check(charges.to_vec()).await.unwrap();
        if !decision.is_allowed() {
            return 5_000 * requests;
        }
        others_run().await;
        let metered = |charge: &Charge| match charge.policy().name() {
            "tokens" => 5_000,
            _ => charge.cost(),
        };
        limiter.settle(decision.usage(), metered).await.unwrap();
    }
    panic!("none of a thousand requests is denied");
}

#[tokio::test]
async fn metered_costs_end_the_spending_with_leases_as_without() {
    let tokens = policy("tokens", "100000/1h");
    let requests = policy("requests", "1000000/1h");
    let one = [charge(&tokens, "alice", 1)];
    let both = [charge(&requests, "alice", 1), charge(&tokens, "alice", 1)];
    for charges in [&one[..], &both] {
        let world = World::new(1);
        let plain = support::limiter(world.memory.clone());
        for limiter in [&world.limiter, &plain] {
            for _ in 0..1_000 {
                world.pass(1_000);
                assert!(limiter.check(charges.to_vec()).await.unwrap().is_allowed());
                yield_now().await;
            }
            let units = 1_000 + spend_metered(limiter, charges).await;
            assert!((100_000..105_000).contains(&units), "{units}");
            limiter.reset(&tokens, charges[0].key()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_metered_policy_is_not_leased_nor_one_beside_it() {
    let tokens = policy("tokens", "100000000/1h");
    let requests = policy("requests", "1000000/1h");
    let world = World::new(1);
    let both = [charge(&requests, "alice", 1), charge(&tokens, "alice", 1)];
    warm_up(&world, &both).await;
    for _ in 0..500 {
        world.pass(1_000);
        let decision = world.check(&both).await;
        let raised = |charge: &Charge| charge.cost() + u64::from(charge.policy() == &tokens);
        let limiter = &world.limiter;
        limiter.settle(decision.usage(), raised).await.unwrap();
    }
    // One check and one settlement each, and the lease of the first check is returned.
    let calls = world.calls();
    assert!((999..1_003).contains(&calls), "{calls}");
    world.return_unspent().await;
    assert_eq!(world.left(&both[0]).await, [1_000_000 - 2_601]);
    assert_eq!(world.left(&both[1]).await, [100_000_000 - 3_101]);
}

#[tokio::test]
async fn a_check_with_a_charge_that_is_not_hot_is_decided_by_the_store() {
    let world = World::new(1);
    let (all, own) = (policy("all", "100000/1m"), policy("p", "1/1h"));
    let everybody = charge(&all, "everybody", 1);
    let names: Vec<&'static str> = (0..1_000).map(|it| &*format!("{it}").leak()).collect();
    for name in &names {
        world.pass(1_000);
        let both = [everybody.clone(), charge(&own, name, 1)];
        assert!(world.check(&both).await.is_allowed());
        assert_eq!(world.calls(), 1, "nothing is leased");
    }
    assert_eq!(world.left(&everybody).await, [100_000 - 1_000]);
    // Others lease that charge, and the store decides these checks all the same.
    warm_up(&world, std::slice::from_ref(&everybody)).await;
    let both = [everybody.clone(), charge(&own, "0", 1)];
    for _ in 0..50 {
        let Decision::Denied(denial) = world.check(&both).await else {
            panic!("it was admitted");
        };
        assert_eq!(denial.policy().name(), "p");
        assert_eq!(remaining(denial.usage())[1], 0);
    }
    assert_eq!(world.calls(), 50);
    world.return_unspent().await;
    assert_eq!(world.left(&everybody).await, [100_000 - 3_101]);
}

/// Two charges of alice under two policies.
fn two_charges(costs: [u64; 2]) -> [Charge; 2] {
    let all = policy("all", "200000/1m");
    [
        charge(&all, "alice", costs[0]),
        charge(&policy("p", "100000/1m"), "alice", costs[1]),
    ]
}

#[tokio::test]
async fn a_check_of_several_hot_charges_is_paid_as_a_whole() {
    let world = World::new(1);
    let both = two_charges([1, 2]);
    warm_up(&world, &both).await;
    let decision = world.check(&both).await;
    assert_eq!(world.calls(), 0);
    assert!(decision.is_allowed());
    world.return_unspent().await;
    assert_eq!(world.left(&both[0]).await, [200_000 - 2_102]);
    assert_eq!(world.left(&both[1]).await, [100_000 - 2 * 2_102]);
}

#[tokio::test]
async fn a_check_that_one_lease_cannot_pay_spends_nothing_of_the_others() {
    let world = World::new(1);
    warm_up(&world, &two_charges([1, 1])).await;
    let large = two_charges([1, 2_000]);
    let decision = world.check(&large).await;
    assert!(decision.is_allowed());
    assert!(world.calls() > 0, "the store has decided");
    let never = two_charges([1, 100_000]);
    for _ in 0..10 {
        assert!(!world.check(&never).await.is_allowed());
    }
    world.return_unspent().await;
    assert_eq!(world.left(&large[0]).await, [200_000 - 2_102]);
    assert_eq!(world.left(&large[1]).await, [100_000 - 2_101 - 2_000]);
}

/// How many checks of these charges a task admits, of so many.
async fn admitted(limiter: Limiter, charges: Vec<Charge>, checks: usize) -> usize {
    let mut admitted = 0;
    for index in 0..checks {
        let decision = limiter.check(charges.clone()).await.unwrap();
        admitted += usize::from(decision.is_allowed());
        if index % 8 == 0 {
            yield_now().await;
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_race_for_two_leases_charge_both_or_none() {
    let world = World::new(2);
    let tasks = (0..8).map(|task: usize| {
        let limiter = world.processes[task % 2].1.clone();
        let mut both = two_charges([1, 1]);
        if task % 4 < 2 {
            both.reverse();
        }
        tokio::spawn(admitted(limiter, both.into(), 2_000))
    });
    let mut total = 0;
    for task in tasks.collect::<Vec<_>>() {
        world.pass(20_000);
        total += task.await.unwrap();
    }
    assert_eq!(total, 16_000);
    world.return_unspent().await;
    for (charge, limit) in two_charges([1, 1]).iter().zip([200_000, 100_000]) {
        assert_eq!(world.left(charge).await, [limit - 16_000]);
    }
}

#[tokio::test]
async fn a_block_through_this_process_is_seen_at_once() {
    let (world, alice) = warm("100000/1m", 1).await;
    let limiter = world.limiter.clone();
    assert!(limiter.check(alice.clone()).await.unwrap().is_allowed());
    let key = user("alice");
    limiter.block(&key, MINUTE).await.unwrap();
    let decision = limiter.check(alice.clone()).await.unwrap();
    assert!(is_blocked(&decision));
    yield_now().await;
    assert_eq!(world.left(&alice[0]).await, [100_000 - 2_102]);
}

#[tokio::test]
async fn nothing_is_leased_near_the_limit_or_in_steps_too_short_or_for_who_is_not_hot() {
    for rules in [
        "31/1m",
        "100000/1m@exact",
        "100000/1m,5000/1s@1ms",
        "100000/1m@concurrent",
    ] {
        let world = World::new(1);
        let alice = [charge(&policy("p", rules), "alice", 1)];
        for _ in 0..100 {
            world.pass(100);
            world.check(&alice).await;
        }
        assert_eq!(world.calls(), 100, "{rules}");
    }
    let world = World::new(1);
    let alice = [charge(&policy("p", "100000/1m"), "alice", 1)];
    for _ in 0..100 {
        world.pass(150_000);
        world.check(&alice).await;
    }
    assert_eq!(world.calls(), 100);
}

#[tokio::test]
async fn a_clock_that_steps_far_back_admits_the_limit_once_more_at_most() {
    let world = World::new(2);
    let alice = [charge(&policy("p", "4000/1s@100ms"), "alice", 1)];
    for ahead_ms in [10_000, 0] {
        world.clock.set(START_MS + ahead_ms);
        let mut admitted = 0;
        for request in 0..9_000 {
            world.pass(100);
            let (_, limiter) = &world.processes[request % 2];
            admitted += u64::from(limiter.try_acquire(alice.clone()).await);
            others_run().await;
        }
        // Units that were leased before add nothing to that.
        assert_eq!(admitted, 4_000, "{ahead_ms}");
    }
}

#[tokio::test]
async fn while_the_store_fails_leased_units_are_spent_and_others_fail() {
    let world = World::new(1);
    let alice = charge(&policy("p", "100000/1m"), "alice", 1);
    let both = [alice.clone(), charge(&policy("p", "9/1h"), "bob", 1)];
    warm_up(&world, std::slice::from_ref(&alice)).await;
    world.holds.fails_checks.store(true, SeqCst);
    let limiter = &world.limiter;
    assert!(limiter.check(both.clone()).await.is_err());
    assert!(limiter.check([alice.clone()]).await.unwrap().is_allowed());
    world.holds.fails_checks.store(false, SeqCst);
    assert!(limiter.check(both).await.unwrap().is_allowed());
    world.calls();
    assert!(limiter.check([alice.clone()]).await.unwrap().is_allowed());
    assert_eq!(world.calls(), 0);
    world.return_unspent().await;
    // Failed checks charged nothing, or were refunded.
    assert_eq!(world.left(&alice).await, [100_000 - 2_104]);
}

#[tokio::test]
async fn nothing_is_leased_while_the_clock_of_the_store_is_behind() {
    let world = World::new(1);
    let alice = [charge(&policy("p", "100000/1m@10s"), "alice", 1)];
    let (store, clock) = (&world.memory, &world.clock);
    // Another charge was made while the clock was ahead.
    clock.set(START_MS + 30_000);
    let check = Check::new(alice.clone()).unwrap();
    store.check(&check).await.unwrap();
    clock.set(START_MS);
    for _ in 0..500 {
        assert!(world.admits(&alice).await);
    }
    assert!(world.calls() >= 500, "nothing is spent here");
    yield_now().await;
    let left = world.left(&alice[0]).await;
    assert_eq!(left, [100_000 - 501], "what was leased was returned");
}
