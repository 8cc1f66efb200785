//! Published policies on real servers: their expiry and maximum number, and in a cluster.

use sluicegate::policies::{Policies, PublishedPolicy, ReloadablePolicies};

use crate::prelude::*;

const START_MS: u64 = 1_790_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);
const NAME: &str = "sluicegate:!policies";

async fn served() -> (Server, ManualClock, RedisStore) {
    let (server, clock) = (Server::start(), ManualClock::new(START_MS));
    let store = connect(&server).await.clock(clock.clone());
    (server, clock, store)
}

fn limiter(store: &RedisStore) -> Limiter {
    Limiter::new(store.clone()).timeout(Duration::from_secs(30))
}

/// Publishes these names and rules, like a process with such policies.
async fn publish(store: &RedisStore, policies: impl IntoIterator<Item = (String, String)>) {
    let limiter = limiter(store);
    for (name, rules) in policies {
        take(&limiter, &policy(&name, &rules), "alice").await;
    }
    limiter.policies_published().await.unwrap();
}

fn single(name: &str) -> [(String, String); 1] {
    [(name.into(), "10/1s".into())]
}

fn fields(server: &Server) -> Vec<String> {
    server.run(&format!("HKEYS {NAME}"))
}

/// The published policies by name, with the time at which a process has published each.
async fn published(store: &RedisStore) -> Vec<(String, u64)> {
    let policies = store.inspector().policies().await.unwrap();
    let name_and_time =
        |published: &PublishedPolicy| (published.policy.name().to_owned(), published.seen_ms);
    let mut published: Vec<_> = policies.iter().map(name_and_time).collect();
    published.sort_unstable();
    published
}

#[tokio::test]
async fn a_definition_leaves_a_day_after_its_last_publication_and_the_hash_expires() {
    let (server, clock, store) = served().await;
    publish(&store, single("old")).await;
    clock.advance(DAY);
    publish(&store, single("new")).await;
    let end_ms = START_MS + 86_400_000;
    let expected = [("new".into(), end_ms), ("old".into(), START_MS)];
    assert_eq!(published(&store).await, expected);
    clock.advance(Duration::from_millis(1));
    publish(&store, single("new")).await;
    assert_eq!(published(&store).await, [("new".into(), end_ms + 1)]);
    let ttl_ms: u64 = server.run(&format!("PTTL {NAME}"));
    assert!((86_000_000..=86_400_000).contains(&ttl_ms), "{ttl_ms}");
}

#[tokio::test]
async fn a_definition_that_this_version_cannot_read_stays_as_long_as_others() {
    let (server, clock, store) = served().await;
    let unreadable = ["10000/month@Europe/Nowhere", "20/30s@somekind", "20/30s"];
    for (number, rules) in unreadable.into_iter().enumerate() {
        let value = format!("seen={START_MS}\nversion=9.0.0\nrules={rules}\non_failure=later");
        let _: u64 = server.run(&format!("HSET {NAME} p:{number} {value}"));
    }
    let _: u64 = server.run(&format!("HSET {NAME} p:of_no_process garbage"));
    clock.advance(DAY);
    publish(&store, single("api")).await;
    assert_eq!(published(&store).await.len(), 1);
    let fields = fields(&server);
    assert_eq!(fields.len(), 4, "{fields:?}");
    assert!(!fields.iter().any(|field| field == "p:of_no_process"));
    clock.advance(Duration::from_millis(1));
    publish(&store, single("api")).await;
    assert_eq!(self::fields(&server).len(), 1);
}

#[tokio::test]
async fn no_more_than_256_definitions_are_published_and_each_of_them_stays_fresh() {
    let (_server, clock, store) = served().await;
    let policies = |numbers: std::ops::Range<u32>| {
        numbers.map(|number| (format!("p{number:03}"), "10/1s".to_owned()))
    };
    publish(&store, policies(0..250)).await;
    clock.advance(Duration::from_secs(300));
    // One process has the stored policies, and more than there is room for.
    publish(&store, policies(200..300)).await;
    let published = published(&store).await;
    assert_eq!(published.len(), 256);
    let now_ms = START_MS + 300_000;
    let stale = published.iter().filter(|(_, seen_ms)| *seen_ms < now_ms);
    assert_eq!(stale.count(), 200, "those of the first process alone");
}

#[tokio::test]
async fn a_process_with_slots_publishes_its_label_and_no_other_process_does() {
    let (server, _, store) = served().await;
    let labels = async |rules: &str, label: Option<Option<&str>>| {
        let _: u64 = server.run(&format!("DEL {NAME}"));
        let mut limiter = Limiter::new(store.clone());
        if let Some(label) = label {
            limiter = limiter.process_label(label);
        }
        let charge = Charge::new(&policy("p", rules), Key::secret("api-key", "sesame"), 1);
        limiter.check([charge]).await.unwrap();
        limiter.policies_published().await.unwrap();
        let stored: Vec<String> = server.run(&format!("HGETALL {NAME}"));
        assert!(!stored.concat().contains("sesame"), "{stored:?}");
        let labels = store.inspector().processes().await.unwrap();
        labels.into_values().collect::<Vec<_>>()
    };
    let slots = "9/1h@concurrent";
    let own = labels(slots, None).await;
    let id = format!(":{}", std::process::id());
    assert!(
        own.len() == 1 && own[0].len() > id.len() && own[0].ends_with(&id),
        "{own:?}"
    );
    assert_eq!(labels(slots, Some(Some("web-3"))).await, ["web-3"]);
    assert_eq!(labels(slots, Some(None)).await.len(), 0);
    assert_eq!(labels("9/1h", None).await.len(), 0);
}

#[tokio::test]
async fn of_more_than_256_labels_of_processes_the_oldest_make_room() {
    let (server, _, store) = served().await;
    for number in 0..300 {
        let seen_ms = START_MS + number;
        let _: u64 = server.run(&format!(
            "HSET {NAME} @{number:016x} seen={seen_ms}\nlabel=other"
        ));
    }
    let limiter = Limiter::new(store.clone());
    let policy = Policy::parse("p", "9/1h@concurrent").unwrap();
    let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
    limiter.check([charge]).await.unwrap();
    limiter.policies_published().await.unwrap();
    let labels = store.inspector().processes().await.unwrap();
    assert_eq!(labels.len(), 256);
    assert!(!labels.contains_key(&44) && labels.contains_key(&45));
    // They take no room of policies.
    assert_eq!(published(&store).await.len(), 1);
}

#[tokio::test]
async fn the_definitions_take_no_more_than_64_kb() {
    let (server, _, store) = served().await;
    // Each takes a third of a kB.
    let policies = (0..250).map(|number| {
        let rules =
            (1..=16).map(|rule| format!("{}/{rule}s", 1_000_000_000 + rule * 1_000_000 + number));
        (format!("p{number}"), rules.collect::<Vec<_>>().join(","))
    });
    publish(&store, policies).await;
    let fields: Vec<String> = server.run(&format!("HGETALL {NAME}"));
    let bytes: usize = fields.iter().map(String::len).sum();
    assert!((60_000..=65_536).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn what_a_refused_publication_had_is_in_the_next() {
    let (server, _, store) = served().await;
    let refused = RedisStore::connect(limited(&server, &LEAST_RIGHTS)).await;
    let limiter = limiter(&refused.unwrap());
    take(&limiter, &api("10/1s"), "alice").await;
    let error = limiter.policies_published().await;
    assert_eq!(kind(error), Some(StoreErrorKind::AccessDenied));
    assert_eq!(published(&store).await, []);
    for right in ["hgetall", "hset", "hdel", "pexpire"] {
        let _: () = server.run(&format!("ACL SETUSER limiter +{right}"));
    }
    limiter.policies_published().await.unwrap();
    assert_eq!(published(&store).await[0].0, "api");
}

#[tokio::test]
async fn a_server_that_starts_empty_gets_the_policies_again() {
    let mut server = Server::start();
    let store = connect(&server).await;
    let limiter = limiter(&store);
    take(&limiter, &api("10/1s"), "alice").await;
    limiter.policies_published().await.unwrap();
    server.kill();
    server.restart();
    let is_published = async || {
        let _ = limiter
            .try_acquire([charge(&api("10/1s"), "alice", 1)])
            .await;
        published(&store).await.len() == 1
    };
    until("the policies are published", is_published).await;
}

#[tokio::test]
async fn a_policy_that_a_reload_replaces_is_taken_back() {
    let (_server, _, store) = served().await;
    let of = |rules| Policies::new([policy("api", rules), policy("login", "5/1m")]).unwrap();
    let live = ReloadablePolicies::new(of("10/1s"));
    let [api, login] = ["api", "login"].map(|name| live.policy(name).unwrap());
    let limiter = limiter(&store);
    for policy in [&api, &login] {
        let charge = Charge::new(policy, user("alice"), 1);
        limiter.check([charge]).await.unwrap();
    }
    limiter.policies_published().await.unwrap();
    live.replace(of("20/1s")).unwrap();
    limiter
        .check([Charge::new(&api, user("alice"), 1)])
        .await
        .unwrap();
    limiter.policies_published().await.unwrap();
    let published = store.inspector().policies().await.unwrap();
    let mut rules: Vec<_> = published.iter().map(|it| it.policy.to_string()).collect();
    rules.sort_unstable();
    assert_eq!(rules, ["20/1s", "5/1m"]);
}

#[tokio::test]
async fn in_a_cluster_one_node_keeps_the_definitions_of_all() {
    let cluster = Cluster::start(Duration::from_secs(5));
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    publish(&store, single("api")).await;
    publish(&store, single("login")).await;
    let published = published(&store).await;
    let names = published.iter().map(|(name, _)| name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["api", "login"]);
}
