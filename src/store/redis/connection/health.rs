//! [`ConnectionHealth`]: judges a connection by its replies.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::time::Instant;

use super::timeout::{CONNECT_TIMEOUT, LOST_AFTER};
use crate::store::redis::error::needs_another_connection;

/// A reply this young proves that the connection is open: no server stops and restarts in less time.
const FRESH: Duration = Duration::from_millis(1);

/// After this many round trips, a reply is no longer expected.
const ROUND_TRIPS: u32 = 4;

/// Times are microseconds since `created`, from 1.
pub(super) struct ConnectionHealth {
    created: Instant,
    /// When the first command after the latest reply was sent; 0 if there is none.
    sent: AtomicU64,
    /// When the latest reply came; 0 before the first.
    received: AtomicU64,
    /// The smoothed round trip; 0 before the first reply.
    round_trip: AtomicU64,
    stale: AtomicBool,
}

impl ConnectionHealth {
    pub(super) fn new() -> Self {
        Self {
            created: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        }
    }

    /// Records that a command is about to be sent, and returns the time.
    pub(super) fn sent(&self) -> u64 {
        let now = self.now();
        let _ = self.sent.compare_exchange(0, now, Relaxed, Relaxed);
        now
    }

    /// Records the reply to a command that was sent at this time. An error reply becomes an error.
    pub(super) fn received(&self, sent: u64, reply: RedisResult<Value>) -> RedisResult<Value> {
        let result = reply.and_then(Value::extract_error);
        if result.as_ref().is_err_and(needs_another_connection) {
            self.mark_stale();
        } else {
            let now = self.now();
            self.measure(now.saturating_sub(sent));
            self.received.store(now, Relaxed);
            self.sent.store(0, Relaxed);
        }
        result
    }

    /// Marks the connection for replacement, whatever its replies say.
    pub(super) fn mark_stale(&self) {
        self.stale.store(true, Relaxed);
    }

    /// Whether the connection should be replaced before anything else is sent over it.
    pub(super) fn is_lost(&self) -> bool {
        let sent = self.sent.load(Relaxed);
        self.stale.load(Relaxed) || (sent != 0 && self.is_past(sent, self.lost_after()))
    }

    /// How long an owed reply may be missing before the connection is lost. Slow replies raise this, but one very late
    /// reply cannot raise it without bound.
    pub(super) fn lost_after(&self) -> Duration {
        let round_trip = Duration::from_micros(self.round_trip.load(Relaxed));
        round_trip
            .saturating_mul(ROUND_TRIPS)
            .clamp(LOST_AFTER, CONNECT_TIMEOUT)
    }

    /// Each reply has a weight of an eighth. If two arrive at once, one may be lost, which does no harm.
    fn measure(&self, took: u64) {
        let before = self.round_trip.load(Relaxed);
        let after = match before {
            0 => took,
            _ => before - before / 8 + took / 8,
        };
        self.round_trip.store(after, Relaxed);
    }

    /// Whether the latest reply is young enough to prove that the connection is open.
    pub(super) fn is_fresh(&self) -> bool {
        let received = self.received.load(Relaxed);
        received != 0 && !self.is_past(received, FRESH)
    }

    fn is_past(&self, since: u64, span: Duration) -> bool {
        u128::from(self.now().saturating_sub(since)) > span.as_micros()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_micros())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn replies_that_take_long_are_waited_for_longer_within_a_bound() {
        for (took_ms, lost_after_ms) in [(1, 500), (200, 800), (60_000, 5_000)] {
            let health = ConnectionHealth::new();
            let sent = health.sent();
            tokio::time::advance(Duration::from_millis(took_ms)).await;
            health.received(sent, Ok(Value::Okay)).unwrap();
            let expected = Duration::from_millis(lost_after_ms);
            // Times start at 1 µs, so the measured round trip is 1 µs shorter.
            let apart = health.lost_after().abs_diff(expected);
            assert!(apart < Duration::from_millis(1), "{apart:?}");
        }
    }
}
