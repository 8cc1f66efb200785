//! Proves that the script has the same meaning in Lua 5.4 as in the Lua 5.1 of Redis.

use proptest::prelude::*;
use support::{history::*, lua::LuaServer, prelude::*, vectors::replay_all};

fn store() -> (RedisStore, ManualClock) {
    let clock = ManualClock::new(0);
    let store = LuaServer::new().store();
    (store.clock(clock.clone()), clock)
}

#[tokio::test]
async fn the_script_agrees_with_the_vectors() {
    replay_all(async || store()).await;
}

#[tokio::test]
async fn the_script_reads_the_servers_clock() {
    let limiter = support::limiter(LuaServer::new().store());
    let policy = policy("p", "2/1h,3/1d");
    let charge = || [charge(&policy, "alice", 1)];
    for admitted in [true, true, false] {
        assert_eq!(
            limiter.check(charge()).await.unwrap().is_allowed(),
            admitted
        );
    }
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

/// The script is compiled once for all histories.
fn agrees_apart(histories: impl Strategy<Value = History>) {
    let (server, runtime) = (LuaServer::new(), support::runtime());
    proptest!(few_cases(), |(history in histories)| {
        server.clear();
        let clock = ManualClock::new(0);
        let script = server.store().clock(clock.clone());
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
    let (server, runtime) = (LuaServer::new(), support::runtime());
    proptest!(|(history in histories)| {
        server.clear();
        let clock = ManualClock::new(0);
        let script = server.store().clock(clock.clone());
        let memory = MemoryStore::new().clock(clock.clone());
        runtime.block_on(agree(&script, &memory, &clock, &history));
    });
}
