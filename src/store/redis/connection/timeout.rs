//! How long to wait for servers. The timeouts of callers change none of these: they only decide when a caller leaves.

use std::{io, time::Duration};

use redis::RedisResult;
use tokio::runtime::Handle;

/// Later callers replace a connection that has owed a reply for longer than this, and start another attempt instead of
/// sharing one that is older. No healthy server is silent for so long, and a connection that the network has forgotten
/// (a NAT, a firewall) costs little more.
///
/// A connection with slow replies gets [more](super::health).
pub(in crate::store::redis) const LOST_AFTER: Duration = Duration::from_millis(500);

/// How long an attempt to connect may take. TCP, TLS, login, database and PING take up to seven round trips, also over
/// a slow network. No caller depends on an old attempt alone, so this can be long.
pub(in crate::store::redis) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one part of a call to a cluster continues after the caller has left. Late admissions still have to be
/// rolled back.
#[cfg(feature = "cluster")]
pub(in crate::store::redis) const PART_TIMEOUT: Duration = Duration::from_secs(2);

/// Bounds the time of this work. Outside of a runtime, which has no timers, the work does not begin.
pub(in crate::store::redis) async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    if Handle::try_current().is_err() {
        return Err(io::Error::other("called outside of a tokio runtime").into());
    }
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
