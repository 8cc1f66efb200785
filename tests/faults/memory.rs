//! Memory is bounded, for any duration of a fault and any number of connections.

use support::{
    prelude::*,
    proxy::{Proxy, Weather},
    redis::Server,
};

use super::{run::resident, setup::pool};

fn charge() -> [Charge; 1] {
    let policy = Policy::parse("api", "1000000/1d").unwrap();
    [Charge::new(&policy, Key::new("user", "alice"), 1)]
}

/// Makes one check in each of this number of tasks. Returns the number of decisions.
async fn wave(limiter: &Limiter, tasks: usize) -> usize {
    let decided = join_all((0..tasks).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(charge()).await.is_ok() })
    }));
    let decided = decided.await.into_iter().map(Result::unwrap);
    decided.filter(|is_decided| *is_decided).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_mute_server_takes_no_more_memory_with_time() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::ZERO).await;
    for store in [
        RedisStore::connect(proxy.url()).await.unwrap(),
        pool(&proxy.url(), true).await.into(),
    ] {
        let limiter = Limiter::new(store).timeout(Duration::from_millis(20));
        proxy.set_weather(Weather::HalfOpen);
        let mut grown = Vec::new();
        for _ in 0..3 {
            for _ in 0..10 {
                assert_eq!(wave(&limiter, 2_000).await, 0);
            }
            grown.push(resident() / 1_000_000);
        }
        // 20 000 requests lie between these figures, and other tests run in this process.
        assert!(grown[2] < grown[1] + 64, "{grown:?} MB");
        proxy.set_weather(Weather::Clear);
    }
}
