//! Proves that the inspector reads stored values as the script does, without a server: with the script in Lua 5.4.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use proptest::prelude::*;
use sluicegate::store::redis::inspect::{StoredValue, UnreadableValue};
use support::{
    history::*,
    lua::LuaServer,
    prelude::*,
    stored::{answers_as_the_memory_store, foretells_the_script, has_the_steps_of_the_model},
};

fn on_each(
    histories: impl Strategy<Value = History>,
    holds: &impl AsyncFn(&RedisStore, &ManualClock, &History),
) {
    let (server, runtime) = (LuaServer::new(), support::runtime());
    proptest!(few_cases(), |(history in histories)| {
        server.clear();
        let clock = ManualClock::new(0);
        let store = server.store().clock(clock.clone());
        runtime.block_on(holds(&store, &clock, &history));
    });
}

#[test]
fn a_stored_value_has_the_steps_of_the_model() {
    on_each(steady(), &has_the_steps_of_the_model);
}

#[test]
fn a_stored_value_answers_all_callers_as_the_memory_store_does_whatever_happens() {
    on_each(wild(), &answers_as_the_memory_store);
}

#[test]
fn a_stored_value_answers_as_the_memory_store_does_however_much_is_charged() {
    on_each(large(), &answers_as_the_memory_store);
}

#[test]
fn what_is_read_foretells_what_the_script_decides() {
    on_each(wild(), &foretells_the_script);
}

/// A value of two rules with queues of steps.
async fn written() -> (Vec<u8>, u64) {
    let (server, clock) = (LuaServer::new(), ManualClock::new(1_700_000_000_000));
    let limiter = support::limiter(server.store().clock(clock.clone()));
    let policy = policy("p", "100/1m,1000/1d@fixed");
    for _ in 0..5 {
        clock.advance(Duration::from_secs(3));
        let charge = charge(&policy, "alice", 2);
        limiter.check([charge]).await.unwrap();
    }
    let value = server.value("sluicegate:{user=alice}:p~1").unwrap();
    (value, clock.now_ms())
}

#[tokio::test]
async fn what_no_script_of_this_version_writes_cannot_be_read() {
    let (value, now_ms) = written().await;
    let read = StoredValue::read(&value).unwrap();
    let used: Vec<u64> = read.sections().iter().map(|it| it.used(now_ms)).collect();
    assert_eq!(used, [10, 10]);
    assert_eq!(read.sections()[0].steps(now_ms).len(), 5);
    assert!(read.expires_ms() > now_ms);

    let mut other = value.clone();
    *other.last_mut().unwrap() = 2;
    assert_eq!(
        StoredValue::read(&other).unwrap_err(),
        UnreadableValue::Malformed
    );
    for cut in 0..value.len() {
        let mut short = value[..cut].to_vec();
        assert!(StoredValue::read(&short).is_err(), "{cut}");
        short.extend_from_slice(&value[cut + 1..]);
        assert!(StoredValue::read(&short).is_err(), "without {cut}");
    }
    assert_eq!(
        StoredValue::read(b"").unwrap_err(),
        UnreadableValue::Malformed
    );
}

#[tokio::test]
async fn the_greeting_of_a_server_that_cannot_be_reached_is_an_error() {
    let no_longer_listens = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = no_longer_listens.local_addr().unwrap();
    drop(no_longer_listens);
    let store = RedisStore::connect_lazy(format!("redis://{address}/")).unwrap();
    let servers = store.inspector().servers().await.unwrap();
    let error = servers[0].greeting().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_proxy_that_hangs_up_has_no_greeting() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", proxy.local_addr().unwrap());
    let hangs_up = std::thread::spawn(move || {
        let mut client = proxy.accept().unwrap().0;
        let mut sent = [0; 1_024];
        // Answers the commands that a client sends about itself and waits for.
        loop {
            let count = client.read(&mut sent).unwrap();
            let commands = String::from_utf8_lossy(&sent[..count]);
            if count == 0 || commands.contains("HELLO") {
                return;
            }
            for _ in commands.matches('*') {
                client.write_all(b"+OK\r\n").unwrap();
            }
        }
    });
    let store = RedisStore::connect_lazy(url).unwrap();
    let servers = store.inspector().servers().await.unwrap();
    assert!(servers[0].greeting().await.unwrap().is_empty());
    hangs_up.join().unwrap();
}
