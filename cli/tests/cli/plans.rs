//! Plans that share the name of a policy: an identity is limited by one of several published limits.

use sluicegate::{
    Charge, Key, Policy,
    policies::{Policies, ReloadablePolicies},
};

use crate::site::Site;

/// A process that charges these users under `api`, each by the rules of a plan, and publishes all plans.
async fn published(site: &Site, users: &[(&str, &str, u64)]) {
    let limiter = site.service().await;
    for (user, rules, cost) in users {
        let policy = Policy::parse("api", rules).unwrap();
        let charge = Charge::new(&policy, Key::new("user", *user), *cost);
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
    }
    limiter.policies_published().await.unwrap();
}

const FREE: &str = "10/1d";
const PRO: &str = "3000/1d";

const SHARED: &str = "plans share the name api: 10/1d and 3000/1d; a FILE of --policies has one\n";

#[tokio::test]
async fn plans_of_one_process_are_no_difference_between_processes() {
    let site = Site::start().await;
    published(&site, &[("alice", FREE, 10), ("bob", PRO, 50)]).await;
    let rows = site.json("policies", 0)["policies"].clone();
    let rows = rows.as_array().unwrap();
    assert!(
        rows.len() == 2 && rows.iter().all(|row| row["differs"] == false),
        "{rows:?}"
    );
    for (verb, code) in [
        ("policies", 0),
        ("explain user=bob", 1),
        ("inspect user=bob", 0),
        ("top", 0),
    ] {
        let said = site.tool.run(verb);
        assert_eq!(said.code, code, "{verb}: {said:?}");
        let named = if verb == "policies" { "" } else { SHARED };
        assert_eq!(said.stderr, named, "{verb}");
        assert!(!said.stdout.contains("differ"), "{verb}: {said:?}");
    }
    // A file names the limits of one plan, or those of none.
    site.tool.write("free.toml", format!("api = '{FREE}'"));
    site.tool.write("other.toml", "api = '7/1d'");
    assert_eq!(site.tool.run("top --policies free.toml").stderr, "");
    site.tool
        .told("top --policies other.toml | 0 | the file says 7/1d");
}

#[tokio::test]
async fn after_a_reload_explain_knows_the_new_limits_at_once() {
    let site = Site::start().await;
    let limiter = site.service().await;
    let of = |rules| Policies::new([Policy::parse("api", rules).unwrap()]).unwrap();
    let live = ReloadablePolicies::new(of(FREE));
    let api = live.policy("api").unwrap();
    for rules in [FREE, PRO] {
        live.replace(of(rules)).unwrap();
        let charge = Charge::new(&api, Key::new("user", "alice"), 5);
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
        limiter.policies_published().await.unwrap();
    }
    let said = site.json("explain user=alice --cost 20", 0);
    has!(said, { "passes": true, "is_known": true, "published_differs": [] });
}

#[tokio::test]
async fn explain_knows_the_answer_where_all_plans_agree() {
    let site = Site::start().await;
    published(
        &site,
        &[("alice", FREE, 1), ("bob", PRO, 50), ("carol", PRO, 3_000)],
    )
    .await;
    let said = site.json("explain user=alice", 0);
    has!(said, { "passes": true, "is_known": true });
    let [free, pro] = [0, 1].map(|plan| &said["policies"][0]["rules"][plan]);
    has!(free, { "rule": FREE, "left": 9 });
    has!(pro, { "rule": PRO, "left": 2_999 });

    // All deny: the greatest limit admits first.
    let said = site.json("explain user=carol", 1);
    has!(said, { "is_known": true, "denied_by": { "rule": PRO } });
    assert!(said["passes_ms"].is_u64(), "{said}");

    let unknown = "It is not known whether it passes: that depends on its plan under api.";
    site.tool.told(&format!(
        "explain user=bob | 1 | {unknown} | {} | 2\u{202f}950",
        SHARED.trim()
    ));
    let said = site.json("explain user=bob", 1);
    has!(said, { "undecided": ["api"], "published_differs": [], "denied_by": null });

    for (file, rules, code) in [("free.toml", FREE, 1), ("pro.toml", PRO, 0)] {
        site.tool.write(file, format!("api = '{rules}'"));
        let said = site.json(&format!("explain user=bob --policies {file}"), code);
        assert_eq!(said["is_known"], true, "{said}");
    }
}

#[tokio::test]
async fn top_and_inspect_call_nobody_full_who_may_be_on_a_greater_plan() {
    let site = Site::start().await;
    published(
        &site,
        &[
            ("alice", FREE, 10),
            ("bob", PRO, 500),
            ("carol", PRO, 3_000),
        ],
    )
    .await;
    let said = site.json("top", 0);
    assert_eq!(said["full"], 1);
    for (row, [user, full]) in [
        (0, ["carol", "true"]),
        (1, ["bob", "false"]),
        (2, ["alice", "false"]),
    ] {
        let identity = format!("user={user}");
        has!(said["top"][row], { "identity": identity, "limit": 3_000, "full": full == "true" });
    }
    site.tool.told(&format!(
        "
        top | 0 | 16% | !5000% | !ever
        inspect user=bob | 0 | {FREE} | {PRO} | 2\u{202f}500
        "
    ));
}

#[tokio::test]
async fn rules_of_another_plan_are_not_unknown_rules() {
    let site = Site::start().await;
    published(&site, &[("alice", FREE, 10), ("bob", "3000/30d,50/1h", 20)]).await;
    let said = site.json("explain user=bob", 0);
    let rules = said["policies"][0]["rules"].as_array().unwrap();
    assert!(rules.iter().all(|rule| !rule["limit"].is_null()), "{said}");
    let said = site.json("top", 0);
    assert_eq!(said["other_rules"], serde_json::json!([]));
    // The units of alice are stored under a window that the other plan does not have.
    has!(said, { "full": 1 });
    has!(said["top"][0], { "identity": "user=alice" });
    assert!(!site.text("inspect user=bob").contains('?'));
}
