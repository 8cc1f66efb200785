//! Slots of concurrency policies, as `inspect`, `explain`, `top` and `watch` show them.

use sluicegate::{Charge, Key, Policy, limiter::Slot};

use crate::site::Site;

const POLICIES: &str = "\
jobs = \"2/1h@concurrent\"
api = \"5/1d\"
";

/// Holds this many slots of `user=alice`, and charges as many units of the other policy.
async fn held(site: &Site, count: usize) -> Vec<Slot> {
    site.tool.write("policies.toml", POLICIES);
    let (jobs, api) = (
        Policy::parse("jobs", "2/1h@concurrent").unwrap(),
        Policy::parse("api", "5/1d").unwrap(),
    );
    let alice = Key::new("user", "alice");
    let mut slots = Vec::new();
    for _ in 0..count {
        let charges = [
            Charge::new(&jobs, alice.clone(), 1),
            Charge::new(&api, alice.clone(), 1),
        ];
        let decision = site.limiter.check(charges).await.unwrap();
        slots.push(site.limiter.hold(&decision).unwrap());
    }
    slots
}

/// The lines about the slots. They have no times, since a request may end at any time.
fn lines_of_slots(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains("held by"));
    let lines: Vec<&str> = lines.filter(|line| line.contains("jobs")).collect();
    let lines = lines.join("\n");
    for time in ["in 1h", "in 59m", "min", ":"] {
        let line = lines.replace("jobs: denied", "");
        assert!(!line.contains(time), "{time}: {lines}");
    }
    lines
}

#[tokio::test]
async fn slots_in_use_are_shown_with_their_number_and_without_times() {
    let site = Site::start().await;
    let slots = held(&site, 1).await;
    let text = site.text("inspect user=alice --policies policies.toml");
    let line = lines_of_slots(&text);
    says!(line => "1/2 in use", "when all end");
    says!(site.text("explain user=alice --policies policies.toml") => "It passes.");
    let text = site.text("top --policies policies.toml");
    assert!(lines_of_slots(&text).contains("1/2 in use"), "{text}");
    let text = site.text("inspect user=alice");
    assert!(lines_of_slots(&text).contains("1 in use"), "{text}");
    drop(slots);
}

#[tokio::test]
async fn without_a_free_slot_a_request_is_denied_until_one_ends() {
    let site = Site::start().await;
    let slots = held(&site, 2).await;
    let text = site.text("inspect user=alice --policies policies.toml");
    let line = lines_of_slots(&text);
    says!(line => "2/2 in use", "when one ends");
    let text = site.text("top --policies policies.toml");
    says!(lines_of_slots(&text) => "as long as all run");

    // A request of any cost takes one slot. Another rule denies for a time that is known.
    let explain = "explain user=alice --policies policies.toml --cost";
    let slots_are_full =
        r"until a request ends: all slots are in use,\nby the rule 2/1h@concurrent of jobs.";
    site.tool.told(&format!(
        "
        {explain} 3 | 1 | It is denied {slots_are_full}
        {explain} 4 | 1 | by the rule 5/1d of api. | Besides, {slots_are_full}
        "
    ));
    let said = site.json("explain user=alice --policies policies.toml", 1);
    assert_eq!(said["no_slot"][0]["policy"], "jobs");
    assert_eq!(said["denied_by"]["policy"], "jobs");
    assert!(said["passes_ms"].is_null());
    let mut policies = said["policies"].as_array().unwrap().iter();
    let jobs = policies.find(|it| it["policy"] == "jobs").unwrap();
    has!(jobs["rules"][0], { "slots": true, "used": 2 });

    drop(slots);
}

#[tokio::test]
async fn the_processes_that_hold_slots_are_shown_by_label_or_by_number() {
    let site = Site::start().await;
    let slots = held(&site, 2).await;
    let holder = |said: &serde_json::Value| {
        let mut policies = said["policies"].as_array().unwrap().iter();
        let jobs = policies.find(|it| it["policy"] == "jobs").unwrap();
        jobs["rules"][0]["holders"][0].clone()
    };
    let told = holder(&site.json("inspect user=alice --policies policies.toml", 0));
    assert_eq!(
        (&told["slots"], &told["label"]),
        (&2.into(), &serde_json::Value::Null)
    );
    let number = told["process"].as_str().unwrap().to_owned();
    assert_eq!(number.len(), 16);
    for verb in ["inspect user=alice", "top"] {
        let text = site.text(&format!("{verb} --policies policies.toml"));
        says!(text => "jobs: 2 slots are held by the process", &number);
    }

    // The label that a limiter publishes with its policies.
    let named = site.service().await.process_label(Some("web 3:\u{1b}4711"));
    let jobs = Policy::parse("jobs", "2/1h@concurrent").unwrap();
    let other = Charge::new(&jobs, Key::new("user", "bob"), 1);
    named.check([other]).await.unwrap();
    named.policies_published().await.unwrap();
    for verb in [
        "inspect user=alice",
        "explain user=alice",
        "inspect user=bob",
    ] {
        let said = site
            .tool
            .run(&format!("{verb} --policies policies.toml --json"));
        let said: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(holder(&said)["label"], "web3:4711", "{verb}");
    }
    drop(slots);
}
