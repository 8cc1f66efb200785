//! Recorded and random histories. Compares each repeated refusal with the store's own decision.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use proptest::prelude::*;
use sluicegate::{MemoryStore, manual_clock::ManualClock, store::DenyCache};

use support::{
    history::{
        Act, Answer, Came, History, Player, START_MS, Step, calls, few_cases, move_clock, steady,
        steady_kinds,
    },
    model::Model,
    outcome::Outcome,
    vectors::{replay_all, replay_blocks, replay_kinds},
    verified::Verified,
};

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    (MemoryStore::new().clock(clock.clone()), clock)
}

#[tokio::test]
async fn a_cache_agrees_with_the_vectors() {
    let repeated: Arc<AtomicU64> = Arc::default();
    replay_all(async || {
        let (store, clock) = Verified::new(memory());
        (store.counting(&repeated), clock)
    })
    .await;
    assert!(repeated.load(Relaxed) > 100, "{repeated:?}");
    replay_kinds(async || Verified::new(memory())).await;
}

#[tokio::test]
async fn a_cache_agrees_with_the_vectors_of_blocks_and_bans() {
    let repeated: Arc<AtomicU64> = Arc::default();
    replay_blocks(async || {
        let (store, clock) = Verified::new(memory());
        (store.counting(&repeated), clock)
    })
    .await;
    assert!(repeated.load(Relaxed) > 10, "{repeated:?}");
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future);
}

/// The same history with a clock that goes forward. The cache notices a step back of the server's clock a second later.
fn forward(history: History) -> History {
    let steps = history.steps.into_iter().map(|step| Step {
        gap_ms: step.gap_ms.abs(),
        ..step
    });
    History {
        steps: steps.collect(),
        ..history
    }
}

/// Later charges may have made the store deny for longer, by other rules.
fn is_alike(said: &Outcome, right: &Outcome) -> bool {
    match (&said.denied, &right.denied) {
        (Some(said), Some(right)) => {
            let (said, right) = (said.retry_after_ms, right.retry_after_ms);
            right.is_none() || said.is_some_and(|it| it > 0 && Some(it) <= right)
        }
        _ => said == right,
    }
}

fn are_alike(said: &Came, right: &Came) -> bool {
    let (Came::Answers(said), Came::Answers(right)) = (said, right) else {
        return said == right;
    };
    let mut pairs = said.iter().zip(right);
    said.len() == right.len()
        && pairs.all(|pair| match pair {
            (Answer::Decided(said), Answer::Decided(right)) => {
                let mut pairs = said.iter().zip(right);
                said.len() == right.len()
                    && pairs.all(|((said, said_shadow), (right, right_shadow))| {
                        is_alike(said, right) && said_shadow == right_shadow
                    })
            }
            (said, right) => said == right,
        })
}

proptest! {
    #[test]
    fn a_cache_agrees_with_the_model(history in prop_oneof![steady(), steady_kinds()]) {
        block_on(async {
            let (store, clock) = Verified::new(memory());
            clock.set(history.start_ms);
            let (mut player, mut model) = (Player::new(&store, &history), Model::new(&history));
            for step in &history.steps {
                move_clock(&clock, step.gap_ms);
                // If both are denied, the second denial is repeated.
                let times = if matches!(step.act, Act::Check(_)) { 2 } else { 1 };
                for _ in 0..times {
                    let said = player.play(&step.act).await;
                    assert_eq!(said, model.play(clock.now_ms(), &step.act), "{step:?}");
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn a_call_refuses_what_the_store_refuses(history in calls()) {
        let history = forward(history);
        block_on(async {
            let (store, clock) = memory();
            let cache = DenyCache::new(store).clock(clock.clone());
            let other = MemoryStore::new().clock(clock.clone());
            let (mut cached, mut asking) = (Player::new(&cache, &history), Player::new(&other, &history));
            clock.set(history.start_ms);
            for (index, step) in history.steps.iter().enumerate() {
                move_clock(&clock, step.gap_ms);
                let (said, right) = (cached.come(&step.act).await, asking.come(&step.act).await);
                assert!(are_alike(&said, &right), "step {index}: {said:?}, and not {right:?}");
            }
        });
    }
}
