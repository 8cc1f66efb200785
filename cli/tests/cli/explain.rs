//! `sluicegate explain` gives the answers that the service would get.

use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate::{Charge, Decision, Key, Limiter, Policy, RedisStore, manual_clock::ManualClock};

use crate::site::{Site, policy};

/// The service then gets the predicted answer, after any charges.
#[tokio::test]
async fn what_is_said_is_what_the_service_is_answered() {
    let site = Site::start().await;
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..40 {
        let (name, user) = (
            rng.choice(["api", "login"]).unwrap(),
            rng.choice(["alice", "bob"]).unwrap(),
        );
        let cost = rng.u64(0..7);
        let args =
            format!("explain user={user} --policies policies.toml --policy {name} --cost {cost}");
        let said = site.tool.run(&format!("{args} --json"));
        let document: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        let charge = Charge::new(&policy(name), Key::new("user", user), cost);
        let decision = site.limiter.check([charge]).await.unwrap();
        let code = i32::from(!decision.is_allowed());
        let passes = decision.is_allowed().into();
        assert_eq!(
            (said.code, &document["passes"]),
            (code, &passes),
            "{round}: {said:?}"
        );
        if let Decision::Denied(denial) = decision {
            let rule = denial.rule().rule().to_string();
            assert_eq!(document["denied_by"]["rule"], rule, "{round}");
            let after = denial.retry_after();
            let after = after.map(|it| u64::try_from(it.as_millis()).unwrap());
            let until = after.map(|after| denial.usage().decided_at_ms() + after);
            assert_eq!(document["passes_ms"].as_u64(), until, "{round}");
        }
    }
}

#[tokio::test]
async fn a_denial_says_until_when_and_by_which_rule_or_that_it_never_ends() {
    let site = Site::start().await;
    site.charge("api", "alice", 10).await;
    let said = site.json("explain user=alice --policies policies.toml", 1);
    let [full, other] = [0, 1].map(|rule| &said["policies"][0]["rules"][rule]);
    has!(said["denied_by"], { "policy": "api", "rule": "10/1d" });
    has!(full["steps"][0], { "units": 10, "release_ms": said["passes_ms"] });
    let charge = Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    let Decision::Denied(denial) = site.limiter.check([charge]).await.unwrap() else {
        panic!("admitted");
    };
    let wait_ms = u64::try_from(denial.retry_after().unwrap().as_millis()).unwrap();
    assert_eq!(said["passes_ms"], denial.usage().decided_at_ms() + wait_ms);
    has!(other, { "fits": true });
    let cost = "explain user=bob --policies policies.toml --policy api --cost 11";
    has!(site.json(cost, 1), { "passes_ms": null, "denied_by": { "rule": "10/1d" } });
    site.tool.told(&format!(
        "
        explain user=alice --policies policies.toml | 1 | It is denied until | by the rule 10/1d of api.
        {cost} | 1 | denied for ever
        "
    ));
}

#[tokio::test]
async fn a_shadow_denies_nothing_and_is_told() {
    let site = Site::start().await;
    let charge = || Charge::new(&policy("rehearsal"), Key::new("user", "alice"), 2);
    site.limiter.check([charge()]).await.unwrap();
    let said = site.json("explain user=alice --policies policies.toml", 0);
    let shadow = &said["policies"][2];
    has!(shadow, { "shadow": true, "passes": false });
    site.tool
        .told("explain user=alice --policies policies.toml | 0 | rehearsal* | It passes.");
}

#[tokio::test]
async fn what_cannot_be_decided_is_an_error() {
    let site = Site::start().await;
    site.tool.told("explain user=alice | 2 | --policies");
    let () = site.server.run("SET sluicegate:{user=alice}:api~1 garbage");
    site.tool
        .told("explain user=alice --policies policies.toml | 3 | failure policy applies");
}

/// A value stays stored for a while after its units no longer count.
#[tokio::test]
async fn policies_that_are_listed_are_not_called_other_policies() {
    let site = Site::start().await;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let two_hours_ago = u64::try_from(since.as_millis()).unwrap() - 7_200_000;
    let store = RedisStore::connect(site.server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(ManualClock::new(two_hours_ago)));
    let policy = Policy::parse("api", "100/1h@1s").unwrap();
    let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
    let limiter = limiter.publish_policies(false);
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
    site.tool.write("policies.toml", "api = '100/1h@1s'");
    let said = site.text("explain user=alice --policies policies.toml");
    says!(said => "no usage under api");
    says_not!(said => "other policies");
}

#[tokio::test]
async fn a_block_that_no_published_policy_enforces_makes_nothing_known() {
    let site = Site::start().await;
    let limiter = site.service().await.enforce_blocks(false);
    let charge = |cost| [Charge::new(&policy("api"), Key::new("user", "alice"), cost)];
    limiter.check(charge(1)).await.unwrap();
    limiter.policies_published().await.unwrap();
    site.text("block user=alice --forever");
    let said = site.json("explain user=alice", 1);
    has!(said, { "is_known": false, "passes": false });
    // A limit denies the identity, whether a block is enforced or not.
    limiter.check(charge(9)).await.unwrap();
    let said = site.json("explain user=alice", 1);
    has!(said, { "is_known": true, "denied_by": { "rule": "10/1d" } });
}

#[tokio::test]
async fn a_block_does_not_hide_that_a_file_differs_from_the_service() {
    let site = Site::start().await;
    let limiter = site.service().await;
    let charge = Charge::new(&policy("api"), Key::new("user", "alice"), 1);
    limiter.check([charge]).await.unwrap();
    limiter.policies_published().await.unwrap();
    site.text("block user=alice --for 1h");
    assert_eq!(site.json("explain user=alice", 1)["is_known"], true);
    site.tool.write("drifted.toml", "api = '99/1d'");
    let explain = "explain user=alice --policies drifted.toml";
    assert_eq!(site.json(explain, 1)["is_known"], false);
    let differs = "It is not known whether it passes elsewhere: the service publishes api = ";
    site.tool.told(&format!("{explain} | 1 | {differs}"));
}

#[tokio::test]
async fn a_period_is_told_with_its_end_as_a_date_of_its_zone() {
    let site = Site::start().await;
    let rules = "9/1s,5/month@Europe/Berlin";
    site.tool.write("quota.toml", format!("quota = '{rules}'"));
    let quota = Policy::parse("quota", rules).unwrap();
    let charge = Charge::new(&quota, Key::new("user", "alice"), 5);
    assert!(site.limiter.check([charge]).await.unwrap().is_allowed());

    let said = site.json("explain user=alice --policies quota.toml", 1);
    let rule = &said["policies"][0]["rules"][1];
    assert_eq!(rule["period"]["zone"], "Europe/Berlin");
    let end_ms = rule["period"]["ends_ms"].as_u64().unwrap();
    has!(said, { "passes_ms": end_ms });
    has!(rule, { "fits_ms": end_ms });
    assert!(said["policies"][0]["rules"][0]["period"].is_null());

    let end = jiff::Timestamp::from_millisecond(end_ms.try_into().unwrap()).unwrap();
    // The first of a month begins in Berlin one or two hours before it does in UTC.
    let month = (end + jiff::SignedDuration::from_hours(2))
        .strftime("%Y-%m")
        .to_string();
    let line =
        format!("5/month@Europe/Berlin: its period ends {month}-01 00:00:00 in Europe/Berlin (in ");
    site.tool.told(&format!(
        "
        explain user=alice --policies quota.toml | 1 | {line} | by the rule 5/month@Europe/Berlin of quota.
        inspect user=alice --policies quota.toml | 0 | {line}
        "
    ));
    let inspected = site.json("inspect user=alice --policies quota.toml", 0);
    has!(inspected["policies"][0]["rules"][1]["period"], { "ends_ms": end_ms });
    assert_eq!(inspected["policies"][0]["rules"][1]["free_ms"], end_ms);
}
