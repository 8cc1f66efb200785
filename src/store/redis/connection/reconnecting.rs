//! [`ReconnectingConnection`]: a connection that is replaced as soon as the loss is known.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

use super::{
    Connection,
    attempt::SharedAttempt,
    source::Source,
    timeout::{CONNECT_TIMEOUT, LOST_AFTER, within},
};
use crate::{lock::lock, store::redis::background};

/// Between two attempts to connect: at most 40 attempts a second reach a server that is down or read-only.
const RECONNECT_PAUSE: Duration = Duration::from_millis(25);

/// From one connection that is replaced since a write was refused to the next: a server may refuse writes for long, and
/// the reads of others must not wait for a connection after each refusal.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);

/// How often a connection of this process was made again.
static RECONNECTS: AtomicU64 = AtomicU64::new(0);

/// Returns how often a connection of this process was made again: a server may have started empty meanwhile.
pub(in crate::store::redis) fn reconnects() -> u64 {
    RECONNECTS.load(Relaxed)
}

/// One connection that callers share.
///
/// A caller that finds the connection lost starts one attempt to replace it, and all other callers wait for that
/// attempt. No command is ever sent twice.
pub(in crate::store::redis) struct ReconnectingConnection {
    source: Arc<dyn Source>,
    attempt: Arc<SharedAttempt<Arc<Connection>>>,
    /// When a connection was last replaced since a write was refused.
    replaced: Mutex<Option<Instant>>,
}

type Outcome = RedisResult<Arc<Connection>>;

/// The reply to a command; or why it was not sent.
pub(in crate::store::redis) type Reply = RedisResult<RedisResult<Value>>;

impl ReconnectingConnection {
    /// Opens no connection before the first command.
    pub(in crate::store::redis) fn new(source: Arc<dyn Source>) -> Arc<Self> {
        Arc::new(Self {
            source,
            attempt: SharedAttempt::new(RECONNECT_PAUSE, LOST_AFTER, background::spawn),
            replaced: Mutex::default(),
        })
    }

    /// Waits for a usable connection.
    pub(in crate::store::redis) async fn usable(self: &Arc<Self>) -> Outcome {
        // The future of a request is boxed, so the rare path has a separate box, which keeps that future small.
        let connection = match self.surely_usable() {
            Some(connection) => connection,
            None => Box::pin(self.found()).await?,
        };
        self.follow(&connection);
        Ok(connection)
    }

    /// Takes another connection than this before the next command, unless one was replaced just now.
    pub(in crate::store::redis) fn replace_refusing(&self, connection: &Connection) {
        let mut replaced = lock(&self.replaced);
        if replaced.is_none_or(|at| at.elapsed() >= REFUSED_PAUSE) {
            connection.health.mark_stale();
            *replaced = Some(Instant::now());
        }
    }

    /// Sends one command, once, and waits for the reply.
    pub(in crate::store::redis) async fn send(self: &Arc<Self>, cmd: &Cmd) -> RedisResult<Value> {
        self.usable().await?.send(cmd).await
    }

    /// Sends several commands together.
    pub(in crate::store::redis) async fn send_all(
        self: &Arc<Self>,
        cmds: &redis::Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        self.usable().await?.send_all(cmds).await
    }

    /// Sends one command over a connection of its own: a proxy that does not know a command may close the connection.
    pub(in crate::store::redis) async fn ask_apart(&self, cmd: &Cmd) -> RedisResult<Value> {
        within(CONNECT_TIMEOUT, async {
            let mut connection = self.source.connect().await?.multiplexed;
            connection.send_packed_command(cmd).await?.extract_error()
        })
        .await
    }

    /// Whether the server seems not to answer: the connection is lost, or could not be replaced so far.
    #[cfg(feature = "cluster")]
    pub(in crate::store::redis) fn is_lost(&self) -> bool {
        let latest = self.attempt.latest();
        match &latest.outcome {
            Some(Ok(connection)) => connection.is_lost(),
            Some(Err(_)) => true,
            None => latest.is_repeated,
        }
    }

    /// The connection, if a reply is so recent that no look at the socket is needed.
    fn surely_usable(&self) -> Option<Arc<Connection>> {
        match &self.attempt.latest().outcome {
            Some(Ok(connection)) if connection.is_surely_usable() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// The connection, replaced first if the old one is lost.
    async fn found(self: &Arc<Self>) -> Outcome {
        let found = self.attempt.latest().outcome.clone();
        let lost = match found {
            Some(Ok(connection)) if connection.is_usable().await => return Ok(connection),
            Some(Ok(connection)) => Some(connection),
            _ => None,
        };
        within(CONNECT_TIMEOUT, self.replace(lost)).await
    }

    async fn replace(self: &Arc<Self>, lost: Option<Arc<Connection>>) -> Outcome {
        let arrived = Instant::now();
        let is_another = |found: &Arc<Connection>| {
            let lost = lost.as_ref();
            lost.is_none_or(|lost| !Arc::ptr_eq(lost, found))
        };
        loop {
            let will_do = |_, outcome: &Outcome| outcome.as_ref().is_ok_and(is_another);
            self.attempt
                .start_unless(will_do, || Arc::clone(self).connect());
            match self.attempt.outcome().await {
                // Ignore a failure of an attempt that began before this caller came: the server may be back since.
                Some((started, Err(error))) if started >= arrived => return Err(error),
                Some((_, Ok(found))) if is_another(&found) => return Ok(found),
                _ => {}
            }
        }
    }

    async fn connect(self: Arc<Self>) -> Outcome {
        let is_repeated = self.attempt.latest().is_repeated;
        let outcome = within(CONNECT_TIMEOUT, self.source.connect()).await;
        if is_repeated && outcome.is_ok() {
            RECONNECTS.fetch_add(1, Relaxed);
        }
        outcome.map(Arc::new)
    }

    /// Marks the connection for replacement before the next command, if the source now leads to another server.
    fn follow(&self, connection: &Arc<Connection>) {
        if let Some(has_moved) = self.source.has_moved() {
            let connection = Arc::clone(connection);
            background::spawn(async move {
                if has_moved.await {
                    connection.health.mark_stale();
                }
            });
        }
    }
}
