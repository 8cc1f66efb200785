//! Many slots at once: 20 000 of one key, and one of each of 50 000 users. How long a take lasts in memory, and how long
//! other checks and another client wait while the slots are renewed: `cargo bench --bench script -- slots`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, RedisStore, limiter::Slot};
use support::redis::Server;

use crate::figures::{Error, bar};

const OF_ONE_KEY: u64 = 20_000;
const USERS: u64 = 50_000;
const TAKES: usize = 2_000;
/// Longer than a third of the time in which slots expire.
const WATCHED: Duration = Duration::from_secs(12);

/// Waits in ms.
#[derive(Default)]
struct Waits(Vec<f64>);

impl Waits {
    fn add(&mut self, since: Instant) {
        self.0.push(since.elapsed().as_secs_f64() * 1e3);
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "small numbers"
    )]
    fn at(&mut self, share: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0[(share * (self.0.len() - 1) as f64) as usize]
    }
}

pub(crate) async fn crowded(server: &Server) -> Result<bool, Error> {
    let in_memory = || Limiter::new(MemoryStore::new());
    let mut met = true;
    for slots in [1, OF_ONE_KEY] {
        let limiter = in_memory();
        let held = hold(&limiter, slots, |_| 0).await?;
        let take_ms = take(&limiter).await?;
        let what = format!("a take in memory beside {slots} slots, µs");
        met &= bar(&what, take_ms * 1e3, 10.0);
        met &= watch(&limiter, None, "in memory", slots, 2.0).await?;
        drop(held);
    }
    let redis = || async {
        server.run::<()>("FLUSHALL");
        Ok::<_, Error>(Limiter::new(RedisStore::connect(server.url()).await?))
    };
    watch(&redis().await?, Some(server), "over Redis", 0, 20.0).await?;
    let limiter = redis().await?;
    let held = hold(&limiter, OF_ONE_KEY, |_| 0).await?;
    met &= watch(&limiter, Some(server), "over Redis", OF_ONE_KEY, 20.0).await?;
    drop(held);
    limiter.finish(Duration::from_secs(10)).await;
    let limiter = redis().await?;
    let held = hold(&limiter, USERS, |slot| slot).await?;
    met &= watch(&limiter, Some(server), "over Redis", USERS, 20.0).await?;
    assert!(held.iter().all(Slot::is_held));
    drop(held);
    Ok(met)
}

fn charge(user: u64) -> Charge {
    let policy = Policy::parse("held", "1000000/30s@concurrent").expect("a rule");
    Charge::new(&policy, Key::new("user", user.to_string()), 1)
}

async fn hold(limiter: &Limiter, slots: u64, user: fn(u64) -> u64) -> Result<Vec<Slot>, Error> {
    let limiter = &limiter.clone().timeout(Duration::from_secs(5));
    let take = |slot| async move {
        let taken = limiter.acquire_slot([charge(user(slot))], Duration::ZERO);
        taken.await.ok()?.ok()?
    };
    let taken = stream::iter(0..slots).map(take).buffer_unordered(256);
    let held: Vec<_> = taken.filter_map(std::future::ready).collect().await;
    assert_eq!(held.len() as u64, slots);
    Ok(held)
}

/// The median of takes in ms, each with its return.
async fn take(limiter: &Limiter) -> Result<f64, Error> {
    let mut waits = Waits::default();
    for _ in 0..TAKES {
        let start = Instant::now();
        let slot = limiter.acquire_slot([charge(0)], Duration::ZERO).await?;
        waits.add(start);
        drop(slot);
    }
    Ok(waits.at(0.5))
}

/// Checks other keys while slots are renewed, and pings the server as another client.
async fn watch(
    limiter: &Limiter,
    server: Option<&Server>,
    place: &str,
    slots: u64,
    most_ms: f64,
) -> Result<bool, Error> {
    let ends = Arc::new(AtomicBool::new(false));
    let pings = server.map(|server| {
        let (url, ends) = (server.url(), Arc::clone(&ends));
        thread::spawn(move || pings(&url, &ends))
    });
    let other = Policy::parse("other", "1000000/1d")?;
    let (mut waits, mut failed) = (Waits::default(), 0);
    let begin = Instant::now();
    while begin.elapsed() < WATCHED {
        let start = Instant::now();
        let checked = limiter.check([Charge::new(&other, Key::new("user", "bob"), 1)]);
        failed += u64::from(checked.await.is_err());
        waits.add(start);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    ends.store(true, Relaxed);
    let (high, most) = (waits.at(0.99), waits.at(1.0));
    println!(
        "       {place}, beside {slots} slots: 99 of 100 other checks within {high:.2} ms, {failed} failed"
    );
    let mut met = bar("the longest of other checks, ms", most, most_ms);
    if let Some(pings) = pings {
        let mut pings = pings.join().map_err(|_| "no pings")?;
        println!(
            "       99 of 100 PINGs of another client within {:.2} ms",
            pings.at(0.99)
        );
        met &= bar("the longest PING, ms", pings.at(1.0), 10.0);
    }
    Ok(met)
}

fn pings(url: &str, ends: &AtomicBool) -> Waits {
    let mut waits = Waits::default();
    let client = redis::Client::open(url).expect("a server");
    let mut connection = client.get_connection().expect("a server");
    while !ends.load(Relaxed) {
        let start = Instant::now();
        redis::cmd("PING").exec(&mut connection).expect("a server");
        waits.add(start);
        thread::sleep(Duration::from_millis(1));
    }
    waits
}
