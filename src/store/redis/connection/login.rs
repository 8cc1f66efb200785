//! [`Logins`]: a user and a password that a source gives, and that may expire.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{RedisResult, aio::MultiplexedConnection, cmd};
use tokio::{sync::oneshot, time::Instant};

use super::{
    attempt::SharedAttempt,
    timeout::{CONNECT_TIMEOUT, within},
};
use crate::store::redis::{
    background,
    error::{is_refusal, no_credentials},
};

/// Between two asks. Meanwhile the error of an ask that failed is the answer for all.
const ASK_PAUSE: Duration = Duration::from_millis(250);

/// A user and a password, which a [source](crate::RedisServer::credentials) gives.
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: String,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// With an empty user, the URL's user logs in, or the server's default user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
            valid_for: None,
        }
    }

    /// Sets how long the server accepts the password, from the ask on. Connections log in again after four fifths of it.
    /// By default the password is used until a server refuses it.
    #[must_use]
    pub const fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials") // without the password
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Credentials, String>> + Send>>;

/// A source of credentials and its latest answer, which all connections of a store share.
pub(in crate::store::redis) struct Logins {
    source: Box<dyn Fn() -> Asking + Send + Sync>,
    asks: Arc<SharedAttempt<Arc<Login>>>,
}

/// An answer of the source.
pub(super) struct Login {
    credentials: Credentials,
    /// Four fifths of the validity after the ask.
    renew_at: Option<Instant>,
    ends_at: Option<Instant>,
    is_refused: AtomicBool,
}

impl Logins {
    pub(super) fn new<F, E>(source: impl Fn() -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        let source = Box::new(move || -> Asking {
            let given = source();
            Box::pin(async { given.await.map_err(|error| error.to_string()) })
        });
        // One ask at a time, in the back room, so that callers of all runtimes can wait for it.
        let asks = SharedAttempt::new(ASK_PAUSE, 2 * CONNECT_TIMEOUT, crate::background::spawn);
        Arc::new(Self { source, asks })
    }

    /// Logs in over this connection; a second time, if the server refuses an older answer of the source.
    pub(super) async fn log_in(
        self: &Arc<Self>,
        connection: &mut MultiplexedConnection,
        user: Option<&str>,
    ) -> RedisResult<Arc<Login>> {
        let mut login = self.current().await?;
        let mut reply = login.send(connection, user).await;
        if login.is_refused.load(Relaxed) {
            login = self.current().await?;
            reply = login.send(connection, user).await;
        }
        match login.is_refused.load(Relaxed) {
            true => Err(no_credentials("the server refuses them".to_owned())),
            false => reply.map(|()| login),
        }
    }

    /// Logs in again before each password expires, until the connection is `over`. If the next one is refused, the one of
    /// before holds, and the source is asked again.
    pub(super) async fn renew(
        self: Arc<Self>,
        login: Arc<Login>,
        mut connection: MultiplexedConnection,
        user: Option<String>,
        mut over: oneshot::Receiver<()>,
    ) {
        let mut next = login.renew_at;
        while let Some(at) = next
            && tokio::time::timeout_at(at, &mut over).await.is_err()
        {
            next = Some(Instant::now() + ASK_PAUSE);
            let Ok(login) = self.current().await else {
                continue;
            };
            let sent = login.send(&mut connection, user.as_deref());
            if within(CONNECT_TIMEOUT, sent).await.is_ok() {
                next = login.renew_at.max(next);
            }
        }
    }

    /// The latest answer of the source, or its next if that is used up.
    pub(super) async fn current(self: &Arc<Self>) -> RedisResult<Arc<Login>> {
        loop {
            let will_do = |asked: Instant, outcome: &RedisResult<Arc<Login>>| match outcome {
                Ok(login) => login.is_usable(),
                Err(_) => asked.elapsed() < ASK_PAUSE,
            };
            self.asks.start_unless(will_do, || Arc::clone(self).ask());
            if let Some((_, outcome)) = self.asks.outcome().await {
                return outcome;
            }
        }
    }

    async fn ask(self: Arc<Self>) -> RedisResult<Arc<Login>> {
        let (asked, logins) = (Instant::now(), Arc::clone(&self));
        let given = background::caught(async move { (logins.source)().await });
        let given = match within(CONNECT_TIMEOUT, async { Ok(given.await) }).await {
            Ok(given) => given,
            Err(error) => return self.still_valid().ok_or(error),
        };
        let credentials = match given.and_then(|given| given) {
            Ok(credentials) => credentials,
            // The answer of before serves to its end.
            Err(text) => return self.still_valid().ok_or_else(|| no_credentials(text)),
        };
        let after = |time: Duration| asked.checked_add(time);
        Ok(Arc::new(Login {
            renew_at: credentials.valid_for.and_then(|time| after(time / 5 * 4)),
            ends_at: credentials.valid_for.and_then(after),
            credentials,
            is_refused: AtomicBool::new(false),
        }))
    }
}

impl Logins {
    /// The latest answer, unless its time is over or a server refuses it.
    fn still_valid(&self) -> Option<Arc<Login>> {
        let latest = self.asks.latest().outcome.clone()?.ok()?;
        let is_valid = latest.ends_at.is_some_and(|at| Instant::now() < at);
        (is_valid && !latest.is_refused.load(Relaxed)).then_some(latest)
    }
}

impl Login {
    fn is_usable(&self) -> bool {
        let is_over = self.renew_at.is_some_and(|at| at <= Instant::now());
        !is_over && !self.is_refused.load(Relaxed)
    }

    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        user: Option<&str>,
    ) -> RedisResult<()> {
        let own = Some(&*self.credentials.user).filter(|own| !own.is_empty());
        let reply = authenticate(connection, own.or(user), &self.credentials.password).await;
        if reply.as_ref().is_err_and(is_refusal) {
            self.is_refused.store(true, Relaxed);
        }
        reply
    }
}

/// Sends an `AUTH`, which has no user before version 6.
pub(super) async fn authenticate(
    connection: &mut MultiplexedConnection,
    user: Option<&str>,
    password: &str,
) -> RedisResult<()> {
    let auth = |user: Option<&str>| cmd("AUTH").arg(user).arg(password).take();
    let reply = auth(user).exec_async(connection).await;
    let detail = reply.as_ref().err().and_then(|error| error.detail());
    match detail.is_some_and(|it| it.contains("wrong number of arguments for 'auth' command")) {
        true => auth(None).exec_async(connection).await,
        false => reply,
    }
}
