//! A file of policies that is not the service's: a denied identity must not seem to pass.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, manual_clock::ManualClock};

use crate::site::Site;

async fn charge(site: &Site, rules: &str, cost: u64) {
    let policy = Policy::parse("api", rules).unwrap();
    let charge = Charge::new(&policy, Key::new("user", "alice"), cost);
    assert!(site.limiter.check([charge]).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_rule_that_the_file_does_not_have_is_named_and_nothing_is_known_to_pass() {
    let site = Site::start().await;
    for (service, file, stored) in [
        ("100/1d", "100/2d", "?/1d"),
        ("100/1d,1000/2d", "100/1d", "?/2d"),
        ("100/1d,100+10/1h@bucket", "100/1d", "?+10/1h@bucket"),
    ] {
        let () = site.server.run("FLUSHALL");
        charge(&site, service, 96).await;
        site.tool.write("policies.toml", format!("api = '{file}'"));
        let explain = "explain user=alice --policies policies.toml";
        let said = site.tool.run(explain);
        assert_eq!(said.code, 1, "{said:?}");
        let named = format!("the file does not have: {stored} under api, with 96 used\n");
        says!(said.stdout => &named, "It is not known whether it passes");
        let said = site.json(explain, 1);
        has!(said, { "passes": false, "is_known": false });
        let mut rules = said["policies"][0]["rules"].as_array().unwrap().iter();
        let other = rules.find(|rule| rule["limit"].is_null()).unwrap();
        has!(other, { "rule": stored, "used": 96, "charged": true });

        let said = site.text("top --policies policies.toml");
        says!(said => &format!("the file does not have the rule {stored} of api"));
        let said = site.text("inspect user=alice --policies policies.toml");
        says!(said => &named);
    }
}

/// A rule of a month that was dropped yesterday still has units, and denies no request.
#[tokio::test]
async fn units_of_former_rules_are_named_and_leave_the_answer_certain() {
    let site = Site::start().await;
    let minute_ago =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_secs(60);
    let clock = ManualClock::new(u64::try_from(minute_ago.as_millis()).unwrap());
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let former = Policy::parse("api", "100/1h@1s").unwrap();
    let charged = Charge::new(&former, Key::new("user", "alice"), 96);
    let decision = Limiter::new(store.clock(clock)).check([charged]).await;
    assert!(decision.unwrap().is_allowed());
    charge(&site, "100/1d@1s", 1).await;
    site.tool.write("policies.toml", "api = '100/1d@1s'");
    let said = site.text("explain user=alice --policies policies.toml");
    says!(said => "left of former rules: ?/1h@1s under api, with 96 used\n", "It passes.\n");
    let said = site.json("top --policies policies.toml", 0);
    assert_eq!(said["other_rules"], serde_json::json!([]));
}

#[tokio::test]
async fn a_denial_is_known_whatever_else_is_counted() {
    let site = Site::start().await;
    charge(&site, "10/1d,100/2d", 10).await;
    site.tool.write("policies.toml", "api = '10/1d'");
    let said = site.json("explain user=alice --policies policies.toml", 1);
    has!(said, { "is_known": true, "denied_by": { "rule": "10/1d" } });
}

#[tokio::test]
async fn a_policy_that_the_file_does_not_have_is_named() {
    let site = Site::start().await;
    site.charge("login", "alice", 1).await;
    site.charge("api", "alice", 1).await;
    site.tool.write("policies.toml", "api = '10/1d,100/2d'");
    let said = site.text("top --policies policies.toml");
    says!(said => "the file does not have the policy login");
    has!(site.json("top --policies policies.toml", 0)["other_policies"][0], { "policy": "login" });
    for verb in ["inspect", "explain"] {
        let verb = format!("{verb} user=alice --policies policies.toml");
        let named = "counts are stored under policies that the file does not have: login\n";
        assert!(site.text(&verb).contains(named), "{verb}");
        has!(site.json(&verb, 0), { "other_policies": ["login"] });
        assert!(!site.text(&format!("{verb} --policy api")).contains(named));
        assert!(!site.text(&verb.replace("alice", "bob")).contains(named));
    }
}
