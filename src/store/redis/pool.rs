//! [`Pool`]: a bb8 pool that decides which connection to use, and holds none.

use std::{future::poll_fn, io, pin::pin, sync::Arc, task::Poll};

use bb8::{PooledConnection, RunError};
use bb8_redis::RedisConnectionManager;
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};

use super::{
    error::closed,
    keeper::{Keeper, REST, Source},
    pulse::{Pulse, is_open, is_queuing},
};

type Slot = PooledConnection<'static, RedisConnectionManager>;

/// A connection is cloned out of its slot, which is free again before the command is sent: a pool whose connections are held
/// during the call does half as much.
///
/// bb8-redis calls no connection broken, so a slot whose connection is lost gets another here.
pub(super) struct Pool {
    pool: bb8::Pool<RedisConnectionManager>,
    pulse: Pulse,
    /// For when the pool is empty: bb8 makes up its mind to connect again only every few seconds after a server was gone.
    spare: Arc<Keeper>,
}

impl Pool {
    pub(super) fn new(pool: bb8::Pool<RedisConnectionManager>) -> Self {
        Self {
            spare: Arc::new(Keeper::new(Source::Pool(pool.clone()))),
            pulse: Pulse::new(),
            pool,
        }
    }

    pub(super) async fn send(self: Arc<Self>, cmd: &Cmd) -> Result<Value, RedisError> {
        let Some(slot) = self.check_out().await? else {
            return Arc::clone(&self.spare).send(cmd).await;
        };
        let mut connection = self.take(slot).await?;
        self.pulse.feel(connection.send_packed_command(cmd)).await
    }

    /// A slot, as soon as one is free; `None` when the pool has no connection at all.
    async fn check_out(&self) -> Result<Option<Slot>, RedisError> {
        let mut slot = pin!(self.pool.get_owned());
        poll_fn(|cx| match slot.as_mut().poll(cx) {
            Poll::Ready(Ok(slot)) => Poll::Ready(Ok(Some(slot))),
            Poll::Ready(Err(RunError::User(error))) => Poll::Ready(Err(error)),
            Poll::Ready(Err(RunError::TimedOut)) => {
                Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            }
            Poll::Pending if self.pool.state().connections == 0 => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    async fn take(self: &Arc<Self>, mut slot: Slot) -> Result<MultiplexedConnection, RedisError> {
        let is_open = if self.pulse.is_fresh() {
            is_queuing(&mut *slot)
        } else {
            is_open(&mut *slot).await
        };
        if is_open && !self.pulse.is_lost() {
            return Ok(slot.clone());
        }
        self.heal(slot).await
    }

    /// Puts a new connection into the slot, in a task of its own: it outlives a caller who leaves at the deadline.
    async fn heal(self: &Arc<Self>, mut slot: Slot) -> Result<MultiplexedConnection, RedisError> {
        let this = Arc::clone(self);
        let healing = tokio::spawn(async move {
            match this.pool.dedicated_connection().await {
                Ok(connection) => *slot = connection,
                Err(error) => {
                    // With the slot in hand: a server that is down is not stormed.
                    tokio::time::sleep(REST).await;
                    return Err(error);
                }
            }
            this.pulse.renew();
            Ok(slot.clone())
        });
        healing.await.unwrap_or_else(|_| Err(closed()))
    }
}
