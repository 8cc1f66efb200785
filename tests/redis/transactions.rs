//! A store without scripts: the contract, and what transactions have to get right besides.

use std::sync::atomic::{AtomicU32, Ordering};

use bb8_redis::RedisConnectionManager;
use proptest::prelude::*;
use sluicegate::{
    MemoryStore, RedisStore, store::redis::transactions::TransactionStore, test_util::TestClock,
};

use crate::common::{
    history::{History, agree, calls, few_cases, large, wild},
    redis::Server,
    served::{Served, limited},
    vectors::{replay_all, replay_blocks},
};

mod without_rights_to_scripts {
    use super::start;

    crate::contract!(start);
    crate::calls!(start);
    crate::blocks!(start);
}

/// What the documentation of `store::redis::transactions` grants a user.
const RIGHTS: [&str; 8] = [
    "~sluicegate:*",
    "+watch",
    "+get",
    "+time",
    "+multi",
    "+set",
    "+del",
    "+exec",
];

type Pool = bb8::Pool<RedisConnectionManager>;

async fn pool(url: String) -> Pool {
    let pool = bb8::Pool::builder().max_size(8).test_on_check_out(false);
    let manager = RedisConnectionManager::new(url).unwrap();
    pool.build(manager).await.unwrap()
}

/// A store whose user has no other rights than it needs.
async fn start() -> (Served<Server, TransactionStore>, TestClock) {
    let server = Server::start();
    let clock = TestClock::new(0);
    let store = RedisStore::transactions(pool(limited(&server, &RIGHTS)).await);
    (Served::by(server, store.clock(clock.clone())), clock)
}

/// A store that has counted nothing yet, and its clock.
fn fresh(pool: &Pool) -> (TransactionStore, TestClock) {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let clock = TestClock::new(0);
    let prefix = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    let store = RedisStore::transactions(pool.clone()).prefix(&prefix);
    (store.clock(clock.clone()), clock)
}

#[tokio::test]
async fn transactions_agree_with_the_vectors() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    replay_all(async || fresh(&pool)).await;
    replay_blocks(async || fresh(&pool)).await;
}

#[test]
fn transactions_agree_with_the_memory_store_whatever_happens() {
    agrees(&ProptestConfig::default(), wild());
}

#[test]
fn transactions_agree_with_the_memory_store_however_much_is_charged() {
    agrees(&ProptestConfig::default(), large());
}

#[test]
fn transactions_agree_with_the_memory_store_about_calls_of_several_operations() {
    agrees(&few_cases(), calls());
}

fn agrees(config: &ProptestConfig, histories: impl Strategy<Value = History>) {
    let server = Server::start();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let pool = runtime.block_on(pool(server.url()));
    proptest!(config.clone(), |(history in histories)| {
        runtime.block_on(async {
            let (store, clock) = fresh(&pool);
            let memory = MemoryStore::new().clock(clock.clone());
            agree(&store, &memory, &clock, &history).await;
        });
    });
}
