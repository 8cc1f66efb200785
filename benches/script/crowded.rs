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

use crate::figures::{Error, bar, bar_and_aim};

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

/// Relative to the same beside few slots, since a busy machine delays both. The longest waits have aims alone.
pub(crate) async fn crowded(server: &Server) -> Result<bool, Error> {
    let mut met = true;
    let (few, many) = (in_memory(1).await?, in_memory(OF_ONE_KEY).await?);
    for (what, place, most) in [
        ("a take in memory", 0, 3.0),
        ("other checks in memory", 1, 5.0),
    ] {
        let what = format!("{what}, beside {OF_ONE_KEY} slots / beside one");
        met &= bar(&what, many[place] / few[place], most);
    }
    let redis = || async {
        server.run::<()>("FLUSHALL");
        Ok::<_, Error>(Limiter::new(RedisStore::connect(server.url()).await?))
    };
    let none = watch(&redis().await?, Some(server), "over Redis", 0, 20.0).await?;
    let limiter = redis().await?;
    let held = hold(&limiter, OF_ONE_KEY, |_| 0).await?;
    let of_one_key = watch(&limiter, Some(server), "over Redis", OF_ONE_KEY, 20.0).await?;
    drop(held);
    limiter.finish(Duration::from_secs(10)).await;
    let limiter = redis().await?;
    let held = hold(&limiter, USERS, |slot| slot).await?;
    let of_users = watch(&limiter, Some(server), "over Redis", USERS, 20.0).await?;
    assert!(held.iter().all(Slot::is_held));
    drop(held);
    for (slots, waits) in [(OF_ONE_KEY, of_one_key), (USERS, of_users)] {
        for (place, what) in ["other checks over Redis", "PINGs"].iter().enumerate() {
            let what = format!("{what}, beside {slots} slots / beside none");
            met &= bar_and_aim(&what, waits[place] / none[place], 15.0, 5.0);
        }
    }
    Ok(met)
}

/// The median of takes, and a high wait of other checks, in ms.
async fn in_memory(slots: u64) -> Result<[f64; 2], Error> {
    let limiter = Limiter::new(MemoryStore::new());
    let held = hold(&limiter, slots, |_| 0).await?;
    let take_ms = take(&limiter).await?;
    println!(
        "       a take in memory beside {slots} slots: {:.2} µs",
        take_ms * 1e3
    );
    let [others, _] = watch(&limiter, None, "in memory", slots, 2.0).await?;
    drop(held);
    Ok([take_ms, others])
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

/// Checks other keys while slots are renewed, and pings the server as another client. Returns the wait in ms that 99 of
/// 100 checks did not exceed, and 99 of 100 pings.
async fn watch(
    limiter: &Limiter,
    server: Option<&Server>,
    place: &str,
    slots: u64,
    aim_ms: f64,
) -> Result<[f64; 2], Error> {
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
    println!("       the longest of other checks, ms: {most:.2}, aim {aim_ms:.2}");
    let Some(pings) = pings else {
        return Ok([high, 0.0]);
    };
    let mut pings = pings.join().map_err(|_| "no pings")?;
    let (high_ping, most) = (pings.at(0.99), pings.at(1.0));
    println!("       99 of 100 PINGs of another client within {high_ping:.2} ms");
    println!("       the longest PING, ms: {most:.2}, aim 10.00");
    Ok([high, high_ping])
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
