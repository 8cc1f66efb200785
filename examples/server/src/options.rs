//! The options of the command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use axum::http::HeaderName;
use lexopt::{
    Arg::{Long, Short},
    Parser, ValueExt,
};
use redis::{ConnectionInfo, IntoConnectionInfo};
use sluicegate::{
    FailurePolicy, Policy, RedisStore, Rule, block::Ban, error::ConfigError, extract::Cidr,
    middleware::HeaderStyle,
};

use super::config;

pub(crate) const USAGE: &str = "\
An axum server whose requests are limited by several rules at once.

cargo run --release -p example-server -- [options]

  --listen ADDR            default 127.0.0.1:3000; port 0 picks one
  --limit KEY=RULES        repeatable; KEY is ip, header:NAME (a request without it skips this limit) or all (everybody
                           together); default ip=10/1s,40/10s,120/1m. A key may have a second --limit of slots, as in
                           header:x-user=3/10s@concurrent: 3 requests at a time, each until its response ends
  --config FILE            limits from a TOML file instead, read again on SIGHUP:
                             [limits]
                             ip = '10/1s,120/1m'
                             'header:x-api-key' = ['600/1m', '100000/1d']
                             'header:x-tenant' = { rules = '9/1s', shadow = true }
                             'header:x-user' = { rules = '9/1s', strikes = '5/10m', ban = '1h' }
  --count all|failures     which requests count: all (the default), or those that are answered with 400 or above
  --trusted-proxy CIDR     repeatable; ip is what proxies in these networks wrote into X-Forwarded-For; default: none,
                           and ip is whoever connects
  --redis URL              share limits through this server; default: in this process's memory. Repeatable: these are
                           nodes of one cluster
  --cluster                --redis is a node of a cluster, whose others are found through it
  --redis-password-file FILE
                           the password of the user in the --redis URL, or of the primary, read again at each login
  --sentinel NAME          the --redis URLs, of which there may be several, are sentinels, and NAME is the
                           primary's, alone or as in redis://USER:PASSWORD@NAME
  --pool N                 use a bb8 pool of N connections instead of one managed connection
  --transactions           decide by transactions instead of a script, over a pool of --pool connections (default 8): for
                           a server that allows no scripts; shares no counts with servers that use one
  --in-flight N            share calls of Redis from N in flight on; default 2, 0 shares none
  --deny-cache             repeat refusals for a moment without asking the store again; what is given back, blocked or
                           unblocked by another process is seen up to a second later
  --leases                 charge units of who sends many requests at once, and spend them without asking Redis
  --timeout TIME           how long a decision may take: 100ms, 2s; default 100ms
  --on-failure open|local|closed
                           what becomes of requests that Redis could not decide: served (open, the default), limited by this
                           process alone to its share (local), or rejected with 503 (closed)
  --replicas N             how many processes share the limits, for --on-failure local; default 1
  --headers draft11|draft6|legacy|none
                           which headers tell what is left: RateLimit as in revision 11 of the draft (the default),
                           RateLimit-Limit, -Remaining and -Reset (draft6), X-RateLimit-* with a reset in seconds
                           since 1970 (legacy), or none but Retry-After
  --contributors header:NAME
                           who contributes to a limit, by the value of this header: GET /limits and the page name the
                           five who have used most of the caller's, where DELETE /limits is allowed
  --no-blocks              do not enforce blocks, but for those under --ban: one read less for each identity
  --ban STRIKES=TIME       block who is denied too often: 5/10m=1h, for five denials in ten minutes, and an hour
                           (1h,1d: a day from the next ban on); told as 429. Not with --config, where a
                           limit may have strikes = '5/10m', ban = '1h' beside its rules
  --shadow                 never deny: count, and tell what would have been denied
  --help

  GET /                a page for browsers, \"ok\" for others; one unit
  GET /cost/{n}        n units; for a request that accepts application/json, / and /cost/{n} answer with the decision
  GET /status/{code}   answers that status; one unit
  GET /wait/{ms}       answers the head at once, and the body after so many ms, at most an hour; one unit
  GET /stream/{n}      n frames: a unit on arrival, settled at the end to the frames that were sent
  GET /health          not limited
  GET /limits          what limits the caller, what is left, and whether the store answers; JSON, not limited
  DELETE /limits       forgets what the caller has used: only where the server listens on a loopback address and
                       trusts no proxy
";

const DEFAULT_LIMIT: &str = "ip=10/1s,40/10s,120/1m";

pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) limits: Vec<Limit>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) count: Counted,
    pub(crate) trusted_proxies: Vec<Cidr>,
    pub(crate) redis: Vec<ConnectionInfo>,
    pub(crate) cluster: bool,
    pub(crate) sentinel: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) pool: Option<u32>,
    pub(crate) transactions: bool,
    pub(crate) in_flight: Option<usize>,
    pub(crate) deny_cache: bool,
    pub(crate) leases: bool,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: FailurePolicy,
    pub(crate) replicas: u32,
    pub(crate) headers: HeaderStyle,
    /// The header with the name of the contributor.
    pub(crate) contributors: Option<HeaderName>,
    pub(crate) no_blocks: bool,
    pub(crate) ban: Option<Ban>,
    pub(crate) shadow: bool,
    pub(crate) help: bool,
}

/// One limit: whose requests it counts, and the rules for them.
pub(crate) struct Limit {
    pub(crate) who: Who,
    pub(crate) policy: Policy,
}

pub(crate) enum Who {
    Ip,
    Header(HeaderName),
    /// All requests together.
    All,
}

/// Whether all requests are charged in the end, or only failures.
#[derive(PartialEq)]
pub(crate) enum Counted {
    All,
    Failures,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            limits: Vec::new(),
            config: None,
            count: Counted::All,
            trusted_proxies: Vec::new(),
            redis: Vec::new(),
            cluster: false,
            sentinel: None,
            password_file: None,
            pool: None,
            transactions: false,
            in_flight: None,
            deny_cache: false,
            leases: false,
            timeout: Duration::from_millis(100),
            on_failure: FailurePolicy::Open,
            replicas: 1,
            headers: HeaderStyle::DRAFT_11.with_shadows(),
            contributors: None,
            no_blocks: false,
            ban: None,
            shadow: false,
            help: false,
        }
    }
}

impl Options {
    /// Reads the arguments. An error names the wrong option.
    pub(crate) fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = Parser::from_args(args);
        while let Some(arg) = args.next().map_err(|error| error.to_string())? {
            match arg {
                // Those without a value; `set` has the others.
                Long("help") | Short('h') => options.help = true,
                Long("cluster") => options.cluster = true,
                Long("deny-cache") => options.deny_cache = true,
                Long("no-blocks") => options.no_blocks = true,
                Long("leases") => options.leases = true,
                Long("shadow") => options.shadow = true,
                Long("transactions") => options.transactions = true,
                Long(name) => {
                    let name = name.to_owned();
                    let value = args.value().and_then(|value| value.string());
                    let value = value.map_err(|error| error.to_string())?;
                    options
                        .set(&name, &value)
                        .map_err(|why| format!("--{name}: {why}"))?;
                }
                other => return Err(other.unexpected().to_string()),
            }
        }
        options.complete()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "listen" => self.listen = parse(value, "an address and a port: 127.0.0.1:3000")?,
            "limit" => self.add_limit(value)?,
            "config" => self.config = Some(value.into()),
            "count" => self.count = counted(value)?,
            "trusted-proxy" => self.trusted_proxies.push(network(value)?),
            // The error does not repeat the value, which may contain a password.
            "redis" => self.redis.push(server(value)?),
            "redis-password-file" => self.password_file = Some(value.into()),
            "sentinel" => self.sentinel = Some(value.to_owned()),
            "pool" => self.pool = Some(at_least_one(value, "connection")?),
            "in-flight" => self.in_flight = Some(parse(value, "a number")?),
            "timeout" => self.timeout = time(value)?,
            "on-failure" => self.on_failure = failure_policy(value)?,
            "replicas" => self.replicas = at_least_one(value, "process")?,
            "ban" => {
                self.ban = Some(
                    value
                        .parse()
                        .map_err(|error: ConfigError| error.to_string())?,
                )
            }
            "headers" => self.headers = header_style(value)?,
            "contributors" => self.contributors = Some(header_name(value)?),
            _ => return Err("there is no such option".into()),
        }
        Ok(())
    }

    /// Adds a limit. Each key has one policy of rates and one of slots, because two with the same name would share
    /// their counts.
    fn add_limit(&mut self, text: &str) -> Result<(), String> {
        let limit: Limit = text.parse()?;
        let name = limit.policy.name();
        if self.limits.iter().any(|other| other.policy.name() == name) {
            return Err(format!(
                "`{name}` has a limit already; write all its rules in one list"
            ));
        }
        self.limits.push(limit);
        Ok(())
    }

    fn complete(mut self) -> Result<Self, String> {
        if self.pool.is_some() && self.redis.is_empty() {
            return Err("--pool: needs --redis".into());
        }
        if self.transactions {
            self.check_transactions()?;
        }
        if self.password_file.is_some() && self.redis.is_empty() {
            return Err("--redis-password-file: needs --redis".into());
        }
        if self.password_file.is_some() && (self.pool.is_some() || self.transactions) {
            return Err(
                "--redis-password-file: not for a pool, which keeps the password of its URL".into(),
            );
        }
        if self.in_flight.is_some() && self.redis.is_empty() {
            return Err("--in-flight: needs --redis".into());
        }
        if self.cluster && self.redis.is_empty() {
            return Err("--cluster: needs --redis".into());
        }
        if self.sentinel.is_some() {
            self.check_sentinel()?;
        } else {
            self.cluster |= self.redis.len() > 1;
        }
        if self.cluster && self.pool.is_some() {
            return Err(
                "--pool: not for a cluster, which has a connection for each primary".into(),
            );
        }
        if let Some(file) = &self.config {
            if !self.limits.is_empty() {
                return Err("--config: leave out --limit, the limits stand in the file".into());
            }
            if self.ban.is_some() {
                return Err(
                    "--config: leave out --ban, `strikes` and `ban` stand in the file".into(),
                );
            }
            self.limits = config::read(file).map_err(|why| format!("--config: {why}"))?;
        }
        if self.limits.is_empty() {
            self.add_limit(DEFAULT_LIMIT)?;
        }
        // Last, so that the default limit has the ban as well.
        if let Some(ban) = self.ban {
            for limit in &mut self.limits {
                limit.policy = limit.policy.clone().ban(ban);
            }
        }
        Ok(self)
    }

    fn check_transactions(&self) -> Result<(), String> {
        Err(if self.redis.is_empty() {
            "--transactions: needs --redis"
        } else if self.redis.len() > 1 || self.cluster || self.sentinel.is_some() {
            "--transactions: needs one server, and neither a cluster nor sentinels"
        } else if self.in_flight.is_some() {
            "--transactions: leave out --in-flight, transactions share no calls of a script"
        } else {
            return Ok(());
        }
        .into())
    }

    fn check_sentinel(&self) -> Result<(), String> {
        Err(if self.redis.is_empty() {
            "--sentinel: needs --redis, once for each sentinel"
        } else if self.pool.is_some() {
            "--sentinel: leave out --pool, one connection follows the primary"
        } else if self.cluster {
            "--sentinel: leave out --cluster, which needs no sentinels"
        } else {
            return Ok(());
        }
        .into())
    }
}

const FORM: &str =
    "write KEY=RULES, for instance ip=10/1s,120/1m, header:x-api-key=600/1m or all=1000/1s";

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, rules) = text.split_once('=').ok_or(FORM)?;
        Self::read(key, rules)
    }
}

impl Limit {
    pub(crate) fn read(key: &str, rules: &str) -> Result<Self, String> {
        let (who, name) = match key.split_once(':') {
            None if key == "ip" => (Who::Ip, "ip".to_owned()),
            None if key == "all" => (Who::All, "all".to_owned()),
            // A character that is allowed in a policy's name is allowed in a header's.
            Some(("header", header)) => {
                let header: HeaderName = header.parse().map_err(|_| FORM)?;
                (Who::Header(header.clone()), format!("header-{header}"))
            }
            _ => return Err(FORM.into()),
        };
        let mut policy = Policy::parse(name.as_str(), rules).map_err(|error| error.to_string())?;
        if is_of_slots(&policy) {
            // The slots of a key stand beside its rates, so they need another name.
            let name = name + "-slots";
            policy = Policy::parse(name, rules).map_err(|error| error.to_string())?;
        }
        Ok(Self { who, policy })
    }
}

/// Whether the policy limits how many requests run at a time.
pub(crate) fn is_of_slots(policy: &Policy) -> bool {
    policy.rules().iter().any(Rule::is_concurrency)
}

fn parse<T: FromStr>(value: &str, form: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is not {form}"))
}

fn network(value: &str) -> Result<Cidr, String> {
    value
        .parse()
        .map_err(|error: ConfigError| error.to_string())
}

fn server(url: &str) -> Result<ConnectionInfo, String> {
    let form = "write a URL: redis://HOST:PORT, or with --features tls rediss://HOST:PORT";
    RedisStore::connect_lazy(url).map_err(|error| format!("{error}; {form}"))?;
    url.into_connection_info().map_err(|_| form.into())
}

fn at_least_one(value: &str, what: &str) -> Result<u32, String> {
    match value.parse() {
        Err(_) => Err(format!("`{value}` is not a number")),
        Ok(0) => Err(format!("needs at least one {what}")),
        Ok(number) => Ok(number),
    }
}

fn time(value: &str) -> Result<Duration, String> {
    let time = match value.strip_suffix("ms") {
        Some(ms) => ms.parse().map(Duration::from_millis),
        None => value.trim_end_matches('s').parse().map(Duration::from_secs),
    };
    match time {
        Ok(time) if !time.is_zero() && value.ends_with('s') => Ok(time),
        _ => Err(format!("`{value}` is not a time: 100ms, 2s")),
    }
}

fn counted(value: &str) -> Result<Counted, String> {
    match value {
        "all" => Ok(Counted::All),
        "failures" => Ok(Counted::Failures),
        _ => Err(format!("`{value}` is neither all nor failures")),
    }
}

fn header_name(value: &str) -> Result<HeaderName, String> {
    let name = value.strip_prefix("header:").map(str::parse);
    match name {
        Some(Ok(name)) => Ok(name),
        _ => Err(format!("`{value}` is not header:NAME")),
    }
}

fn failure_policy(value: &str) -> Result<FailurePolicy, String> {
    match value {
        "open" => Ok(FailurePolicy::Open),
        "local" => Ok(FailurePolicy::Local),
        "closed" => Ok(FailurePolicy::Closed),
        _ => Err(format!("`{value}` is none of open, local and closed")),
    }
}

fn header_style(value: &str) -> Result<HeaderStyle, String> {
    match value {
        "draft11" => Ok(HeaderStyle::DRAFT_11.with_shadows()),
        "draft6" => Ok(HeaderStyle::DRAFT_6),
        "legacy" => Ok(HeaderStyle::X_RATE_LIMIT_EPOCH),
        "none" => Ok(HeaderStyle::NONE),
        _ => Err(format!(
            "`{value}` is none of draft11, draft6, legacy and none"
        )),
    }
}
