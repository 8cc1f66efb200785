//! [`Session`]: a pooled connection for one transaction, never returned to the pool in mid-transaction.

use std::{
    pin::pin,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    task::{Context, Waker},
    time::Duration,
};

use bb8::{Pool, PooledConnection};
use bb8_redis::RedisConnectionManager;
use redis::{Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use crate::{
    domain::error::{StoreError, StoreErrorKind},
    store::redis::{
        connection::{NO_TIMEOUT, is_open, within},
        error::{closed, code, needs_another_connection, reply_error, store_error},
        key_names::window_of_slots,
        milliseconds,
    },
};

/// How long a transaction may take, whatever the timeout of its caller: time for a connection, and for two round trips
/// each time that another process writes first.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A connection held until this is dropped.
///
/// ```text
///   read   WATCH · GET or ZRANGE of each key · TIME · MULTI
///   write  SET, DEL, or ZREM, ZADD and PEXPIRE of each change · EXEC
/// ```
///
/// MULTI is answered before any write is sent: if MULTI is forbidden, no SET can run outside of a transaction. EXEC
/// also ends a transaction without writes, so the user needs no other right for that.
pub(super) struct Session {
    pooled: PooledConnection<'static, RedisConnectionManager>,
    end: Instant,
    /// Whether a transaction may have begun on the server whose end was not confirmed.
    in_transaction: bool,
    /// Whether new connections should replace this one and the others of the pool.
    pub(super) is_lost: bool,
    /// Kept because a task may be dropped outside of any runtime.
    runtime: Handle,
}

impl Session {
    /// Waits for a connection of the pool.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(super) async fn check_out(pool: &Pool<RedisConnectionManager>) -> Result<Self, StoreError> {
        let Ok(Ok(pooled)) = timeout(TIMEOUT, pool.get_owned()).await else {
            return Err(NO_CONNECTION);
        };
        Ok(Self {
            pooled,
            end: Instant::now() + TIMEOUT,
            in_transaction: false,
            is_lost: false,
            runtime: Handle::current(),
        })
    }

    /// Replaces the connection by a new one if it has ended, or may be as dead as another: `lost` is how many of the pool
    /// may be. A new one may take longer than its caller waits, so do not drop this future when the caller leaves.
    pub(super) async fn renew(
        mut self,
        pool: &Pool<RedisConnectionManager>,
        lost: &AtomicU32,
    ) -> Result<Self, StoreError> {
        if lost.load(Relaxed) > 0 || !is_open(&mut *self.pooled).await {
            let fresh = within(TIMEOUT, pool.dedicated_connection()).await;
            *self.pooled = fresh.map_err(|error| store_error(&error).unsent())?;
            let _ = lost.fetch_update(Relaxed, Relaxed, |lost| lost.checked_sub(1));
            self.end = Instant::now() + TIMEOUT;
        }
        Ok(self)
    }

    /// Whether another attempt can end in time. Otherwise its outcome would hardly be known.
    pub(super) fn has_time(&self) -> bool {
        Instant::now() + TIMEOUT / 4 < self.end
    }

    /// Reads these keys, and begins a transaction that fails if another client changes one of them. Returns the server's
    /// time, in ms, and each value, or the error of a key with a value of another type.
    pub(super) async fn read(
        &mut self,
        names: &[Vec<u8>],
    ) -> Result<(u64, Vec<RedisResult<Value>>), StoreError> {
        let mut cmds = Pipeline::with_capacity(names.len() + 3);
        if !names.is_empty() {
            cmds.cmd("WATCH").arg(names);
        }
        for name in names {
            match window_of_slots(name) {
                Some(_) => cmds.cmd("ZRANGE").arg(name).arg(&["0", "-1", "WITHSCORES"]),
                None => cmds.cmd("GET").arg(name),
            };
        }
        // After the values: a value that was read was decided no later than this time.
        cmds.cmd("TIME").cmd("MULTI");
        self.in_transaction = true;
        let mut replies = self.send(&cmds).await?;
        replies.pop(); // that of MULTI
        let time = replies.pop().unwrap_or_else(|| Err(closed()));
        let time_ms = time.and_then(milliseconds);
        let time_ms = time_ms.map_err(|error| self.failed(&error))?;
        let values = replies.split_off(replies.len().saturating_sub(names.len()));
        Ok((time_ms, values))
    }

    /// Makes these changes to keys that were read, unless one of them was changed since, and ends the transaction. Returns
    /// whether the changes were made.
    ///
    /// After an error of the connection they may have been made, so a caller that charges must not retry.
    pub(super) async fn write(&mut self, mut changes: Pipeline) -> Result<bool, StoreError> {
        changes.cmd("EXEC");
        // Without a reply this returns early, so that dropping `Session` sends another EXEC.
        let mut replies = self.send(&changes).await?;
        self.in_transaction = false;
        let Some(Ok(Value::Array(done))) = replies.pop() else {
            return Ok(false);
        };
        for reply in done {
            // The commands before it have been executed.
            let reply = reply.extract_error();
            reply.map_err(|error| self.failed(&error).maybe_sent())?;
        }
        Ok(true)
    }

    /// Sends these commands together. Only a key with a value of another type has an error of its own.
    async fn send(&mut self, cmds: &Pipeline) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let left = self.end.saturating_duration_since(Instant::now());
        let mut connection = self.connection();
        let replies = connection.send_packed_commands(cmds, 0, cmds.len());
        let replies = within(left, replies).await;
        let replies = replies.map_err(|error| self.failed(&error))?;
        let replies: Vec<_> = replies.into_iter().map(Value::extract_error).collect();
        let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        match errors.find(|error| code(error) != Some("WRONGTYPE")) {
            Some(error) => Err(self.failed(error)),
            None => Ok(replies),
        }
    }

    /// The connection without its own timeout: each round trip is bounded by the time that is left.
    fn connection(&self) -> MultiplexedConnection {
        let mut connection = self.pooled.clone();
        connection.set_response_timeout(NO_TIMEOUT);
        connection
    }

    /// Records whether an error means that the connection is lost.
    fn failed(&mut self, error: &RedisError) -> StoreError {
        self.is_lost |= needs_another_connection(error);
        match code(error) {
            Some(code @ ("MOVED" | "ASK" | "CROSSSLOT")) => ON_A_CLUSTER.with_code(code),
            _ => reply_error(error),
        }
    }
}

impl Drop for Session {
    /// Ends an open transaction, before the next user of the connection can send anything.
    fn drop(&mut self) {
        if !self.in_transaction {
            return;
        }
        let mut exec = redis::cmd("EXEC");
        exec.set_no_response(true);
        let _context = self.runtime.enter();
        let mut connection = self.connection();
        // No other task uses the connection, so its queue has room.
        let sent = pin!(connection.send_packed_command(&exec));
        let _ = sent.poll(&mut Context::from_waker(Waker::noop()));
    }
}

const NO_CONNECTION: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the pool had no connection to give in time",
)
.unsent();
const ON_A_CLUSTER: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "transactions need a server that keeps all keys, and this is a node of a cluster",
);
