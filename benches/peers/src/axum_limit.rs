//! axum-limit is an extractor: its limits are arguments of the handler.

use std::convert::Infallible;

use axum::{
    Router,
    extract::{FromRequestParts, Request},
    http::request::Parts,
    routing::get,
};
use axum_limit::{
    Key, LimitPerHour, LimitPerMinute, LimitPerSecond, LimitState, RedisBackend, StorageKey,
    TokenBucketPolicy,
};

use crate::{KEY, Result, answer};

pub(crate) async fn app(rules: &[(u32, u64)], url: &str) -> Result<Router> {
    let state =
        LimitState::<User, TokenBucketPolicy, RedisBackend>::new(RedisBackend::connect(url).await?);
    let handler = if rules.len() == 1 {
        get(one)
    } else {
        get(three)
    };
    Ok(Router::new().route("/", handler).with_state(state))
}

async fn one(_: LimitPerSecond<1_000_000, User, RedisBackend>, _: Request) -> &'static str {
    answer().await
}

async fn three(
    _: LimitPerSecond<1_000_000, User, RedisBackend>,
    _: LimitPerMinute<60_000_000, User, RedisBackend>,
    _: LimitPerHour<1_000_000_000, User, RedisBackend>,
    _: Request,
) -> &'static str {
    answer().await
}

#[derive(Clone)]
struct User(String);

impl Key for User {
    type Extractor = Self;

    fn from_extractor(user: &Self) -> Self {
        user.clone()
    }
}

impl StorageKey for User {
    fn storage_key(&self) -> String {
        self.0.clone()
    }
}

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> std::result::Result<Self, Infallible> {
        let user = parts.headers.get(KEY).and_then(|user| user.to_str().ok());
        Ok(Self(user.unwrap_or_default().to_owned()))
    }
}
