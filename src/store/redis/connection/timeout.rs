//! [`ReplyTimeout`]: how long a server is waited for.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::RedisResult;

use crate::rule::micros;

/// The least time after which a connection that owes a reply counts as lost. Callers leave at their own timeout and
/// never see a timeout of the connection's, so the connection counts for them.
const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(500);

/// How long a connection may owe a reply, and how long an attempt to connect may take: as long as the limiter with the
/// longest timeout waits, and at least 500 ms. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct ReplyTimeout {
    micros: Arc<AtomicU64>,
}

impl ReplyTimeout {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            micros: Arc::new(AtomicU64::new(micros(UNRESPONSIVE_AFTER))),
        }
    }

    /// Makes it at least this long.
    pub(in crate::store::redis) fn raise(&self, timeout: Duration) {
        self.micros.fetch_max(micros(timeout), Relaxed);
    }

    pub(in crate::store::redis) fn get(&self) -> Duration {
        Duration::from_micros(self.micros.load(Relaxed))
    }
}

/// Gives work this much time.
pub(in crate::store::redis) async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
