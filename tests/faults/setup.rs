//! What is tried: a kind of connection, and the settings of the limiter.

use std::{fmt, sync::Arc};

use sluicegate::{
    FailurePolicy, Limiter, RedisStore, Store,
    store::{DenyCache, Leases},
};

pub(crate) type Pool = bb8::Pool<bb8_redis::RedisConnectionManager>;

/// As if there were another process like this one.
const REPLICAS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Url,
    Pool,
    /// Over a pool, without scripts.
    Transactions,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Url, Self::Pool, Self::Transactions];
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) on_failure: FailurePolicy,
    /// Around the store, beside the calls that it always shares.
    pub(crate) with_leases_and_cache: bool,
}

impl Setup {
    pub(crate) const fn over(kind: Kind) -> Self {
        Self {
            kind,
            on_failure: FailurePolicy::Open,
            with_leases_and_cache: false,
        }
    }

    /// Over the store's own connection, with this process deciding by its half of the limits when the store cannot.
    pub(crate) const LOCAL: Self = Self {
        kind: Kind::Url,
        on_failure: FailurePolicy::Local,
        with_leases_and_cache: false,
    };

    /// All that makes Redis cheaper under load.
    pub(crate) const UNDER_LOAD: Self = Self {
        kind: Kind::Url,
        on_failure: FailurePolicy::Open,
        with_leases_and_cache: true,
    };

    pub(crate) fn is_local(self) -> bool {
        self.on_failure == FailurePolicy::Local
    }

    pub(crate) async fn limiter(self, url: &str) -> Limiter {
        let store: Arc<dyn Store> = match self.kind {
            Kind::Url => Arc::new(RedisStore::connect_lazy(url).unwrap()),
            Kind::Pool => Arc::new(RedisStore::from(pool(url).await)),
            Kind::Transactions => Arc::new(RedisStore::transactions(untested_pool(url).await)),
        };
        let limiter = if self.with_leases_and_cache {
            Limiter::new(DenyCache::new(Leases::new(store)))
        } else {
            Limiter::new(store)
        };
        limiter.on_failure(self.on_failure).replicas(REPLICAS)
    }
}

pub(crate) async fn pool(url: &str) -> Pool {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder().max_size(2);
    pool.build(manager).await.unwrap()
}

/// Gives its connections away without asking whether they live.
async fn untested_pool(url: &str) -> Pool {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder().max_size(2).test_on_check_out(false);
    pool.build(manager).await.unwrap()
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        if self.is_local() {
            f.write_str(", local")?;
        }
        if self.with_leases_and_cache {
            f.write_str(", leases and cache")?;
        }
        Ok(())
    }
}
