//! Proves by random histories that stores agree with a model that keeps every charge, and that the promise holds.

use proptest::prelude::*;
use support::{
    history::*,
    model::Model,
    prelude::*,
    promise::{admitted, assert_promise},
};

/// The limit of a clock: a bucket that settlements emptied by 2^52 units may refill for longer.
const MILLENNIUM_MS: u64 = 1_000 * 365 * 86_400_000;

fn block_on(future: impl Future<Output = ()>) {
    support::runtime().block_on(future);
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

/// Two stores do the same, of which one is about to be full.
fn two_agree(history: &History) {
    let (store, clock) = memory();
    let other = MemoryStore::new().capacity(64).clock(clock.clone());
    block_on(agree(&store, &other, &clock, history));
}

fn a_call_is_its_operations(history: &History) {
    let (store, clock) = memory();
    let other = MemoryStore::new().clock(clock.clone());
    let apart = Player::new(&other, history).calls(Calls::Apart);
    block_on(same((Player::new(&store, history), apart), &clock, history));
}

proptest! {
    #[test]
    fn the_memory_store_agrees_with_the_model(plain in steady(), any in steady_kinds()) {
        for history in [plain, any] {
            let (store, clock) = memory();
            block_on(agrees_with_the_model(&store, &clock, &history));
        }
    }

    #[test]
    fn two_memory_stores_agree_whatever_happens(plain in wild(), any in wild_kinds()) {
        two_agree(&plain);
        two_agree(&any);
    }

    #[test]
    fn no_span_of_a_window_holds_more_than_the_limit_with_leases_and_without(history in steady()) {
        let [(store, clock), (leased, other_clock)] = [memory(), memory()];
        let leases = support::leases(leased).clock(other_clock.clone());
        let stores: [(&dyn Store, _); 2] = [(&store, clock), (&leases, other_clock)];
        for (store, clock) in stores {
            block_on(async {
                assert_promise(&history, &admitted(&[store], &clock, &history).await);
            });
        }
    }

    #[test]
    fn retry_after_is_exact(plain in steady(), any in steady_kinds()) {
        for history in [plain, any] {
            let (store, clock) = memory();
            block_on(assert_retry_is_exact(&store, &clock, &history));
        }
    }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn a_call_does_what_its_operations_do_one_by_one(plain in calls(), any in calls_of_all_kinds()) {
        a_call_is_its_operations(&plain);
        a_call_is_its_operations(&any);
    }
}
