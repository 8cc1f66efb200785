//! The server that the settings name.

use std::time::Duration;

use sluicegate::{Limiter, RedisStore, StoreError, error::StoreErrorKind};
use tokio::runtime::Runtime;

use super::{error::Error, settings::Settings};

/// The names of keys may begin with this, as `RedisStore::prefix` has it.
const MAX_PREFIX: usize = 48;

/// Runs a verb that asks a server.
pub(crate) fn block_on<T>(verb: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime =
        Runtime::new().map_err(|error| Error::usage(format_args!("no runtime: {error}")))?;
    let result = runtime.block_on(verb);
    // A name that is being resolved would be waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

/// Connects to the server of these settings, and names its keys as they say.
pub(crate) async fn connect(settings: &Settings) -> Result<RedisStore, Error> {
    let mut store = store(settings).await?;
    if let Some(prefix) = &settings.prefix {
        store = store.prefix(valid_prefix(prefix)?);
    }
    if let Some(secret) = &settings.secret {
        store = store.secret(secret);
    }
    Ok(store)
}

/// The same, as a limiter.
pub(crate) async fn limiter(settings: &Settings) -> Result<Limiter, Error> {
    Ok(Limiter::new(connect(settings).await?).timeout(settings.timeout()))
}

async fn store(settings: &Settings) -> Result<RedisStore, Error> {
    if let Some(url) = &settings.redis {
        return RedisStore::connect(url.as_str()).await.map_err(failed);
    }
    if let Some(nodes) = &settings.cluster {
        return RedisStore::cluster(nodes.iter().map(String::as_str))
            .await
            .map_err(failed);
    }
    if let Some(sentinels) = &settings.sentinel {
        let sentinels = sentinels.iter().map(String::as_str);
        let primary = settings.primary.as_deref().unwrap_or("mymaster");
        return RedisStore::sentinel(sentinels, primary)
            .await
            .map_err(failed);
    }
    Err(Error::usage(
        "no server is named: give --redis URL, --cluster or --sentinel, set SLUICEGATE_REDIS, or write `redis = \"URL\"` into sluicegate.toml",
    ))
}

/// What the library says never holds the URL, which may have a password.
fn failed(error: StoreError) -> Error {
    match error.kind() {
        StoreErrorKind::Timeout => Error::server("the server does not answer"),
        _ => Error::server(error),
    }
}

fn valid_prefix(prefix: &str) -> Result<&str, Error> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    if prefix.len() <= MAX_PREFIX && prefix.bytes().all(plain) {
        return Ok(prefix);
    }
    Err(Error::usage(
        "the prefix of keys must be at most 48 printable ASCII characters without spaces and braces",
    ))
}
