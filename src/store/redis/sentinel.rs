//! [`Sentinels`]: who knows where the primary is.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{task::JoinSet, time::timeout};

use super::{
    error::closed,
    keeper::{CONNECT_TIMEOUT, Keeper},
};

/// What one sentinel may take to answer, and one server to show that it is the primary. One of each that hangs leaves
/// time for another within [`CONNECT_TIMEOUT`].
const PATIENCE: Duration = Duration::from_millis(200);

/// How often the sentinels are asked whether a primary that works well still is the primary: one that was cut off from
/// them does not know that there is another.
const LOOK: Duration = Duration::from_secs(1);

/// A primary by the name that its sentinels know, and how to log in there.
///
/// Made from the bare name, `"mymaster"`, or from a URL or `ConnectionInfo` that has the name in the place of the host:
/// `"rediss://user:password@mymaster/2"`. A port says nothing.
#[derive(Clone)]
pub struct Primary(RedisResult<ConnectionInfo>);

impl From<&str> for Primary {
    fn from(name: &str) -> Self {
        Self(if name.contains("://") {
            name.into_connection_info()
        } else {
            (name, 0).into_connection_info()
        })
    }
}

impl From<String> for Primary {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<ConnectionInfo> for Primary {
    fn from(info: ConnectionInfo) -> Self {
        Self(Ok(info))
    }
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Primary")
    }
}

/// The sentinels of one primary, with a connection kept to each.
pub(super) struct Sentinels {
    sentinels: Vec<Arc<Keeper>>,
    question: Cmd,
    /// With the name in the place of the host.
    primary: ConnectionInfo,
    /// Where it was found.
    found: Mutex<Option<Address>>,
    born: Instant,
    /// In milliseconds since `born`.
    looked: AtomicU64,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Arc<Keeper>>, primary: Primary) -> RedisResult<Self> {
        let primary = primary.0?;
        #[cfg(feature = "tls")]
        super::tls::prepare(&primary);
        let tcp = primary.tcp_settings().clone().set_nodelay(true);
        let primary = primary.set_tcp_settings(tcp);
        let name = match primary.addr() {
            ConnectionAddr::Tcp(name, _) | ConnectionAddr::TcpTls { host: name, .. } => name,
            _ => "",
        };
        if sentinels.is_empty() || name.is_empty() {
            return Err((
                ErrorKind::InvalidClientConfig,
                "a sentinel or the name is missing",
            )
                .into());
        }
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        Ok(Self {
            sentinels,
            question,
            primary,
            found: Mutex::default(),
            born: Instant::now(),
            looked: AtomicU64::new(0),
        })
    }

    /// Finds the primary, within [`CONNECT_TIMEOUT`].
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        within(CONNECT_TIMEOUT, self.find(config)).await
    }

    /// Asks all at once. An address is tried as soon as most of them name it, the others when all have spoken: one sentinel
    /// that is cut off with an old primary leads nobody there while the others can be reached.
    async fn find(&self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let mut asked = self.ask();
        let mut ballot = Ballot::new(self.sentinels.len());
        let mut why = closed();
        loop {
            while let Some(address) = ballot.next(asked.is_empty()) {
                match within(PATIENCE, self.log_in(&address, config)).await {
                    Ok(connection) => {
                        *self.found() = Some(address);
                        return Ok(connection);
                    }
                    Err(error) => why = error,
                }
            }
            match asked.join_next().await {
                Some(Ok(Ok(address))) => ballot.add(address),
                // What a sentinel says against us tells more than that another is down.
                Some(Ok(Err(error))) if ballot.is_empty() && why.is_io_error() => why = error,
                Some(_) => {}
                None => return Err(why),
            }
        }
    }

    /// Whether it is time to [look](Self::name_another) again; says so to one caller.
    pub(super) fn is_due(&self) -> bool {
        let now = self
            .born
            .elapsed()
            .as_millis()
            .try_into()
            .unwrap_or(u64::MAX);
        let looked = self.looked.load(Relaxed);
        let is_due = u128::from(now.saturating_sub(looked)) >= LOOK.as_millis();
        is_due
            && self
                .looked
                .compare_exchange(looked, now, Relaxed, Relaxed)
                .is_ok()
    }

    /// Whether most sentinels name another primary than the one that was found.
    pub(super) async fn name_another(&self) -> bool {
        let mut asked = self.ask();
        let mut ballot = Ballot::new(self.sentinels.len());
        while let Some(answer) = asked.join_next().await {
            if let Ok(Ok(address)) = answer {
                ballot.add(address);
            }
        }
        let named = ballot.next(false);
        named.is_some() && named != *self.found()
    }

    fn found(&self) -> MutexGuard<'_, Option<Address>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> JoinSet<RedisResult<Address>> {
        let ask = |sentinel: &Arc<Keeper>| {
            let (sentinel, question) = (Arc::clone(sentinel), self.question.clone());
            within(PATIENCE, async move {
                match sentinel.send(&question).await {
                    Ok(Value::Nil) => Err(unknown()),
                    Ok(address) => Ok(redis::from_redis_value(address)?),
                    Err(error) if error.code() == Some("ERR") => Err(unknown()),
                    Err(error) => Err(error),
                }
            })
        };
        self.sentinels.iter().map(ask).collect()
    }

    async fn log_in(
        &self,
        (host, port): &Address,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let mut addr = self.primary.addr().clone();
        match &mut addr {
            ConnectionAddr::Tcp(to, at)
            | ConnectionAddr::TcpTls {
                host: to, port: at, ..
            } => (*to, *at) = (host.clone(), *port),
            _ => {}
        }
        let mut connection = Client::open(self.primary.clone().set_addr(addr))?
            .get_multiplexed_async_connection_with_config(config)
            .await?;
        // Sentinels learn of a promotion one by one, and a primary of its demotion last.
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
            _ => Err((ServerErrorKind::ReadOnly.into(), "not a primary").into()),
        }
    }
}

/// The error of a sentinel that does not know the name, or of a server that is no sentinel.
fn unknown() -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, "not known").into()
}

type Address = (String, u16);

/// Who was named by how many.
struct Ballot {
    voters: usize,
    named: Vec<Candidate>,
}

struct Candidate {
    address: Address,
    votes: usize,
    tried: bool,
}

impl Ballot {
    fn new(voters: usize) -> Self {
        Self {
            voters,
            named: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    fn add(&mut self, address: Address) {
        let known = self.named.iter_mut().find(|it| it.address == address);
        match known {
            Some(candidate) => candidate.votes += 1,
            None => self.named.push(Candidate {
                address,
                votes: 1,
                tried: false,
            }),
        }
    }

    /// Whom to try next: whoever most sentinels name, or, when all have spoken, whoever more name than any other.
    fn next(&mut self, all_spoke: bool) -> Option<Address> {
        let rest = self.named.iter_mut().filter(|it| !it.tried);
        let best = rest.max_by_key(|it| it.votes)?;
        if !all_spoke && 2 * best.votes <= self.voters {
            return None;
        }
        best.tried = true;
        Some(best.address.clone())
    }
}

async fn within<T>(span: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(span, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> Address {
        (host.into(), 6379)
    }

    #[test]
    fn whoever_most_name_is_tried_at_once_and_the_others_when_all_have_spoken() {
        let mut ballot = Ballot::new(5);
        for host in ["old", "new", "new"] {
            ballot.add(address(host));
        }
        assert_eq!(ballot.next(false), None);
        ballot.add(address("new"));
        assert_eq!(ballot.next(false), Some(address("new")));
        ballot.add(address("new"));
        assert_eq!(ballot.next(false), None);
        assert_eq!(ballot.next(true), Some(address("old")));
        assert_eq!(ballot.next(true), None);
    }

    #[test]
    fn the_name_stands_bare_or_in_the_place_of_the_host() {
        for (primary, name) in [
            (Primary::from("my_Master.1"), "my_Master.1"),
            (
                Primary::from("redis://user:sesame@my_Master.1/2"),
                "my_Master.1",
            ),
            (Primary::from(String::from("redis://m:1")), "m"),
        ] {
            assert!(!format!("{primary:?}").contains("sesame"));
            let ConnectionAddr::Tcp(host, _) = primary.0.unwrap().addr().clone() else {
                panic!("{name}");
            };
            assert_eq!(host, name);
        }
        assert!(Primary::from("http://m").0.is_err());
    }
}
