//! With a distant server or a busy process, no fewer checks are decided.

use std::time::Duration;

use futures::future::join_all;
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, error::StoreErrorKind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use support::redis::Server;

/// A proxy that delays each reply by `latency`.
async fn far_away(server: &Server, latency: Duration) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let to = server
        .url()
        .trim_start_matches("redis://")
        .trim_end_matches('/')
        .to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(
                client,
                TcpStream::connect(to.clone()).await.unwrap(),
                latency,
            ));
        }
    });
    format!("redis://{address}")
}

async fn carry(client: TcpStream, server: TcpStream, latency: Duration) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    tokio::spawn(async move {
        while let Some((due, bytes)) = queued.recv().await {
            sleep_until(due).await;
            to_client.write_all(&bytes).await.unwrap_or_default();
        }
    });
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
        let _ = queue.send((Instant::now() + latency, bytes[..length].to_vec()));
    }
}

fn three_charges(user: usize) -> [Charge; 3] {
    ["one", "two", "three"].map(|name| {
        let policy = Policy::parse(name, "1000000/1d").unwrap();
        Charge::new(&policy, Key::new("user", format!("user-{user}")), 1)
    })
}

#[tokio::test]
async fn checks_that_are_far_more_than_go_in_small_calls_are_all_decided() {
    // A tenth of the timeout, like 10 ms with the default. Ten calls in sequence fit into the timeout.
    const LATENCY: Duration = Duration::from_millis(100);
    let server = Server::start();
    let url = far_away(&server, LATENCY).await;
    let limiter = Limiter::new(RedisStore::connect(url).await.unwrap()).timeout(10 * LATENCY);
    limiter.check(three_charges(0)).await.unwrap();
    let checks = (0..600).map(|user| limiter.check(three_charges(user)));
    let decided = join_all(checks).await.into_iter().filter(Result::is_ok);
    assert_eq!(decided.count(), 600);
}

#[tokio::test]
async fn a_burst_on_a_healthy_server_opens_no_breaker() {
    for in_flight in [4, 0] {
        let server = Server::start();
        let store = RedisStore::connect(server.url()).await.unwrap();
        let limiter = Limiter::new(store.in_flight(in_flight));
        limiter.check(three_charges(0)).await.unwrap();
        let tasks = (0..10_000).map(|user| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(three_charges(user)).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            if let Err(error) = task.await.unwrap() {
                assert_eq!(error.kind(), StoreErrorKind::Timeout);
            }
        }
        for user in 0..100 {
            limiter.check(three_charges(user)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_burst_that_fits_into_the_timeout_is_decided_whole() {
    // As long as any machine needs for ten thousand checks, so that only a lost check ends without a decision.
    const TIMEOUT: Duration = Duration::from_secs(60);
    for in_flight in [4, 0] {
        let server = Server::start();
        let store = RedisStore::connect(server.url()).await.unwrap();
        let limiter = Limiter::new(store.in_flight(in_flight)).timeout(TIMEOUT);
        let checks = (0..10_000).map(|user| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(three_charges(user)).await })
        });
        let answers = join_all(checks.collect::<Vec<_>>()).await;
        let decided = answers.into_iter().filter(|it| matches!(it, Ok(Ok(_))));
        assert_eq!(decided.count(), 10_000, "{in_flight} in flight");
    }
}
