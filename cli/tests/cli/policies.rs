//! Published policies: `policies`, and the verbs that take their limits from them.

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};

use crate::site::Site;
use support::served::limited;

/// A process that has charged `user=alice` under this policy, and has published the policy.
async fn publish(site: &Site, policy: &Policy, cost: u64) -> Limiter {
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let limiter = Limiter::new(store).timeout(std::time::Duration::from_secs(30));
    let charge = Charge::new(policy, Key::new("user", "alice"), cost);
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
    limiter.policies_published().await.unwrap();
    limiter
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

#[tokio::test]
async fn verbs_need_no_file_of_policies_that_are_published() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 10).await;
    let text = site.text("inspect user=alice");
    assert!(text.contains("api      10/1d"), "{text}");
    let said = site.json("explain user=alice", 1);
    assert_eq!(said["denied_by"]["rule"], "10/1d");
    let top = site.json("top", 0);
    has!(top, { "full": 1 });
    has!(top["top"][0], { "limit": 10 });
    // None of them has scanned all keys to find a policy.
    assert_eq!(site.server.calls("hset"), 1);
}

#[tokio::test]
async fn what_is_published_is_listed_and_holds_no_value_of_a_key() {
    let site = Site::start().await;
    let banning = policy("10/1d,100/2d").ban("5/10m=1h".parse().unwrap());
    let limiter = publish(&site, &banning, 1).await;
    let charge = Charge::new(&banning, Key::secret("api-key", "do-not-show"), 1);
    limiter.check([charge]).await.unwrap();
    limiter.policies_published().await.unwrap();
    let row = site.json("policies", 0)["policies"][0].clone();
    has!(row, {
        "policy": "api", "rules": "10/1d,100/2d", "ban": "5/10m=1h", "on_failure": "open",
        "kinds": ["api-key", "user"], "enforces_blocks": true, "differs": false
    });
    let stored: Vec<String> = site.server.run("HGETALL sluicegate:!policies");
    assert_eq!(stored.len(), 2, "{stored:?}");
    let stored = stored.concat();
    says_not!(stored => "alice", "do-not-show");
    assert!(site.server.run::<u64>("PTTL sluicegate:!policies") > 86_000_000);
}

#[tokio::test]
async fn a_file_that_differs_from_what_the_service_publishes_is_warned_of() {
    let site = Site::start().await;
    publish(&site, &policy("100/10s"), 1).await;
    site.tool.write("drifted.toml", "api = \"100/20s\"");
    site.tool.write("same.toml", "api = \"100/10s\"");
    for verb in ["inspect user=alice", "explain user=alice", "top"] {
        let said = site.tool.run(&format!("{verb} --policies drifted.toml"));
        let expected = "the service publishes api = 100/10s, the file says 100/20s";
        assert!(said.stderr.contains(expected), "{verb}: {said:?}");
        let said = site.tool.run(&format!("{verb} --policies same.toml"));
        assert_eq!(said.stderr, "", "{verb}");
    }
}

#[tokio::test]
async fn processes_that_differ_in_a_policy_are_seen() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    publish(&site, &policy("20/1d"), 1).await;
    let rows = site.json("policies", 0)["policies"].clone();
    let rows = rows.as_array().unwrap();
    assert!(
        rows.len() == 2 && rows.iter().all(|row| row["differs"] == true),
        "{rows:?}"
    );
    let said = site.tool.run("top");
    assert!(said.stderr.contains("processes differ in api"), "{said:?}");
}

#[tokio::test]
async fn a_service_that_publishes_nothing_needs_the_file() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    site.limiter.policies_published().await.unwrap();
    assert_eq!(site.json("policies", 1)["policies"], serde_json::json!([]));
    let said = site.tool.run("explain user=alice");
    assert_eq!(said.code, 2, "{said:?}");
    says!(said.stderr => "the service publishes none");
    assert_eq!(site.server.run::<u64>("EXISTS sluicegate:!policies"), 0);
}

#[tokio::test]
async fn by_limits_that_are_not_the_published_ones_nothing_is_known() {
    let site = Site::start().await;
    publish(&site, &policy("100/10s"), 1).await;
    site.tool.write("drifted.toml", "api = \"100/20s\"");
    let explain = "explain user=carol --policies drifted.toml";
    let said = site.tool.run(explain);
    assert_eq!(said.code, 1, "{said:?}");
    let expected = "It is not known whether it passes: the service publishes api = 100/10s, the file says 100/20s.";
    assert!(said.stdout.contains(expected), "{said:?}");
    let said = site.json(explain, 1);
    has!(said, {
        "published_differs": [{"policy": "api", "published": ["100/10s"], "file": "100/20s"}], "is_known": false,
        "passes": false
    });
    // And the answer is not a denial either.
    site.tool.write("lower.toml", "api = \"1/10s\"");
    let said = site.json("explain user=carol --policies lower.toml --cost 2", 1);
    has!(said, { "is_known": false, "denied_by": null });
    site.tool.write("same.toml", "api = \"100/10s\"");
    let said = site.json("explain user=carol --policies same.toml", 0);
    assert_eq!(said["published_differs"], serde_json::json!([]));
}

#[tokio::test]
async fn while_processes_differ_in_a_policy_nothing_is_known_under_it() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    publish(&site, &policy("20/1d"), 1).await;
    let said = site.tool.run("explain user=alice");
    assert_eq!(said.code, 1, "{said:?}");
    says!(said.stdout => "It is not known whether it passes: processes differ in api");
    let said = site.json("explain user=alice", 1);
    let mut published = said["published_differs"][0]["published"].clone();
    let published = published.as_array_mut().unwrap();
    published.sort_by_key(ToString::to_string);
    assert_eq!(*published, ["10/1d", "20/1d"]);
    site.json(
        "explain user=alice --policy login --policies policies.toml",
        0,
    );
}

#[tokio::test]
async fn a_block_that_no_policy_enforces_is_warned_of() {
    let site = Site::start().await;
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let limiter = Limiter::new(store).enforce_blocks(false);
    let charge = |user| [Charge::new(&policy("10/1d"), Key::new("user", user), 1)];
    limiter.check(charge("alice")).await.unwrap();
    limiter.policies_published().await.unwrap();
    assert!(site.text("policies").contains(" not enforced "));
    let warning = "no published policy for the kind `user` enforces blocks (api): the block holds only where a layer has \
                   `deny_blocked`";
    let said = site.tool.run("block user=alice --for 1h");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains(warning), "{said:?}");
    let said = site.json("block user=alice --for 1h", 0);
    assert!(said["warning"].as_str().unwrap().contains(warning));
    for (verb, code) in [("explain user=alice", 1), ("inspect user=alice", 0)] {
        let said = site.tool.run(verb);
        assert!(said.stdout.contains(warning), "{verb}: {said:?}");
        let said = site.json(verb, code);
        assert!(said["warning"].as_str().unwrap().contains(warning));
    }
    assert!(limiter.check(charge("alice")).await.unwrap().is_allowed());

    site.text("unblock user=alice");
    publish(&site, &policy("20/1d"), 1).await;
    assert!(site.text("policies").contains(" enforced "));
    let said = site.tool.run("block user=alice --for 1h");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
}

#[tokio::test]
async fn a_shadow_is_not_published_as_enforcing_blocks() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d").shadow(), 1).await;
    let row = site.json("policies", 0)["policies"][0].clone();
    has!(row, { "shadow": true, "enforces_blocks": false });
    let said = site.tool.run("block user=alice --for 1h");
    let warning = "no published policy for the kind `user` enforces blocks (api)";
    assert!(said.stderr.contains(warning), "{said:?}");
}

#[tokio::test]
async fn for_a_list_of_identities_published_policies_are_read_once() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    site.tool
        .write("abusers.txt", "user=alice\nuser=bob\nuser=carol\n");
    let before = site.server.calls("hgetall");
    site.text("block -f abusers.txt --for 1h");
    assert_eq!(site.server.calls("hgetall"), before + 1);
}

#[tokio::test]
async fn policies_that_may_not_be_read_are_not_called_unpublished() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    let rights = ["~sluicegate:*", "+get", "+time", "+scan", "+dbsize"];
    let url = limited(&site.server, &rights);
    let expected = "the published policies could not be read";
    let said = site.tool.run(&format!("explain user=alice --redis {url}"));
    assert_eq!(said.code, 3, "{said:?}");
    for part in [
        expected,
        "the right `+hgetall` is missing",
        "--policies FILE",
    ] {
        assert!(said.stderr.contains(part), "{part}: {said:?}");
    }
    for verb in ["inspect user=alice", "top"] {
        let said = site.text(&format!("{verb} --redis {url}"));
        assert!(
            said.contains(expected) && said.contains("`+hgetall`"),
            "{verb}: {said}"
        );
    }
}

#[tokio::test]
async fn what_published_policies_lack_is_not_said_of_a_file() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    site.charge("login", "alice", 1).await;
    let other = Policy::parse("api", "50/7d").unwrap();
    let charge = Charge::new(&other, Key::new("user", "alice"), 1);
    site.limiter.check([charge]).await.unwrap();
    for (verb, lacking) in [
        ("inspect user=alice", "login"),
        ("explain user=alice", "login"),
        ("explain user=alice", "?/7d"),
        ("top", "the policy login"),
    ] {
        let said = site.tool.run(verb).stdout;
        assert!(!said.contains("the file"), "{verb}: {said}");
        let lines = said.lines();
        let mut lines = lines.filter(|line| line.contains("the published policies do not have"));
        assert!(lines.any(|line| line.contains(lacking)), "{verb}: {said}");
    }
}
