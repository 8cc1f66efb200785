//! [`Sentinels`] as a source of connections: they find the primary.

use std::{
    future::ready,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, ErrorKind, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, timeout};

use super::{
    Connection, ReconnectingConnection,
    ballot::{Address, Ballot},
    source::Source,
    target::Target,
};
use crate::{lock::lock, store::redis::error::closed};

/// How often the sentinels are asked whether a working primary still is the primary. A primary that was cut off from
/// its sentinels does not know about its successor.
const PRIMARY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// After this long without any event, stop counting on sentinels that have not answered, and try another address beside
/// the one that hangs.
const HEDGE: Duration = Duration::from_millis(200);

/// The sentinels of one primary, and a shared connection to each.
pub(in crate::store::redis) struct Sentinels {
    sentinels: Vec<Arc<ReconnectingConnection>>,
    question: Cmd,
    /// With the name in the place of the host.
    primary: Target,
    /// The address where the primary was found.
    found: Mutex<Option<Address>>,
    /// When to ask the sentinels again whether that is still the primary.
    next_check: Mutex<Instant>,
}

impl Sentinels {
    /// The sentinels of this primary. Those without a source and a password of their own have its credentials for
    /// sentinels.
    pub(in crate::store::redis) fn new(sentinels: &[Target], primary: &Target) -> Arc<Self> {
        let connection = |sentinel: &Target| {
            let mut sentinel = sentinel.clone();
            if sentinel.info.redis_settings().password().is_none() {
                let own = sentinel.logins.take();
                sentinel.logins = own.or_else(|| primary.sentinel_logins.clone());
            }
            ReconnectingConnection::new(Arc::new(sentinel))
        };
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(primary.host());
        Arc::new(Self {
            sentinels: sentinels.iter().map(connection).collect(),
            question,
            primary: primary.clone(),
            found: Mutex::default(),
            next_check: Mutex::new(Instant::now() + PRIMARY_CHECK_INTERVAL),
        })
    }
}

impl Source for Arc<Sentinels> {
    fn connect(&self) -> RedisFuture<'_, Connection> {
        Box::pin(self.find())
    }

    fn has_moved(&self) -> Option<Pin<Box<dyn Future<Output = bool> + Send>>> {
        if !self.is_check_due() {
            return None;
        }
        let this = Self::clone(self);
        Some(Box::pin(async move { this.name_another().await }))
    }
}

/// The result of asking a sentinel, or of connecting to an address.
enum Answer {
    Named(RedisResult<Address>),
    Visited(Address, RedisResult<Connection>),
}

type Inquiry = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Sentinels {
    /// Asks all sentinels at once. An address is tried as soon as most sentinels name it, the other addresses when all
    /// have answered: a sentinel that is cut off together with an old primary misleads no caller while the other
    /// sentinels can be reached.
    async fn find(self: &Arc<Self>) -> RedisResult<Connection> {
        let mut under_way = self.ask();
        let (mut unanswered, mut visits, mut is_late) = (self.sentinels.len(), 0, false);
        let mut ballot = Ballot::new(self.sentinels.len());
        let mut why = closed();
        loop {
            if (visits == 0 || is_late)
                && let Some(address) = ballot.next(unanswered == 0 || is_late)
            {
                (visits, is_late) = (visits + 1, false);
                let this = Arc::clone(self);
                under_way.push(Box::pin(async move {
                    let connection = this.log_in(&address).await;
                    Answer::Visited(address, connection)
                }));
            }
            match timeout(HEDGE, under_way.next()).await {
                Ok(Some(Answer::Named(named))) => {
                    unanswered -= 1;
                    match named {
                        Ok(address) => ballot.add(address),
                        // The error of a sentinel that refuses us says more than that of one that is down.
                        Err(error) if ballot.is_empty() && why.is_io_error() => why = error,
                        Err(_) => {}
                    }
                }
                Ok(Some(Answer::Visited(address, Ok(connection)))) => {
                    *lock(&self.found) = Some(address);
                    return Ok(connection);
                }
                Ok(Some(Answer::Visited(_, Err(error)))) => (visits, why) = (visits - 1, error),
                Ok(None) => return Err(why),
                Err(_) => is_late = true,
            }
        }
    }

    /// Returns `true` to one caller per interval.
    fn is_check_due(&self) -> bool {
        let now = Instant::now();
        // If the lock is taken, another caller is that one.
        let Ok(mut next_check) = self.next_check.try_lock() else {
            return false;
        };
        let is_due = *next_check <= now;
        if is_due {
            *next_check = now + PRIMARY_CHECK_INTERVAL;
        }
        is_due
    }

    /// Whether most sentinels name other primaries than the one in use.
    async fn name_another(&self) -> bool {
        let found = lock(&self.found).clone();
        let is_other = |answer: &Answer| {
            ready(matches!(answer, Answer::Named(Ok(named)) if found.as_ref() != Some(named)))
        };
        let most = self.sentinels.len() / 2 + 1;
        let others = self.ask().filter(is_other).take(most).count();
        timeout(PRIMARY_CHECK_INTERVAL, others)
            .await
            .is_ok_and(|others| others == most)
    }

    fn ask(&self) -> FuturesUnordered<Inquiry> {
        let ask = |sentinel: &Arc<ReconnectingConnection>| -> Inquiry {
            let (sentinel, question) = (Arc::clone(sentinel), self.question.clone());
            Box::pin(async move {
                Answer::Named(match sentinel.send(&question).await {
                    Ok(Value::Nil) => Err(unknown()),
                    Ok(address) => redis::from_redis_value(address).map_err(RedisError::from),
                    Err(error) if is_no_sentinel(&error) => Err(unknown()),
                    Err(error) => Err(error),
                })
            })
        };
        self.sentinels.iter().map(ask).collect()
    }

    async fn log_in(&self, (host, port): &Address) -> RedisResult<Connection> {
        let mut connection = self.primary.named((host, *port), None).connect().await?;
        // Sentinels learn of a promotion one by one, and the old primary learns of its demotion last.
        let role: Vec<Value> = redis::cmd("ROLE")
            .query_async(&mut connection.multiplexed)
            .await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
            _ => Err((ServerErrorKind::ReadOnly.into(), "not a primary").into()),
        }
    }
}

/// Whether a server does not know the question.
fn is_no_sentinel(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("ERR") && detail.starts_with("unknown command")
}

/// The error of a sentinel that does not know the name, or of a server that is no sentinel.
fn unknown() -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, "not known").into()
}
