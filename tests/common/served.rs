//! A `RedisStore` together with the server that it needs.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

use sluicegate::{
    Decision, Key, Policy, RedisStore, Rule, Store, Usage,
    block::{Block, BlockedBy, Until},
    contributors::{Contribution, Contributors},
    store::{CallFuture, Check, ContributeFuture, Operation, Settlement, StoreFuture},
    test_util::TestClock,
};

use super::redis::Server;

#[derive(Debug)]
pub(crate) struct Served<T = Server, S = RedisStore> {
    store: S,
    _server: T,
}

/// What the documentation of `store::redis` grants a user.
pub(crate) const LEAST_RIGHTS: [&str; 8] = [
    "~sluicegate:*",
    "+evalsha",
    "+eval",
    "+time",
    "+get",
    "+set",
    "+setrange",
    "+del",
];

/// What it grants him besides, where charges name who contributes.
pub(crate) const CONTRIBUTORS_RIGHTS: [&str; 4] =
    ["+pexpire", "+zincrby", "+zrange", "+zremrangebyrank"];

impl Served {
    /// Like [`start`](Self::start), as a user who has no other than the least rights.
    pub(crate) async fn start_with_least_rights() -> (Self, TestClock) {
        Self::start_with(&LEAST_RIGHTS).await
    }

    /// The same, with those that contributors need.
    pub(crate) async fn start_with_contributors_rights() -> (Self, TestClock) {
        Self::start_with(&[&LEAST_RIGHTS[..], &CONTRIBUTORS_RIGHTS].concat()).await
    }

    async fn start_with(rights: &[&str]) -> (Self, TestClock) {
        let server = Server::start();
        let url = limited(&server, rights);
        let clock = TestClock::new(0);
        let store = RedisStore::connect(url).await.unwrap();
        let served = Self {
            store: store.clock(clock.clone()),
            _server: server,
        };
        (served, clock)
    }

    /// Starts a server, and a store over it that has a clock of its own.
    pub(crate) async fn start() -> (Self, TestClock) {
        let server = Server::start();
        let (store, clock) = fresh(&server).await;
        (Self::by(server, store), clock)
    }
}

impl Served {
    /// The same, over a store that shares no calls.
    pub(crate) async fn start_without_sharing() -> (Self, TestClock) {
        let server = Server::start();
        let (store, clock) = fresh(&server).await;
        (Self::by(server, store.in_flight(0)), clock)
    }
}

impl<T, S> Served<T, S> {
    pub(crate) fn by(server: T, store: S) -> Self {
        Self {
            store,
            _server: server,
        }
    }
}

/// Gives a user these rights and no other; answers the URL to log in by.
pub(crate) fn limited(server: &Server, rights: &[&str]) -> String {
    let rights = rights.join(" ");
    server.run::<()>(&format!("ACL SETUSER limiter reset on >sesame {rights}"));
    server.url().replace("//", "//limiter:sesame@")
}

/// Connects, however busy the machine is: an attempt is given up after half a second.
async fn connected(server: &Server) -> RedisStore {
    for _ in 0..20 {
        if let Ok(store) = RedisStore::connect(server.url()).await {
            return store;
        }
    }
    panic!("the server does not answer for ten seconds");
}

/// A store that has counted nothing yet, and its clock.
pub(crate) async fn fresh(server: &Server) -> (RedisStore, TestClock) {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let clock = TestClock::new(0);
    let store = connected(server).await;
    let prefix = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    (store.prefix(&prefix).clock(clock.clone()), clock)
}

impl<T: fmt::Debug + Send + Sync + 'static, S: Store> Store for Served<T, S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.store.settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    fn block(&self, key: &Key, until: Until, by: BlockedBy) -> StoreFuture<Block> {
        self.store.block(key, until, by)
    }

    fn ban(&self, key: &Key, strikes: Rule, until: Until) -> StoreFuture<Option<Block>> {
        self.store.ban(key, strikes, until)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        self.store.unblock(key)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.store.call(operations)
    }

    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        self.store.contribute(contributions)
    }

    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        self.store.contributors(policy, key)
    }
}
