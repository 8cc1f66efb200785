//! `sluicegate top` ranks identities, with and without policies.

use sluicegate::{Charge, Key, Policy};

use crate::site::Site;

fn rows(said: &serde_json::Value) -> Vec<(&str, u64)> {
    let rows = said["top"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["identity"].as_str().unwrap(),
            row["used"].as_u64().unwrap(),
        )
    })
    .collect()
}

async fn used(site: &Site) {
    for (policy, user, cost) in [
        ("api", "alice", 9),
        ("api", "bob", 10),
        ("api", "carol", 2),
        ("login", "dave", 2),
        ("login", "alice", 3),
    ] {
        site.charge(policy, user, cost).await;
    }
}

#[tokio::test]
async fn with_policies_the_fullest_come_first() {
    let site = Site::start().await;
    used(&site).await;
    let said = site.json("top --policies policies.toml", 0);
    // Two are at their limit; the one with the longer wait comes first.
    let first = rows(&said);
    assert!(first[..2].contains(&("user=bob", 10)) && first[..2].contains(&("user=alice", 3)));
    assert_eq!(
        first[2..],
        [("user=alice", 9), ("user=dave", 2), ("user=carol", 2)]
    );
    assert_eq!((&said["keys"], &said["full"]), (&5.into(), &2.into()));
    let mut top = said["top"].as_array().unwrap().iter();
    let bob = top.find(|row| row["identity"] == "user=bob").unwrap();
    let explained = site.json("explain user=bob --policies policies.toml", 1);
    has!(bob, { "rule": "10/1d", "fits_ms": explained["passes_ms"] });

    site.tool
        .told("top --policies policies.toml -n 3 | 0 | 2 full | 100% | !carol");
}

#[tokio::test]
async fn without_policies_those_with_the_most_units_come_first() {
    let site = Site::start().await;
    used(&site).await;
    let said = site.json("top -n 2", 0);
    assert_eq!(rows(&said), [("user=bob", 10), ("user=alice", 9)]);
    assert!(said["full"].is_null() && said["top"][0]["limit"].is_null());
    let said = site.json("top --policy login", 0);
    assert_eq!(rows(&said), [("user=alice", 3), ("user=dave", 2)]);
    says!(site.text("top") => "--policies FILE shows who is denied");
}

#[tokio::test]
async fn the_refill_of_a_bucket_is_known_without_policies() {
    let site = Site::start().await;
    let policy = Policy::parse("slow", "600+1/1h@bucket").unwrap();
    let charge = Charge::new(&policy, Key::new("user", "alice"), 5);
    assert!(site.limiter.check([charge]).await.unwrap().is_allowed());
    let said = site.json("top", 0);
    assert_eq!(said["top"][0]["rule"], "?+1/1h@bucket");
    let said = site.json("inspect user=alice", 0);
    assert_eq!(said["policies"][0]["rules"][0]["rule"], "?+1/1h@bucket");
}

#[tokio::test]
async fn a_sample_is_a_share_of_the_identities() {
    let site = Site::start().await;
    for user in 0..400 {
        site.charge("login", &user.to_string(), 1).await;
    }
    let read = |args| site.json(args, 0)["read"].as_u64().unwrap();
    assert_eq!(read("top --load 100%"), 400);
    assert!((20..=80).contains(&read("top --load 100% --sample 10%")));
    assert_eq!(
        read("top --load 100% --sample 10%"),
        read("top --load 100% --sample 10%")
    );
}

#[tokio::test]
async fn what_is_not_of_this_store_is_left_out_and_what_cannot_be_read_is_counted() {
    let site = Site::start().await;
    used(&site).await;
    for name in [
        "sluicegate:{user=eve}:api~1",
        "other:{user=eve}:api~1",
        "sluicegate2",
        "sluicegate:eve",
    ] {
        let () = site.server.run(&format!("SET {name} garbage"));
    }
    let said = site.json("top --prefix s*", 0);
    assert_eq!((&said["read"], &said["keys"]), (&0.into(), &9.into()));
    assert!(said["now_ms"].as_u64().unwrap() > 1_700_000_000_000);
    let said = site.json("top", 0);
    assert_eq!((&said["read"], &said["unreadable"]), (&6.into(), &1.into()));
    assert!(site.text("top").contains("1 values could not be read"));
}

#[tokio::test]
async fn of_a_server_without_keys_there_is_a_time() {
    let site = Site::start().await;
    let said = site.json("top", 0);
    assert!(said["now_ms"].as_u64().unwrap() > 1_700_000_000_000);
    assert!(rows(&said).is_empty());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn at_a_terminal_of_80_columns_no_row_takes_two_lines() {
    let site = Site::start().await;
    let long = "x".repeat(48);
    site.charge("api", &long, 10).await;
    let said = site.text("top --policies policies.toml");
    assert!(said.contains(&format!("user={long}")), "{said}");
    let narrow = site.at_terminal(80, "top --policies policies.toml");
    let row = narrow.lines().find(|line| line.contains("user=xxx"));
    let row = row.unwrap().trim_end();
    says!(row => "…", "10/1d", "100%");
    assert!(row.chars().count() <= 80, "{narrow}");
    let wide = site.at_terminal(80, "top --wide --policies policies.toml");
    says!(wide => &format!("user={long} "));
}

#[tokio::test]
async fn a_long_scan_without_a_terminal_says_how_many_keys_it_looks_at() {
    let site = Site::start().await;
    let keys: String = (0..3_000)
        .map(|number| format!(" session:{number} x"))
        .collect();
    let () = site.server.run(&format!("MSET{keys}"));
    let said = site.tool.run("top --load 0.1%");
    let told = "looking at 3\u{202f}000 keys, with a load of 0.1%: see --load\n";
    assert_eq!((said.code, said.stderr.as_str()), (0, told), "{said:?}");
}

#[tokio::test]
async fn what_top_does_not_list_is_pointed_at() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    site.tool.told(
        r"top --policies policies.toml | 0 | none of them full now\n`sluicegate top --denied` lists who was denied",
    );
    let alice = Key::new("user", "alice");
    let for_ever = sluicegate::block::Until::Forever;
    site.limiter.block(&alice, for_ever).await.unwrap();
    site.tool.told("top | 0 | 1 blocked: `sluicegate blocks`");
}
