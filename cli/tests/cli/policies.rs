//! Published policies: `policies`, and the verbs that take their limits from them.

use sluicegate::{Charge, Key, Limiter, Policy};

use crate::site::Site;
use support::served::limited;

/// A process that has charged `user=alice` under this policy, and has published the policy.
async fn publish(site: &Site, policy: &Policy, cost: u64) -> Limiter {
    let limiter = site.service().await;
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
    site.tool.told("inspect user=alice | 0 | api      10/1d");
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
async fn by_limits_that_are_not_the_published_ones_nothing_is_known_and_each_verb_warns() {
    let site = Site::start().await;
    publish(&site, &policy("100/10s"), 1).await;
    for (file, rules) in [
        ("drifted.toml", "100/20s"),
        ("same.toml", "100/10s"),
        ("lower.toml", "1/10s"),
    ] {
        site.tool.write(file, format!("api = '{rules}'"));
    }
    let differ = "the service publishes api = 100/10s, the file says 100/20s";
    site.tool.told(&format!(
        "
        inspect user=alice --policies drifted.toml | 0 | warning: {differ}
        explain user=alice --policies drifted.toml | 1 | warning: {differ}
        top --policies drifted.toml | 0 | warning: {differ}
        explain user=carol --policies drifted.toml | 1 | It is not known whether it passes: {differ}.
        inspect user=alice --policies same.toml | 0 | !warning
        explain user=alice --policies same.toml | 0 | !warning
        top --policies same.toml | 0 | !warning
        "
    ));
    let said = site.json("explain user=carol --policies drifted.toml", 1);
    has!(said, {
        "published_differs": [{"policy": "api", "published": ["100/10s"], "file": "100/20s"}], "is_known": false,
        "passes": false
    });
    // And the answer is not a denial either.
    let said = site.json("explain user=carol --policies lower.toml --cost 2", 1);
    has!(said, { "is_known": false, "denied_by": null });
    let said = site.json("explain user=carol --policies same.toml", 0);
    assert_eq!(said["published_differs"], serde_json::json!([]));
}

#[tokio::test]
async fn while_processes_differ_in_a_policy_nothing_is_known_under_it() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    publish(&site, &policy("20/1d"), 1).await;
    site.tool.told(
        "
        policies | 0 | processes differ in api
        top | 0 | processes differ in api
        explain user=alice | 1 | It is not known whether it passes: processes differ in api
        explain user=alice --policy login --policies policies.toml | 0 | It passes.
        ",
    );
    let rows = site.json("policies", 0)["policies"].clone();
    let mut rows = rows.as_array().unwrap().iter();
    assert!(rows.len() == 2 && rows.all(|row| row["differs"] == true));
    let said = site.json("explain user=alice", 1);
    let mut published = said["published_differs"][0]["published"].clone();
    let published = published.as_array_mut().unwrap();
    published.sort_by_key(ToString::to_string);
    assert_eq!(*published, ["10/1d", "20/1d"]);
}

#[tokio::test]
async fn a_service_that_publishes_nothing_needs_the_file() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    site.limiter.policies_published().await.unwrap();
    assert_eq!(site.json("policies", 1)["policies"], serde_json::json!([]));
    site.tool
        .told("explain user=alice | 2 | the service publishes no limits");
    assert_eq!(site.server.run::<u64>("EXISTS sluicegate:!policies"), 0);
}

#[tokio::test]
async fn a_block_that_no_policy_enforces_is_warned_of() {
    let site = Site::start().await;
    let limiter = site.service().await.enforce_blocks(false);
    let charge = |user| [Charge::new(&policy("10/1d"), Key::new("user", user), 1)];
    limiter.check(charge("alice")).await.unwrap();
    limiter.policies_published().await.unwrap();
    assert!(site.text("policies").contains(" not enforced "));
    let warning = "no published policy for the kind `user` enforces blocks (api): the block holds only where a layer has \
                   `deny_blocked`";
    site.tool.told(&format!(
        "
        block user=alice --for 1h | 0 | warning: {warning}
        explain user=alice | 1 | {warning}
        inspect user=alice | 0 | {warning}
        "
    ));
    for (verb, code) in [
        ("block user=alice --for 1h", 0),
        ("explain user=alice", 1),
        ("inspect user=alice", 0),
    ] {
        says!(site.json(verb, code)["warning"].as_str().unwrap() => warning);
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
    let (why, right) = (
        "the published policies could not be read",
        "the right `+hgetall` is missing",
    );
    site.tool.told(&format!(
        "
        explain user=alice --redis {url} | 3 | {why} | {right} | --policies FILE
        inspect user=alice --redis {url} | 0 | {why} | {right}
        top --redis {url} | 0 | {why} | {right}
        "
    ));
}

#[tokio::test]
async fn what_published_policies_lack_is_not_said_of_a_file() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    site.charge("login", "alice", 1).await;
    let other = Policy::parse("api", "50/7d").unwrap();
    let charge = Charge::new(&other, Key::new("user", "alice"), 1);
    site.limiter.check([charge]).await.unwrap();
    let lacking = "the published policies do not have";
    site.tool.told(&format!(
        "
        inspect user=alice | 0 | {lacking}: login | !the file
        explain user=alice | 1 | {lacking}: login | {lacking}: ?/7d under api | !the file
        top | 0 | {lacking} the policy login | !the file
        "
    ));
}

#[tokio::test]
async fn of_a_published_policy_without_counts_top_says_that_there_are_none() {
    let site = Site::start().await;
    publish(&site, &policy("10/1d"), 1).await;
    site.text("reset user=alice --policy api --yes");
    site.tool.told(
        "
        top --policy api | 0 | , 0 read
        top --denied --policy api | 0 | No identity was denied within the last hour under api.
        ",
    );
}
