//! [`Pulse`]: what is known of a connection from what came back over it.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use redis::{Cmd, RedisError, RedisResult, Value, aio::ConnectionLike};
use tokio::task::yield_now;

use super::error::code;

/// A connection that owes an answer for so long is given up. Callers leave at their own timeout and never see a timeout of
/// the connection's, so somebody has to count for them.
pub(super) const MUTE: Duration = Duration::from_millis(500);

/// An answer this young proves that the connection is open: no server dies and comes back in less.
const FRESH: Duration = Duration::from_millis(1);

/// Times are microseconds since `born`, from 1.
pub(super) struct Pulse {
    born: Instant,
    /// When the first command after the last answer was sent; 0 when none was.
    asked: AtomicU64,
    answered: AtomicU64,
    suspect: AtomicBool,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
        }
    }

    /// To be called before a command is sent. Its reply goes to [`heard`](Self::heard); one that nobody waits for any more
    /// is still owed.
    ///
    /// Two calls and no future around the reply's: a request's future would hold the reply's twice.
    pub(super) fn asks(&self) {
        let _ = self.asked.compare_exchange(0, self.now(), Relaxed, Relaxed);
    }

    /// Takes note of a reply. An error reply becomes an error.
    pub(super) fn heard(&self, reply: RedisResult<Value>) -> RedisResult<Value> {
        let result = reply.and_then(Value::extract_error);
        if is_sound(&result) {
            self.asked.store(0, Relaxed);
            self.answered.store(self.now(), Relaxed);
        } else {
            self.suspect.store(true, Relaxed);
        }
        result
    }

    /// Forgets a bad past, for a connection that was replaced.
    #[cfg(feature = "bb8")]
    pub(super) fn renew(&self) {
        self.asked.store(0, Relaxed);
        self.suspect.store(false, Relaxed);
    }

    /// Has the connection replaced, whatever came back over it.
    #[cfg(feature = "sentinel")]
    pub(super) fn doubt(&self) {
        self.suspect.store(true, Relaxed);
    }

    /// Whether the connection should be replaced before anything else is sent over it.
    pub(super) fn is_lost(&self) -> bool {
        let asked = self.asked.load(Relaxed);
        self.suspect.load(Relaxed) || (asked != 0 && self.is_past(asked, MUTE))
    }

    /// Whether the last answer is so young that the connection must be open.
    pub(super) fn is_fresh(&self) -> bool {
        let answered = self.answered.load(Relaxed);
        answered != 0 && !self.is_past(answered, FRESH)
    }

    fn is_past(&self, since: u64, span: Duration) -> bool {
        u128::from(self.now().saturating_sub(since)) > span.as_micros()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

/// Whether a result speaks for its connection.
fn is_sound(result: &Result<Value, RedisError>) -> bool {
    match result {
        Ok(_) => true,
        // A primary that became a replica, or lost its replicas: the address may lead to another server by now.
        Err(error) => !matches!(
            code(error),
            None | Some("READONLY" | "MASTERDOWN" | "NOREPLICAS")
        ),
    }
}

/// Whether the connection is open as far as this side knows.
///
/// The PING is polled once and dropped. A connection that has ended refuses it there and then; one that is open queues it,
/// and does not send what nobody waits for. So this costs no round trip.
pub(super) async fn is_open(connection: &mut impl ConnectionLike) -> bool {
    // A runtime that was busy, or suspended with its machine, looks at its sockets first, and then lets the connection's
    // task read what is there: the end, perhaps.
    yield_now().await;
    yield_now().await;
    is_queuing(connection)
}

/// Like [`is_open`], for a runtime that is known to have looked at its sockets just now.
pub(super) fn is_queuing(connection: &mut impl ConnectionLike) -> bool {
    thread_local! {
        static PING: Cmd = redis::cmd("PING");
    }
    PING.with(|ping| {
        let mut reply = connection.req_packed_command(ping);
        let mut context = Context::from_waker(Waker::noop());
        !matches!(reply.as_mut().poll(&mut context), Poll::Ready(Err(_)))
    })
}
