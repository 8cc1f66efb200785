//! Proves that a deny cache around leases keeps the promises that each of them keeps alone.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use proptest::prelude::*;
use sluicegate::{
    Charge, Key, Limiter, MemoryStore, Policy,
    manual_clock::ManualClock,
    store::{DenyCache, Leases},
};

use support::{
    history::{START_MS, few_cases, hot, steady},
    promise::{admitted, assert_promise},
    vectors::{replay_all, replay_blocks, replay_kinds},
    verified::Verified,
};

mod matrix;

fn leased() -> (Leases, ManualClock) {
    let clock = ManualClock::new(START_MS);
    let store = MemoryStore::new().clock(clock.clone());
    (Leases::new(store).clock(clock.clone()), clock)
}

/// Two processes over one store.
fn two() -> ([DenyCache; 2], MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    let store = MemoryStore::new().clock(clock.clone());
    let process = || {
        let leases = Leases::new(store.clone()).clock(clock.clone());
        DenyCache::new(leases).clock(clock.clone())
    };
    ([process(), process()], store, clock)
}

/// Compares each repeated refusal with the decision of the store with leases.
mod contract {
    use super::{Leases, ManualClock, Verified, leased};

    support::contract!(apart new);
    support::calls!(new);
    support::contributors!(new);
    support::blocks!(new);
    support::kinds!(new);

    async fn new() -> (Verified<Leases>, ManualClock) {
        Verified::new(leased())
    }
}

/// Composed as in a service.
mod unverified {
    use super::{DenyCache, ManualClock, leased};

    support::contract!(apart new);
    support::calls!(new);
    support::contributors!(new);
    support::blocks!(new);

    async fn new() -> (DenyCache, ManualClock) {
        let (store, clock) = leased();
        (DenyCache::new(store).clock(clock.clone()), clock)
    }
}

mod the_other_way_round {
    use super::{DenyCache, Leases, ManualClock, MemoryStore, START_MS};

    support::contract!(apart new);
    support::calls!(new);
    support::contributors!(new);
    support::blocks!(new);

    async fn new() -> (Leases, ManualClock) {
        let clock = ManualClock::new(START_MS);
        let store = MemoryStore::new().clock(clock.clone());
        let cache = DenyCache::new(store).clock(clock.clone());
        (Leases::new(cache).clock(clock.clone()), clock)
    }
}

#[tokio::test]
async fn a_cache_around_leases_agrees_with_the_vectors() {
    let repeated: Arc<AtomicU64> = Arc::default();
    let store = async || {
        let (store, clock) = Verified::new(leased());
        (store.counting(&repeated), clock)
    };
    replay_all(store).await;
    replay_blocks(store).await;
    replay_kinds(store).await;
    assert!(repeated.load(Relaxed) > 100, "{repeated:?}");
}

fn block_on(future: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build();
    runtime.unwrap().block_on(future);
}

proptest! {
    #[test]
    fn no_span_of_a_window_holds_more_than_the_limit(history in steady()) {
        let ([first, second], _, clock) = two();
        block_on(async {
            assert_promise(&history, &admitted(&[&first, &second], &clock, &history).await);
        });
    }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn no_span_of_a_window_holds_more_than_the_limit_for_hot_identities(history in hot()) {
        let ([first, second], _, clock) = two();
        block_on(async {
            assert_promise(&history, &admitted(&[&first, &second], &clock, &history).await);
        });
    }
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_and_repeat_what_is_denied() {
    let ([first, second], store, clock) = two();
    let processes = [Limiter::new(first), Limiter::new(second)];
    let policy = Policy::parse("p", "5000/1h").unwrap();
    let alice = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    let (mut admitted, mut repeated) = (0, 0);
    for index in 0..20_000_usize {
        clock.advance(std::time::Duration::from_micros(900));
        let decision = processes[index % 2].check(alice()).await.unwrap();
        admitted += usize::from(decision.is_allowed());
        repeated += usize::from(decision.usage().is_cached());
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted, 5_000);
    assert!(repeated > 14_000, "{repeated}");
    let peeked = Limiter::new(store).peek(alice()).await.unwrap();
    assert_eq!(peeked.rules().next().unwrap().remaining(), 0);
}
