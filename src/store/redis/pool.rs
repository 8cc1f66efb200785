//! [`Pool`]: a bb8 pool that decides which connection to use, and holds none.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use bb8::{PooledConnection, RunError};
use bb8_redis::RedisConnectionManager;
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    error::closed,
    keeper::{Keeper, REST, Source, dedicated},
    pulse::{MUTE, Pulse, is_open, is_queuing},
};

type Slot = PooledConnection<'static, RedisConnectionManager>;

/// A connection is cloned out of its slot, which is free again before the command is sent: a pool whose connections are held
/// during the call does half as much.
///
/// bb8-redis calls no connection broken, so a slot whose connection is lost gets another here.
pub(super) struct Pool {
    pool: bb8::Pool<RedisConnectionManager>,
    /// Of all connections together: while some answer it does not tell that another is mute.
    pulse: Pulse,
    /// Whether a caller has left without an answer since the slots were last examined.
    is_in_doubt: AtomicBool,
    examination: Arc<Semaphore>,
    /// For when the pool is empty: bb8 makes up its mind to connect again only every few seconds after a server was gone.
    spare: Arc<Keeper>,
}

impl Pool {
    pub(super) fn new(pool: bb8::Pool<RedisConnectionManager>) -> Self {
        Self {
            spare: Arc::new(Keeper::new(Source::Pool(pool.clone()))),
            pulse: Pulse::new(),
            is_in_doubt: AtomicBool::new(false),
            examination: Arc::new(Semaphore::new(1)),
            pool,
        }
    }

    pub(super) async fn send(self: Arc<Self>, cmd: &Cmd) -> Result<Value, RedisError> {
        if self.is_in_doubt.load(Relaxed) {
            self.examine();
        }
        let Some(slot) = self.check_out().await? else {
            return Arc::clone(&self.spare).send(cmd).await;
        };
        let mut connection = self.take(slot).await?;
        let mut caller = Caller {
            pool: &self,
            leaves: true,
        };
        self.pulse.asks();
        let reply = connection.send_packed_command(cmd).await;
        caller.leaves = false;
        self.pulse.heard(reply)
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

    /// Puts a new connection into the slot, in a task of its own: it outlives a caller who leaves at the timeout.
    async fn heal(self: &Arc<Self>, mut slot: Slot) -> Result<MultiplexedConnection, RedisError> {
        let this = Arc::clone(self);
        let healing = tokio::spawn(async move {
            match dedicated(&this.pool).await {
                Ok(connection) => *slot = connection,
                Err(error) => {
                    // With the slot in hand: a server that is down is not stormed.
                    tokio::time::sleep(REST).await;
                    return Err(error);
                }
            }
            this.pulse.renew();
            let connection = slot.clone();
            // As well: a server that lets us in and refuses all commands.
            tokio::spawn(async move {
                tokio::time::sleep(REST).await;
                drop(slot);
            });
            Ok(connection)
        });
        healing.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Takes all idle slots, and gives each back as soon as its connection has answered or was replaced: nobody meets one that
    /// is mute meanwhile.
    fn examine(self: &Arc<Self>) {
        let Ok(only) = Arc::clone(&self.examination).try_acquire_owned() else {
            return;
        };
        self.is_in_doubt.store(false, Relaxed);
        let only = Arc::new(only);
        for mut slot in self.idle_slots() {
            let (this, only) = (Arc::clone(self), Arc::clone(&only));
            tokio::spawn(async move {
                let ping = redis::cmd("PING");
                if !matches!(
                    timeout(MUTE, slot.send_packed_command(&ping)).await,
                    Ok(Ok(_))
                ) {
                    let _ = this.heal(slot).await;
                }
                drop(only);
            });
        }
    }

    fn idle_slots(&self) -> Vec<Slot> {
        let next =
            || match pin!(self.pool.get_owned()).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(slot) => slot.ok(),
                Poll::Pending => None,
            };
        (0..self.pool.state().idle_connections)
            .map_while(|_| next())
            .collect()
    }
}

/// Somebody who waits for an answer.
struct Caller<'a> {
    pool: &'a Pool,
    leaves: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.pool.is_in_doubt.store(true, Relaxed);
        }
    }
}
