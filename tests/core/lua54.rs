//! Proves that the script has the same meaning in Lua 5.4 as in the Lua 5.1 of Redis.

use proptest::prelude::*;
use support::{
    history::{
        Act, Calls, History, Player, Spoiled, Step, agree, calls, calls_of_all_kinds, few_cases,
        key_of, large, move_clock, same, spoiled_calls, taken_back, wild, wild_kinds,
    },
    lua::LuaServer,
    prelude::*,
    vectors::{replay_all, replay_blocks, replay_kinds},
};

fn store() -> (RedisStore, ManualClock) {
    let clock = ManualClock::new(0);
    let store = RedisStore::from_connection(LuaServer::new());
    (store.clock(clock.clone()), clock)
}

mod blocks {
    support::blocks!(new);
    support::kinds!(new);

    async fn new() -> (
        sluicegate::RedisStore,
        sluicegate::manual_clock::ManualClock,
    ) {
        super::store()
    }
}

#[tokio::test]
async fn the_script_agrees_with_the_vectors() {
    replay_all(async || store()).await;
    replay_blocks(async || store()).await;
    replay_kinds(async || store()).await;
}

#[tokio::test]
async fn the_script_reads_the_servers_clock() {
    let limiter = support::limiter(RedisStore::from_connection(LuaServer::new()));
    let policy = policy("p", "2/1h,3/1d");
    let charge = || [charge(&policy, "alice", 1)];
    for admitted in [true, true, false] {
        assert_eq!(
            limiter.check(charge()).await.unwrap().is_allowed(),
            admitted
        );
    }
}

#[tokio::test]
async fn periods_are_found_however_far_the_servers_clock_is_ahead() {
    let server = LuaServer::new();
    let store = RedisStore::from_connection(server.clone());
    periods_are_found_however_far_the_clock_is_ahead(&server, &store).await;
}

/// The caller sends the periods around its own clock, and asks once more if the server's time is in none of them.
pub(super) async fn periods_are_found_however_far_the_clock_is_ahead(
    server: &LuaServer,
    store: &RedisStore,
) {
    for days in [0, 1, 3, 400] {
        server.clear();
        server.set_ahead(Duration::from_secs(days * 86_400));
        let hourly = policy("hourly", "5/1h");
        let quota = policy("quota", "5/day@UTC,7/year@Europe/Berlin");
        let check = |policy: &Policy| Check::new([charge(policy, "alice", 2)]).unwrap();
        let left =
            |usage: &Usage| -> Vec<u64> { usage.rules().map(|rule| rule.remaining()).collect() };
        // Only the second operation is repeated: the first is executed once.
        let both = [&hourly, &quota].map(|policy| Operation::Check(check(policy)));
        let replies = store.call(both.to_vec()).await.unwrap();
        let [Ok(Reply::Check(first)), Ok(Reply::Check(second))] = &replies[..] else {
            panic!("{days} days: {replies:?}");
        };
        assert_eq!(left(first.usage()), [3], "{days} days");
        assert_eq!(left(second.usage()), [3, 5], "{days} days");
        let settlement = Settlement::new(second.usage(), |_| 1).unwrap();
        assert_eq!(left(&store.settle(&settlement).await.unwrap()), [4, 6]);
        let both = Check::new([&hourly, &quota].map(|policy| charge(policy, "alice", 3)));
        let both = store.check(&both.unwrap()).await.unwrap();
        assert_eq!(left(both.usage()), [0, 1, 3]);
        // A response that outlives its periods.
        server.set_ahead(Duration::from_secs((days + 400) * 86_400));
        let settlement = Settlement::new(both.usage(), |_| 4).unwrap();
        let settled = store.settle(&settlement).await.unwrap();
        assert_eq!(left(&settled), [4, 4, 6], "{days} days");
    }
}

#[tokio::test]
async fn a_call_of_another_version_is_an_error_before_anything_is_done() {
    let policy = policy("p", "3/1h");
    let charge = || [charge(&policy, "alice", 1)];
    for clock in [None, Some(ManualClock::new(1_700_000_000_000))] {
        let server = LuaServer::new();
        let mut store = RedisStore::from_connection(server.clone());
        if let Some(clock) = clock {
            store = store.clock(clock);
        }
        let limiter = support::limiter(store);
        limiter.check(charge()).await.unwrap();
        for version in [0, 2, 127] {
            let error = server.repeat_as_version(version).unwrap_err();
            assert!(error.to_string().contains("CALLVERSION"), "{error}");
        }
        server.repeat_as_version(1).unwrap();
        let decision = limiter.check(charge()).await.unwrap();
        assert_eq!(remaining(decision.usage())[0], 0);
    }
}

#[test]
fn the_script_agrees_with_the_memory_store_whatever_happens() {
    agrees(prop_oneof![wild(), wild_kinds()]);
}

#[test]
fn the_script_takes_back_as_the_memory_store_does() {
    agrees(taken_back());
}

#[test]
fn the_script_agrees_with_the_memory_store_however_much_is_charged() {
    agrees(large());
}

#[test]
fn fills_and_shadows_in_one_call_agree_with_the_memory_store() {
    let runtime = support::runtime();
    proptest!(|(history in wild(), together in 1..5_usize)| {
        let (script, clock) = store();
        let memory = MemoryStore::new().clock(clock.clone());
        clock.set(history.start_ms);
        let mut version = 0;
        for (index, steps) in history.steps.chunks(together).enumerate() {
            move_clock(&clock, steps[0].gap_ms);
            let operations: Vec<Operation> = steps
                .iter()
                .filter_map(|step| operation(&history, &step.act, index, &mut version))
                .collect();
            let (said, right) = runtime.block_on(async {
                let said = script.call(operations.clone()).await.unwrap();
                (said, memory.call(operations.clone()).await.unwrap())
            });
            let (said, right): (Vec<_>, Vec<_>) =
                (said.iter().map(told).collect(), right.iter().map(told).collect());
            prop_assert_eq!(said, right, "step {} at {}: {:?}", index, clock.now_ms(), operations);
        }
    });
}

/// The policies in the middle are shadows. Every other check is a batch.
fn operation(history: &History, act: &Act, index: usize, version: &mut usize) -> Option<Operation> {
    let policy = |policy: usize| {
        let versions = &history.policies[policy];
        versions[*version % versions.len()].clone()
    };
    match act {
        Act::Check(charges) => {
            let charges = charges.iter().map(|&(which, key, cost)| {
                let policy = policy(which);
                let policy = if which == 1 { policy.shadow() } else { policy };
                Charge::new(&policy, key_of(key), cost)
            });
            let check = Check::new(charges).unwrap();
            Some(match index % 2 {
                0 => Operation::Check(check),
                _ => {
                    let count = u16::try_from(index % 17).unwrap();
                    Operation::CheckBatch(CheckBatch::new(check, count))
                }
            })
        }
        Act::Reset(which, key) => Some(Operation::Reset {
            policy: policy(*which),
            key: key_of(*key),
        }),
        Act::NextRules(_) => {
            *version += 1;
            None
        }
        Act::Settle(..)
        | Act::TakeBack(_)
        | Act::Renew(_)
        | Act::GiveBack(_)
        | Act::Call(_)
        | Act::Spoil(..) => None,
    }
}

/// The decisions of a reply, each with that of its shadows.
fn told(result: &Result<Reply, StoreError>) -> Vec<(Outcome, Option<Outcome>)> {
    let decisions = match result.as_ref().unwrap() {
        Reply::Check(decision) => std::slice::from_ref(decision),
        Reply::CheckBatch(decisions) => decisions,
        _ => &[],
    };
    let told = decisions.iter().map(|decision| {
        let shadow = decision.usage().shadow().map(Outcome::from);
        (Outcome::from(decision), shadow)
    });
    told.collect()
}

#[test]
fn totals_that_are_one_too_many_for_an_entry_are_counted() {
    for history in one_too_many_for_an_entry() {
        agrees(Just(history));
    }
}

/// A total of 65 536 is one too large for 16 bits.
pub(super) fn one_too_many_for_an_entry() -> [History; 2] {
    [16, 32].map(|bits| {
        let policy = policy("p", "9007199254740991/1m");
        let charges = [
            (0, 1 << bits),
            (2_000, 1),
            (2_000, 1),
            (57_000, 1),
            (2_000, 1),
        ];
        let steps = charges.map(|(gap_ms, cost)| Step {
            gap_ms,
            act: Act::Check(vec![(0, 0, cost)]),
        });
        History {
            start_ms: START_MS,
            policies: vec![vec![policy]],
            steps: steps.into(),
        }
    })
}

#[test]
fn the_script_does_several_operations_in_one_call_as_the_memory_store_does_each_by_itself() {
    agrees_apart(calls());
}

#[test]
fn the_script_does_renewals_in_one_call_with_others_as_the_memory_store_does_each_by_itself() {
    agrees_apart(calls_of_all_kinds());
}

#[test]
fn an_operation_on_a_value_that_cannot_be_read_fails_alone() {
    agrees_apart(spoiled_calls());
}

fn agrees_apart(histories: impl Strategy<Value = History>) {
    let runtime = support::runtime();
    proptest!(few_cases(), |(history in histories)| {
        let (server, clock) = (LuaServer::new(), ManualClock::new(0));
        let script = RedisStore::from_connection(server.clone()).clock(clock.clone());
        let memory = MemoryStore::new().clock(clock.clone());
        let spoil = |policy: &str, key: &Key, spoiled: Spoiled| {
            server.spoil(policy, key, spoiled);
        };
        let players = (
            Player::new(&script, &history).spoil(&spoil),
            Player::new(&memory, &history).calls(Calls::Apart),
        );
        runtime.block_on(same(players, &clock, &history));
    });
}

fn agrees(histories: impl Strategy<Value = History>) {
    let runtime = support::runtime();
    proptest!(|(history in histories)| {
        let (script, clock) = store();
        let memory = MemoryStore::new().clock(clock.clone());
        runtime.block_on(agree(&script, &memory, &clock, &history));
    });
}
