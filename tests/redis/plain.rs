//! A layer with only `check`, `execute` and `inner` shows a limiter that a cluster is within.

use support::plain::Plain;

use crate::prelude::*;

fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("redis://{}", listener.local_addr().unwrap())
}

const TIMEOUT: Duration = Duration::from_millis(200);

/// Whether a limiter stops calling a store that fails each time.
async fn has_a_breaker(store: impl Store) -> bool {
    let limiter = Limiter::new(store).timeout(TIMEOUT);
    let policy = policy("p", "5/1h");
    let start = Instant::now();
    // The breaker counts one failure in each half of the timeout.
    while start.elapsed() < 5 * TIMEOUT {
        match kind(limiter.check(one(&policy, "alice")).await) {
            Some(StoreErrorKind::CircuitOpen) => return true,
            Some(StoreErrorKind::Unavailable | StoreErrorKind::Timeout) => {}
            other => panic!("{other:?}"),
        }
    }
    false
}

#[tokio::test]
async fn a_limiter_over_a_cluster_has_no_breaker_whatever_is_between_them() {
    let alone = || RedisStore::connect_lazy(nowhere()).unwrap();
    let cluster = || RedisStore::connect_lazy_cluster([nowhere()]).unwrap();
    assert!(has_a_breaker(alone()).await);
    assert!(has_a_breaker(Plain(alone())).await);
    assert!(!has_a_breaker(cluster()).await);
    assert!(!has_a_breaker(Plain(cluster())).await);
    let leases = Leases::new(Plain(cluster()));
    assert!(!has_a_breaker(Plain(leases)).await);
}
