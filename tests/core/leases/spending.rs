//! What is spent here, what is asked for, and what comes back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, Usage,
    block::{Block, BlockedBy, Until},
    store::{CallFuture, Check, Leases, Operation, Settlement, StoreFuture},
    test_util::TestClock,
};

use crate::common::history::START_MS;

/// Counts the calls, of any kind.
#[derive(Clone, Debug)]
struct Counting {
    store: MemoryStore,
    calls: Arc<AtomicUsize>,
}

impl Counting {
    fn count(&self) {
        self.calls.fetch_add(1, SeqCst);
    }
}

impl Store for Counting {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.count();
        self.store.check(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.count();
        self.store.settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.count();
        self.store.reset(policy, key)
    }

    fn block(&self, key: &Key, until: Until, by: BlockedBy) -> StoreFuture<Block> {
        self.count();
        self.store.block(key, until, by)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.count();
        self.store.call(operations)
    }
}

/// Several processes over one store.
struct World {
    clock: TestClock,
    store: Counting,
    processes: Vec<(Leases, Limiter)>,
}

impl World {
    fn new(processes: usize) -> Self {
        let clock = TestClock::new(START_MS);
        let store = Counting {
            store: MemoryStore::new().clock(clock.clone()),
            calls: Arc::default(),
        };
        let process = |_| {
            let leases = Leases::new(store.clone()).clock(clock.clone());
            (leases.clone(), Limiter::new(leases))
        };
        Self {
            processes: (0..processes).map(process).collect(),
            clock,
            store,
        }
    }

    async fn check(&self, process: usize, charges: &[Charge]) -> Decision {
        let limiter = &self.processes[process].1;
        let decision = limiter.check(charges.to_vec()).await.unwrap();
        // What is fetched in the background.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        decision
    }

    async fn admits(&self, process: usize, charges: &[Charge]) -> bool {
        self.check(process, charges).await.is_allowed()
    }

    /// What is left under each rule, in the store.
    async fn left(&self, charge: &Charge) -> Vec<u64> {
        let check = Check::new([Charge::new(charge.policy(), charge.key().clone(), 0)]).unwrap();
        let decision = self.store.store.check(&check).await.unwrap();
        remaining(decision.usage())
    }

    fn calls(&self) -> usize {
        self.store.calls.swap(0, SeqCst)
    }

    fn pass(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
    }
}

fn remaining(usage: &Usage) -> Vec<u64> {
    usage.rules().map(|it| it.remaining()).collect()
}

fn charge(policy: &Policy, key: &'static str, cost: u64) -> Charge {
    Charge::new(policy, Key::new("user", key), cost)
}

fn policy(rules: &str) -> Policy {
    Policy::parse("p", rules).unwrap()
}

#[tokio::test]
async fn a_hot_identity_costs_at_least_twenty_times_fewer_calls() {
    let world = World::new(1);
    let alice = [charge(&policy("100000/1m"), "alice", 1)];
    for _ in 0..20_000 {
        world.pass(200);
        assert!(world.admits(0, &alice).await);
    }
    let calls = world.calls();
    assert!(calls < 1_000, "{calls}");
    println!("{calls} calls for 20000 requests");
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit() {
    let world = World::new(2);
    let alice = [charge(&policy("5000/1h"), "alice", 1)];
    let mut admitted = 0;
    for index in 0..12_000 {
        world.pass(1_700);
        admitted += usize::from(world.admits(index % 2, &alice).await);
    }
    assert_eq!(admitted, 5_000);
    assert_eq!(world.left(&alice[0]).await, [0]);
    let calls = world.calls();
    println!("{calls} calls for 5000 units and 7000 denials");
}
