//! The rights on the tool's page are enough for each verb, and you can leave none of them out.

use sluicegate::{Charge, Key, block::Until};

use crate::site::Site;
use support::{served::limited, sharing::not_tried};

/// A verb, the needed rights, and the exit code with them.
const NEEDS: [(&str, &str, i32); 13] = [
    ("inspect user=alice --policies policies.toml", READ, 0),
    ("inspect user=alice", SCAN, 0),
    ("explain user=alice --policies policies.toml", READ, 0),
    ("top", SCAN, 0),
    ("top --policies policies.toml", SCAN, 0),
    ("top --denied", DENIED, 0),
    ("reset user=alice --policy api --yes", RESET, 0),
    ("reset user=alice --yes", RESET_FOUND, 0),
    ("blocks", BLOCKS, 0),
    ("blocks --scan", SCAN, 0),
    ("block user=alice --for 1h", BLOCK, 0),
    ("unblock user=alice", RESET, 1), // she is not blocked
    (
        "contributors user=alice --policy api --window 1h",
        CONTRIBUTORS,
        1,
    ), // there are none
];

const READ: &str = "+get +time";
const SCAN: &str = "+get +time +scan +dbsize";
const DENIED: &str = "+get +time +zrange";
const BLOCKS: &str = "+get +time +zscan";
const RESET: &str = "+get +time +evalsha +eval +del";
const BLOCK: &str = "+get +time +evalsha +eval +set";
const CONTRIBUTORS: &str = "+time +zrange";
const RESET_FOUND: &str = "+get +time +scan +dbsize +evalsha +eval +del";

#[tokio::test]
async fn each_verb_does_with_its_rights_and_with_no_fewer() {
    for (verb, rights, code) in NEEDS {
        let rights = format!("~sluicegate:* {rights}");
        for missing in std::iter::once("").chain(rights.split(' ')) {
            // A server that does not know the script.
            let site = Site::start().await;
            let given: Vec<&str> = rights.split(' ').filter(|it| *it != missing).collect();
            let url = limited(&site.server, &given);
            site.charge("api", "alice", 1).await;
            let bob = Key::new("user", "bob");
            site.limiter.block(&bob, Until::Forever).await.unwrap();
            let charge = Charge::new(&crate::site::policy("api"), bob, 1);
            site.limiter.check([charge]).await.unwrap();
            site.limiter.denials().await.unwrap();
            let () = site.server.run("SCRIPT FLUSH");
            let said = site.tool.run(&format!("{verb} --redis {url}"));
            if missing.is_empty() {
                assert_eq!(said.code, code, "{verb}: {said:?}");
                continue;
            }
            assert_eq!(said.code, 3, "{verb} without {missing}: {said:?}");
            says!(said.stderr => "lacks rights");
            if !["~sluicegate:*", "+get", "+set", "+del"].contains(&missing) {
                says!(said.stderr => &format!("the right `{missing}` is missing"));
            }
        }
    }
}

/// Servers from Redis 7.0 on have rights to read keys.
#[tokio::test]
async fn to_read_the_right_to_read_keys_is_enough() {
    let site = Site::start().await;
    let info: String = site.server.run("INFO server");
    if info.contains("redis_version:6.") {
        return not_tried("Redis 6 knows no right that reads keys alone");
    }
    site.charge("api", "alice", 1).await;
    let rights = format!("%R~sluicegate:* {SCAN}");
    let url = limited(&site.server, &rights.split(' ').collect::<Vec<_>>());
    for verb in [
        "inspect user=alice",
        "explain user=alice --policies policies.toml",
        "top",
    ] {
        site.text(&format!("{verb} --redis {url}"));
    }
}

#[test]
fn the_page_names_these() {
    let page = include_str!("../../README.md");
    for rights in [
        READ,
        SCAN,
        DENIED,
        BLOCKS,
        RESET,
        RESET_FOUND,
        BLOCK,
        CONTRIBUTORS,
    ] {
        says!(page => &format!("`{rights}`"));
    }
}

#[tokio::test]
async fn verbs_that_read_write_nothing_and_run_no_script() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let before: Vec<u8> = site.server.run("GET sluicegate:{user=alice}:api~1");
    let () = site.server.run("CONFIG RESETSTAT");
    for verb in [
        "inspect user=alice",
        "inspect user=alice --policies policies.toml",
        "explain user=alice --policies policies.toml",
        "top --policies policies.toml",
        "blocks",
        "top --denied",
    ] {
        site.text(verb);
    }
    site.tool.told(
        "
        reset user=bob --yes | 1
        contributors user=alice --policy api --window 1h | 1
        ",
    );
    let info: String = site.server.run("INFO commandstats");
    let called = info
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
    let mut called: Vec<&str> = called.filter(|it| !it.starts_with("config")).collect();
    called.sort_unstable();
    assert_eq!(
        called,
        [
            "dbsize", "get", "hello", "hgetall", "ping", "scan", "time", "zrange", "zscan"
        ]
    );
    let after: Vec<u8> = site.server.run("GET sluicegate:{user=alice}:api~1");
    assert_eq!(before, after);
}

#[test]
fn the_help_of_each_verb_names_the_right_to_read_published_policies() {
    for verb in ["inspect", "explain", "top", "block", "policies", "reset"] {
        crate::tool::Tool::new().told(&format!("{verb} --help | 0 | HGETALL"));
    }
}
