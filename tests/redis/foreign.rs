//! Values from other programs: each operation on such a value is answered, or fails alone.

use std::cell::RefCell;

use proptest::{collection::vec, prelude::*, sample::select};
use sluicegate::store::redis::inspect::StoredValue;
use support::lua::LuaServer;

use crate::prelude::*;

const NOW_MS: u64 = 1_700_000_000_000;

const NAME: &str = "sluicegate:{user=alice}:p~1";

/// A flag in the first number of a bucket's label.
const BUCKET: u64 = 1 << 47;

fn policies() -> Vec<Policy> {
    [
        "9/1m,20+10/1s@bucket",
        "20+10/1s@bucket",
        "20+10/1s@bucket,9/1h@fixed",
        "5+1/2s@bucket,9/1m",
    ]
    .map(|rules| policy("p", rules))
    .into()
}

fn put(bytes: &mut Vec<u8>, number: u64, size: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..size]);
}

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..30_u64,
        2 => 900..2_100_u64,
        3 => (0..200_000_u64).prop_map(|it| NOW_MS + 100_000 - it),
        1 => select(vec![1 << 16, 1 << 32, (1 << 47) - 1, 1 << 47, (1 << 48) - 1, (1 << 53) - 1, 1 << 53, (1 << 56) - 1]),
        1 => any::<u64>(),
    ]
}

fn labels() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        4 => Just((BUCKET + 1_000, 10)),
        3 => Just((1_000, 60_000)),
        2 => Just((BUCKET + 2_000, 1)),
        1 => Just((3_600_000, 0)),
        1 => (numbers(), numbers()),
        1 => (numbers().prop_map(|it| BUCKET + it % BUCKET), prop_oneof![Just(0), Just(1), numbers()]),
    ]
}

/// Values in the script's layout, with random numbers.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let section = (
        (numbers(), numbers(), numbers()),
        (numbers(), numbers(), numbers(), 0..4_u8),
        labels(),
        (0..3_u32, 0..3_u32),
    );
    (vec(section, 1..4), numbers(), numbers()).prop_map(|(sections, since, expires)| {
        let mut bytes = vec![u8::try_from(sections.len()).unwrap()];
        for it in &sections {
            put(&mut bytes, it.0.0, 7);
        }
        put(&mut bytes, since, 6);
        put(&mut bytes, expires, 6);
        for it in &sections {
            put(&mut bytes, it.0.1, 7);
        }
        for it in &sections {
            put(&mut bytes, it.1.0, 6);
            put(&mut bytes, it.1.1, 6);
            put(&mut bytes, it.1.2, 7);
            put(&mut bytes, u64::from(it.3.0 * 4), 4);
            put(&mut bytes, u64::from(it.3.1 * 4), 4);
            bytes.push(it.1.3);
            bytes.extend(vec![7; it.3.1 as usize * 4]);
        }
        for it in &sections {
            put(&mut bytes, it.2.0, 6);
            put(&mut bytes, it.2.1, 6);
        }
        bytes.push(1);
        bytes
    })
}

/// Stores the value before each operation. The other operations of the call succeed.
async fn play(
    store: &dyn Store,
    own: &Policy,
    others: &Policy,
    value: &[u8],
    put: &impl Fn(Option<&[u8]>),
) {
    put(None);
    let mut settlements = Vec::new();
    for cost in [5, 0] {
        let decision = store.check(&check(one(own, "alice"))).await.unwrap();
        let settlement = Settlement::new(decision.usage(), |_| cost).unwrap();
        settlements.push(vec![Operation::Settle(settlement)]);
    }
    let take = |policy, cost| Operation::Check(check([charge(policy, "alice", cost)]));
    let fill = Operation::CheckBatch(CheckBatch::new(check([charge(own, "alice", 2)]), 7));
    let calls = [
        vec![take(own, 1)],
        vec![take(own, 0)],
        vec![fill],
        vec![take(own, 1), take(others, 1), take(own, 1)],
    ];
    let bob = vec![ask(&policy("plenty", "1000000000/1d"), "bob")];
    for operations in calls.into_iter().chain(settlements) {
        put(Some(value));
        for _ in 0..2 {
            let call = [&bob[..], &operations, &bob].concat();
            let replies = store.call(call).await.unwrap();
            for reply in [&replies[0], &replies[replies.len() - 1]] {
                assert!(matches!(reply, Ok(Reply::Check(Decision::Allowed(_)))));
            }
            for error in replies.iter().filter_map(|it| it.as_ref().err()) {
                assert_eq!(error.kind(), StoreErrorKind::Protocol);
            }
        }
    }
}

/// The tool can also read the value.
fn look(value: &[u8]) {
    let Ok(value) = StoredValue::read(value) else {
        return;
    };
    for section in value.sections() {
        let fits_ms = section.fits_at_ms(NOW_MS, 20, 3);
        let _ = (section.used(NOW_MS), section.steps(NOW_MS), fits_ms);
        let _ = section.reset_at_ms(NOW_MS);
    }
}

#[test]
fn operations_on_any_value_are_answered_or_fail_alone() {
    let (server, runtime) = (Server::start(), support::runtime());
    let connection = RefCell::new(server.connect());
    let store = runtime.block_on(RedisStore::connect(server.url())).unwrap();
    let store = store.clock(ManualClock::new(NOW_MS));
    let pool = runtime.block_on(pool(server.url(), |it| it.max_size(1)));
    let transactions = RedisStore::transactions(pool);
    let transactions = transactions.clock(ManualClock::new(NOW_MS));
    let put = |value: Option<&[u8]>| {
        let cmd = match value {
            Some(value) => redis::Cmd::set(NAME, value),
            None => redis::Cmd::del(NAME),
        };
        cmd.exec(&mut *connection.borrow_mut()).unwrap();
    };
    proptest!(|(value in values(), own in select(policies()), others in select(policies()))| {
        for store in [&store as &dyn Store, &transactions] {
            runtime.block_on(play(store, &own, &others, &value, &put));
            let stored = redis::Cmd::get(NAME).query(&mut *connection.borrow_mut());
            let stored: Option<Vec<u8>> = stored.unwrap();
            look(&stored.unwrap_or_default());
        }
    });
    assert!(server.info("memory", "used_memory_peak") < 1 << 26);
}

#[test]
fn in_lua_5_4_too() {
    let runtime = support::runtime();
    proptest!(|(value in values(), own in select(policies()), others in select(policies()))| {
        let server = LuaServer::new();
        let store = server.store().clock(ManualClock::new(NOW_MS));
        let put = |value: Option<&[u8]>| match value {
            Some(value) => server.put(NAME, Some(value)),
            None => server.remove(NAME),
        };
        runtime.block_on(play(&store, &own, &others, &value, &put));
    });
}
