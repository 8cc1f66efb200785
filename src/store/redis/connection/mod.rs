//! One connection to one server, shared by all callers and replaced as soon as the connection is known to be lost.
//!
//! ```text
//!   Source ──▶ ReconnectingConnection ──▶ Connection ──▶ server
//!   target         replaces the              └─ ConnectionHealth: is it lost?
//!   sentinels      connection
//!   pool
//! ```

mod attempt;
mod ballot;
mod health;
mod login;
#[cfg(feature = "bb8")]
mod pool;
mod reconnecting;
mod sentinel;
mod server;
mod source;
mod target;
mod timeout;

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use redis::{
    Cmd, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{sync::oneshot, task::yield_now};

use super::error::is_turned_away;
use health::ConnectionHealth;

#[cfg(feature = "cluster")]
pub(super) use attempt::SharedAttempt;
pub use login::Credentials;
#[cfg(feature = "bb8")]
pub(super) use pool::NO_TIMEOUT;
pub(super) use reconnecting::{ReconnectingConnection, Reply, reconnects};
pub(super) use sentinel::Sentinels;
pub(super) use server::BAD_URL;
pub use server::RedisServer;
pub(super) use source::Source;
pub(super) use target::Target;
pub(super) use timeout::within;
#[cfg(feature = "cluster")]
pub(super) use timeout::{CONNECT_TIMEOUT, LOST_AFTER, PART_TIMEOUT};

/// One server, or one of the nodes of a cluster.
#[derive(Clone)]
pub(super) struct SingleServer {
    pub(super) connection: Arc<ReconnectingConnection>,
    /// `HOST:PORT` of a node of a cluster.
    pub(super) address: Option<String>,
}

impl fmt::Debug for SingleServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleServer")
    }
}

/// An established connection and the record of replies.
pub(super) struct Connection {
    multiplexed: MultiplexedConnection,
    health: ConnectionHealth,
    /// Dropped with this: then its credentials are no longer renewed.
    _is_kept: Option<oneshot::Sender<()>>,
}

impl Connection {
    /// Waits for a first answer, since the system accepts connections for a server that is stopped. An error reply is
    /// enough, unless the server lets no client in.
    async fn answering(
        mut multiplexed: MultiplexedConnection,
        is_kept: Option<oneshot::Sender<()>>,
    ) -> RedisResult<Self> {
        let health = ConnectionHealth::new();
        let sent = health.sent();
        let reply = multiplexed.send_packed_command(&redis::cmd("PING")).await;
        match health.received(sent, reply) {
            Err(error) if is_turned_away(&error) => Err(error),
            _ => Ok(Self {
                multiplexed,
                health,
                _is_kept: is_kept,
            }),
        }
    }

    /// Sends one command, once.
    ///
    /// A caller that leaves before the reply cannot tell that there was one: if no other command is answered within
    /// [`LOST_AFTER`](timeout::LOST_AFTER), the next replaces the connection.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut multiplexed = self.multiplexed.clone();
        let sent = self.health.sent();
        let reply = multiplexed.send_packed_command(cmd).await;
        self.health.received(sent, reply)
    }

    /// Sends these commands together. You get an error reply as one of the replies.
    pub(super) async fn send_all(
        &self,
        cmds: &redis::Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut multiplexed = self.multiplexed.clone();
        let sent = self.health.sent();
        let replies = multiplexed.send_packed_commands(cmds, 0, cmds.len());
        let (reply, replies) = match replies.await {
            Ok(replies) => (Ok(Value::Okay), replies),
            Err(error) => (Err(error), Vec::new()),
        };
        self.health.received(sent, reply)?;
        Ok(replies.into_iter().map(Value::extract_error).collect())
    }

    fn is_lost(&self) -> bool {
        self.health.is_lost()
    }

    /// Whether callers can use the connection without a look at the socket.
    fn is_surely_usable(&self) -> bool {
        !self.is_lost() && self.health.is_fresh()
    }

    async fn is_usable(&self) -> bool {
        self.is_surely_usable() || !self.is_lost() && is_open(&mut self.multiplexed.clone()).await
    }
}

/// Whether the connection is open as far as this side knows.
///
/// The PING is polled once and dropped. A connection that has ended refuses the PING at once. An open connection queues
/// the PING, but never sends a command that no caller waits for. So this costs no round trip.
pub(super) async fn is_open(connection: &mut impl ConnectionLike) -> bool {
    thread_local! {
        static PING: Cmd = redis::cmd("PING");
    }
    // After a pause, of the runtime or of the whole machine, the runtime looks at the sockets first. Then the
    // connection's task can read what has arrived, possibly the end of the connection.
    yield_now().await;
    yield_now().await;
    PING.with(|ping| {
        let mut reply = connection.req_packed_command(ping);
        let mut context = Context::from_waker(Waker::noop());
        !matches!(reply.as_mut().poll(&mut context), Poll::Ready(Err(_)))
    })
}
