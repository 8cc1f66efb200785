//! Proves by random histories that stores agree with a model that keeps every charge, and that the promise holds.

use proptest::prelude::*;
use support::{
    history::{
        Calls, History, Player, agree, calls, calls_of_all_kinds, few_cases, move_clock, same,
        steady, steady_kinds, wild, wild_kinds,
    },
    model::Model,
    prelude::*,
    promise::{admitted, assert_promise},
};

/// The limit of a clock: a bucket that settlements emptied by 2^52 units may refill for longer.
const MILLENNIUM_MS: u64 = 1_000 * 365 * 86_400_000;

fn block_on(future: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build();
    runtime.unwrap().block_on(future);
}

async fn agrees_with_the_model(store: &dyn Store, clock: &ManualClock, history: &History) {
    clock.set(history.start_ms);
    let (mut player, mut model) = (Player::new(store, history), Model::new(history));
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let now_ms = clock.now_ms();
        let (said, right) = (player.play(&step.act).await, model.play(now_ms, &step.act));
        assert_eq!(said, right, "step {index} at {now_ms}: {step:?}");
    }
}

/// A check exactly `retry_after` later is admitted, and one a millisecond earlier is denied.
async fn assert_retry_is_exact(store: &dyn Store, clock: &ManualClock, history: &History) {
    let mut player = Player::new(store, history);
    clock.set(history.start_ms);
    for step in &history.steps {
        move_clock(clock, step.gap_ms);
        let outcome = player.play(&step.act).await;
        let denied = outcome.and_then(|outcome| outcome.denied);
        let retry_after_ms = denied.and_then(|denied| denied.retry_after_ms);
        if let Some(retry_after_ms) = retry_after_ms.filter(|ms| *ms < MILLENNIUM_MS) {
            clock.advance(ms(retry_after_ms - 1));
            let early = player.play(&step.act).await.unwrap();
            assert_eq!(early.denied.unwrap().retry_after_ms, Some(1));
            clock.advance(ms(1));
            assert_eq!(player.play(&step.act).await.unwrap().denied, None);
        }
    }
}

proptest! {
    #[test]
    fn the_memory_store_agrees_with_the_model(history in steady()) {
        let (store, clock) = memory();
        block_on(agrees_with_the_model(&store, &clock, &history));
    }

    #[test]
    fn the_memory_store_agrees_with_the_model_about_all_kinds_of_rules(history in steady_kinds()) {
        let (store, clock) = memory();
        block_on(agrees_with_the_model(&store, &clock, &history));
    }

    #[test]
    fn two_memory_stores_agree_about_all_kinds_of_rules(history in wild_kinds()) {
        let (store, clock) = memory();
        let other = MemoryStore::new().capacity(64).clock(clock.clone());
        block_on(agree(&store, &other, &clock, &history));
    }

    #[test]
    fn two_memory_stores_agree_whatever_happens(history in wild()) {
        let (store, clock) = memory();
        let other = MemoryStore::new().capacity(64).clock(clock.clone());
        block_on(agree(&store, &other, &clock, &history));
    }

    #[test]
    fn no_span_of_a_window_holds_more_than_the_limit(history in steady()) {
        let (store, clock) = memory();
        block_on(async {
            assert_promise(&history, &admitted(&[&store], &clock, &history).await);
        });
    }

    #[test]
    fn no_span_of_a_window_holds_more_than_the_limit_with_leases(history in steady()) {
        let (store, clock) = memory();
        let leases = support::leases(store).clock(clock.clone());
        block_on(async {
            assert_promise(&history, &admitted(&[&leases], &clock, &history).await);
        });
    }

    #[test]
    fn retry_after_is_exact_for_all_kinds_of_rules(history in steady_kinds()) {
        let (store, clock) = memory();
        block_on(assert_retry_is_exact(&store, &clock, &history));
    }

    #[test]
    fn retry_after_is_exact(history in steady()) {
        let (store, clock) = memory();
        block_on(assert_retry_is_exact(&store, &clock, &history));
    }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn a_call_does_what_its_operations_do_one_by_one_under_all_kinds_of_rules(
        history in calls_of_all_kinds()
    ) {
        let (store, clock) = memory();
        let other = MemoryStore::new().clock(clock.clone());
        let apart = Player::new(&other, &history).calls(Calls::Apart);
        block_on(same((Player::new(&store, &history), apart), &clock, &history));
    }

    #[test]
    fn a_call_does_what_its_operations_do_one_by_one(history in calls()) {
        let (store, clock) = memory();
        let other = MemoryStore::new().clock(clock.clone());
        let apart = Player::new(&other, &history).calls(Calls::Apart);
        block_on(same((Player::new(&store, &history), apart), &clock, &history));
    }
}
