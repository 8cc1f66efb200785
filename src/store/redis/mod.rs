//! [`RedisStore`]: one truth for all replicas, in Redis or Valkey.
//!
//! Each (policy, key) has one Redis key, and a check is one call of one script: one read, and at most one write, per key. A
//! refused check writes nothing. The server's clock decides.
//!
//! ```
//! use sluicegate::{Charge, FailurePolicy, Key, Limiter, Policy, RedisStore};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let store = RedisStore::lazy("redis://127.0.0.1:1/")?.prefix("shop").secret("from your configuration");
//! let limiter = Limiter::new(store);
//! let policy = Policy::parse("api", "10/1s,120/1m")?;
//! let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
//!
//! // Nobody listens at port 1, so the failure policy decides, at once.
//! assert!(limiter.check(charge()).await.is_err());
//! assert!(limiter.admits(charge()).await);
//! assert!(!limiter.on_failure(FailurePolicy::Closed).admits(charge()).await);
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
//! A URL or a `Client` works as it is. A pool or a manager must be told to keep silent, because the proxy hangs up on commands that it
//! does not know: [`RedisConnectionInfo::set_skip_set_lib_name`](redis::RedisConnectionInfo::set_skip_set_lib_name). Users, databases
//! and RESP3 are not for proxies.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};

use crate::{
    charge::{Check, Settlement},
    decision::{Decision, Usage},
    error::StoreError,
    key::Key,
    policy::Policy,
    store::{Answer, Store},
};

mod connect;
mod error;
mod keeper;
mod link;
mod names;
#[cfg(feature = "bb8")]
mod pool;
mod pulse;
mod script;

use error::store_error;
use link::Link;
use names::Names;

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
    /// Cheaper than one call each, for those who have many checks at hand. On a cluster all keys must share a slot.
    pub fn check_many(&self, checks: impl Into<Vec<Check>>) -> Answer<Vec<Decision>> {
        let checks = checks.into();
        let reply = self.run(script::check_call(&self.names, self.now_ms(), &checks));
        Answer::pending(async move { script::decisions(&checks, &reply.await?) })
    }

    /// Runs the script: by its hash, and once by its source on a server that does not know it.
    fn run(&self, call: Cmd) -> impl Future<Output = Result<Value, StoreError>> + Send + use<> {
        let link = self.link.clone();
        async move {
            let mut reply = link.send(&call).await;
            if reply.as_ref().is_err_and(is_unknown_script) {
                reply = link.send(&script::with_source(&call)).await;
            }
            reply.map_err(|error| store_error(&error))
        }
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

/// Only this error makes it certain that nothing was executed.
fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

impl Store for RedisStore {
    fn check(&self, check: &Check) -> Answer<Decision> {
        let check = check.clone();
        let reply = self.run(script::check_call(&self.names, self.now_ms(), [&check]));
        Answer::pending(async move { script::decision(&check, &reply.await?) })
    }

    fn settle(&self, settlement: &Settlement) -> Answer<Usage> {
        let settlement = settlement.clone();
        let reply = self.run(script::settle_call(&self.names, self.now_ms(), &settlement));
        Answer::pending(async move { script::usage(&settlement, &reply.await?) })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let link = self.link.clone();
        let mut delete = redis::cmd("DEL");
        delete.arg(self.names.name(policy.name(), key));
        Answer::pending(async move {
            link.send(&delete)
                .await
                .map(drop)
                .map_err(|error| store_error(&error))
        })
    }
}
