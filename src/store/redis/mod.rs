#![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/redis.md"))]
#![doc = include_str!("../../../docs/guide/compatibility.md")]

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use redis::{RedisResult, Value};

mod background;
mod block_index;
mod by_runtime;
#[cfg(feature = "cluster")]
mod cluster;
mod connect;
mod connection;
mod reports;
mod shared_calls;
pub mod clouds {
    //! Redis as clouds run it: passwords that expire, names of certificates, and what was run.
    //!
    #![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/clouds.md"))]
}
pub mod deploys {
    //! The effects of a deploy on counts, blocks and quotas, and how to leave.
    //!
    #![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/deploys.md"))]
}
pub mod deployment {
    //! How to run the server: rights, TLS, Sentinel and replication, a cluster, twemproxy.
    //!
    #![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/servers.md"))]
}
mod error;
mod evictions;
mod execute;
#[doc(hidden)]
// For the operators' tool. This follows the layout of the stored data, and may change at any time.
pub mod inspect;
mod key_names;
mod operations;
mod ping;
mod policies;
#[cfg(feature = "cluster")]
mod several_hash_slots;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "bb8")]
pub mod transactions;
mod transport;
mod value;
mod wire;

pub use connection::{Credentials, RedisServer};
use key_names::Names;
use shared_calls::CallQueues;
pub(super) use shared_calls::queued::Queued;
use transport::{Transport, Transports};

/// Keeps the counts in Redis, so that all replicas of a service share them. Cheap to clone.
#[derive(Clone)]
pub struct RedisStore {
    transports: Arc<Transports>,
    names: Arc<Names>,
    /// By which a test decides instead of the server's clock.
    #[cfg(feature = "manual-clock")]
    clock: Option<crate::manual_clock::ManualClock>,
    in_flight: usize,
    shared: Option<Arc<CallQueues>>,
    /// Finishes operations over several hash slots when their callers have left.
    #[cfg(feature = "cluster")]
    room: Arc<crate::background::BackRoom>,
    /// Whether the servers were asked whether they evict keys.
    asked: Arc<AtomicBool>,
}

/// Without servers: their URLs may have passwords.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisStore");
        shown.field("names", &self.names).finish_non_exhaustive()
    }
}

/// The default number of calls in flight before operations gather.
const IN_FLIGHT: usize = 2;

impl RedisStore {
    fn over(make: impl Fn() -> Transport + Send + Sync + 'static) -> Self {
        let store = Self {
            transports: Transports::new(make),
            names: Arc::new(Names::new("sluicegate")),
            #[cfg(feature = "manual-clock")]
            clock: None,
            in_flight: IN_FLIGHT,
            shared: None,
            #[cfg(feature = "cluster")]
            room: Arc::default(),
            asked: Arc::default(),
        };
        store.with_queues()
    }

    /// Sets the prefix of all keys. The default is `sluicegate`.
    ///
    /// Services with different prefixes share no limits.
    ///
    /// # Panics
    ///
    /// If the prefix has a space, a brace, or a character that is not printable ASCII, or more than 48 characters.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        Arc::make_mut(&mut self.names).set_prefix(prefix.as_ref());
        self.with_queues()
    }

    /// Sets the secret that keys the hashes of identities. You can use any length, but the same secret for all
    /// replicas.
    ///
    /// Without a secret the hashes still hide long random values such as API keys, but anyone with access to the server
    /// may find short values, such as e-mail addresses, by trying. If you change the secret, all hashed identities
    /// start with empty counts.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        Arc::make_mut(&mut self.names).set_secret(secret.as_ref());
        self.with_queues()
    }

    /// Keeps counts under the number of another stored form, for tests of two versions of this crate side by side.
    #[doc(hidden)]
    #[must_use]
    pub fn stored_form(mut self, number: u8) -> Self {
        Arc::make_mut(&mut self.names).set_form(number);
        self.with_queues()
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(mut self, clock: crate::manual_clock::ManualClock) -> Self {
        self.clock = Some(clock);
        self.with_queues()
    }

    /// Shares calls once this number is in flight, counted in each tokio runtime. While fewer are in flight, an operation
    /// is sent at once. Otherwise it waits until one of them returns, and shares a call with the other waiting
    /// operations. The default is 2. Use 0 to turn sharing off.
    ///
    /// No operation waits for a timer. Calls grow with the backlog: each takes a part of the waiting charges, half of
    /// them with two in flight, but at least 8 and at most 256 charges, or one operation with more; eight slots count as one
    /// charge. So a long round trip does not limit the number of decided checks. Identical checks are decided together, and
    /// count once towards that size. An error of one operation affects no other. A call is written when it has a
    /// connection; a caller that has left by then, or whose timeout has passed, is left out and not charged. A call whose
    /// callers are all late makes room for the next. If you start an operation after another was answered, it is executed
    /// after that one; two operations under way at the same time may be executed in either order. [On a
    /// cluster](deployment#cluster) the calls to each slot are counted and shared separately.
    ///
    /// A shared call has keys of several identities, all of which must be on one server: turn sharing off behind [a
    /// proxy that spreads them](deployment#twemproxy). Clones share their calls until you change a setting of one of
    /// them.
    ///
    /// ```
    /// # fn main() -> Result<(), sluicegate::StoreError> {
    /// use sluicegate::RedisStore;
    ///
    /// let spread = RedisStore::connect_lazy("redis://proxy.example/")?.in_flight(0);
    /// # let _ = spread;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = calls;
        self.with_queues()
    }

    /// The time where it is not the server's clock that decides.
    #[cfg_attr(
        not(feature = "manual-clock"),
        expect(clippy::unused_self, reason = "only tests set a clock")
    )]
    fn set_now_ms(&self) -> Option<u64> {
        #[cfg(feature = "manual-clock")]
        return Some(self.clock.as_ref()?.now_ms());
        #[cfg(not(feature = "manual-clock"))]
        None
    }

    /// Makes a new queue for shared calls, because operations in the old one use the old names and clock.
    fn with_queues(mut self) -> Self {
        let queues = || CallQueues::new(self.unshared(), self.in_flight);
        self.shared = (self.in_flight > 0).then(queues);
        self
    }
}

/// The reply to `TIME`, in ms.
fn milliseconds(time: Value) -> RedisResult<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
}
