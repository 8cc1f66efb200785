//! The names that most tests of this program use, and short ways to decide over a server.

use std::fmt::Display;
pub(crate) use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) use axum::body::Body;
pub(crate) use futures::future::join_all;
pub(crate) use http::{Request, Response, StatusCode};
pub(crate) use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer, RedisStore,
    Store, StoreError, Usage,
    block::{Block, BlockedBy, Until},
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{
        CallFuture, Check, CheckBatch, Leases, Operation, Reply, Settlement, Slots, StoreFuture,
    },
};
pub(crate) use support::{
    cluster::Cluster,
    contract::patient,
    example::{self, Example},
    history::START_MS,
    redis::Server,
    served::{BLOCKS_RIGHTS, LEAST_RIGHTS, Served, limited},
    sharing::wait,
    store_ext::StoreExt,
    vectors::replay_all,
};
pub(crate) use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
pub(crate) use tower::{Layer, ServiceExt, service_fn};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// More than a busy machine needs for an answer that is due at once, and less than any wait of a library.
pub(crate) const SOON: Duration = Duration::from_secs(1);

pub(crate) fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

pub(crate) fn api(rules: &str) -> Policy {
    policy("api", rules)
}

pub(crate) fn user(name: impl Display) -> Key {
    Key::new("user", format!("{name}"))
}

pub(crate) fn charge(policy: &Policy, name: impl Display, cost: u64) -> Charge {
    Charge::new(policy, user(name), cost)
}

/// A charge of one unit alone.
pub(crate) fn one(policy: &Policy, name: impl Display) -> [Charge; 1] {
    [charge(policy, name, 1)]
}

pub(crate) fn check(charges: impl IntoIterator<Item = Charge>) -> Check {
    Check::new(charges).unwrap()
}

/// The operation of a check of one unit.
pub(crate) fn ask(policy: &Policy, name: impl Display) -> Operation {
    Operation::Check(check(one(policy, name)))
}

pub(crate) async fn connect(server: &Server) -> RedisStore {
    RedisStore::connect(server.url()).await.unwrap()
}

/// A limiter with a separate connection, like another process.
pub(crate) async fn process(server: &Server) -> Limiter {
    patient(connect(server).await)
}

/// The decision about one unit.
pub(crate) async fn take(limiter: &Limiter, policy: &Policy, name: impl Display) -> Decision {
    limiter.check(one(policy, name)).await.unwrap()
}

pub(crate) fn is_blocked(decision: &Decision) -> bool {
    matches!(decision, Decision::Blocked(_))
}

/// The units that are left under the first rule.
pub(crate) fn remaining(usage: &Usage) -> u64 {
    usage.rules().next().unwrap().remaining()
}

pub(crate) async fn left(limiter: &Limiter, policy: &Policy, name: impl Display) -> u64 {
    remaining(&limiter.peek(one(policy, name)).await.unwrap())
}

/// The units that count now.
pub(crate) async fn used(limiter: &Limiter, policy: &Policy, name: impl Display) -> u64 {
    policy.rules()[0].limit() - left(limiter, policy, name).await
}

/// The kind of an error; `None` without one.
pub(crate) fn kind<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind())
}

/// Waits at most 20 s for a condition on which the store has to be asked. Returns the time that this took.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < 20 * SOON, "gave up waiting until {what}");
    }
    start.elapsed()
}

/// Serves each connection to a new address. Returns its URL.
pub(crate) async fn listen<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client));
        }
    });
    url
}

/// A server in cluster mode, alone.
pub(crate) fn node_with_all_slots() -> Server {
    // It ends right after the start if the second port is taken.
    let mut servers = std::iter::repeat_with(|| Server::with(&["--cluster-enabled", "yes"]));
    let server = servers.find(Server::answers).unwrap();
    let slots: String = (0..16_384).map(|slot| format!(" {slot}")).collect();
    server.run::<()>(&format!("CLUSTER ADDSLOTS{slots}"));
    wait("the node serves all slots", || {
        server
            .run::<String>("CLUSTER INFO")
            .contains("cluster_state:ok")
    });
    server
}

/// A server that executes no scripts until `go_on`, so that calls stay in flight.
pub(crate) struct Held<'a>(&'a Server);

impl<'a> Held<'a> {
    pub(crate) fn hold(server: &'a Server) -> Self {
        server.run::<()>("CLIENT PAUSE 60000 WRITE");
        Self(server)
    }

    pub(crate) fn go_on(self) {
        drop(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.run::<()>("CLIENT UNPAUSE");
    }
}
