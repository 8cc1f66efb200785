//! [`ConnectionHealth`]: what is known of a connection from what came back over it.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::time::Instant;

use crate::store::redis::error::needs_another_connection;

/// A reply this young proves that the connection is open: no server dies and comes back in less.
const FRESH: Duration = Duration::from_millis(1);

/// Times are microseconds since `created`, from 1.
pub(super) struct ConnectionHealth {
    created: Instant,
    /// When the first command after the latest reply was sent; 0 when there was none.
    sent: AtomicU64,
    /// When the latest reply came; 0 when there was none.
    received: AtomicU64,
    stale: AtomicBool,
}

impl ConnectionHealth {
    pub(super) fn new() -> Self {
        Self {
            created: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        }
    }

    /// Takes note that a command is about to be sent.
    pub(super) fn sent(&self) {
        // Whoever sees the zero of `received` also sees what was written before it: see `Connection::probe`.
        let _ = self.sent.compare_exchange(0, self.now(), Acquire, Relaxed);
    }

    /// Takes note of a reply. An error reply becomes an error.
    pub(super) fn received(&self, reply: RedisResult<Value>) -> RedisResult<Value> {
        let result = reply.and_then(Value::extract_error);
        if result.as_ref().is_err_and(needs_another_connection) {
            self.mark_stale();
        } else {
            self.received.store(self.now(), Relaxed);
            self.sent.store(0, Release);
        }
        result
    }

    /// Has the connection replaced, whatever came back over it.
    pub(super) fn mark_stale(&self) {
        self.stale.store(true, Relaxed);
    }

    /// Whether the connection should be replaced before anything else is sent over it.
    pub(super) fn is_lost(&self, unresponsive_after: Duration) -> bool {
        let sent = self.sent.load(Relaxed);
        self.stale.load(Relaxed) || (sent != 0 && self.is_past(sent, unresponsive_after))
    }

    /// Whether the latest reply is so young that the connection must be open.
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
