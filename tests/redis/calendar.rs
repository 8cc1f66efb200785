//! Calendar rules over a real server: replicas with different zone data, and notice before the limit of a quota.

use tokio::{
    io::copy,
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
};

use crate::prelude::*;

const HOUR_MS: u64 = 3_600_000;

/// 2027-03-01T00:00:00Z
const END_MS: u64 = 1_803_859_200_000;

/// A proxy that changes one time in all requests, as zone data would in which a period ends at another time.
async fn with_another_end(server: &Server, end_ms: u64, other_ms: u64) -> String {
    let to = server.address();
    listen(move |client| async move {
        let (requests, mut replies) = client.into_split();
        let (mut from_server, to_server) = TcpStream::connect(to).await.unwrap().into_split();
        tokio::spawn(rewrite(requests, to_server, bytes(end_ms), bytes(other_ms)));
        let _ = copy(&mut from_server, &mut replies).await;
    })
    .await
}

/// As the call of the script holds a time.
fn bytes(ms: u64) -> [u8; 6] {
    ms.to_le_bytes()[..6].try_into().unwrap()
}

async fn rewrite(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, old: [u8; 6], new: [u8; 6]) {
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

fn retry_after_ms(decision: &Decision) -> u128 {
    match decision {
        Decision::Denied(denial) => denial.retry_after().unwrap().as_millis(),
        other => panic!("not denied: {other:?}"),
    }
}

#[tokio::test]
async fn replicas_whose_zone_data_differ_keep_a_count_until_the_later_of_their_ends() {
    let server = Server::start();
    let clock = ManualClock::new(END_MS - 2 * HOUR_MS);
    let other_url = with_another_end(&server, END_MS, END_MS + HOUR_MS).await;
    let replica = async |url| {
        let store = RedisStore::connect(url).await.unwrap();
        patient(store.clock(clock.clone()))
    };
    let (own, other) = (replica(server.url()).await, replica(other_url).await);
    // The other rule lets the key live for longer than the quota, so that the script and not the expiry ends the count.
    let quota = policy("quota", "9/month@UTC,1000/30d");
    let check = async |replica: &Limiter, cost| {
        replica
            .check([charge(&quota, "alice", cost)])
            .await
            .unwrap()
    };
    // Each of them charges, and both count all.
    assert!(check(&own, 4).await.is_allowed());
    assert!(check(&other, 5).await.is_allowed());
    // For one of them, the next month begins at the end.
    for (at_ms, wait_ms) in [
        (END_MS - 2 * HOUR_MS, 3 * HOUR_MS),
        (END_MS + 1, HOUR_MS - 1),
        (END_MS + HOUR_MS - 1, 1),
    ] {
        clock.set(at_ms);
        for replica in [&own, &other] {
            let denied = check(replica, 1).await;
            assert_eq!(retry_after_ms(&denied), u128::from(wait_ms));
        }
    }
    clock.set(END_MS + HOUR_MS);
    for replica in [&own, &other] {
        assert_eq!(left(replica, &quota, "alice").await, 9);
    }
    assert!(check(&own, 9).await.is_allowed());
    assert_eq!(left(&other, &quota, "alice").await, 0);
}
