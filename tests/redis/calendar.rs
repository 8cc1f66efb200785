//! Calendar rules over a real server: replicas with different zone data, and notice before the limit of a quota.

use sluicegate::{
    Charge, Decision, Key, Policy, RedisStore, Store, manual_clock::ManualClock, store::Check,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use support::redis::Server;

const HOUR_MS: u64 = 3_600_000;

/// 2027-03-01T00:00:00Z
const END_MS: u64 = 1_803_859_200_000;

/// A proxy that changes one time in all requests, as zone data would in which a period ends at another time.
async fn with_another_end(server: &Server, end_ms: u64, other_ms: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let to = server.address();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (requests, mut replies) = client.into_split();
            let (from_server, to_server) = TcpStream::connect(to).await.unwrap().into_split();
            tokio::spawn(rewrite(requests, to_server, bytes(end_ms), bytes(other_ms)));
            tokio::spawn(async move {
                let mut from_server = from_server;
                let _ = copy(&mut from_server, &mut replies).await;
            });
        }
    });
    url
}

/// As the call of the script holds a time.
fn bytes(ms: u64) -> [u8; 6] {
    ms.to_le_bytes()[..6].try_into().unwrap()
}

async fn rewrite(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    old: [u8; 6],
    new: [u8; 6],
) {
    let (mut request, mut part) = (Vec::new(), [0; 16_384]);
    while let Ok(length @ 1..) = from.read(&mut part).await {
        request.extend_from_slice(&part[..length]);
        // A time may be cut in two where a part ends, but not where a request does.
        if !request.ends_with(b"\r\n") {
            continue;
        }
        for at in 0..request.len().saturating_sub(old.len()) {
            if request[at..].starts_with(&old) {
                request[at..at + new.len()].copy_from_slice(&new);
            }
        }
        if to.write_all(&request).await.is_err() {
            return;
        }
        request.clear();
    }
}

struct Replica(RedisStore);

impl Replica {
    async fn new(url: String, prefix: &str, clock: &ManualClock) -> Self {
        let store = RedisStore::connect(url).await.unwrap();
        Self(store.prefix(prefix).clock(clock.clone()))
    }

    async fn check(&self, policy: &Policy, cost: u64) -> Decision {
        let charge = Charge::new(policy, Key::new("user", "alice"), cost);
        let check = Check::new([charge]).unwrap();
        self.0.check(&check).await.unwrap()
    }

    async fn left(&self, policy: &Policy) -> u64 {
        let look = self.check(policy, 0).await;
        look.usage().rules().next().unwrap().remaining()
    }
}

fn retry_after_ms(decision: &Decision) -> u128 {
    match decision {
        Decision::Denied(denial) => denial.retry_after().unwrap().as_millis(),
        other => panic!("not denied: {other:?}"),
    }
}

/// The other rule lets the key live for longer than the quota, so that the script and not the expiry ends the count.
fn quota() -> Policy {
    Policy::parse("quota", "9/month@UTC,1000/30d").unwrap()
}

#[tokio::test]
async fn replicas_whose_zone_data_differ_keep_a_count_until_the_later_of_their_ends() {
    let server = Server::start();
    let clock = ManualClock::new(END_MS - 2 * HOUR_MS);
    let other_url = with_another_end(&server, END_MS, END_MS + HOUR_MS).await;
    let own = Replica::new(server.url(), "zones", &clock).await;
    let other = Replica::new(other_url, "zones", &clock).await;
    let policy = quota();
    // Each of them charges, and both count all.
    assert!(own.check(&policy, 4).await.is_allowed());
    assert!(other.check(&policy, 5).await.is_allowed());
    for replica in [&own, &other] {
        let denied = replica.check(&policy, 1).await;
        assert_eq!(retry_after_ms(&denied), u128::from(3 * HOUR_MS));
    }
    // For one of them, the next month has begun.
    for after_ms in [1, HOUR_MS - 1] {
        clock.set(END_MS + after_ms);
        for replica in [&own, &other] {
            let denied = replica.check(&policy, 1).await;
            assert_eq!(retry_after_ms(&denied), u128::from(HOUR_MS - after_ms));
        }
    }
    clock.set(END_MS + HOUR_MS);
    for replica in [&own, &other] {
        assert_eq!(replica.left(&policy).await, 9);
    }
    assert!(own.check(&policy, 9).await.is_allowed());
    assert_eq!(other.left(&policy).await, 0);
}
