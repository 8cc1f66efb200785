//! `block`, `unblock` and `blocks`: the identities that they affect.

use std::time::Duration;

use serde_json::Value;
use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore,
    block::{BlockRequest, Until},
    manual_clock::ManualClock,
};

use crate::{site::Site, tool::said};

#[tokio::test]
async fn without_a_value_on_stdin_nobody_is_hit() {
    let site = Site::start().await;
    for verb in ["block --forever", "unblock", "inspect --policy api"] {
        for stdin in [&b""[..], b"\n", b"\r\n"] {
            let said = site.tool.run_with(&format!("{verb} user=-"), stdin);
            says!(said.stderr => "there is no value");
        }
    }
    assert_eq!(site.server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn a_block_that_cannot_be_read_is_named_and_hides_no_other() {
    let site = Site::start().await;
    let unreadable = "sluicegate:{user=mallory}:!block";
    site.text("block user=mallory --for 1h");
    site.server.run::<()>(&format!("SET {unreadable} strange"));
    site.text("block user=alice --for 1h");
    let listed = site.json("blocks", 0);
    assert_eq!(listed["blocks"][0]["identity"], "user=alice");
    assert_eq!(listed["unreadable"][0]["identity"], "user=mallory");
    site.tool.told(
        "
        blocks | 0 | the block of user=mallory cannot be read | user=alice
        blocks --number 0 | 2 | 0 is not in 1..
        unblock user=alice | 0
        blocks | 0 | user=mallory | !Nobody is blocked
        unblock user=mallory | 0 | user=mallory: a block that could not be read was deleted.
        ",
    );
    assert_eq!(site.json("blocks", 0)["unreadable"], serde_json::json!([]));
}

#[tokio::test]
async fn a_block_shows_its_reason_its_author_and_when_it_was_made() {
    let site = Site::start().await;
    let mut command = site.tool.command();
    command.args("block user=alice --for 1h --reason".split(' '));
    let said = said(command.arg("scrapes \x1b prices"), b"");
    assert_eq!(said.code, 0, "{said:?}");
    site.text("block user=bob --forever --author kim");
    let listed = site.json("blocks", 0);
    let [alice, bob] = [0, 1].map(|row| listed["blocks"][row].clone());
    assert_eq!(alice["reason"], "scrapes   prices");
    assert!(
        alice["created_ms"].as_u64() > Some(1_600_000_000_000),
        "{alice}"
    );
    assert_eq!(alice["policy"], Value::Null);
    has!(bob, { "author": "kim", "reason": null });
    let text = site.text("blocks");
    says!(text => "scrapes   prices", "by kim");
    let text = site.text("inspect user=bob --policy api");
    says!(text => "blocked by an operator for ever\nsince 20", " UTC, by kim\n");
}

#[tokio::test]
async fn blocks_are_listed_from_an_index_among_however_many_keys() {
    let site = Site::start().await;
    let fill =
        "for i = 1, 100000 do redis.call('SET', 'sluicegate:{user=' .. i .. '}:api~1', 'x') end";
    let client = redis::Client::open(site.server.socket_url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut eval = redis::cmd("EVAL");
    eval.arg(fill).arg(0).exec(&mut connection).unwrap();
    for number in 0..300 {
        let key = Key::new("user", number.to_string());
        site.limiter.block(&key, Until::Forever).await.unwrap();
    }
    let ended = Key::new("user", "ended");
    site.limiter
        .block(&ended, Duration::from_millis(1))
        .await
        .unwrap();
    let unblocked = Key::new("user", "0");
    site.limiter.unblock(&unblocked).await.unwrap();
    let () = site.server.run("CONFIG RESETSTAT");
    assert_eq!(site.limiter.blocks(1_000).await.unwrap().len(), 299);
    let listed = site.json("blocks --number 1000", 0);
    has!(listed, { "total": 299, "scanned": false });
    assert_eq!(site.server.calls("scan"), 0);
    // Both have read all of them, in pages.
    let [gets, pages] = ["get", "zscan"].map(|it| site.server.calls(it));
    assert!((600..=630).contains(&gets) && pages < 20, "{gets} {pages}");
}

/// A block of an older version, or of a service without the rights to write the index.
#[tokio::test]
async fn a_block_that_is_not_in_the_index_is_found_by_a_scan() {
    let site = Site::start().await;
    site.text("block user=alice --for 1h");
    site.server.run::<()>("DEL sluicegate:!blocks");
    site.tool.told("blocks | 0 | Nobody is blocked. | --scan");
    let listed = site.json("blocks --scan", 0);
    assert_eq!(listed["blocks"][0]["identity"], "user=alice");
}

#[tokio::test]
async fn a_pause_is_listed_by_its_origin_and_unblock_ends_it() {
    let site = Site::start().await;
    let account = Key::new("account", "api.example.com");
    let pause = BlockRequest::pause(Duration::from_secs(240)).reason("429, retry-after");
    site.text("block user=alice --for 1h");
    site.tool
        .told("blocks --by pause | 0 | No identity is blocked by this origin: pause.");
    site.limiter.block(&account, pause).await.unwrap();
    let listed = site.json("blocks --by pause", 0);
    has!(listed, { "total": 1 });
    has!(listed["blocks"][0], {
        "identity": "account=api.example.com", "by": "pause", "reason": "429, retry-after"
    });
    site.tool.told(
        "
        inspect account=api.example.com --policy api | 0 | paused until
        unblock account=api.example.com | 0
        ",
    );
    assert_eq!(site.json("blocks", 0)["total"], 1);
}

#[tokio::test]
async fn the_level_of_bans_is_shown_during_and_after_a_ban_and_unblock_clears_it() {
    let site = Site::start().await;
    site.text("block user=carol --for 1h");
    has!(site.json("blocks", 0)["blocks"][0], { "ban_level": null });
    site.text("unblock user=carol");
    let policy = Policy::parse("login", "1/1d").unwrap();
    let policy = policy.ban("1/10m=2h,3h".parse().unwrap());
    let clock = ManualClock::new(0);
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(clock.clone()));
    let now_ms = site.json("explain user=alice --policies policies.toml", 0)["now_ms"].clone();
    let ban = async |hours_ago: u64| {
        clock.set(now_ms.as_u64().unwrap() - hours_ago * 3_600_000);
        let charge = Charge::new(&policy, Key::new("user", "alice"), 2);
        limiter.check([charge]).await.unwrap();
        limiter.strikes_counted().await;
    };
    // The ban ended an hour ago, so the level is kept for another hour.
    ban(3).await;
    assert_eq!(site.json("blocks", 0)["total"], 0);
    let said = site.json("explain user=alice --policies policies.toml", 0);
    has!(said, { "blocked": null, "ban_level": { "level": 1 } });
    let level = "ban level 1 until  | : the next ban is of level 2 | !banned";
    site.tool.told(&format!(
        "
        inspect user=alice --policies policies.toml | 0 | {level}
        explain user=alice --policies policies.toml | 0 | {level}
        "
    ));
    ban(0).await;
    let listed = site.json("blocks", 0);
    let (alice, now_ms) = (&listed["blocks"][0], now_ms.as_u64().unwrap());
    let [end, kept] = [&alice["until_ms"], &alice["ban_level"]["until_ms"]];
    assert_eq!(
        [end, kept].map(Value::as_u64),
        [3, 6].map(|hours| Some(now_ms + hours * 3_600_000))
    );
    site.tool.told(
        "
        blocks | 0 | ban (level 2) | by 1/1d of login
        unblock user=alice | 0
        ",
    );
    ban(3).await;
    site.tool
        .told("unblock user=alice | 1 | user=alice was not blocked; its ban level is cleared.");
    let said = site.json("inspect user=alice", 0);
    assert_eq!(said["ban_level"], Value::Null);
}
