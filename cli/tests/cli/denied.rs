//! Proves that an operator sees the denied identities, and the numbers of denials.

use serde_json::Value;
use sluicegate::{Charge, Key, Policy, block::Until};

use crate::site::Site;
use support::served::limited;

fn visits() -> Policy {
    Policy::parse("visits", "1000000/1d").unwrap()
}

/// A site with the policies `api` and `visits`.
async fn start() -> Site {
    let site = Site::start().await;
    site.tool
        .write("policies.toml", "api = '10/1d'\nvisits = '1000000/1d'");
    site
}

/// A request of a user, which is admitted, or denied because of its cost.
async fn request(site: &Site, user: &str, is_denied: bool) {
    let (policy, cost) = (visits(), if is_denied { 1_000_001 } else { 1 });
    let charge = Charge::new(&policy, Key::new("user", user), cost);
    let decision = site.limiter.check([charge]).await.unwrap();
    assert_eq!(decision.is_allowed(), !is_denied);
}

#[tokio::test]
async fn an_office_that_is_denied_most_is_first() {
    let site = start().await;
    for sample in 1..=3_u64 {
        for step in 0..100 {
            request(&site, "office", step % 25 < 12).await;
            let other = format!("user-{}", step % 20);
            request(&site, &other, step % 30 == 0).await;
        }
        // Reports the counts, as a service does once a second.
        site.limiter.denials().await.unwrap();
        let said = site.json("top --denied", 0);
        let first = &said["denied"][0];
        has!(first, { "identity": "user=office", "policy": "visits", "blocked": null });
        has!(first, { "last_minute": 48 * sample, "last_hour": 48 * sample });
    }
    site.tool
        .told("top --denied -n 1 | 0 | user=office | 144 | !user-1");
}

#[tokio::test]
async fn explain_and_inspect_say_how_often_an_identity_was_denied() {
    let site = start().await;
    for step in 0..25 {
        request(&site, "alice", step < 12).await;
    }
    site.limiter.denials().await.unwrap();
    let line = "visits: denied 12 in the last minute, 12 in the last hour";
    site.tool.told(&format!(
        "
        explain user=alice --policies policies.toml | 0 | {line} | It passes.
        inspect user=alice --policies policies.toml | 0 | {line}
        inspect user=alice | 0 | {line}
        inspect user=alice --policy visits | 0 | {line}
        inspect user=alice --policy api | 0 | !denied
        inspect user=bob --policy visits | 0 | !denied
        "
    ));
    let said = site.json("explain user=alice --policies policies.toml", 0);
    assert_eq!(said["denied"][0]["last_minute"], 12);
}

#[tokio::test]
async fn blocked_identities_are_listed_with_the_end_of_their_block() {
    let site = start().await;
    request(&site, "mallory", true).await;
    let mallory = Key::new("user", "mallory");
    let hour = std::time::Duration::from_secs(3_600);
    site.limiter
        .block(&mallory, Until::After(hour))
        .await
        .unwrap();
    for _ in 0..3 {
        let charge = Charge::new(&visits(), mallory.clone(), 1);
        site.limiter.check([charge]).await.unwrap();
    }
    site.limiter.denials().await.unwrap();
    let said = site.json("top --denied", 0);
    has!(said, { "identities_last_minute": 1, "identities_last_hour": 1 });
    has!(said["denied"][0], {
        "identity": "user=mallory", "policy": null, "last_minute": 3,
        "blocked": { "by": "operator" }
    });
    has!(said["denied"][1], { "policy": "visits" });
    let said = site.json("top --denied --policy visits", 0);
    assert_eq!(said["denied"].as_array().unwrap().len(), 1);
    site.tool.told(
        "
        top --denied | 0 | (blocked) | blocked until
        explain user=mallory --policies policies.toml | 1 | blocked: denied 3 in the last minute, 3 in the last hour
        ",
    );
}

#[tokio::test]
async fn a_hashed_identity_is_listed_as_other_verbs_take_it() {
    let site = start().await;
    let key = Key::secret("api-key", "s3cret");
    let charge = Charge::new(&visits(), key.clone(), 1_000_001);
    site.limiter.check([charge]).await.unwrap();
    site.limiter.block(&key, Until::Forever).await.unwrap();
    site.limiter.denials().await.unwrap();
    let said = site.json("top --denied", 0);
    let identity = said["denied"][0]["identity"].as_str().unwrap();
    assert!(identity.starts_with("api-key=#"), "{identity}");
    assert!(said["denied"][0]["blocked"].is_object(), "{said}");
    let text = site.text(&format!("inspect {identity} --policy visits"));
    says!(text => "visits: denied 1 in the last minute");
}

#[tokio::test]
async fn without_denials_it_says_so() {
    let site = start().await;
    site.charge("api", "alice", 1).await;
    site.tool
        .told("top --denied | 0 | No identity was denied within the last hour.");
    assert_eq!(site.json("top --denied", 0)["denied"], Value::Array(vec![]));
}

#[tokio::test]
async fn without_the_right_to_read_denials_other_verbs_say_what_they_can() {
    let site = start().await;
    request(&site, "alice", true).await;
    site.limiter.denials().await.unwrap();
    let url = limited(&site.server, &["~sluicegate:*", "+get", "+time"]);
    for verb in ["explain", "inspect"] {
        let verb = format!("{verb} user=alice --policies policies.toml --redis {url}");
        site.tool
            .told(&format!("{verb} | 0 | the right `+zrange` is missing"));
        assert!(site.json(&verb, 0)["denied"].is_null());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn identities_stay_of_use_at_a_narrow_terminal() {
    let site = start().await;
    let hour = std::time::Duration::from_secs(3_600);
    let network = "2001:db8:1234:5678::/64";
    let (hashed, long) = (Key::secret("header", "s3cret"), "a".repeat(30));
    for key in [
        Key::new("ip", network),
        hashed,
        Key::new("user", long.clone()),
    ] {
        let charge = Charge::new(&visits(), key.clone(), 1_000_001);
        site.limiter.check([charge]).await.unwrap();
        site.limiter.block(&key, Until::After(hour)).await.unwrap();
    }
    site.limiter.denials().await.unwrap();
    let rows = site.json("top --denied", 0)["denied"].clone();
    let identities = rows.as_array().unwrap().iter();
    let mut identities = identities.map(|row| row["identity"].as_str().unwrap());
    let hashed = identities.find(|it| it.starts_with("header=#")).unwrap();
    for columns in [80, 100] {
        let said = site.at_terminal(columns, "top --denied");
        let widest = said.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns.into()), "{said}");
        says!(said =>
            &format!("ip={network} "), " visits ", "blocked until", &hashed[.."header=#".len() + 8], "user=aaaa",
            "…");
        let said = site.at_terminal(columns, "top --denied --wide");
        says!(said => &format!("user={long} "), hashed, "blocked until ");
    }
}

#[tokio::test]
async fn without_denials_under_a_policy_it_says_so_and_a_mistyped_one_is_an_error() {
    let site = start().await;
    request(&site, "alice", true).await;
    site.charge("api", "alice", 1).await;
    site.limiter.denials().await.unwrap();
    let rights = ["~sluicegate:*", "+get", "+time", "+zrange"];
    let url = limited(&site.server, &rights);
    site.tool.told(&format!(
        "
        top --denied --policy api | 0 | No identity was denied within the last hour under api.
        top --denied --policy nosuch | 2 | Nothing is stored under a policy `nosuch`: the policies are `api`
        top --denied --policy nosuch --redis {url} | 0 | could not be checked
        "
    ));
}
