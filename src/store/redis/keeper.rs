//! [`Keeper`]: one connection, replaced as soon as it is known to be lost.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::{sync::watch, time::timeout};

use super::{
    error::closed,
    pulse::{Pulse, is_open},
};

/// How long one attempt to connect may take, greetings included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// From one attempt to the next: at most 200 a second knock at a server that is down or read-only.
pub(super) const REST: Duration = Duration::from_millis(5);

/// As many commands may wait to be written; beyond that callers wait in line.
const QUEUE: usize = 1_024;

/// Where new connections come from.
pub(super) enum Source {
    Client(Box<Client>),
    #[cfg(feature = "sentinel")]
    Sentinels(Arc<super::sentinel::Sentinels>),
    #[cfg(feature = "bb8")]
    Pool(bb8::Pool<bb8_redis::RedisConnectionManager>),
}

/// One connection that callers share.
///
/// A caller who finds it lost starts one attempt to replace it, which all others wait for: it runs in a task of its own, so
/// that it outlives callers who leave at their timeout. No command is ever sent twice.
pub(super) struct Keeper {
    source: Source,
    latest: Mutex<Attempt>,
}

#[derive(Clone)]
struct Attempt {
    /// When it began to connect, or will; `None` when there was none yet.
    started: Option<Instant>,
    outcome: watch::Receiver<Option<Outcome>>,
}

type Outcome = Result<Arc<Live>, RedisError>;

/// A connection that was alive when last seen.
struct Live {
    connection: MultiplexedConnection,
    pulse: Pulse,
}

impl Keeper {
    /// Does nothing until the first command.
    pub(super) fn new(source: Source) -> Self {
        let (_, outcome) = watch::channel(None);
        Self {
            source,
            latest: Mutex::new(Attempt {
                started: None,
                outcome,
            }),
        }
    }

    pub(super) async fn send(self: Arc<Self>, cmd: &Cmd) -> Result<Value, RedisError> {
        // The future of a request is boxed, so what is seldom needed has a box of its own.
        let live = match self.surely_live() {
            Some(live) => live,
            None => Box::pin(self.live()).await?,
        };
        #[cfg(feature = "sentinel")]
        self.look(&live);
        let mut connection = live.connection.clone();
        live.pulse.asks();
        let reply = connection.send_packed_command(cmd).await;
        live.pulse.heard(reply)
    }

    /// Sends one command for a slot of a cluster that is on its way to this server.
    #[cfg(feature = "cluster")]
    pub(super) async fn ask(self: Arc<Self>, cmd: &Cmd) -> Result<Value, RedisError> {
        let live = self.live().await?;
        let mut connection = live.connection.clone();
        // In one message: what ASKING allows is the next command on the connection, whosever it is.
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(cmd.clone());
        live.pulse.asks();
        let replies = connection.send_packed_commands(&both, 0, 2).await;
        // Who may not ask is told so; the command itself would be sent back to where it came from.
        live.pulse.heard(replies.and_then(|replies| {
            let mut replies = replies.into_iter().map(Value::extract_error);
            replies.next().ok_or_else(closed)??;
            replies.next().ok_or_else(closed)?
        }))
    }

    /// The connection, if there is nothing to find out about it.
    fn surely_live(&self) -> Option<Arc<Live>> {
        match &*self.latest().outcome.borrow() {
            Some(Ok(live)) if live.is_surely_usable() => Some(Arc::clone(live)),
            _ => None,
        }
    }

    /// The connection, made anew if it has to be.
    async fn live(self: &Arc<Self>) -> Outcome {
        let found = self.latest().outcome.borrow().clone();
        let lost = match found {
            Some(Ok(live)) if live.is_usable().await => return Ok(live),
            Some(Ok(live)) => Some(live),
            _ => None,
        };
        let arrived = Instant::now();
        loop {
            let attempt = self.renew(lost.as_ref());
            let outcome = attempt.outcome().await;
            // What failed before this caller came says nothing: the server may be back since.
            if outcome.is_ok() || attempt.started >= Some(arrived) {
                return outcome;
            }
        }
    }

    /// Has the connection replaced before the next command if the sentinels now name another primary.
    #[cfg(feature = "sentinel")]
    fn look(self: &Arc<Self>, live: &Arc<Live>) {
        let Source::Sentinels(sentinels) = &self.source else {
            return;
        };
        if sentinels.is_due() {
            let (sentinels, live) = (Arc::clone(sentinels), Arc::clone(live));
            tokio::spawn(async move {
                if sentinels.name_another().await {
                    live.pulse.doubt();
                }
            });
        }
    }

    /// Starts an attempt, unless one is under way or somebody has replaced the lost connection already.
    fn renew(self: &Arc<Self>, lost: Option<&Arc<Live>>) -> Attempt {
        let mut latest = self.latest();
        let is_over = match &*latest.outcome.borrow() {
            Some(Ok(live)) => lost.is_some_and(|lost| Arc::ptr_eq(lost, live)),
            Some(Err(_)) => true,
            None => latest.outcome.has_changed().is_err(),
        };
        if is_over {
            *latest = self.attempt(latest.started);
        }
        latest.clone()
    }

    fn latest(&self) -> MutexGuard<'_, Attempt> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempt(self: &Arc<Self>, last: Option<Instant>) -> Attempt {
        let (publish, outcome) = watch::channel(None);
        let pause = last.map_or(Duration::ZERO, |last| REST.saturating_sub(last.elapsed()));
        let keeper = Arc::clone(self);
        tokio::spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let connection = keeper.source.connect().await;
            publish.send_replace(Some(connection.map(|it| Arc::new(Live::new(it)))));
        });
        Attempt {
            started: Some(Instant::now() + pause),
            outcome,
        }
    }
}

impl Attempt {
    async fn outcome(&self) -> Outcome {
        match self.outcome.clone().wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(closed())),
            // The runtime that made the attempt was shut down.
            Err(_) => Err(closed()),
        }
    }
}

impl Source {
    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // No timeout for answers: the limiter's timeout and `Pulse` see to that, without a timer for each command.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        match self {
            Self::Client(client) => {
                let config = config.set_connection_timeout(None);
                let connection = async {
                    let connection = client.get_multiplexed_async_connection_with_config(&config);
                    answering(connection.await?).await
                };
                let connection = timeout(CONNECT_TIMEOUT, connection).await;
                connection.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinels(sentinels) => sentinels.connect(&config).await,
            #[cfg(feature = "bb8")]
            Self::Pool(pool) => dedicated(pool).await,
        }
    }
}

/// Any answer will do, an error too: a system accepts connections for a server that is stopped.
async fn answering(
    mut connection: MultiplexedConnection,
) -> Result<MultiplexedConnection, RedisError> {
    match connection.send_packed_command(&redis::cmd("PING")).await {
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(connection),
    }
}

/// A connection made as the pool makes its own, but in time.
#[cfg(feature = "bb8")]
pub(super) async fn dedicated(
    pool: &bb8::Pool<bb8_redis::RedisConnectionManager>,
) -> Result<MultiplexedConnection, RedisError> {
    timeout(CONNECT_TIMEOUT, pool.dedicated_connection())
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

impl Live {
    fn new(connection: MultiplexedConnection) -> Self {
        Self {
            connection,
            pulse: Pulse::new(),
        }
    }

    fn is_surely_usable(&self) -> bool {
        !self.pulse.is_lost() && self.pulse.is_fresh()
    }

    async fn is_usable(&self) -> bool {
        self.is_surely_usable()
            || !self.pulse.is_lost() && is_open(&mut self.connection.clone()).await
    }
}
