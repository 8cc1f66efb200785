//! How long servers are waited for. The timeouts of callers change none of it: they only decide when a caller leaves.

use std::{io, time::Duration};

use redis::RedisResult;

/// A connection that owes a reply for longer is given up by later callers, and an attempt that is older is shared by
/// none of them: the next one makes its own. No healthy server is silent for so long, and a network that has forgotten
/// a connection (a NAT, a firewall) costs little more.
///
/// A connection over which replies take long is given [more](super::health).
pub(in crate::store::redis) const LOST_AFTER: Duration = Duration::from_millis(500);

/// How long an attempt to connect goes on. TCP, TLS, login, database and PING take up to seven round trips, which has
/// to do over a slow network, too. Nobody waits for an old attempt alone, so it can be long.
pub(in crate::store::redis) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one part of what was asked of a cluster goes on when its caller has left: what was admitted late has to be
/// rolled back.
#[cfg(feature = "cluster")]
pub(in crate::store::redis) const PART_TIMEOUT: Duration = Duration::from_secs(2);

/// Gives work this much time.
pub(in crate::store::redis) async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
