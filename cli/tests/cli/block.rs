//! `sluicegate block`, `unblock` and `blocks`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sluicegate::{
    Charge, Decision, Key, Limiter, Policy,
    block::{BlockedBy, Until},
};

use crate::site::{Site, policy};

const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

async fn check(limiter: &Limiter, key: Key) -> Decision {
    let charge = Charge::new(&policy("api"), key, 1);
    limiter.check([charge]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_enforces_a_block_until_it_is_ended() {
    let site = Site::start().await;
    let replicas = [site.service().await, site.service().await];
    let alice = || Key::new("user", "alice");
    let said = site.text("block user=alice --for 2h");
    begins!(said => "user=alice is blocked by an operator until ");
    for replica in &replicas {
        let Decision::Blocked(blocked) = check(replica, alice()).await else {
            panic!("not blocked");
        };
        assert_eq!(blocked.block().source(), BlockedBy::Operator);
        let left = blocked.retry_after().unwrap();
        assert!(left <= Duration::from_secs(7_200) && left > Duration::from_secs(7_100));
    }
    site.tool
        .told("unblock user=alice | 0 | user=alice is no longer blocked.");
    for replica in &replicas {
        assert!(check(replica, alice()).await.is_allowed());
    }
    assert_eq!(site.json("unblock user=alice", 1)["blocked"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_ends_at_its_date_or_never_and_the_later_end_holds() {
    let site = Site::start().await;
    let begun_ms = now_ms();
    let until = |args: &str| site.json(args, 0)["blocked"]["until_ms"].clone();
    let date = until("block user=alice --until 2100-01-01T00:00:00Z");
    assert_eq!(date, 4_102_444_800_000_u64);
    assert_eq!(
        until("block user=alice --for 1h"),
        date,
        "the later one holds"
    );
    let hour = until("block user=bob --for 1h").as_u64().unwrap();
    assert!((begun_ms + HOUR_MS..=now_ms() + HOUR_MS).contains(&hour));
    assert_eq!(until("block user=bob --forever"), Value::Null);

    let blocks = site.json("blocks", 0)["blocks"].clone();
    has!(blocks[0], { "identity": "user=alice", "by": "operator", "until_ms": 4_102_444_800_000_u64 });
    has!(blocks[1], { "identity": "user=bob", "by": "operator", "until_ms": null });
    assert_eq!(site.json("blocks --number 1", 0)["total"], 2);
    for verb in ["inspect", "explain"] {
        let code = i32::from(verb == "explain");
        let report = site.json(&format!("{verb} user=bob --policies policies.toml"), code);
        assert_eq!(report["blocked"]["by"], "operator", "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_is_listed_as_one_and_a_secret_as_its_hash() {
    let site = Site::start().await;
    let limiter = site.service().await;
    let login = Policy::parse("login", "1/1d").unwrap();
    let login = login.ban("1/1d=1h".parse().unwrap());
    let mallory = Charge::new(&login, Key::secret("api-key", "s3cret"), 2);
    assert!(!limiter.check([mallory]).await.unwrap().is_allowed());
    limiter.strikes_counted().await;
    let bob = Key::new("user", "bob");
    limiter.block(&bob, Until::Forever).await.unwrap();
    let top = site.json("top", 0);
    assert_eq!((&top["blocked"], &top["banned"]), (&2.into(), &1.into()));
    site.tool
        .told("top | 0 | 2 blocked, 1 of them by a ban: `sluicegate blocks` lists them");
    limiter.unblock(&bob).await.unwrap();
    let said = site.text("blocks");
    says!(said => " api-key=#", " ban ");
    says_not!(said => "s3cret");
    // By its listed hash, and then by its value.
    let mut words = said.split_whitespace();
    let hashed = words.find(|it| it.starts_with("api-key=#")).unwrap();
    site.text(&format!("unblock {hashed}"));
    site.text(&format!("block {hashed} --for 1h"));
    let unblock = "unblock api-key=- --hashed";
    let said = site.tool.run_with(unblock, b"s3cret\n");
    assert_eq!(said.code, 0, "{said:?}");
    site.tool.told("blocks | 0 | Nobody is blocked.");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_blocks_nobody_is_an_error_that_says_what_to_write() {
    let site = Site::start().await;
    site.tool.told(
        "
        block user=alice | 2 | --for <TIME>
        block user=alice --for 1h --forever | 2 | cannot be used with
        block user=alice --for soon | 2 | write a time such as
        block user=alice --until tomorrow | 2 | write a date such as
        block user=alice --until 2020-01-01T00:00:00Z | 2 | this time has passed
        ",
    );
    assert_eq!(site.server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_the_service_has_refused_is_not_doubted() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let login = Policy::parse("login", "1/1d").unwrap();
    let login = login.ban("1/1d=1h".parse().unwrap());
    for user in ["banned", "denied"] {
        let policy = if user == "banned" {
            login.clone()
        } else {
            policy("api")
        };
        let charge = Charge::new(&policy, Key::new("user", user), 11);
        let decision = site.limiter.check([charge]).await.unwrap();
        assert!(matches!(decision, Decision::Denied(_)));
    }
    site.limiter.strikes_counted().await;
    site.limiter.denials().await.unwrap();
    site.tool.told(
        "
        block user=banned --for 2h | 0 | !warning
        block user=denied --for 2h | 0 | !warning
        block user=carol --for 2h | 0 | warning: No counts are stored
        block user=carol --for 3h | 0 | !warning
        ",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_block_keeps_the_reason_unless_there_is_another() {
    let site = Site::start().await;
    let reason =
        |args: &str| site.json(&format!("block user=alice {args}"), 0)["blocked"]["reason"].clone();
    assert_eq!(reason("--for 1h --reason scrapes"), "scrapes");
    assert_eq!(reason("--for 2h"), "scrapes");
    assert_eq!(reason("--for 3h --reason again"), "again");
    site.text("unblock user=alice");
    assert_eq!(reason("--for 1h"), Value::Null);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_name_is_an_author_by_number() {
    let site = Site::start().await;
    let author = site.json("block user=alice --for 1h", 0)["blocked"]["author"].clone();
    let (user, host) = author.as_str().unwrap().split_once('@').unwrap();
    assert!(user.parse::<u32>().is_ok() && !host.is_empty(), "{author}");
}
