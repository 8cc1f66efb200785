//! Checks with a distant Redis and the limiter's default settings: the share that is decided within the timeout.
//!
//! Requests begin by the clock, independent of earlier answers. A proxy on a separate thread keeps each reply for the
//! round trip. `--in-flight 2,4` compares these settings of the store.

use std::{env, net::SocketAddr, thread, time::Duration};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, error::StoreErrorKind};
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use support::redis::Server;

/// Requests a second, and the round trip in ms.
/// The first is alone in its call.
const ROWS: [(u32, u64); 5] = [(20, 10), (1_000, 1), (1_000, 10), (600, 20), (5_000, 10)];
const SECONDS: u32 = 4;
/// The minimum share of decided requests.
const LEAST_DECIDED: f64 = 0.9975;

/// Checks that begin in one moment.
const BURST: u32 = 10_000;

/// Returns whether enough requests were decided in each row.
#[tokio::main]
pub(crate) async fn run() -> bool {
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>14}",
        "away, ms",
        "req/s",
        "in flight",
        "sent",
        "decided",
        "p50 ms",
        "p99 ms",
        "worst ms",
        "requests/call"
    );
    let mut is_met = true;
    for (rate, away) in ROWS {
        for calls in &in_flight() {
            is_met &= row(rate, Duration::from_millis(away), *calls).await;
        }
    }
    println!("at least {LEAST_DECIDED} of those sent are asked for");
    for away in [0, 10] {
        is_met &= burst(Duration::from_millis(away)).await;
    }
    is_met
}

/// The settings of `in_flight`, from the command line; the default alone without them.
fn in_flight() -> Vec<Option<usize>> {
    let mut arguments = env::args().skip_while(|it| it != "--in-flight").skip(1);
    match arguments.next() {
        Some(values) => values.split(',').map(|it| it.parse().ok()).collect(),
        None => vec![None],
    }
}

/// Begins many checks at once. The last ones may time out on a slow machine, but none may find the breaker open.
async fn burst(away: Duration) -> bool {
    let redis = Server::start();
    let limiter = limiter(&redis, away, None).await;
    let begun = Instant::now();
    let mut checks = JoinSet::new();
    for user in 0..BURST {
        let limiter = limiter.clone();
        // A user for each, since the store decides identical checks as one.
        checks.spawn(async move { limiter.check(charges(user)).await.map(drop) });
    }
    let answers = checks.join_all().await;
    let failures = |kind| {
        let errors = answers.iter().filter_map(|answer| answer.as_ref().err());
        errors.filter(|error| error.kind() == kind).count()
    };
    let (timeouts, refused) = (
        failures(StoreErrorKind::Timeout),
        failures(StoreErrorKind::CircuitOpen),
    );
    println!(
        "{BURST} at once, {} ms away: {timeouts} timeouts, {refused} by an open breaker; over after {:.0} ms",
        away.as_millis(),
        begun.elapsed().as_secs_f64() * 1_000.0,
    );
    refused == 0
}

async fn limiter(redis: &Server, away: Duration, in_flight: Option<usize>) -> Limiter {
    let proxy = far_away(redis.address(), away);
    let store = RedisStore::connect(format!("redis://{proxy}"))
        .await
        .unwrap();
    let limiter = Limiter::new(match in_flight {
        Some(calls) => store.in_flight(calls),
        None => store,
    });
    limiter.check(charges(0)).await.unwrap();
    limiter
}

async fn row(rate: u32, away: Duration, in_flight: Option<usize>) -> bool {
    let redis = Server::start();
    let limiter = limiter(&redis, away, in_flight).await;
    let before = redis.calls("evalsha");
    let waits = send(&limiter, rate, rate * SECONDS).await;
    let calls = redis.calls("evalsha") - before;
    let sent = waits.len();
    let mut decided: Vec<f64> = waits
        .iter()
        .flatten()
        .map(|it| it.as_secs_f64() * 1_000.0)
        .collect();
    decided.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let place = decided.len().saturating_sub(1) * percent / 100;
        decided.get(place).copied().unwrap_or(f64::NAN)
    };
    #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
    let (share, per_call) = (
        decided.len() as f64 / sent as f64,
        sent as f64 / calls as f64,
    );
    println!(
        "{:>9} {rate:>9} {:>9} {sent:>9} {:>9} {:>9.1} {:>9.1} {:>9.1} {per_call:>14.1}",
        away.as_millis(),
        in_flight.map_or("default".into(), |it| it.to_string()),
        decided.len(),
        at(50),
        at(99),
        at(100),
    );
    share >= LEAST_DECIDED
}

/// The time of each request from the moment when it was due; `None` without a decision.
async fn send(limiter: &Limiter, rate: u32, requests: u32) -> Vec<Option<Duration>> {
    let (begun, pause) = (Instant::now(), Duration::from_secs(1) / rate);
    let mut tasks = JoinSet::new();
    for request in 0..requests {
        let (due, limiter) = (begun + pause * request, limiter.clone());
        sleep_until(due).await;
        tasks.spawn(async move {
            let decision = limiter.check(charges(request)).await;
            decision.is_ok().then(|| due.elapsed())
        });
    }
    tasks.join_all().await
}

fn charges(user: u32) -> [Charge; 3] {
    ["one", "two", "three"].map(|name| {
        let policy = Policy::parse(name, "1000000/1d").unwrap();
        Charge::new(&policy, Key::new("user", user.to_string()), 1)
    })
}

/// The address of a proxy in front of this server.
fn far_away(server: SocketAddr, away: Duration) -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, away));
            }
        });
    });
    address
}

async fn carry(client: TcpStream, server: SocketAddr, away: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // As on a long line, many answers are on their way at once: a delay must not hold up the next answer.
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut bytes = vec![0; 65_536];
        while let length @ 1.. = from_server.read(&mut bytes).await? {
            let _ = queue.send((Instant::now() + away, bytes[..length].to_vec()));
        }
        Ok(())
    };
    let write = async move {
        while let Some((due, bytes)) = queued.recv().await {
            sleep_until(due).await;
            to_client.write_all(&bytes).await?;
        }
        Ok(())
    };
    let ask = io::copy(&mut from_client, &mut to_server);
    tokio::try_join!(ask, read, write).map(drop)
}
