//! The crates whose limits are layers. A crate that has one rule in a layer gets a layer for each.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, request::Parts},
    response::IntoResponse,
};
use barnacle_rs::{
    BarnacleKey, BarnacleLayer, Identity, Limit, RateLimitScope, RedisBarnacleStore,
};
use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer, RedisStore};
use tower_governor::{
    GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor,
};
use tower_rate_limit_redis::KeyResolver;
use tower_rate_tier::{Quota, RateTier, RedisStorage, TierIdentity, TierLimitLayer};

use crate::{KEY, Result};

type Rules<'a> = &'a [(u32, u64)];

fn policy(rules: Rules<'_>) -> Result<Policy> {
    let rules = rules
        .iter()
        .map(|(units, seconds)| format!("{units}/{seconds}s"));
    Ok(Policy::parse(
        "api-key",
        &rules.collect::<Vec<_>>().join(","),
    )?)
}

pub(crate) fn sluicegate_in_memory(app: Router, rules: Rules<'_>) -> Result<Router> {
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy(rules)?, Header::new(KEY));
    Ok(app.layer(layer))
}

pub(crate) async fn sluicegate(app: Router, rules: Rules<'_>, url: &str) -> Result<Router> {
    let store = RedisStore::connect(url).await?;
    Ok(app.layer(RateLimitLayer::new(store).limit(policy(rules)?, Header::new(KEY))))
}

#[derive(Clone)]
struct ByKey;

impl KeyExtractor for ByKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> std::result::Result<String, GovernorError> {
        let user = user(request.headers().get(KEY));
        user.ok_or(GovernorError::UnableToExtractKey)
    }
}

fn user(value: Option<&axum::http::HeaderValue>) -> Option<String> {
    value?.to_str().ok().map(ToOwned::to_owned)
}

pub(crate) fn governor(mut app: Router, rules: Rules<'_>) -> Result<Router> {
    for (units, seconds) in rules {
        let mut config = GovernorConfigBuilder::default()
            .key_extractor(ByKey)
            .use_headers();
        config
            .period(Duration::from_secs(*seconds) / *units)
            .burst_size(*units);
        let config = config.finish().ok_or("governor refuses the rule")?;
        app = app.layer(GovernorLayer::new(config));
    }
    Ok(app)
}

impl KeyResolver for ByKey {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> std::result::Result<String, Response<Body>> {
        let user = user(request.headers().get(KEY));
        user.ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

pub(crate) async fn rate_limit_redis(
    mut app: Router,
    rules: Rules<'_>,
    url: &str,
) -> Result<Router> {
    let connection = redis_0_32::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    for _ in rules {
        let layer = tower_rate_limit_redis::RateLimitLayer::builder()
            .conn(connection.clone())
            .key_resolver(ByKey)
            .capacity(u16::MAX)
            .emission_interval(Duration::from_millis(1))
            .timeout(Duration::from_millis(300))
            .build();
        app = app.route_layer(layer);
    }
    Ok(app)
}

pub(crate) async fn rate_tier(mut app: Router, rules: Rules<'_>, url: &str) -> Result<Router> {
    let connection = redis::Client::open(url)?.get_connection_manager().await?;
    for (units, seconds) in rules {
        let quota = match seconds {
            1 => Quota::per_second(*units),
            60 => Quota::per_minute(*units),
            _ => Quota::per_hour(*units),
        };
        // A name for each rule: rules of one tier would share a bucket.
        let name = format!("of-{seconds}");
        let tier = RateTier::builder()
            .tier(&name, quota)
            .storage(Arc::new(RedisStorage::new(connection.clone())))
            .build();
        let layer = TierLimitLayer::new(tier).identifier_fn(move |headers| {
            Some(TierIdentity::new(user(headers.get(KEY))?, name.clone()))
        });
        app = app.layer(layer);
    }
    Ok(app)
}

pub(crate) fn barnacle(app: Router, rules: Rules<'_>, url: &str) -> Result<Router> {
    let limits = rules.iter().map(|(units, seconds)| {
        let scope = RateLimitScope::Named(format!("of-{seconds}").into());
        Limit::new(*units, Duration::from_secs(*seconds)).with_scope(scope)
    });
    let layer: BarnacleLayer<RedisBarnacleStore> = BarnacleLayer::builder()
        .with_store(RedisBarnacleStore::from_url(url)?)
        .with_limits(limits)
        .with_identifier(|parts: &Parts, _: &()| {
            let user = user(parts.headers.get(KEY))?;
            Some(Identity::new(BarnacleKey::Custom(user)))
        })
        .build()?;
    Ok(app.layer(layer))
}
