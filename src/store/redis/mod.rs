//! [`RedisStore`]: one truth for all replicas, in Redis or Valkey.
//!
//! Each (policy, key) has one Redis key, and a check is one call of one script: one read, and at most one write, per key. A
//! refused check writes nothing. The server's clock decides.
//!
//! ```
//! use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, RedisStore};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = RedisStore::connect_lazy("redis://127.0.0.1:1/")?.prefix("shop").secret("from your configuration");
//! let limiter = Limiter::new(store);
//! let policy = Policy::parse("api", "10/1s,120/1m")?;
//! let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
//!
//! // Nobody listens at port 1, so the failure policy decides, at once.
//! assert!(limiter.check(charge()).await.is_err());
//! assert!(limiter.try_acquire(charge()).await);
//! assert!(!limiter.on_failure(FailurePolicy::Closed).try_acquire(charge()).await);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What stands in Redis
//!
//! Names are `<prefix>:{<kind>=<token>}:<policy>`, for instance `sluicegate:{ip=203.0.113.7}:api`. The token is the key's
//! value if that is short and plain; if it is long, strange or [secret](Key::secret), a keyed hash of it.
//!
//! Every key has a TTL that covers its longest live section. Give the limiter a server or database of its own, with
//! `maxmemory-policy noeviction` or `volatile-ttl`: a key that is evicted is a limit that starts anew.
//!
//! # The least rights
//!
//! A user needs these and no other, with the store's [prefix](RedisStore::prefix) in the place of `sluicegate`:
//!
//! ```text
//! ACL SETUSER limiter reset on >PASSWORD ~sluicegate:* +evalsha +eval +time +get +set +setrange +del
//! ```
//!
//! and `+role` where sentinels name the server. At a sentinel, `+sentinel|get-master-addr-by-name` is enough.
//!
//! # TLS
//!
//! With the feature `tls`, `rediss://` URLs are understood, and the system's authorities trusted. For an authority or a client
//! certificate of your own, build the `redis::Client`:
//!
//! ```no_run
//! # #[cfg(feature = "tls")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use redis::{Client, ClientTlsConfig, TlsCertificates};
//! use sluicegate::RedisStore;
//!
//! let certificates = TlsCertificates {
//!     root_cert: Some(std::fs::read("ca.pem")?),
//!     client_tls: Some(ClientTlsConfig {
//!         client_cert: std::fs::read("limiter.pem")?,
//!         client_key: std::fs::read("limiter.key")?,
//!     }),
//! };
//! let client = Client::build_with_tls("rediss://limiter:password@redis.example:6379", certificates)?;
//! let store = RedisStore::connect(client.get_connection_info().clone()).await?;   // or, lazily: RedisStore::from(client)
//! # Ok(())
//! # }
//! ```
//!
//! A server that cannot be trusted, or is not who the URL says, is [`Refused`](crate::error::StoreErrorKind::AccessDenied): by `connect`
//! when the service starts, and by each check of a store that was made lazily. A server that speaks no TLS at that port just
//! does not answer.
//!
//! redis-rs uses the process's `rustls` provider of cryptography. When the first store for a `rediss://` URL is made and the
//! process has none, `ring` becomes it; install another before, if you would rather. A manager or pool that you connect
//! yourself needs one installed.
//!
//! # Sentinel and replication
//!
//! With the feature `sentinel`, [`RedisStore::sentinel`] asks sentinels for the primary whenever it connects: all at once, so
//! that one which hangs or is gone costs nothing while others answer. The address that most of them name is tried first, and
//! must say that it is a primary. A connection is made anew when its server says that it is a replica (`READONLY`) or lacks
//! replicas (`NOREPLICAS`), is mute for half a second or ends; and, asked once a second while there are requests, when most
//! sentinels name another. In the tests of the crate decisions are normal again within a second after a promotion.
//!
//! A store over a URL does the same without asking: it connects anew to that name, which DNS or a proxy may lead elsewhere.
//!
//! **What can be lost.** Redis replicates asynchronously. What a primary admitted and its successor has not heard of is
//! forgotten, and so may be admitted once more, never more often for each failover:
//!
//! - *The primary dies or hangs:* what it admitted within the last replication lag, some milliseconds where replicas keep up
//!   (`INFO replication` tells).
//! - *It is cut off from its replicas and sentinels, but not from your services:* what it admits from then on, until the
//!   sentinels have promoted another (`down-after-milliseconds` and the time for an election) and a second more, if the
//!   services reach most of the sentinels. If they do not, until the primary stops by itself: set `min-replicas-to-write 1` and
//!   `min-replicas-max-lag 1` on all servers, and it refuses after two seconds, by the failure policy.
//!
//! A charge that was lost like this, or reset, or evicted, can still be settled. What is then given back is taken from what
//! others charged in the same step, as far as there is any: up to as much as was lost may be admitted once more.
//!
//! A primary that restarts empty and is faster than its sentinels has lost everything: keep `down-after-milliseconds` below
//! the time that a restart takes, or persistence on.
//!
//! # On a cluster
//!
//! `RedisStore::cluster` (feature `cluster`) follows a Redis Cluster: a connection for each primary, and a look at the topology
//! as soon as a node refuses, hangs up or stays mute. A node in trouble costs its own slots alone.
//!
//! A script reaches the keys of one slot, and no more: that is what a cluster's nodes share nothing for. The slot follows from
//! what stands in the braces, the identity. So
//!
//! - all policies of *one* identity are decided **in one atomic step**, as on one server;
//! - a check of *several* identities is one call for each slot, at the same time, and if one refuses or fails, what the others
//!   admitted is settled to 0. **Never more than the limit is admitted**, and a refusal leaves nothing charged. But until
//!   that is settled, for one round trip, it counts: a request at the same time may be refused that would have fitted. A
//!   refusal by one is the answer though a node of another is in trouble, of which it then tells nothing;
//! - each node's own clock decides for its keys.
//!
//! What is settled back is settled in a task of its own, also when the caller has left, and given up after a second. Two things
//! can stay charged then, until their steps are released: a part whose node was lost after it had admitted, and a part that
//! was executed but whose answer was lost. Both err on the side of too few.
//!
//! A command that a redirect (`MOVED`, `ASK`), a slot on its way (`TRYAGAIN`) or a node out of service refused is sent on, since
//! it was not executed. One whose connection was lost is not: it may have been. While the keys of a slot are on their way,
//! an identity with several policies may not be decidable for a moment, since its keys are in two places; the failure policy
//! speaks then.
//!
//! A replica knows what its primary told it: what was charged in the last moments before a failover may be forgotten. Set
//! `cluster-require-full-coverage no`, or all slots wait while one has no primary. With ACLs the user needs `CLUSTER SLOTS` and
//! `ASKING` beside the script's own.
//!
//! # Behind twemproxy
//!
//! twemproxy sends a whole call to the server of its first key, and does not say so when others belong elsewhere. So all keys of
//! a service must stand at one server: let its prefix be the hash tag, `store.prefix("<shop>")`, in a pool like this one.
//!
//! ```yaml
//! limits:
//!   listen: 127.0.0.1:22121
//!   redis: true
//!   hash: murmur             # the default spreads similar names badly
//!   hash_tag: "<>"
//!   auto_eject_hosts: false  # else a server that is away moves its keys, and their limits start anew
//!   timeout: 100             # else all wait behind a server that is mute
//!   servers:
//!    - 10.0.0.1:6379:1
//!    - 10.0.0.2:6379:1
//! ```
//!
//! Where no check charges more than one identity, `hash_tag: "{}"` spreads identities over the servers, whatever the prefix.
//! Let the limiter [ask for every request](crate::Limiter::probe_interval), since one of the servers may be away and the others not.
//!
//! A URL or a `Client` works as it is. A pool or a manager must be told to keep silent, because the proxy hangs up on commands that it
//! does not know: [`RedisConnectionInfo::set_skip_set_lib_name`](redis::RedisConnectionInfo::set_skip_set_lib_name). Users, databases
//! and RESP3 are not for proxies.

use std::sync::Arc;

use redis::{RedisError, Value};

use crate::{
    check::Check,
    decision::{Decision, Usage},
    error::{StoreError, StoreErrorKind},
    key::Key,
    operation::{Operation, Reply},
    policy::Policy,
    settlement::Settlement,
    store::{CallFuture, Store, StoreFuture},
};

#[cfg(feature = "cluster")]
mod cluster;
mod connect;
mod error;
mod keeper;
mod link;
mod names;
#[cfg(feature = "bb8")]
mod pool;
mod pulse;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

use error::store_error;
use link::Link;
use names::Names;
use script::Call;
#[cfg(feature = "sentinel")]
pub use sentinel::Primary;

/// Keeps the counts in Redis, so that all replicas of a service share them; cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisStore {
    link: Link,
    names: Arc<Names>,
    #[cfg(feature = "test-util")]
    clock: Option<crate::test_util::TestClock>,
}

impl RedisStore {
    fn over(link: Link) -> Self {
        Self {
            link,
            names: Arc::new(Names::new("sluicegate")),
            #[cfg(feature = "test-util")]
            clock: None,
        }
    }

    /// Sets what the names of all keys begin with. The default is `sluicegate`.
    ///
    /// Services with different prefixes share nothing.
    ///
    /// # Panics
    ///
    /// When the prefix has a space, a brace, or a character that is not printable ASCII, or more than 48 characters.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        Arc::make_mut(&mut self.names).prefix(prefix);
        self
    }

    /// Sets the secret that keys the hashes of identities, of any length and the same for all replicas.
    ///
    /// Without one the hashes still hide long random values such as API keys, but whoever can read the server may find
    /// short ones, such as e-mail addresses, by trying. Another secret starts all hashed identities anew.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        Arc::make_mut(&mut self.names).secret(secret.as_ref());
        self
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(mut self, clock: crate::test_util::TestClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Decides several checks in one call of the script, each all or nothing on its own, in this order.
    ///
    /// Cheaper than one call each, for those who have many checks at hand. The server does nothing else meanwhile, for some
    /// 4 to 8 µs a check: hundreds are welcome, tens of thousands are better split. On a cluster it is one call for each
    /// slot, checks of [several slots](self#on-a-cluster) are decided one by one, and the order is kept among the checks of
    /// one slot.
    ///
    /// The first error is one for all: what has been decided stays charged. [`call`](Store::call) answers one by one.
    pub fn check_batch(&self, checks: impl Into<Vec<Check>>) -> StoreFuture<Vec<Decision>> {
        let checks = checks.into();
        #[cfg(feature = "cluster")]
        if let Some(answer) = self.check_batch_apart(&checks) {
            return answer;
        }
        self.check_batch_at_once(checks)
    }

    fn check_batch_at_once(&self, checks: Vec<Check>) -> StoreFuture<Vec<Decision>> {
        let call = self.call_at_once(checks.into_iter().map(Operation::Check).collect());
        StoreFuture::pending(async move { call.await?.into_iter().map(decision).collect() })
    }

    fn check_at_once(&self, check: &Check) -> StoreFuture<Decision> {
        let call = self.call_at_once(vec![Operation::Check(check.clone())]);
        StoreFuture::pending(async move { decision(only(call.await?)) })
    }

    fn settle_at_once(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        let call = self.call_at_once(vec![Operation::Settle(settlement.clone())]);
        StoreFuture::pending(async move {
            match only(call.await?)? {
                Reply::Settle(usage) => Ok(usage),
                _ => Err(another_reply()),
            }
        })
    }

    /// Does these operations one after another.
    #[cfg(feature = "cluster")]
    fn call_apart(&self, operations: Vec<Operation>) -> CallFuture {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut results = Vec::with_capacity(operations.len());
            for operation in operations {
                results.push(match operation {
                    Operation::Check(check) => store.check(&check).await.map(Reply::Check),
                    Operation::Settle(it) => store.settle(&it).await.map(Reply::Settle),
                    Operation::Fill { check, count } => {
                        let mut fill = Ok(Vec::new());
                        for _ in 0..count {
                            if let Ok(decisions) = &mut fill {
                                match store.check(&check).await {
                                    Ok(decision) => decisions.push(decision),
                                    Err(error) => fill = Err(error),
                                }
                            }
                        }
                        fill.map(Reply::Fill)
                    }
                    reset @ Operation::Reset { .. } => {
                        match store.call_at_once(vec![reset]).await {
                            Ok(results) => only(results),
                            Err(error) => Err(error),
                        }
                    }
                });
            }
            Ok(results)
        })
    }

    /// Does these operations in one call of the script; on a cluster their keys have to share a slot.
    fn call_at_once(&self, operations: Vec<Operation>) -> CallFuture {
        let call = Call::new(&self.names, self.now_ms(), &operations);
        let link = self.link.clone();
        StoreFuture::pending(async move {
            let reply = if call.is_empty() {
                script::no_reply()
            } else {
                run(&link, &call).await?
            };
            Ok(script::replies(&operations, &reply))
        })
    }

    #[cfg(feature = "test-util")]
    fn now_ms(&self) -> Option<u64> {
        self.clock.as_ref().map(crate::test_util::TestClock::now_ms)
    }

    #[cfg(not(feature = "test-util"))]
    #[expect(
        clippy::unused_self,
        reason = "the clock is a field with the feature `test-util` alone"
    )]
    const fn now_ms(&self) -> Option<u64> {
        None
    }
}

/// Runs the script: by its hash, and once by its source on a server that does not know it.
async fn run(link: &Link, call: &Call) -> Result<Value, StoreError> {
    let mut reply = link.send(&call.by_hash()).await;
    if reply.as_ref().is_err_and(is_unknown_script) {
        reply = Box::pin(link.send(&call.by_source())).await;
    }
    reply.map_err(|error| store_error(&error))
}

/// The result of a call of one operation.
fn only(results: Vec<Result<Reply, StoreError>>) -> Result<Reply, StoreError> {
    results
        .into_iter()
        .next()
        .unwrap_or_else(|| Err(another_reply()))
}

fn decision(reply: Result<Reply, StoreError>) -> Result<Decision, StoreError> {
    match reply? {
        Reply::Check(decision) => Ok(decision),
        _ => Err(another_reply()),
    }
}

fn another_reply() -> StoreError {
    StoreError::new(
        StoreErrorKind::Protocol,
        "the reply is one to another operation",
    )
}

/// Only this error makes it certain that nothing was executed.
fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

impl Store for RedisStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        #[cfg(feature = "cluster")]
        if let Some(shadows) = check.shadow_check().filter(|_| self.link.is_cluster()) {
            let (store, counting) = (self.clone(), check.without_shadows());
            return StoreFuture::pending(async move {
                let decision = store.check(&counting).await?;
                Ok(match decision.is_allowed() {
                    true => match store.check(&shadows).await {
                        Ok(shadow) => decision.with_shadow(shadow),
                        Err(_) => decision,
                    },
                    false => decision,
                })
            });
        }
        if check.is_empty() {
            return StoreFuture::ready(Decision::new(check, true, 0, &[]));
        }
        #[cfg(feature = "cluster")]
        if let Some(answer) = self.check_apart(check) {
            return answer;
        }
        self.check_at_once(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        #[cfg(feature = "cluster")]
        if let Some(answer) = self.settle_apart(settlement) {
            return answer;
        }
        self.settle_at_once(settlement)
    }

    fn single_failure_domain(&self) -> bool {
        !self.link.is_cluster()
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), key.clone());
        let call = self.call_at_once(vec![Operation::Reset { policy, key }]);
        StoreFuture::pending(async move { only(call.await?).map(drop) })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        #[cfg(feature = "cluster")]
        if self.link.is_cluster() {
            return self.call_apart(operations);
        }
        self.call_at_once(operations)
    }
}
