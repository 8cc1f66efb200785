//! Proves that a `DenyCache` around a `RedisStore` keeps the contract, and refuses no request that the server would
//! admit.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use proptest::prelude::*;

use sluicegate::manual_clock::ManualClock;
use support::{
    history::{Act, Player, few_cases, move_clock, steady},
    model::Model,
    redis::Server,
    served::{Served, fresh},
    vectors::{replay_all, replay_blocks, replay_kinds},
    verified::Verified,
};

support::contract!(new);
support::calls!(new);
support::contributors!(new);
support::denials!(new);
support::blocks!(new);
support::kinds!(new);

async fn new() -> (Verified<Served>, ManualClock) {
    Verified::new(Served::start().await)
}

#[tokio::test]
async fn a_cache_agrees_with_the_vectors() {
    let server = Server::start();
    let repeated: Arc<AtomicU64> = Arc::default();
    replay_all(async || {
        let (store, clock) = Verified::new(fresh(&server).await);
        (store.counting(&repeated), clock)
    })
    .await;
    assert!(repeated.load(Relaxed) > 100, "{repeated:?}");
    replay_kinds(async || Verified::new(fresh(&server).await)).await;
}

#[tokio::test]
async fn a_cache_agrees_with_the_vectors_of_blocks_and_bans() {
    let server = Server::start();
    replay_blocks(async || Verified::new(fresh(&server).await)).await;
}

#[test]
fn a_cache_agrees_with_the_model() {
    let server = Server::start();
    let runtime = support::runtime();
    proptest!(few_cases(), |(history in steady())| {
        runtime.block_on(async {
            let (store, clock) = Verified::new(fresh(&server).await);
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
    });
}
