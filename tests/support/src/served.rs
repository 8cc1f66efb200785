//! A `RedisStore` together with a server.

use std::{
    fmt,
    sync::{Weak, atomic::Ordering},
};

use super::{prelude::*, redis::Server, sharing::shared};

#[derive(Debug)]
pub struct Served<T = Arc<Server>, S = RedisStore> {
    store: S,
    _server: T,
}

/// The rights that the documentation of `store::redis` gives a user.
pub const LEAST_RIGHTS: [&str; 11] = [
    "~sluicegate:*",
    "+evalsha",
    "+eval",
    "+time",
    "+get",
    "+getrange",
    "+exists",
    "+set",
    "+setrange",
    "+pexpireat",
    "+del",
];

/// More rights, to list blocks.
pub const BLOCKS_RIGHTS: [&str; 4] = ["+zadd", "+zrem", "+zremrangebyscore", "+zscan"];

/// More rights, for concurrency rules.
pub const SLOTS_RIGHTS: [&str; 7] = [
    "+zcount",
    "+zmscore",
    "+zrangebyscore",
    "+zrevrangebyscore",
    "+zadd",
    "+zrem",
    "+zremrangebyscore",
];

/// More rights, for charges with contributors.
pub const CONTRIBUTORS_RIGHTS: [&str; 4] = ["+pexpire", "+zincrby", "+zrange", "+zremrangebyrank"];

impl Served {
    /// Like [`start`](Self::start), for a user with only the least rights.
    pub async fn start_with_least_rights() -> (Self, ManualClock) {
        Self::start_with(&LEAST_RIGHTS).await
    }

    /// The same, with the rights for contributors.
    pub async fn start_with_contributors_rights() -> (Self, ManualClock) {
        Self::start_with(&[&LEAST_RIGHTS[..], &CONTRIBUTORS_RIGHTS].concat()).await
    }

    /// The same, with the rights for a list of blocks.
    pub async fn start_with_blocks_rights() -> (Self, ManualClock) {
        Self::start_with(&[&LEAST_RIGHTS[..], &BLOCKS_RIGHTS].concat()).await
    }

    async fn start_with(rights: &[&str]) -> (Self, ManualClock) {
        let server = shared_server();
        // By a manual clock, a key expires after a while, and not at a time.
        let rights = [rights, &["+pexpire"]].concat();
        let (url, prefix) = limited_apart(&server, &rights);
        let clock = ManualClock::new(0);
        let store = RedisStore::connect(url).await.unwrap();
        let store = store.prefix(&prefix).clock(clock.clone());
        (Self::by(server, store), clock)
    }

    /// An empty store over the shared server, with a separate clock.
    pub async fn start() -> (Self, ManualClock) {
        let server = shared_server();
        let (store, clock) = fresh(&server).await;
        (Self::by(server, store), clock)
    }

    /// The same, over a store that does not share calls.
    pub async fn start_without_sharing() -> (Self, ManualClock) {
        let server = shared_server();
        let (store, clock) = fresh(&server).await;
        (Self::by(server, store.in_flight(0)), clock)
    }
}

impl<T, S> Served<T, S> {
    pub fn by(server: T, store: S) -> Self {
        Self {
            store,
            _server: server,
        }
    }
}

/// The server of all tests that run now and change nothing in it. Each test has a separate prefix and separate users.
pub fn shared_server() -> Arc<Server> {
    static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    shared(&RUNNING, Server::start)
}

/// Gives a user these rights and no others. Returns the URL to log in with.
pub fn limited(server: &Server, rights: &[&str]) -> String {
    limited_as("limiter", server, rights)
}

/// The same for a new user each time, with a separate prefix that rights to `sluicegate:*` allow.
pub fn limited_apart(server: &Server, rights: &[&str]) -> (String, String) {
    static USERS: AtomicU32 = AtomicU32::new(0);
    let user = format!("limiter-{}", USERS.fetch_add(1, Ordering::Relaxed));
    let url = limited_as(&user, server, rights);
    (url, format!("sluicegate:{user}"))
}

fn limited_as(user: &str, server: &Server, rights: &[&str]) -> String {
    let rights = rights.join(" ");
    server.run::<()>(&format!("ACL SETUSER {user} reset on >sesame {rights}"));
    server.url().replace("//", &format!("//{user}:sesame@"))
}

/// Connects on a busy machine: an attempt fails after half a second, so try again.
async fn connected(server: &Server) -> RedisStore {
    for _ in 0..20 {
        if let Ok(store) = RedisStore::connect(server.socket_url()).await {
            return store;
        }
    }
    panic!("the server does not answer for ten seconds");
}

/// An empty store and a clock. The store uses the socket, since random histories make many calls.
pub async fn fresh(server: &Server) -> (RedisStore, ManualClock) {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let clock = ManualClock::new(0);
    let store = connected(server).await;
    let prefix = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    (store.prefix(&prefix).clock(clock.clone()), clock)
}

impl<T: fmt::Debug + Send + Sync + 'static, S: Store> Store for Served<T, S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.store.execute(operation)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.store.call(operations)
    }
}
