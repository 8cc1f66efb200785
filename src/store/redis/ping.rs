//! [`RedisStore::ping`]: whether each server decides, and how soon.

use std::{collections::HashSet, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    RedisStore,
    connect::GREETING_TIMEOUT,
    connection::within,
    error::{UNASKED, store_error},
};
use crate::{
    domain::{
        charge::Charge, check::Check, error::StoreError, key::Key, operation::Operation,
        policy::Policy, rule::Rule,
    },
    store::{Store, TIMED_OUT},
};

/// How many names are tried to find one that each primary serves: enough where one serves a single hash slot.
const MOST_NAMES: u32 = 1 << 18;

impl RedisStore {
    /// Decides a check of cost 1 under a policy of its own, `ping`, at the server or at each primary of a cluster, and
    /// returns the time that this took. It denies no request, and its keys expire after two seconds.
    ///
    /// Call this at the start of your service, and for alerts. A readiness probe that fails on it turns an outage of
    /// Redis into one of the service.
    ///
    /// # Errors
    ///
    /// If a server cannot be reached, refuses the user or a command, cannot write, or does not answer within a second.
    pub async fn ping(&self) -> Result<Duration, StoreError> {
        let begin = Instant::now();
        let servers = within(GREETING_TIMEOUT, self.transports.servers()).await;
        let servers = servers.map_err(|error| store_error(&error))?.into_iter();
        let mut left: HashSet<_> = servers.map(|it| it.address).collect();
        let policy = Policy::new("ping", [Rule::per_second(u64::MAX >> 11)]);
        let policy = policy.map_err(|_| StoreError::protocol("no policy"))?; // which is valid
        let (mut names, mut pings) = (Vec::new(), Vec::new());
        for number in 0..MOST_NAMES {
            if left.is_empty() {
                break;
            }
            if number % 256 == 255 {
                tokio::task::yield_now().await;
            }
            let key = Key::new("ping", number.to_string());
            let mut name = Vec::new();
            self.names.write_start(&mut name, &key);
            let server = self.transports.node_address(&name);
            if left.remove(&server) {
                let check = Check::new([Charge::new(&policy, key, 1)])?;
                pings.push(Operation::Check(check));
                names.push((name, server));
            }
        }
        let answers = timeout(GREETING_TIMEOUT, self.call(pings)).await;
        for answer in answers.map_err(|_| TIMED_OUT)?? {
            answer?;
        }
        let has_stayed =
            |(name, server): &(Vec<u8>, _)| self.transports.node_address(name) == *server;
        let are_asked = left.is_empty() && names.iter().all(has_stayed);
        are_asked.then(|| begin.elapsed()).ok_or(UNASKED)
    }
}
