//! The names that most tests of this program use, and short ways to decide over a server.

use std::fmt::Display;
pub(crate) use std::{
    net::SocketAddr,
    sync::{Weak, atomic::Ordering},
    time::Instant,
};

pub(crate) use axum::body::Body;
pub(crate) use support::{
    cluster::{Cluster, share_out},
    contract::patient,
    example::{self, Example},
    prelude::{kind_of as kind, *},
    proxy::{Proxy, Weather},
    redis::Server,
    served::{BLOCKS_RIGHTS, LEAST_RIGHTS, Served, limited},
    sharing::{not_tried, wait},
    stores::{self, pool},
    vectors::replay_all,
};
pub(crate) use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// More than a busy machine needs for an answer that is due at once, and less than any wait of a library.
pub(crate) const SOON: Duration = Duration::from_secs(1);

pub(crate) fn api(rules: &str) -> Policy {
    policy("api", rules)
}

pub(crate) fn user(name: impl Display) -> Key {
    Key::new("user", name.to_string())
}

pub(crate) fn charge(policy: &Policy, name: impl Display, cost: u64) -> Charge {
    Charge::new(policy, user(name), cost)
}

pub(crate) fn one(policy: &Policy, name: impl Display) -> [Charge; 1] {
    [charge(policy, name, 1)]
}

pub(crate) fn check(charges: impl IntoIterator<Item = Charge>) -> Check {
    Check::new(charges).unwrap()
}

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

pub(crate) async fn take(limiter: &Limiter, policy: &Policy, name: impl Display) -> Decision {
    limiter.check(one(policy, name)).await.unwrap()
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

/// The result, within this time at the latest.
pub(crate) async fn in_time<T>(most: Duration, answer: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let answer = answer.await;
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    answer
}

/// Waits at most 20 s for a condition on which the store has to be asked. Returns the time that this took.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < 20 * SOON, "gave up waiting until {what}");
    }
    start.elapsed()
}

/// The same for a condition of this process or of a server, which is looked at each millisecond.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) -> Duration {
    let holds = async || {
        sleep(Duration::from_millis(1)).await;
        holds()
    };
    until(what, holds).await
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

/// A server that answers so to the first bytes of a client. Returns its URL.
pub(crate) async fn replying(
    reply: impl Fn(&str) -> String + Clone + Send + Sync + 'static,
) -> String {
    listen(move |mut client| {
        let reply = reply.clone();
        async move {
            let mut bytes = [0; 65_536];
            while let Ok(length @ 1..) = client.read(&mut bytes).await {
                let answer = reply(&String::from_utf8_lossy(&bytes[..length]));
                client.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await
}

/// A server in cluster mode, alone.
pub(crate) fn node_with_all_slots() -> Server {
    let server = Server::node(|| Server::with(&["--cluster-enabled", "yes"]));
    share_out(&[&server], |_| 0);
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
