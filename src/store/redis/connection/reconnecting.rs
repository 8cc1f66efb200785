//! [`ReconnectingConnection`]: a connection that is replaced as soon as it is known to be lost.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::{sync::watch, time::Instant};

use super::{Connection, source::Source, timeout::ReplyTimeout};
use crate::store::redis::error::closed;

/// From one attempt to connect to the next: at most 200 a second reach a server that is down or read-only.
const RECONNECT_PAUSE: Duration = Duration::from_millis(5);

/// One connection that callers share.
///
/// A caller who finds it lost starts one attempt to replace it, which all others wait for: it runs in a task of its
/// own, so that it outlives callers who leave at their timeout. No command is ever sent twice.
pub(in crate::store::redis) struct ReconnectingConnection {
    source: Box<dyn Source>,
    timeout: ReplyTimeout,
    latest: Mutex<Attempt>,
}

/// An attempt to connect, under way or ended.
#[derive(Clone)]
struct Attempt {
    /// When it began to connect, or will; `None` when there was none yet.
    started: Option<Instant>,
    /// Whether another attempt or another connection came before it.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(dead_code, reason = "only a cluster asks for it")
    )]
    is_replacement: bool,
    outcome: watch::Receiver<Option<Outcome>>,
}

type Outcome = Result<Arc<Connection>, RedisError>;

impl ReconnectingConnection {
    /// Does nothing until the first command.
    pub(in crate::store::redis) fn new(source: impl Source, timeout: ReplyTimeout) -> Arc<Self> {
        let (_, outcome) = watch::channel(None);
        Arc::new(Self {
            source: Box::new(source),
            timeout,
            latest: Mutex::new(Attempt {
                started: None,
                is_replacement: false,
                outcome,
            }),
        })
    }

    /// Sends one command, once.
    ///
    /// Not bounded in time while a server keeps its connection open and says nothing.
    ///
    /// Cancellation: what was sent is executed, and its reply dropped.
    pub(in crate::store::redis) async fn send(self: &Arc<Self>, cmd: &Cmd) -> RedisResult<Value> {
        // The future of a request is boxed, so what is rarely needed has a box of its own.
        let connection = match self.surely_usable() {
            Some(connection) => connection,
            None => Box::pin(self.usable()).await?,
        };
        self.follow(&connection);
        connection.send(cmd).await
    }

    /// Sends one command for a slot of a cluster that is being moved to this server.
    #[cfg(feature = "cluster")]
    pub(in crate::store::redis) async fn send_asking(
        self: &Arc<Self>,
        cmd: &Cmd,
    ) -> RedisResult<Value> {
        self.usable().await?.send_asking(cmd).await
    }

    /// Sends these commands together. An error reply is one among the replies.
    pub(in crate::store::redis) async fn send_all(
        self: &Arc<Self>,
        cmds: &redis::Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        self.usable().await?.send_all(cmds).await
    }

    /// Whether the server does not answer as far as is known: the connection is lost, or could not be replaced so far.
    #[cfg(feature = "cluster")]
    pub(in crate::store::redis) fn is_lost(&self) -> bool {
        let latest = self.latest();
        match &*latest.outcome.borrow() {
            Some(Ok(connection)) => connection.is_lost(),
            Some(Err(_)) => true,
            None => latest.is_replacement,
        }
    }

    /// The connection, if there is nothing to find out about it.
    fn surely_usable(&self) -> Option<Arc<Connection>> {
        match &*self.latest().outcome.borrow() {
            Some(Ok(connection)) if connection.is_surely_usable() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// The connection, made anew if it has to be.
    async fn usable(self: &Arc<Self>) -> Outcome {
        let found = self.latest().outcome.borrow().clone();
        let lost = match found {
            Some(Ok(connection)) if connection.is_usable().await => return Ok(connection),
            Some(Ok(connection)) => Some(connection),
            _ => None,
        };
        let arrived = Instant::now();
        loop {
            let attempt = self.attempt(lost.as_ref());
            let outcome = published(attempt.outcome).await;
            // What failed before this caller came says nothing: the server may be back since.
            if outcome.is_ok() || attempt.started >= Some(arrived) {
                return outcome;
            }
        }
    }

    /// Has the connection replaced before the next command if its source now leads to another server.
    fn follow(&self, connection: &Arc<Connection>) {
        if let Some(has_moved) = self.source.has_moved(self.timeout.get()) {
            let connection = Arc::clone(connection);
            tokio::spawn(async move {
                if has_moved.await {
                    connection.health.mark_stale();
                }
            });
        }
    }

    /// The attempt that is under way, or that has replaced the lost connection already; else a new one.
    fn attempt(self: &Arc<Self>, lost: Option<&Arc<Connection>>) -> Attempt {
        let mut latest = self.latest();
        let is_over = match &*latest.outcome.borrow() {
            Some(Ok(connection)) => lost.is_some_and(|lost| Arc::ptr_eq(lost, connection)),
            Some(Err(_)) => true,
            // None yet, or the runtime that made it was shut down.
            None => latest.outcome.has_changed().is_err(),
        };
        if is_over {
            *latest = self.connect(latest.started);
        }
        latest.clone()
    }

    fn latest(&self) -> MutexGuard<'_, Attempt> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, last: Option<Instant>) -> Attempt {
        let (publish, outcome) = watch::channel(None);
        let pause = last.map_or(Duration::ZERO, |last| {
            RECONNECT_PAUSE.saturating_sub(last.elapsed())
        });
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let made = this.source.connect(this.timeout.get()).await;
            let made = made.map(|it| Arc::new(Connection::new(it, this.timeout.clone())));
            publish.send_replace(Some(made));
        });
        Attempt {
            started: Some(Instant::now() + pause),
            is_replacement: last.is_some(),
            outcome,
        }
    }
}

/// Waits for what a task publishes.
pub(in crate::store::redis) async fn published<T: Clone>(
    mut outcome: watch::Receiver<Option<RedisResult<T>>>,
) -> RedisResult<T> {
    match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(closed())),
        // The runtime of the task was shut down.
        Err(_) => Err(closed()),
    }
}
