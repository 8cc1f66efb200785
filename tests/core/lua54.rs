//! Proves that the script means the same in Lua 5.4 as in the Lua 5.1 of Redis.

use crate::common::{
    history::{
        Calls, History, Player, Spoiled, agree, calls, few_cases, large, same, spoiled_calls, wild,
    },
    lua::LuaServer,
    vectors::replay_all,
};
use proptest::prelude::*;
use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, RedisStore, test_util::TestClock};

fn store() -> (RedisStore, TestClock) {
    let clock = TestClock::new(0);
    let store = RedisStore::from_connection(LuaServer::new());
    (store.clock(clock.clone()), clock)
}

#[tokio::test]
async fn the_script_agrees_with_the_vectors() {
    replay_all(async || store()).await;
}

#[tokio::test]
async fn the_script_reads_the_servers_clock() {
    let limiter = Limiter::new(RedisStore::from_connection(LuaServer::new()));
    let policy = Policy::parse("p", "2/1h,3/1d").unwrap();
    let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    for admitted in [true, true, false] {
        assert_eq!(
            limiter.check(charge()).await.unwrap().is_allowed(),
            admitted
        );
    }
}

#[test]
fn the_script_agrees_with_the_memory_store_whatever_happens() {
    agrees(wild());
}

#[test]
fn the_script_agrees_with_the_memory_store_however_much_is_charged() {
    agrees(large());
}

#[test]
fn the_script_does_several_operations_in_one_call_as_the_memory_store_does_each_by_itself() {
    agrees_apart(calls());
}

#[test]
fn an_operation_on_a_value_that_cannot_be_read_fails_alone() {
    agrees_apart(spoiled_calls());
}

fn agrees_apart(histories: impl Strategy<Value = History>) {
    let runtime = runtime();
    proptest!(few_cases(), |(history in histories)| {
        let (server, clock) = (LuaServer::new(), TestClock::new(0));
        let script = RedisStore::from_connection(server.clone()).clock(clock.clone());
        let memory = MemoryStore::new().clock(clock.clone());
        let spoil = |policy: &str, key: &Key, spoiled: Spoiled| {
            let value = String::from_utf8_lossy(key.value());
            let name = format!("sluicegate:{{{}={value}}}:{policy}", key.kind());
            server.put(&name, match spoiled {
                Spoiled::WrongType => None,
                Spoiled::OtherVersion => Some(b"of another version\x02"),
                Spoiled::Garbage => Some(b"\x03 is not so long\x01"),
            });
        };
        let players = (
            Player::new(&script, &history).spoil(&spoil),
            Player::new(&memory, &history).calls(Calls::Apart),
        );
        runtime.block_on(same(players, &clock, &history));
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn agrees(histories: impl Strategy<Value = History>) {
    let runtime = runtime();
    proptest!(|(history in histories)| {
        let (script, clock) = store();
        let memory = MemoryStore::new().clock(clock.clone());
        runtime.block_on(agree(&script, &memory, &clock, &history));
    });
}
