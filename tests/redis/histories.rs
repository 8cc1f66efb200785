//! Proves by random histories that the script and the memory store, two implementations of one arithmetic, agree.

use std::cell::{Cell, RefCell};

use proptest::{collection::vec, prelude::*, sample::Index};
use support::{
    history::*,
    served::fresh,
    stored::{foretells_the_script, has_the_steps_of_the_model},
    verified::{Verified, acts},
};

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

/// A limiter that caches denials denies no request that the server would admit.
#[test]
fn what_is_repeated_is_what_the_server_would_answer() {
    let (server, runtime) = (Server::start(), support::runtime());
    let repeated = Cell::new(0);
    proptest!(few_cases(), |(acts in acts())| {
        runtime.block_on(async {
            let mut verified = Verified::new(fresh(&server).await);
            verified.play(&acts).await;
            repeated.set(repeated.get() + verified.repeated);
        });
    });
    assert!(repeated.get() > 50, "{repeated:?}");
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

#[test]
fn what_is_read_foretells_what_the_server_decides() {
    let (server, runtime) = (Server::start(), support::runtime());
    let histories = (wild(), steady());
    proptest!(few_cases(), |((wild, steady) in histories)| {
        runtime.block_on(async {
            let (store, clock) = fresh(&server).await;
            foretells_the_script(&store, &clock, &wild).await;
            let (store, clock) = fresh(&server).await;
            has_the_steps_of_the_model(&store, &clock, &steady).await;
        });
    });
}

/// Another program has changed the value of a key. An operation on it succeeds or fails, and no other operation fails.
#[test]
fn a_value_with_changed_bytes_harms_no_other_operation_of_its_call() {
    let (server, runtime) = (Server::start(), support::runtime());
    let raw = Raw::new(&server);
    let changes = vec((any::<Index>(), any::<u8>()), 1..6);
    let (gaps, after) = (vec(0..4_000_u64, 1..12), 0..20_000_u64);
    proptest!(|(changes in changes, gaps in gaps, after in after, cut in 0..20_usize)| {
        let (store, clock) = runtime.block_on(fresh(&server));
        clock.set(START_MS);
        let settlements = runtime.block_on(charged_at(&store, &clock, &gaps));
        let (name, value) = raw.value();
        raw.set(&name, &changed(value, &changes, cut));
        clock.advance(Duration::from_millis(after));
        let mut operations = vec![
            fill(&["first"], 1),
            fill(&["first", "changed"], 1),
            fill(&["changed"], 7),
            fill(&["second"], 7),
        ];
        operations.extend(settlements);
        operations.push(fill(&["third"], 1));
        let last = operations.len() - 1;
        let replies = runtime.block_on(store.call(operations)).unwrap();
        raw.ask::<()>(redis::cmd("DEL").arg(&name));
        for error in replies.iter().filter_map(|reply| reply.as_ref().err()) {
            prop_assert_eq!(error.kind(), StoreErrorKind::Protocol);
        }
        for (place, expected) in [(0, 1), (3, 7), (last, 1)] {
            let Ok(Reply::CheckBatch(decisions)) = &replies[place] else {
                panic!("{:?}", replies[place]);
            };
            let admitted = decisions.iter().filter(|it| it.is_allowed()).count();
            prop_assert_eq!(admitted, expected, "operation {}", place);
        }
    });
}

/// Lua takes the low 32 bits of a number of repetitions: of one far below 0, they can be millions.
#[test]
fn the_script_writes_no_more_steps_than_a_value_has_whichever_it_names_as_the_newest() {
    let (server, runtime) = (Server::start(), support::runtime());
    let raw = Raw::new(&server);
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
    let raw = Raw::new(&server);
    for (length, after) in (1..24_u8).flat_map(|it| [(it, 6_000), (it, 9_000), (it, 12_000)]) {
        let (store, clock) = runtime.block_on(fresh(&server));
        clock.set(START_MS);
        runtime.block_on(charged_at(&store, &clock, &[1_000; 6]));
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

/// Charges a key after each of these gaps. Returns a settlement for each charge; half of them refund.
async fn charged_at(store: &RedisStore, clock: &ManualClock, gaps: &[u64]) -> Vec<Operation> {
    let mut settlements = Vec::new();
    for gap in gaps {
        clock.advance(Duration::from_millis(*gap));
        let decision = store.check(&of(&["changed"])).await.unwrap();
        let settlement = Settlement::new(decision.usage(), |_| 2 * (gap % 2)).unwrap();
        settlements.push(Operation::Settle(settlement));
    }
    settlements
}

/// The labels at the end stay, so that the script takes the value for one of the caller's.
fn changed(mut value: Vec<u8>, changes: &[(Index, u8)], cut: usize) -> Vec<u8> {
    let end = value.len() - 25;
    for (at, byte) in changes {
        value[at.index(end)] = *byte;
    }
    if cut < 5 {
        value.drain(end - cut..end);
    }
    value
}

fn of(names: &[&str]) -> Check {
    let policy = policy("p", "20/10s@1s,90/1m");
    check(names.iter().map(|name| charge(&policy, name, 1)))
}

fn fill(names: &[&str], count: u16) -> Operation {
    Operation::CheckBatch(CheckBatch::new(of(names), count))
}

/// A connection of another program.
struct Raw(RefCell<redis::Connection>);

impl Raw {
    fn new(server: &Server) -> Self {
        let client = redis::Client::open(server.socket_url()).unwrap();
        Self(RefCell::new(client.get_connection().unwrap()))
    }

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
