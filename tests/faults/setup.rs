//! What is tried: a kind of connection, and the settings of the limiter.

use std::fmt;

use sluicegate::{FailurePolicy, Limiter, RedisStore};

pub(crate) type Pool = bb8::Pool<bb8_redis::RedisConnectionManager>;

/// As if there were another process like this one.
const REPLICAS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Url,
    Pool,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Url, Self::Pool];
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) on_failure: FailurePolicy,
}

impl Setup {
    pub(crate) const fn over(kind: Kind) -> Self {
        Self {
            kind,
            on_failure: FailurePolicy::Open,
        }
    }

    /// Over the store's own connection, with this process deciding by its half of the limits when the store cannot.
    pub(crate) const LOCAL: Self = Self {
        kind: Kind::Url,
        on_failure: FailurePolicy::Local,
    };

    pub(crate) fn is_local(self) -> bool {
        self.on_failure == FailurePolicy::Local
    }

    pub(crate) async fn limiter(self, url: &str) -> Limiter {
        let store = match self.kind {
            Kind::Url => RedisStore::connect_lazy(url).unwrap(),
            Kind::Pool => pool(url).await.into(),
        };
        let limiter = Limiter::new(store).on_failure(self.on_failure);
        limiter.replicas(REPLICAS)
    }
}

pub(crate) async fn pool(url: &str) -> Pool {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder().max_size(2);
    pool.build(manager).await.unwrap()
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        f.write_str(if self.is_local() { ", local" } else { "" })
    }
}
