//! What is tried: a kind of connection, and the settings of the limiter.

use std::{fmt, time::Duration};

use redis::{Client, aio::ConnectionManagerConfig};
use sluicegate::{FailurePolicy, Limiter, RedisStore};

use super::{fault::Fault, proxy::Weather};

pub(crate) type Pool = bb8::Pool<bb8_redis::RedisConnectionManager>;

/// Two, as the documentation says that a few are plenty.
const SLOTS: u32 = 2;

/// As if there were another process like this one.
const REPLICAS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A store over a URL, whose connection is its own.
    Url,
    Pool,
    Manager,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Url, Self::Pool, Self::Manager];

    /// A manager never gives up a connection that is open and mute, as the documentation says: nothing to measure.
    pub(crate) fn can_have(self, fault: Fault) -> bool {
        match fault {
            Fault::PoolExhausted => self == Self::Pool,
            Fault::Wire(Weather::HalfOpen) => self != Self::Manager,
            _ => true,
        }
    }
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

    /// A limiter over this server, and the pool if there is one.
    pub(crate) async fn limiter(self, url: &str) -> (Limiter, Option<Pool>) {
        let (store, pool) = match self.kind {
            Kind::Url => (RedisStore::connect_lazy(url).unwrap(), None),
            Kind::Pool => {
                let pool = pool(url, SLOTS).await;
                (pool.clone().into(), Some(pool))
            }
            Kind::Manager => (manager(url).await, None),
        };
        let limiter = Limiter::new(store).on_failure(self.on_failure);
        (limiter.replicas(REPLICAS), pool)
    }
}

pub(crate) async fn pool(url: &str, slots: u32) -> Pool {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder()
        .max_size(slots)
        .min_idle(slots)
        .test_on_check_out(false);
    pool.build(manager).await.unwrap()
}

/// With the settings that the documentation recommends.
async fn manager(url: &str) -> RedisStore {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(Duration::from_millis(500)))
        .set_response_timeout(Some(Duration::from_millis(500)))
        .set_pipeline_buffer_size(1_024);
    let client = Client::open(url).unwrap();
    client.get_connection_manager_lazy(config).unwrap().into()
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        f.write_str(if self.is_local() { ", local" } else { "" })
    }
}
