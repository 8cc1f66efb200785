//! [`Session`]: a pooled connection for consecutive transactions, never returned to the pool in mid-transaction.

use std::{
    pin::pin,
    task::{Context, Waker},
};

use bb8::{Pool, PooledConnection, RunError};
use bb8_redis::RedisConnectionManager;
use redis::{FromRedisValue, Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{runtime::Handle, time::Instant};

use super::snapshot::{Change, Changes, Stored};
use crate::{
    domain::error::{StoreError, StoreErrorKind},
    store::redis::{
        connection::{NO_TIMEOUT, within},
        error::{closed, code, needs_another_connection, reply_error, store_error},
        key_names::window_of_slots,
        milliseconds,
    },
};

/// The most slots of one command.
const MOST_SLOTS: usize = 1_000;

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
    handle: MultiplexedConnection,
    /// Whether a transaction may have begun on the server whose end was not confirmed.
    in_transaction: bool,
    /// Whether a new connection should replace this one.
    is_lost: bool,
    /// Kept because a caller may leave outside of any runtime.
    runtime: Handle,
}

/// The values of some keys.
pub(super) struct Reading {
    /// The server's time, in ms.
    pub(super) now_ms: u64,
    /// What each key holds, or the reason why it holds something else.
    pub(super) values: Vec<Result<Stored, StoreError>>,
}

impl Session {
    /// Waits for a connection of the pool.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(super) async fn check_out(
        pool: &Pool<RedisConnectionManager>,
        end: Instant,
    ) -> Result<Self, StoreError> {
        let pooled = tokio::time::timeout_at(end, pool.get_owned()).await;
        let pooled = match pooled {
            Ok(Ok(pooled)) => pooled,
            Ok(Err(RunError::User(error))) => return Err(store_error(&error)),
            Ok(Err(RunError::TimedOut)) | Err(_) => return Err(NO_CONNECTION),
        };
        Ok(Self {
            handle: own_handle(&pooled),
            pooled,
            in_transaction: false,
            is_lost: false,
            runtime: Handle::current(),
        })
    }

    /// Reads these keys, and begins a transaction that fails if another client changes one of them.
    pub(super) async fn read(
        &mut self,
        names: &[Vec<u8>],
        end: Instant,
    ) -> Result<Reading, StoreError> {
        let mut cmds = Pipeline::with_capacity(names.len() + 4);
        cmds.cmd("WATCH").arg(names);
        for name in names {
            match window_of_slots(name) {
                Some(_) => cmds
                    .cmd("ZRANGE")
                    .arg(name)
                    .arg(0)
                    .arg(-1)
                    .arg("WITHSCORES"),
                None => cmds.cmd("GET").arg(name),
            };
        }
        // After the values: a value that was read was decided no later than this time.
        cmds.cmd("TIME");
        cmds.cmd("MULTI");
        self.in_transaction = true;
        let mut replies = self.send(&cmds, end).await?;
        let multi = replies.pop().unwrap_or_else(|| Err(closed()));
        let mut replies = replies.into_iter();
        let watch = replies.next().unwrap_or_else(|| Err(closed()));
        watch.and(multi).map_err(|error| self.failed(&error))?;
        let time = replies.next_back().unwrap_or_else(|| Err(closed()));
        let values = replies
            .zip(names)
            .map(|(reply, name)| self.value(name, reply))
            .collect::<Result<_, _>>()?;
        let now_ms = time.and_then(milliseconds);
        let now_ms = now_ms.map_err(|error| self.failed(&error))?;
        Ok(Reading { now_ms, values })
    }

    /// Writes to keys that were read, unless one of them was changed since, and ends the transaction. Returns whether
    /// the write happened.
    ///
    /// After an error of the connection the write may have happened, so a caller that charges must not retry.
    pub(super) async fn write(
        &mut self,
        changes: &Changes,
        ttl_ms: impl Fn(u64) -> u64,
        end: Instant,
    ) -> Result<bool, StoreError> {
        let mut cmds = Pipeline::new();
        for (name, change) in changes {
            match change {
                Change::Set(value, expires_ms) => {
                    let cmd = cmds.cmd("SET").arg(name).arg(value);
                    cmd.arg("PX").arg(ttl_ms(*expires_ms));
                }
                Change::Delete => {
                    cmds.cmd("DEL").arg(name);
                }
                Change::Slots { gone, held } => {
                    for gone in gone.chunks(MOST_SLOTS) {
                        let cmd = cmds.cmd("ZREM").arg(name);
                        gone.iter().for_each(|id| {
                            cmd.arg(&id.to_bytes());
                        });
                    }
                    for held in held.chunks(MOST_SLOTS) {
                        let cmd = cmds.cmd("ZADD").arg(name);
                        held.iter().for_each(|(expiry_ms, id)| {
                            cmd.arg(*expiry_ms).arg(&id.to_bytes());
                        });
                    }
                    if let Some(latest_ms) = held.iter().map(|slot| slot.0).max() {
                        cmds.cmd("PEXPIRE").arg(name).arg(ttl_ms(latest_ms));
                    }
                }
            }
        }
        cmds.cmd("EXEC");
        // Without a reply this returns early, so that dropping `Session` sends another EXEC.
        let replies = self.send(&cmds, end).await?;
        self.in_transaction = false;
        let mut last = Value::Nil;
        for reply in replies {
            last = reply.map_err(|error| self.failed(&error))?;
        }
        let Value::Array(done) = last else {
            return Ok(false);
        };
        for reply in done {
            // The commands before it have been executed.
            reply
                .extract_error()
                .map_err(|error| self.failed(&error).maybe_sent())?;
        }
        Ok(true)
    }

    /// Sends these commands together. You get an error reply as one of the replies.
    async fn send(
        &mut self,
        cmds: &Pipeline,
        end: Instant,
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let left = end.saturating_duration_since(Instant::now());
        let replies = self.handle.send_packed_commands(cmds, 0, cmds.len());
        let replies = within(left, replies).await;
        let replies = replies.map_err(|error| self.failed(&error))?;
        Ok(replies.into_iter().map(Value::extract_error).collect())
    }

    /// What a key of this name holds. A value of another type is an error of that key alone.
    fn value(
        &mut self,
        name: &[u8],
        reply: RedisResult<Value>,
    ) -> Result<Result<Stored, StoreError>, StoreError> {
        let stored = reply.and_then(|value| {
            Ok(match window_of_slots(name) {
                Some(_) => Stored::Slots(Vec::from_redis_value(value)?),
                None => Stored::Value(Option::from_redis_value(value)?),
            })
        });
        match stored {
            Ok(stored) => Ok(Ok(stored)),
            Err(error) if code(&error) == Some("WRONGTYPE") => {
                Ok(Err(store_error(&error).unsent()))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Records whether an error means that the connection is lost.
    fn failed(&mut self, error: &RedisError) -> StoreError {
        self.is_lost |= needs_another_connection(error);
        match code(error) {
            Some(code @ ("MOVED" | "ASK" | "CROSSSLOT")) => ON_A_CLUSTER.with_code(code),
            _ => reply_error(error),
        }
    }

    /// Whether a new connection should replace this one.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Replaces the connection by a new one. If there is none, the old one stays.
    pub(super) async fn renew(
        &mut self,
        pool: &Pool<RedisConnectionManager>,
        end: Instant,
    ) -> Result<(), StoreError> {
        let left = end.saturating_duration_since(Instant::now());
        let fresh = within(left, pool.dedicated_connection()).await;
        let fresh = fresh.map_err(|error| store_error(&error))?;
        self.handle = own_handle(&fresh);
        *self.pooled = fresh;
        (self.in_transaction, self.is_lost) = (false, false);
        Ok(())
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
        // No other task uses the connection, so its queue has room.
        let sent = pin!(self.handle.send_packed_command(&exec));
        let _ = sent.poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// Turns off the connection's timeout: each round trip is bounded by the time that is left.
fn own_handle(connection: &MultiplexedConnection) -> MultiplexedConnection {
    let mut handle = connection.clone();
    handle.set_response_timeout(NO_TIMEOUT);
    handle
}

const NO_CONNECTION: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the pool had no connection to give in time",
);
const ON_A_CLUSTER: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "transactions need a server that keeps all keys, and this is a node of a cluster",
);
