//! Calendar rules over a real server: replicas with different zone data.

use crate::prelude::*;

const HOUR_MS: u64 = 3_600_000;

/// 2027-03-01T00:00:00Z
const END_MS: u64 = 1_803_859_200_000;

/// Another replica has written another end of the month, by its own zone data.
fn rewrite(server: &Server, other_ms: u64) {
    let mut connection = server.connect();
    let name = "sluicegate:{user=alice}:quota~1";
    let mut value: Vec<u8> = redis::cmd("GET").arg(name).query(&mut connection).unwrap();
    let [end, other] = [END_MS, other_ms].map(|ms| ms.to_le_bytes());
    let mut replaced = 0;
    for at in 0..value.len() - 6 {
        if value[at..].starts_with(&end[..6]) {
            value[at..at + 6].copy_from_slice(&other[..6]);
            replaced += 1;
        }
    }
    assert!(replaced > 0, "the value has the end");
    let mut set = redis::cmd("SET");
    let set = set.arg(name).arg(value).arg("KEEPTTL");
    set.exec(&mut connection).unwrap();
}

#[tokio::test]
async fn replicas_whose_zone_data_differ_keep_a_count_until_the_later_of_their_ends() {
    // The other rule lets the key live for longer than the quota, so that the script and not the expiry ends the count. No
    // step of it ends with the month.
    let quota = policy("quota", "9/month@UTC,1000/31d@1h");
    for (other_ms, later_ms) in [
        (END_MS + HOUR_MS, END_MS + HOUR_MS),
        (END_MS - HOUR_MS, END_MS),
    ] {
        let (server, clock) = (Server::start(), ManualClock::new(END_MS - 2 * HOUR_MS));
        let limiter = patient(connect(&server).await.clock(clock.clone()));
        let all = [charge(&quota, "alice", 9)];
        assert!(limiter.check(all.clone()).await.unwrap().is_allowed());
        rewrite(&server, other_ms);
        for at_ms in [END_MS - 2 * HOUR_MS, END_MS - 1, END_MS + 1, later_ms - 1] {
            if at_ms < later_ms {
                clock.set(at_ms);
                let denied = take(&limiter, &quota, "alice").await;
                assert_eq!(retry_after(&denied), Some(ms(later_ms - at_ms)), "{at_ms}");
            }
        }
        clock.set(later_ms);
        assert_eq!(left(&limiter, &quota, "alice").await, 9);
        assert!(limiter.check(all).await.unwrap().is_allowed());
        assert_eq!(left(&limiter, &quota, "alice").await, 0);
    }
}
