//! Proves that a `RedisStore` over a cluster keeps the contract, and what becomes of it on a cluster's bad days.

mod common;

/// One cluster for all tests that leave it in peace.
mod contract {
    use std::{
        sync::{
            Arc, Mutex, PoisonError, Weak,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use sluicegate::{
        Answer, Check, Decision, Key, Policy, RedisStore, Settlement, Store, Usage,
        test_util::TestClock,
    };

    use crate::common::cluster::Cluster;

    crate::contract!(fresh);

    #[derive(Debug)]
    struct Clustered {
        store: RedisStore,
        _cluster: Arc<Cluster>,
    }

    /// A store that has counted nothing yet, and its clock.
    async fn fresh() -> (Clustered, TestClock) {
        static STORES: AtomicU32 = AtomicU32::new(0);
        let cluster = shared();
        let clock = TestClock::new(0);
        let store = RedisStore::cluster(cluster.urls()).await.unwrap();
        let prefix = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
        let store = Clustered {
            store: store.prefix(&prefix).clock(clock.clone()),
            _cluster: cluster,
        };
        (store, clock)
    }

    /// The cluster of all tests that run now.
    fn shared() -> Arc<Cluster> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(Cluster::start(Duration::from_secs(15)));
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    impl Store for Clustered {
        fn check(&self, check: &Check) -> Answer<Decision> {
            self.store.check(check)
        }

        fn settle(&self, settlement: &Settlement) -> Answer<Usage> {
            self.store.settle(settlement)
        }

        fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
            self.store.reset(policy, key)
        }
    }
}
