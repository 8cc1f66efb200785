//! The tested setups: a kind of connection, the settings of the limiter, and the circumstances.

use std::fmt;

use support::{
    prelude::*,
    stores::{self, Pool},
};

/// As if there were another process like this one.
const REPLICAS: u32 = 2;

/// The delay of replies from a server in another zone.
const FAR: Duration = Duration::from_millis(10);

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
    /// Layers around the store, in addition to shared calls.
    pub(crate) with_leases_and_cache: bool,
    is_far: bool,
    /// A job beside the service, in a separate runtime.
    pub(crate) with_job: bool,
    pub(crate) with_leavers: bool,
}

/// A limiter, and the leases below.
pub(crate) struct Built {
    pub(crate) limiter: Limiter,
    pub(crate) leases: Option<Leases>,
}

impl Setup {
    pub(crate) const fn over(kind: Kind) -> Self {
        Self {
            kind,
            on_failure: FailurePolicy::Open,
            with_leases_and_cache: false,
            is_far: false,
            with_job: false,
            with_leavers: false,
        }
    }

    /// If the store cannot decide, this process decides with half of the limits.
    pub(crate) const fn local(mut self) -> Self {
        self.on_failure = FailurePolicy::Local;
        self
    }

    /// With all features that reduce the load on Redis.
    pub(crate) const fn under_load(mut self) -> Self {
        self.with_leases_and_cache = true;
        self
    }

    /// With 10 ms of added latency.
    pub(crate) const fn far(mut self) -> Self {
        self.is_far = true;
        self
    }

    /// With a second runtime that shares the store. It is dropped in the middle of its requests.
    pub(crate) const fn beside_a_job(mut self) -> Self {
        self.with_job = true;
        self
    }

    /// With callers that leave at random before the answer.
    pub(crate) const fn with_leavers(mut self) -> Self {
        self.with_leavers = true;
        self
    }

    /// With leases and without, and each with all combinations of the other circumstances.
    pub(crate) fn in_all_circumstances(kind: Kind) -> Vec<Self> {
        let both = |change: fn(Self) -> Self| move |setup| [setup, change(setup)];
        [Self::over(kind)]
            .into_iter()
            .flat_map(both(Self::under_load))
            .flat_map(both(Self::far))
            .flat_map(both(Self::beside_a_job))
            .flat_map(both(Self::with_leavers))
            .collect()
    }

    pub(crate) fn is_local(self) -> bool {
        self.on_failure == FailurePolicy::Local
    }

    pub(crate) const fn latency(self) -> Duration {
        if self.is_far { FAR } else { Duration::ZERO }
    }

    pub(crate) async fn build(self, url: &str) -> Built {
        let store: Arc<dyn Store> = match self.kind {
            Kind::Url => Arc::new(RedisStore::connect_lazy(url).unwrap()),
            Kind::Pool => Arc::new(RedisStore::from(pool(url, true).await)),
            // Connections are handed out without a test.
            Kind::Transactions => Arc::new(RedisStore::transactions(pool(url, false).await)),
        };
        let is_leased = self.with_leases_and_cache;
        let leases = is_leased.then(|| Leases::new(Arc::clone(&store)));
        let limiter = match &leases {
            Some(leases) => Limiter::new(leases.clone()).cache_denials(true),
            None => Limiter::new(store),
        };
        Built {
            limiter: limiter.on_failure(self.on_failure).replicas(REPLICAS),
            leases,
        }
    }
}

pub(crate) async fn pool(url: &str, tests: bool) -> Pool {
    stores::pool(url, |it| it.max_size(2).test_on_check_out(tests)).await
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        for (holds, name) in [
            (self.is_local(), "local"),
            (self.with_leases_and_cache, "leases and cache"),
            (self.is_far, "10 ms"),
            (self.with_job, "two runtimes"),
            (self.with_leavers, "leavers"),
        ] {
            if holds {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}
