//! Messages when nothing is found: the true reason, and no other.

use sluicegate::{Charge, Key, Limiter, RedisStore};

use crate::site::{Site, policy};

/// Verbs that find nothing for an identity, and their exit codes. `explain` does not know if services name it otherwise.
const VERBS: [(&str, i32); 6] = [
    ("inspect IDENTITY", 0),
    ("inspect IDENTITY --policies policies.toml", 0),
    ("explain IDENTITY --policies policies.toml", 0),
    ("contributors IDENTITY --policy api --window 1h", 1),
    ("reset IDENTITY --yes", 1),
    ("unblock IDENTITY", 1),
];

fn each_says(site: &Site, identity: &str, more: &str, reason: &str) {
    for (verb, code) in VERBS {
        let is_unknown = verb.starts_with("explain") && !reason.ends_with("database?\n");
        let code = code.max(i32::from(is_unknown));
        let verb = verb.replace("IDENTITY", identity);
        let said = site.tool.run(&format!("{verb} {more}"));
        assert_eq!(said.code, code, "{verb}: {said:?}");
        assert!(said.stdout.contains(reason), "{verb}: {said:?}");
    }
}

fn all_say(site: &Site, more: &str, reason: &str) {
    each_says(site, "user=alice", more, reason);
    for verb in ["top", "blocks", "unblock --all --yes"] {
        let said = site.tool.run(&format!("{verb} {more}"));
        assert!(said.stdout.contains(reason), "{verb}: {said:?}");
    }
}

#[tokio::test]
async fn a_server_without_keys_of_sluicegate_is_called_so() {
    let site = Site::start().await;
    let reason = "No counts are stored: is this the service's server, and its database?\n";
    all_say(&site, "", reason);
    let () = site.server.run("SET sessions:1 garbage");
    all_say(&site, "", reason);
}

#[tokio::test]
async fn other_prefixes_are_listed_where_only_they_are_used() {
    let site = Site::start().await;
    let blog = RedisStore::connect(site.server.url()).await.unwrap();
    let blog = Limiter::new(blog.prefix("blog"));
    let charge = Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    assert!(blog.check([charge]).await.unwrap().is_allowed());
    let reason =
        "No counts are stored under the prefix `sluicegate`, but under `blog`: see --prefix\n";
    all_say(&site, "", reason);
    assert!(!site.text("top --prefix blog").contains("--prefix"));
    says_not!(site.text("inspect user=alice --prefix blog") => "--prefix");
}

#[tokio::test]
async fn another_kind_is_asked_about_with_those_that_are_stored() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    let reason = "No identity of the kind `usr` is stored: the kinds are `user`\n";
    each_says(&site, "usr=alice", "", reason);
}

#[tokio::test]
async fn another_identity_of_a_kind_has_no_counts() {
    let site = Site::start().await;
    site.charge("login", "alice", 1).await;
    let reason =
        "No counts are stored for user=bob: it was not charged, its counts have expired, or";
    for (verb, code) in VERBS
        .into_iter()
        .filter(|it| !it.0.starts_with("contributors"))
    {
        let verb = verb.replace("IDENTITY", "user=bob");
        let said = site.tool.run(&verb);
        assert_eq!(said.code, code, "{verb}: {said:?}");
        assert!(said.stdout.contains(reason), "{verb}: {said:?}");
    }
    let said = site.text("inspect user=alice --policy api");
    says!(said => "Counts are stored for it under other policies: `login`\n");
    // There is no block, and no reason to give.
    assert_eq!(
        site.text("blocks"),
        "Nobody is blocked.\nBlocks that are not in the index are found by --scan\n"
    );
}

#[tokio::test]
async fn a_policy_that_is_not_there_is_an_error_of_top_and_named_with_the_others() {
    let site = Site::start().await;
    site.charge("api", "alice", 1).await;
    site.charge("login", "alice", 1).await;
    let reason = "Nothing is stored under a policy `nosuch`: the policies are `api`, `login`";
    site.tool.told(&format!(
        "
        top --policy nosuch | 2 | {reason}
        top --policy nosuch --policies policies.toml | 2 | policies.toml has no policy `nosuch`: there are api, login
        contributors user=alice --policy nosuch --window 1h | 1 | {reason}
        top --policy rehearsal --policies policies.toml | 0 | 0 read
        "
    ));
}
