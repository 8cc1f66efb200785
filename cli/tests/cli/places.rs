//! Other targets than one server: a cluster, sentinels, a proxy.

use std::time::Duration;

use sluicegate::{Charge, Key, Limiter, RedisStore, block::Until};

use crate::{
    site::{POLICIES, policy},
    tool::Tool,
};
use support::{
    cluster::Cluster,
    sentinel::{Group, NAME},
    twemproxy::Twemproxy,
};

async fn charge(store: RedisStore, users: u32) {
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    let limiter = limiter.publish_policies(false); // all keys are counted
    for user in 0..users {
        let key = Key::new("user", user.to_string());
        let charge = Charge::new(&policy("api"), key, 1 + u64::from(user % 10));
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
    }
}

fn tool(server: &str) -> Tool {
    let tool = Tool::new();
    tool.write("sluicegate.toml", server);
    tool.write("policies.toml", POLICIES);
    tool
}

fn json(tool: &Tool, args: &str) -> serde_json::Value {
    let said = tool.run(&format!("{args} --json"));
    assert!(said.code < 2, "{args}: {said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

/// Asserts the usage of 60 users, the last ten of them with 1, 2, … 10 units.
fn everything_is_seen(tool: &Tool) {
    let top = json(tool, "top --policies policies.toml --load 100%");
    has!(top, { "keys": 60, "read": 60, "full": 6 });
    for user in 50..60 {
        for args in ["", "--policies policies.toml", "--policy api"] {
            let said = json(tool, &format!("inspect user={user} {args}"));
            assert_eq!(said["policies"][0]["rules"][0]["used"], user - 49, "{args}");
        }
    }
    let said = json(tool, "explain user=59 --policies policies.toml");
    assert_eq!(said["passes"], false);
    let said = json(tool, "reset user=59 --yes");
    assert_eq!(said["deleted"][0], "api");
    let said = json(tool, "explain user=59 --policies policies.toml");
    assert_eq!(said["passes"], true);
}

/// With a single node, `top` and `blocks` would list only some keys, and most identities could not be blocked.
#[tokio::test]
async fn a_node_of_a_cluster_stands_for_all_of_it() {
    let cluster = Cluster::start(Duration::from_secs(5));
    charge(RedisStore::cluster(cluster.urls()).await.unwrap(), 60).await;
    for node in [0, 4] {
        let tool = tool(&format!("redis = \"{}\"", cluster.urls()[node]));
        let users: Vec<String> = (0..6).map(|user| format!("user={user}")).collect();
        let said = tool.run(&format!("block {} --for 1h", users.join(" ")));
        assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
        assert_eq!(json(&tool, "blocks")["total"], 6);
        assert_eq!(json(&tool, "top --load 100%")["keys"], 67); // with the index of blocks
        let said = tool.run("unblock --all --yes");
        assert_eq!((said.code, said.stdout.lines().count()), (0, 6), "{said:?}");
    }
    // As a cluster too, one node is enough, even a replica.
    everything_is_seen(&tool(&format!("cluster = [\"{}\"]", cluster.urls()[4])));
    let other = tool(&format!("redis = \"{}\"", cluster.urls()[1]));
    has!(json(&other, "top --load 100%"), { "keys": 59, "read": 59 }); // one was reset
}

#[tokio::test]
async fn a_missing_node_is_named_and_takes_only_its_identities_out_of_an_answer() {
    let mut cluster = Cluster::start(Duration::from_secs(60));
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    charge(store.clone(), 60).await;
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    for user in 0..60 {
        let user = Key::new("user", user.to_string());
        limiter.block(&user, Until::Forever).await.unwrap();
    }
    let charge = Charge::new(&policy("api"), Key::new("user", "0"), 1);
    limiter.check([charge]).await.unwrap();
    limiter.policies_published().await.unwrap();
    // The node of the published policies: that of the name of their key, without braces.
    let slot: usize = cluster.nodes[0].run("CLUSTER KEYSLOT sluicegate:!policies");
    let lost = slot * 3 / 16_384;
    let home = |user: &u64| cluster.home(&format!("user={user}"));
    let kept: Vec<u64> = (0..60).filter(|user| home(user) != lost).collect();
    let gone = (0..60).find(|user| home(user) == lost).unwrap();
    cluster.nodes[lost].kill();
    let address = cluster.nodes[lost].address();
    let named = format!("its node {address}: ");
    let urls = cluster.urls().join(",");
    let other = cluster.urls()[(lost + 1) % 3].clone();
    for server in [format!("--cluster {urls}"), format!("--redis {other}")] {
        for verb in ["blocks --scan", "top", "blocks"] {
            let said = Tool::new().run(&format!("{verb} --json {server}"));
            if verb == "blocks" && said.code == 0 {
                continue; // the index is on another node
            }
            assert_eq!(said.code, 3, "{verb}: {said:?}");
            says!(said.stderr => &named, "its identities are missing above");
            says_not!(said.stderr => "twemproxy");
            let document: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
            let count = if verb == "top" { "read" } else { "total" };
            assert_eq!(document[count], kept.len(), "{verb}: {said:?}");
        }
        let user = kept[0];
        let said = Tool::new().run(&format!("explain user={user} {server}"));
        assert_eq!(said.code, 1, "{said:?}");
        says!(said.stdout => "blocked by an operator for ever", "the published policies could not be read");
        Tool::new().told(&format!("inspect user={gone} {server} | 3 | {named}"));
        let said = Tool::new().run(&format!("doctor {server}"));
        assert_eq!(said.code, 1, "{said:?}");
        says!(said.stdout => &format!("wrong: {address}: it does not answer"));
    }
    let said = Tool::new().run(&format!("unblock --all --yes --cluster {urls}"));
    assert_eq!(
        (said.code, said.stdout.lines().count()),
        (3, kept.len()),
        "{said:?}"
    );
}

#[tokio::test]
async fn the_node_of_an_identity_that_cannot_be_reached_is_named_with_what_was_done_before() {
    let mut cluster = Cluster::start(Duration::from_secs(60));
    let home = |user: &u32| cluster.home(&format!("user={user}"));
    let lost = (0..60).find(|user| home(user) == 1).unwrap();
    let kept = (0..60).find(|user| home(user) == 0).unwrap();
    cluster.nodes[1].kill();
    let address = cluster.nodes[1].address();
    let tool = tool(&format!("redis = \"{}\"", cluster.urls()[0]));
    for verb in ["block --for 1h", "unblock", "inspect --policy api"] {
        tool.told(&format!("{verb} user={lost} | 3 | its node {address}: "));
    }
    let said = tool.run(&format!("block user={kept} user={lost} --for 1h"));
    assert_eq!((said.code, said.stdout.lines().count()), (3, 2), "{said:?}");
    assert!(said.stderr.contains("after 1 were blocked: "), "{said:?}");
    begins!(said.stdout => &format!("user={kept} is blocked"));
}

#[tokio::test]
async fn the_primary_is_found_by_sentinels() {
    let group = Group::start(&[]);
    let urls = group.urls();
    charge(
        RedisStore::sentinel(urls.iter().map(String::as_str), NAME)
            .await
            .unwrap(),
        60,
    )
    .await;
    everything_is_seen(&tool(&format!(
        "sentinel = [\"{}\"]\nprimary = \"{NAME}\"",
        urls.join("\", \"")
    )));
}

#[tokio::test]
async fn behind_a_proxy_that_lacks_commands_it_says_so() {
    let proxy = Twemproxy::start("{}");
    charge(RedisStore::connect(proxy.url()).await.unwrap(), 10).await;
    let tool = tool(&format!("redis = \"{}\"", proxy.url()));
    tool.told(
        "
        inspect user=9 --policies policies.toml | 3 | twemproxy
        inspect user=9 | 3 | twemproxy
        top | 3 | twemproxy
        reset user=9 --yes | 3 | twemproxy
        explain user=9 --policies policies.toml --local-clock | 1 | It is denied
        ",
    );
    let said = json(
        &tool,
        "inspect user=9 --policies policies.toml --local-clock",
    );
    assert_eq!(said["policies"][0]["rules"][0]["used"], 10);
    let said = json(&tool, "reset user=9 --policy api --local-clock --yes");
    assert_eq!(said["deleted"][0], "api");
}
