#![doc = include_str!("../../../docs/guide/redis.md")]

use std::sync::Arc;

use redis::{RedisResult, Value};

use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedIdentity},
        check::Check,
        contributors::{Contribution, Contributors},
        decision::{Decision, Usage},
        denials::{DenialReport, Denials},
        key::Key,
        policies::PublishedPolicy,
        policy::Policy,
        rule::Rule,
        settlement::Settlement,
    },
    store::{CallFuture, ContributeFuture, Operation, Reply, Store, StoreFuture},
};

mod batch;
mod block_index;
mod calls;
#[cfg(feature = "cluster")]
mod cluster;
mod connect;
mod connection;
mod contributors;
mod denials;
pub mod deployment {
    //! How to run the server: rights, TLS, Sentinel and replication, a cluster, twemproxy.
    //!
    #![doc = include_str!("../../../docs/guide/servers.md")]
}
mod error;
#[doc(hidden)]
// For the operators' tool: it follows the layout of what is stored, and may change at any time.
pub mod inspect;
mod names;
mod policies;
mod script;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "bb8")]
pub mod transactions;
mod transport;

use batch::Lines;
#[cfg(feature = "sentinel")]
pub use connection::SentinelPrimary;
use inspect::Inspector;
use names::Names;
use transport::Transport;

/// Keeps the counts in Redis, so that all replicas of a service share them; cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisStore {
    transport: Transport,
    names: Arc<Names>,
    #[cfg(feature = "test-util")]
    clock: Option<crate::test_util::TestClock>,
    #[cfg(feature = "test-util")]
    without_fast_path: bool,
    in_flight: usize,
    shared: Option<Lines>,
}

/// How many calls are in flight, by default, before operations gather.
const IN_FLIGHT: usize = 4;

impl RedisStore {
    fn over(transport: Transport, in_flight: usize) -> Self {
        let store = Self {
            transport,
            names: Arc::new(Names::new("sluicegate")),
            #[cfg(feature = "test-util")]
            clock: None,
            #[cfg(feature = "test-util")]
            without_fast_path: false,
            in_flight,
            shared: None,
        };
        store.with_lines()
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
        Arc::make_mut(&mut self.names).set_prefix(prefix);
        self.with_lines()
    }

    /// Sets the secret that keys the hashes of identities, of any length and the same for all replicas.
    ///
    /// Without one the hashes still hide long random values such as API keys, but whoever can read the server may find
    /// short ones, such as e-mail addresses, by trying. Another secret starts all hashed identities anew.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        Arc::make_mut(&mut self.names).set_secret(secret.as_ref());
        self.with_lines()
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(mut self, clock: crate::test_util::TestClock) -> Self {
        self.clock = Some(clock);
        self.with_lines()
    }

    /// Runs the plain script alone, which answers the same more slowly.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn without_fast_path(mut self) -> Self {
        self.without_fast_path = true;
        self.with_lines()
    }

    /// Shares calls from this number in flight on: whoever comes while fewer are in flight is sent at once; whoever
    /// comes later waits until one of them returns, and goes in one call with the others who wait. The default is 4; 0
    /// turns sharing off.
    ///
    /// Nobody waits for a timer. Calls grow with the backlog: each takes its part of the charges that wait, which is
    /// 1/4 with four in flight, but at least 8 and at most 256, or one operation with more. So a long round trip does
    /// not limit how many checks are decided. Identical checks are decided as one and count once. An error of one
    /// operation is its own. Who leaves before the call is sent is left out of it, and not charged. What a caller asks
    /// for after another of its operations was answered is done after it; of those under way at the same time either
    /// may be first. [On a cluster](deployment#cluster) the calls to each slot are counted and shared apart.
    ///
    /// A call then has keys of several identities, all of which must be on one server: turn sharing off behind
    /// [a proxy that spreads them](deployment#twemproxy). Over a connection of your own it is off unless the connection
    /// is of a type of redis-rs. Clones share their calls until one of them is given another setting.
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
        self.with_lines()
    }

    /// Anew, since those who shared calls before share no other names or clock.
    fn with_lines(mut self) -> Self {
        let by_slot = self.transport.is_cluster();
        let lines = || Lines::new(self.executor(), self.in_flight, by_slot);
        self.shared = (self.in_flight > 0).then(lines);
        self
    }
}

/// A call of several operations is one call of the script, sent at once and shared with nobody. The server does nothing
/// else meanwhile, for some 4 to 8 µs a check: hundreds in a call are welcome, tens of thousands are better split.
/// [On a cluster](deployment#cluster) it is one call for each slot.
impl Store for RedisStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        #[cfg(feature = "cluster")]
        if let Some(answer) = self.check_several_slots(check) {
            return answer;
        }
        self.check_one_slot(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        #[cfg(feature = "cluster")]
        if let Some(answer) = self.settle_several_slots(settlement) {
            return answer;
        }
        self.settle_one_slot(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), key.clone());
        self.execute_one(Operation::Reset { policy, key }, |_| Some(()))
    }

    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        let index = self.index_block(key, &request);
        self.with_index(index, self.block_one_slot(key, request))
    }

    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        let index = self.index_block(key, &request);
        let key = key.clone();
        let ban = Operation::Ban {
            key,
            strikes,
            request,
        };
        self.with_index(index, self.execute_one(ban, Reply::ban))
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        let (index, key) = (self.index_unblock(key), key.clone());
        let unblock = Operation::Unblock { key };
        self.with_index(index, self.execute_one(unblock, |_| Some(())))
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        let inspector = Inspector::over(self);
        StoreFuture::pending(async move { inspector.all_blocked(most).await })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let index = self.index_operations(&operations);
        #[cfg(feature = "cluster")]
        if self.transport.is_cluster() {
            return self.with_index(index, self.call_by_slot(operations));
        }
        self.with_index(index, self.call_one_slot(operations))
    }

    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        self.add_contributions(contributions)
    }

    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        self.read_contributors(policy, key)
    }

    fn report_denials(&self, reports: &[DenialReport]) -> StoreFuture<()> {
        self.add_denials(reports)
    }

    fn denials(&self) -> StoreFuture<Denials> {
        self.read_denials()
    }

    fn publish(&self, policies: &[PublishedPolicy]) -> Option<StoreFuture<()>> {
        Some(self.publish_all(policies))
    }

    fn single_failure_domain(&self) -> bool {
        !self.transport.is_cluster()
    }
}

/// What `TIME` has answered, in ms.
fn milliseconds(time: Value) -> RedisResult<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
}
