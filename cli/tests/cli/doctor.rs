//! `sluicegate doctor` finds the faults of a server, by trying it.

use sluicegate::{Charge, Key, Limiter, RedisStore};

use crate::{
    site::{Site, policy},
    tool::rows,
};
use support::{cluster::Cluster, redis::Server, served::limited, sharing::wait};

/// The rights of the guide.
const LEAST: &str = include_str!("../../../docs/guide/servers.md");

#[tokio::test]
async fn a_server_that_is_well_is_called_so_and_keeps_nothing_of_the_tool() {
    let site = Site::start().await;
    let service = site.service().await;
    let charge = |cost| [Charge::new(&policy("api"), Key::new("user", "alice"), cost)];
    service.check(charge(10)).await.unwrap();
    assert!(!service.check(charge(1)).await.unwrap().is_allowed());
    service.policies_published().await.unwrap();
    service.denials().await.unwrap();
    let keys = || -> Vec<String> {
        let mut keys: Vec<String> = site.server.run("KEYS *");
        keys.sort();
        keys
    };
    let before = keys();
    site.tool.told(
        "
        doctor | 0 | 127.0.0.1 | standalone | master | noeviction | well: the user has all rights of the service | \
        well: the script decides, in | well: 1 policies are published | denials were reported within the minute | !wrong | !note
        ",
    );
    assert_eq!(keys(), before);
    let said = site.json("doctor", 0);
    has!(said, { "well": true });
    has!(said["servers"][0], { "role": "master", "evicts": "noeviction" });
}

/// The rights of each feature, as the guide lists them.
fn rights(feature: &str) -> Vec<&'static str> {
    let start = match feature {
        "checks" => "ACL SETUSER limiter reset",
        "blocks" => "- `+zadd +zrem +zremrangebyscore +zscan`",
        "concurrency" => "- `+zcount ",
        "policies" => "- `+hgetall ",
        _ => "- `+pexpire +zincrby ",
    };
    let line = LEAST
        .lines()
        .find(|line| line.starts_with(start))
        .expect(feature);
    let words = line.split([' ', '`']);
    words.filter(|it| it.starts_with('+')).collect()
}

#[tokio::test]
async fn each_right_of_the_guide_that_is_missing_is_named_and_wrong_for_the_features_that_are_named()
 {
    let site = Site::start().await;
    let features = ["checks", "blocks", "concurrency", "policies", "reports"];
    let all: Vec<&str> = features.iter().flat_map(|it| rights(it)).collect();
    assert_eq!(all.len(), 10 + 4 + 7 + 4 + 4);
    let user = |missing: &str| {
        let mut given = vec!["~sluicegate:*", "+info", "+scan", "+dbsize"];
        given.extend(all.iter().filter(|it| **it != missing));
        limited(&site.server, &given)
    };
    site.tool.told(&format!(
        "doctor --redis {} | 0 | all rights of the service",
        user("")
    ));
    for missing in &all {
        let url = user(missing);
        for feature in features.iter().filter(|it| rights(it).contains(missing)) {
            let said = site
                .tool
                .run(&format!("doctor --redis {url} --feature {feature}"));
            assert_eq!(said.code, 1, "{missing}: {said:?}");
            let line = said.stdout.lines().find(|line| {
                line.starts_with(&format!("wrong: the user lacks rights for {feature}: "))
            });
            assert!(
                line.is_some_and(|line| line.ends_with(&format!(": {missing}"))),
                "{said:?}"
            );
        }
        let code = i32::from(rights("checks").contains(missing));
        let said = site.tool.run(&format!("doctor --redis {url}"));
        assert_eq!(said.code, code, "{missing}: {said:?}");
    }
    let url = limited(&site.server, &["~other:*", "+@all"]);
    site.tool.told(&format!(
        "doctor --redis {url} | 1 | lacks rights for checks: ~sluicegate:*"
    ));
    // The tool does not try what it may not ask.
    let mut given = vec!["~sluicegate:*"];
    given.extend(rights("checks"));
    let url = limited(&site.server, &given);
    site.tool.told(&format!(
        "doctor --redis {url} | 0 | not tried: its memory | not tried: published policies: | not tried: reports of denials: | \
         +dbsize"
    ));
}

#[tokio::test]
async fn servers_that_evict_or_are_full_or_replicas_are_wrong() {
    let site = Site::start().await;
    let table = "
        CONFIG SET maxmemory 1gb | doctor | !wrong
        CONFIG SET maxmemory-policy allkeys-lru | doctor | it evicts counts and blocks by allkeys-lru: set `maxmemory-policy noeviction`
        CONFIG SET maxmemory-policy noeviction | doctor | !wrong
        CONFIG SET maxmemory 1 | doctor | it takes no writes: the Redis server is out of memory: OOM. Raise `maxmemory`
        CONFIG SET maxmemory 0 | doctor | !wrong
        CONFIG SET min-replicas-to-write 1 | doctor | too few replicas to accept writes: NOREPLICAS. Bring its replicas back
        CONFIG SET min-replicas-to-write 0 | doctor | !wrong
    ";
    for [command, verb, expected] in rows(table) {
        let () = site.server.run(&command);
        let code = i32::from(!expected.starts_with('!'));
        site.tool.told(&format!("{verb} | {code} | {expected}"));
    }
    let replica = Server::start();
    let (host, port) = ("127.0.0.1", site.server.address().port());
    let () = replica.run(&format!("REPLICAOF {host} {port}"));
    let link = || -> String { replica.run("INFO replication") };
    wait("the replica follows", || {
        link().contains("master_link_status:up")
    });
    let is = format!("this server is a replica of {host}:{port}, and heard from it");
    let url = replica.url();
    site.tool.told(&format!(
        "
        doctor --redis {url} | 1 | wrong: {is} | Let the address lead to the primary | a read-only replica: READONLY
        blocks --redis {url} | 0 | warning: {is} | Nobody is blocked.
        blocks | 0 | !replica
        "
    ));
    drop(site);
    wait("the replica notices", || {
        link().contains("master_link_status:down")
    });
    let tool = crate::tool::Tool::new();
    tool.told(&format!(
        "blocks --redis {url} | 0 | has not reached it for "
    ));
}

#[tokio::test]
async fn each_primary_of_a_cluster_is_looked_at_and_keys_of_others_are_named() {
    let cluster = Cluster::start(std::time::Duration::from_secs(60));
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    let blog = Limiter::new(store.prefix("blog")).publish_policies(false);
    let blog = blog.timeout(std::time::Duration::from_secs(10));
    let charge = Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    assert!(blog.check([charge]).await.unwrap().is_allowed());
    let () = cluster.nodes[1].run("CONFIG SET maxmemory 1");
    let tool = crate::tool::Tool::new();
    let server = format!("--cluster {}", cluster.urls()[0]);
    let [first, full] = [0, 1].map(|it| cluster.nodes[it].address());
    tool.told(&format!(
        "
        doctor {server} | 1 | wrong: {full}: it takes no writes | well: {first}: the script decides | under `blog`: see --prefix
        doctor {server} --prefix blog | 1 | !see --prefix
        "
    ));
    let said = tool.run(&format!("doctor {server} --json"));
    let said: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(said["servers"].as_array().unwrap().len(), 3);
    let keys: Vec<usize> = cluster.nodes[..3]
        .iter()
        .map(|it| it.run("DBSIZE"))
        .collect();
    assert_eq!(keys.iter().sum::<usize>(), 1, "only that of the blog");
}

#[tokio::test]
async fn counts_of_another_form_are_a_note() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let () = site.server.run("SET sluicegate:{user=alice}:api~2 x");
    site.tool
        .told("doctor | 0 | note: another release, of the stored form 2, keeps counts");
}
