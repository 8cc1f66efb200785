//! Proves by random histories that the script and the memory store, two implementations of one arithmetic, agree.

use std::cell::RefCell;

use proptest::prelude::*;
use support::{history::*, served::fresh};

use crate::prelude::*;

/// The right answer, to the millisecond, at each step of the recorded histories, whether calls are shared or not.
#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors() {
    let server = Server::start();
    for in_flight in [4, 0] {
        let fresh = async || {
            let (store, clock) = fresh(&server).await;
            (store.in_flight(in_flight), clock)
        };
        replay_all(fresh).await;
    }
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
    agrees_in(&few_cases(), calls());
}

#[test]
fn the_redis_store_agrees_with_the_memory_store_about_all_kinds_of_rules() {
    agrees(wild_kinds());
}

#[test]
fn the_redis_store_takes_back_as_the_memory_store_does() {
    agrees(taken_back());
}

#[test]
fn the_redis_store_agrees_with_the_memory_store_about_renewals_in_calls_of_several_operations() {
    agrees_in(&few_cases(), calls_of_all_kinds());
}

/// The totals fit 16 bits. They have passed 65 536 when the clock steps back and the last step is no longer believed.
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
    let policy = policy("p", "1000000/65s@1s");
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
    agrees_in(&ProptestConfig::default(), histories);
}

fn agrees_in(config: &ProptestConfig, histories: impl Strategy<Value = History>) {
    let (server, runtime) = (Server::start(), support::runtime());
    proptest!(config.clone(), |(history in histories)| {
        runtime.block_on(async {
            let (redis, clock) = fresh(&server).await;
            let memory = MemoryStore::new().clock(clock.clone());
            agree(&redis, &memory, &clock, &history).await;
        });
    });
}

/// Lua takes the low 32 bits of a number of repetitions: of one far below 0, they can be millions.
#[test]
fn the_script_writes_no_more_steps_than_a_value_has_whichever_it_names_as_the_newest() {
    let (server, runtime) = (Server::start(), support::runtime());
    let raw = Raw(RefCell::new(server.connect()));
    let (store, clock) = runtime.block_on(fresh(&server));
    clock.set(START_MS);
    let policy = policy("p", "20/10s@1s");
    let take = || {
        runtime
            .block_on(store.check(&check(one(&policy, "changed"))))
            .unwrap()
    };
    take();
    let (name, mut value) = raw.value();
    clock.advance(Duration::from_secs(2));
    let ahead_ms = ((1_u64 << 32) - (1 << 20)) * 1_000;
    let newest_ms = clock.now_ms() / 1_000 * 1_000 + 1_000 + ahead_ms;
    value[30..36].copy_from_slice(&newest_ms.to_le_bytes()[..6]);
    raw.set(&name, &value);
    assert!(take().is_allowed());
    let (_, written) = raw.value();
    assert_eq!(written.len(), value.len());
}

/// A search among totals of which the last is cut must end: else the server answers no one any more.
#[test]
fn the_script_ends_whatever_length_a_value_names() {
    /// So far before the end, the first of two sections has the length of its totals.
    const LENGTH_BEFORE: usize = 2 + 2 * 16 - 12;
    let (server, runtime) = (Server::start(), support::runtime());
    let raw = Raw(RefCell::new(server.connect()));
    for (length, after) in (1..24_u8).flat_map(|it| [(it, 6_000), (it, 9_000), (it, 12_000)]) {
        let (store, clock) = runtime.block_on(fresh(&server));
        clock.set(START_MS);
        runtime.block_on(charged_each_second(&store, &clock, 6));
        let (name, mut value) = raw.value();
        let length_at = value.len() - LENGTH_BEFORE;
        assert_eq!(value[length_at..length_at + 4], [20, 0, 0, 0]);
        value[length_at] = length;
        raw.set(&name, &value);
        clock.advance(Duration::from_millis(after));
        let call = store.call(vec![fill(&["changed"], 30), fill(&["second"], 1)]);
        let replies = runtime.block_on(async {
            let patient = Duration::from_secs(10);
            timeout(patient, call).await.unwrap().unwrap()
        });
        assert!(replies[1].is_ok(), "{length}, {after} ms: {replies:?}");
        raw.ask::<()>(redis::cmd("DEL").arg(&name));
    }
}

/// Charges a key after each of so many gaps of a second.
async fn charged_each_second(store: &RedisStore, clock: &ManualClock, times: usize) {
    for _ in 0..times {
        clock.advance(SECOND);
        store.check(&of(&["changed"])).await.unwrap();
    }
}

fn of(names: &[&str]) -> Check {
    let policy = policy("p", "20/10s@1s,90/1m");
    check(names.iter().map(|name| charge(&policy, name, 1)))
}

fn fill(names: &[&str], count: u16) -> Operation {
    Operation::CheckBatch(CheckBatch::new(of(names), count))
}

struct Raw(RefCell<redis::Connection>);

impl Raw {
    fn ask<T: redis::FromRedisValue>(&self, cmd: &redis::Cmd) -> T {
        cmd.query(&mut *self.0.borrow_mut()).unwrap()
    }

    /// The name and the value of the only key to change.
    fn value(&self) -> (Vec<u8>, Vec<u8>) {
        let [name]: [Vec<u8>; 1] = self.ask(redis::cmd("KEYS").arg("*=changed}*"));
        let value = self.ask(redis::cmd("GET").arg(&name));
        (name, value)
    }

    fn set(&self, name: &[u8], value: &[u8]) {
        self.ask(redis::cmd("SET").arg(name).arg(value).arg("KEEPTTL"))
    }
}
