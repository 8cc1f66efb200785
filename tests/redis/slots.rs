//! Slots of several processes over a real server: held, renewed, returned, and released when a process dies.

use std::time::Duration;

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, limiter::Slot};
use support::redis::Server;
use tokio::runtime::{Builder, Runtime};

const PATIENCE: Duration = Duration::from_secs(20);

/// One slot, which expires a second after its last renewal.
fn job() -> [Charge; 1] {
    let jobs = Policy::parse("jobs", "1/1s@concurrent").unwrap();
    [Charge::new(&jobs, Key::new("tenant", "acme"), 1)]
}

async fn process(server: &Server) -> Limiter {
    Limiter::new(RedisStore::connect(server.url()).await.unwrap())
}

async fn acquire(limiter: &Limiter, max_wait: Duration) -> Option<Slot> {
    let slot = limiter.acquire_slot(job(), max_wait).await.unwrap();
    slot.ok().map(|slot| slot.expect("the policy has slots"))
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test]
async fn one_process_waits_until_another_returns_its_slot() {
    let server = Server::start();
    let (first, second) = (process(&server).await, process(&server).await);
    let slot = acquire(&first, Duration::ZERO).await.unwrap();
    assert!(acquire(&second, Duration::ZERO).await.is_none());
    // Longer than the expiry: it is renewed.
    assert!(
        acquire(&second, Duration::from_millis(2_500))
            .await
            .is_none()
    );
    assert!(slot.is_held());

    let waiting = tokio::spawn(async move { acquire(&second, PATIENCE).await.is_some() });
    drop(slot);
    assert!(waiting.await.unwrap());
    assert!(acquire(&first, PATIENCE).await.is_some());
}

#[test]
fn the_slot_of_a_process_that_dies_is_released() {
    let server = Server::start();
    let (dying, living) = (runtime(), runtime());
    let slot = dying.block_on(async {
        let limiter = process(&server).await;
        acquire(&limiter, Duration::ZERO).await.unwrap()
    });
    let limiter = living.block_on(process(&server));
    assert!(living.block_on(acquire(&limiter, Duration::ZERO)).is_none());
    dying.shutdown_background(); // its renewals end, and nothing is returned
    let taken = living.block_on(acquire(&limiter, PATIENCE));
    assert!(taken.is_some());
    assert!(!slot.is_held());
}
