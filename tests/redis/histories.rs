//! Proves by random histories that the script and the memory store, two implementations of one arithmetic, agree.

use proptest::prelude::*;
use sluicegate::{MemoryStore, Policy, RedisStore, test_util::TestClock};

use crate::common::{
    history::{
        Act, History, Player, START_MS, Step, agree, calls, few_cases, large, move_clock, wild,
    },
    outcome::Outcome,
    redis::Server,
    served::fresh,
};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

#[test]
fn the_redis_store_agrees_with_the_memory_store_whatever_happens() {
    agrees(wild());
}

#[test]
fn the_redis_store_agrees_with_the_memory_store_however_much_is_charged() {
    agrees(large());
}

#[test]
fn the_redis_store_agrees_with_the_memory_store_about_calls_of_several_operations() {
    agrees_in(few_cases(), calls());
}

/// 16 bits hold the totals; they have passed 65 536 when the clock steps back and the last step is not believed.
#[test]
fn totals_that_began_anew_are_counted_when_a_clock_steps_back() {
    let charges = [
        (0, 60_000),
        (5_000, 5_000),
        (62_500, 10_000),
        (1_500, 7),
        (51_000, 3),
        (-70_000, 1),
    ];
    let policy = Policy::parse("p", "1000000/65s@1s").unwrap();
    agrees(Just(History {
        start_ms: START_MS,
        policies: vec![vec![policy]],
        steps: charges
            .map(|(gap_ms, cost)| Step {
                gap_ms,
                act: Act::Check(vec![(0, 0, cost)]),
            })
            .into(),
    }));
}

fn agrees(histories: impl Strategy<Value = History>) {
    agrees_in(ProptestConfig::default(), histories);
}

fn agrees_in(config: ProptestConfig, histories: impl Strategy<Value = History>) {
    let (server, runtime) = (Server::start(), runtime());
    proptest!(config, |(history in histories)| {
        runtime.block_on(async {
            let (redis, clock) = fresh(&server).await;
            let memory = MemoryStore::new().clock(clock.clone());
            agree(&redis, &memory, &clock, &history).await;
        });
    });
}

#[test]
fn checks_in_one_call_are_decided_as_in_one_call_each() {
    let (server, runtime) = (Server::start(), runtime());
    proptest!(|(history in wild(), together in 1..6_usize)| {
        runtime.block_on(async {
            let (redis, clock) = fresh(&server).await;
            clock.set(history.start_ms);
            agree_together(&redis, &clock, &history, together).await;
        });
    });
}

async fn agree_together(redis: &RedisStore, clock: &TestClock, history: &History, together: usize) {
    let memory = MemoryStore::new().clock(clock.clone());
    let mut player = Player::new(&memory, history);
    for steps in history.steps.chunks(together) {
        move_clock(clock, steps[0].gap_ms);
        let (mut checks, mut right) = (Vec::new(), Vec::new());
        for step in steps {
            if let Act::Check(charges) = &step.act {
                checks.push(player.check_of(charges));
                right.extend(player.play(&step.act).await);
            }
        }
        let said = crate::common::calls::check_all(redis, checks).await;
        let said: Vec<Outcome> = said.iter().map(Outcome::from).collect();
        assert_eq!(said, right, "{steps:?}");
    }
}
