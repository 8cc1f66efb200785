//! The server in the settings.

use std::time::Duration;

use redis::{InfoDict, IntoConnectionInfo};
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Limiter, RedisServer, RedisStore, StoreError};
use tokio::runtime::Builder;

use super::error::warn;
use super::{Error, Result, Settings};

const TLS: &str = [" (with the feature tls)", ""][cfg!(feature = "tls") as usize];

/// The maximum length of a prefix, the same as in `RedisStore::prefix`.
const MAX_PREFIX: usize = 48;

/// Runs a verb that calls the server in these settings. An error of the server gets its name in front.
pub(crate) fn block_on<T>(settings: &Settings, verb: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::usage(format_args!("no runtime: {error}")))?;
    let result = runtime.block_on(verb);
    // Do not wait for a name that is being resolved.
    runtime.shutdown_timeout(Duration::ZERO);
    result.map_err(|error| match name(settings) {
        Ok((name, origin)) => error.about(format_args!("{name} ({origin})")),
        Err(_) => error,
    })
}

/// Runs a verb that only reads.
pub(crate) fn inspect<T>(
    settings: &Settings,
    verb: impl AsyncFnOnce(Inspector) -> Result<T>,
) -> Result<T> {
    block_on(settings, async {
        let (_, inspector) = connect(settings).await?;
        verb(inspector).await
    })
}

/// Connects to the server in these settings. Returns a limiter, and an inspector that reads through the same store.
pub(crate) async fn connect(settings: &Settings) -> Result<(Limiter, Inspector)> {
    let (_, origin) = name(settings)?;
    let unusable = |error: StoreError| Error::usage(format_args!("{origin}: {error}"));
    let (limiter, inspector) = open(store(settings).map_err(unusable)?, settings).await?;
    let Some(url) = settings.redis.as_deref() else {
        return Ok((limiter, inspector));
    };
    let server = inspector.servers().await?.remove(0);
    let greeting = server.greeting().await?;
    let is = |field: &str, text: &str| greeting.get(field).is_some_and(|it| it == text);
    if is("mode", "sentinel") {
        let text = "this is a sentinel: name it by --sentinel, with --primary";
        return Err(Error::usage(format_args!("{origin}: {text}")));
    }
    if !is("mode", "cluster") {
        if is("role", "replica") {
            warn(lag(&server).await);
        }
        return Ok((limiter, inspector));
    }
    // One node keeps only some of the keys, and refuses commands about the others.
    let cluster = RedisStore::connect_lazy_cluster([with_password(url, settings)]);
    let cluster = cluster.map_err(|error| {
        unusable(error).of("this is a node of a cluster, which has to be named by --cluster")
    })?;
    open(cluster, settings).await
}

async fn open(store: RedisStore, settings: &Settings) -> Result<(Limiter, Inspector)> {
    let store = named(store, settings)?;
    let inspector = store.inspector().timeout(settings.timeout());
    inspector.ping().await?;
    Ok((Limiter::new(store).timeout(settings.timeout()), inspector))
}

/// The words about a replica: its primary, and how far behind it is.
pub(crate) async fn lag(server: &Inspector) -> String {
    let info = info(server, "replication").await;
    let field = |name: &str| info.as_ref()?.get::<String>(name);
    let field = |name: &str| field(name).unwrap_or_else(|| "?".to_owned());
    let primary = format!("{}:{}", field("master_host"), field("master_port"));
    let heard = field("master_last_io_seconds_ago");
    let down = field("master_link_down_since_seconds");
    let behind = match &*field("master_link_status") {
        "up" => format!("heard from it {heard} s ago"),
        "?" => "does not say how far behind it is (`+info`)".to_owned(),
        _ => format!("has not reached it for {down} s: its answers are as old"),
    };
    format!("this server is a replica of {primary}, and {behind}")
}

/// The fields of a section of `INFO`. `None` if the server does not answer, or the user has no right to ask.
pub(crate) async fn info(server: &Inspector, section: &str) -> Option<InfoDict> {
    let info = server.ask(redis::cmd("INFO").arg(section)).await.ok()?;
    redis::from_redis_value(info).ok()
}

/// A store that never connects: only for the names of keys.
pub(crate) fn unconnected(settings: &Settings) -> Result<RedisStore> {
    let store = RedisStore::connect_lazy("redis://127.0.0.1/").map_err(Error::from)?;
    named(store, settings)
}

/// The store with the prefix and the secret in the settings.
fn named(store: RedisStore, settings: &Settings) -> Result<RedisStore> {
    let store = store.prefix(valid_prefix(settings.prefix())?);
    Ok(match &settings.secret {
        Some(secret) => store.secret(secret),
        None => store,
    })
}

fn store(settings: &Settings) -> Result<RedisStore, StoreError> {
    if let Some(nodes) = &settings.cluster {
        let nodes = nodes.iter().map(|node| with_password(node, settings));
        return RedisStore::connect_lazy_cluster(nodes);
    }
    if let Some(sentinels) = &settings.sentinel {
        let sentinels = sentinels.iter().map(String::as_str);
        let primary = with_password(primary(settings), settings);
        return RedisStore::connect_lazy_sentinel(sentinels, primary);
    }
    let server = settings.redis.as_deref().unwrap_or_default();
    RedisStore::connect_lazy(with_password(server, settings))
}

/// The server of this URL, with the password in the file of the settings, if there is one.
fn with_password(url: &str, settings: &Settings) -> RedisServer {
    match &settings.password_file {
        Some(file) => RedisServer::from(url).password_file(file),
        None => url.into(),
    }
}

fn primary(settings: &Settings) -> &str {
    settings.primary.as_deref().unwrap_or("mymaster")
}

/// The name of the server for messages, without user and password, and the setting that it comes from.
pub(crate) fn name(settings: &Settings) -> Result<(String, String)> {
    if let Some(url) = &settings.redis {
        let origin = settings.origin("redis");
        return Ok((addresses([url], &origin)?, origin));
    }
    if let Some(nodes) = &settings.cluster {
        let origin = settings.origin("cluster");
        let nodes = addresses(nodes, &origin)?;
        return Ok((format!("the cluster of {nodes}"), origin));
    }
    if let Some(sentinels) = &settings.sentinel {
        let origin = settings.origin("sentinel");
        let sentinels = addresses(sentinels, &origin)?;
        let primary = primary(settings).rsplit('@').next().unwrap_or_default();
        let name = format!("the primary {primary} of the sentinels {sentinels}");
        return Ok((name, origin));
    }
    Err(Error::usage(
        "no server is named: give --redis URL, --cluster or --sentinel, set SLUICEGATE_REDIS, or write `redis = \"URL\"` into sluicegate.toml",
    ))
}

fn addresses<'a>(urls: impl IntoIterator<Item = &'a String>, origin: &str) -> Result<String> {
    let addresses = urls.into_iter().map(|url| {
        let server = url.as_str().into_connection_info();
        // Do not print the URL: it may contain a password.
        let server = server.map_err(|_| {
            Error::usage(format_args!(
                "{origin}: this is no URL of a server: write redis://HOST:PORT, rediss://HOST:PORT{TLS} or unix:///PATH, and a \
                 user and password as redis://USER:PASSWORD@HOST:PORT"
            ))
        })?;
        Ok(server.addr().to_string())
    });
    let addresses: Vec<String> = addresses.collect::<Result<_>>()?;
    Ok(addresses.join(", "))
}

fn valid_prefix(prefix: &str) -> Result<&str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    if prefix.len() <= MAX_PREFIX && prefix.bytes().all(plain) {
        return Ok(prefix);
    }
    Err(Error::usage(
        "the prefix of keys must be at most 48 printable ASCII characters without spaces and braces",
    ))
}
