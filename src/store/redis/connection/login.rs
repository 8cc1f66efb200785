//! [`Logins`]: a user and a password that a source gives, and that may expire.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{ConnectionInfo, RedisResult, aio::MultiplexedConnection, cmd};
use tokio::{sync::oneshot, time::Instant};

use super::{
    attempt::SharedAttempt,
    timeout::{CONNECT_TIMEOUT, within},
};
use crate::lock::lock;
use crate::store::redis::{
    background,
    error::{is_refusal, no_credentials},
};

/// Between two asks. Meanwhile the error of an ask that failed is the answer for all.
const ASK_PAUSE: Duration = Duration::from_millis(250);

/// Between two asks for a server that refuses what another takes: the next answer may help it no better.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

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
    verdicts: Mutex<Verdicts>,
}

/// An answer of the source.
pub(super) struct Login {
    credentials: Credentials,
    asked: Instant,
    /// Whether a refusal has used it up.
    is_spent: AtomicBool,
}

type Outcome = RedisResult<Arc<Login>>;

/// The last verdicts of servers about answers of the source.
#[derive(Default)]
struct Verdicts {
    /// The last server that took one; empty if that server has refused one since.
    taken_by: String,
    /// The servers that refuse what another takes, and when each last spent an answer.
    refused_by: HashMap<String, Instant>,
}

impl Verdicts {
    fn take(&mut self, server: String) {
        self.refused_by.remove(&server);
        self.taken_by = server;
    }

    /// Whether this refusal spends the answer.
    fn refuse(&mut self, server: String) -> bool {
        if self.taken_by == server {
            self.taken_by.clear();
        }
        let known = &mut self.refused_by;
        known.retain(|_, spent| spent.elapsed() < REFUSED_PAUSE);
        let spends = self.taken_by.is_empty() || !known.contains_key(&server);
        if spends {
            known.insert(server, Instant::now());
        }
        spends
    }
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
        Arc::new(Self {
            source,
            // One ask at a time, in the back room, so that callers of all runtimes can wait for it.
            asks: SharedAttempt::new(ASK_PAUSE, 2 * CONNECT_TIMEOUT, crate::background::spawn),
            verdicts: Mutex::default(),
        })
    }

    /// Logs in over this connection to this server; a second time, if the server refuses an older answer of the source.
    /// The connection logs in again before each password expires, until you drop the returned value.
    pub(super) async fn log_in(
        self: &Arc<Self>,
        connection: &mut MultiplexedConnection,
        server: &ConnectionInfo,
    ) -> RedisResult<oneshot::Sender<()>> {
        let mut login = self.current().await?;
        let mut reply = self.send(&login, connection, server).await;
        if login.is_spent.load(Relaxed) {
            login = self.current().await?;
            reply = self.send(&login, connection, server).await;
        }
        if reply.as_ref().is_err_and(is_refusal) {
            return Err(no_credentials("the server refuses them".to_owned()));
        }
        let (is_kept, over) = oneshot::channel();
        let (again, server) = (connection.clone(), server.clone());
        background::spawn(Arc::clone(self).renew(login, again, server, over));
        reply.map(|()| is_kept)
    }

    /// If the next password is refused, the one of before holds, and the source is asked again.
    async fn renew(
        self: Arc<Self>,
        login: Arc<Login>,
        mut connection: MultiplexedConnection,
        server: ConnectionInfo,
        mut over: oneshot::Receiver<()>,
    ) {
        let mut next = login.end_of(4);
        while let Some(at) = next
            && tokio::time::timeout_at(at, &mut over).await.is_err()
        {
            next = Some(Instant::now() + ASK_PAUSE);
            let login = match self.current().await {
                Ok(login) if login.is_usable(4) => login,
                _ => continue,
            };
            let sent = self.send(&login, &mut connection, &server);
            if within(CONNECT_TIMEOUT, sent).await.is_ok() {
                next = login.end_of(4).max(next);
            }
        }
    }

    async fn send(
        &self,
        login: &Login,
        connection: &mut MultiplexedConnection,
        server: &ConnectionInfo,
    ) -> RedisResult<()> {
        let own = Some(&*login.credentials.user).filter(|own| !own.is_empty());
        let user = own.or(server.redis_settings().username());
        let reply = authenticate(connection, user, &login.credentials.password).await;
        let server = server.addr().to_string();
        let mut verdicts = lock(&self.verdicts);
        match &reply {
            Ok(()) => verdicts.take(server),
            Err(error) if is_refusal(error) && verdicts.refuse(server) => {
                login.is_spent.store(true, Relaxed);
            }
            Err(_) => {}
        }
        reply
    }

    /// The latest answer of the source, or its next if that is used up.
    pub(super) async fn current(self: &Arc<Self>) -> Outcome {
        loop {
            let will_do = |asked: Instant, outcome: &Outcome| match outcome {
                Ok(login) => login.is_usable(4),
                Err(_) => asked.elapsed() < ASK_PAUSE,
            };
            let before = self.asks.latest().outcome.clone();
            self.asks
                .start_unless(will_do, || Arc::clone(self).ask(before));
            if let Some((_, outcome)) = self.asks.outcome().await {
                return outcome;
            }
        }
    }

    async fn ask(self: Arc<Self>, before: Option<Outcome>) -> Outcome {
        let (asked, logins) = (Instant::now(), Arc::clone(&self));
        let given = background::caught(async move { (logins.source)().await });
        let given = within(CONNECT_TIMEOUT, async { Ok(given.await) }).await;
        let given = given.and_then(|given| given.and_then(|it| it).map_err(no_credentials));
        match (given, before) {
            (Ok(credentials), _) => Ok(Arc::new(Login {
                credentials,
                asked,
                is_spent: AtomicBool::new(false),
            })),
            // The answer of before serves to its end, if that is known.
            (_, Some(Ok(login))) if login.end_of(5).is_some() && login.is_usable(5) => Ok(login),
            (Err(error), _) => Err(error),
        }
    }
}

impl Login {
    /// The end of this many fifths of the validity.
    fn end_of(&self, fifths: u32) -> Option<Instant> {
        let validity = self.credentials.valid_for?;
        self.asked.checked_add(validity / 5 * fifths)
    }

    fn is_usable(&self, fifths: u32) -> bool {
        let is_over = self.end_of(fifths).is_some_and(|at| at <= Instant::now());
        !is_over && !self.is_spent.load(Relaxed)
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
