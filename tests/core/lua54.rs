//! Proves that the script means the same in Lua 5.4 as in the Lua 5.1 of Redis.

use crate::common::{
    history::{History, agree, large, wild},
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

#[tokio::test]
async fn a_call_of_another_version_is_an_error_before_anything_is_done() {
    let server = LuaServer::new();
    let limiter = Limiter::new(RedisStore::from_connection(server.clone()));
    let policy = Policy::parse("p", "3/1h").unwrap();
    let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    limiter.check(charge()).await.unwrap();
    for version in [0, 2, 255] {
        let error = server.repeat_as_version(version).unwrap_err();
        assert!(error.to_string().contains("CALLVERSION"), "{error}");
    }
    server.repeat_as_version(1).unwrap();
    let decision = limiter.check(charge()).await.unwrap();
    assert_eq!(decision.usage().rules().next().unwrap().remaining(), 0);
}

#[test]
fn the_script_agrees_with_the_memory_store_whatever_happens() {
    agrees(wild());
}

#[test]
fn the_script_agrees_with_the_memory_store_however_much_is_charged() {
    agrees(large());
}

fn agrees(histories: impl Strategy<Value = History>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    proptest!(|(history in histories)| {
        let (script, clock) = store();
        let memory = MemoryStore::new().clock(clock.clone());
        runtime.block_on(agree(&script, &memory, &clock, &history));
    });
}
