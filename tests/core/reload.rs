//! A reload that gives a policy calendar rules of other periods.

use sluicegate::policies::{Policies, ReloadablePolicies};
use support::prelude::*;

fn policies(quota: &str) -> Policies {
    let other = policy("ip", "10/1s,500/day@UTC");
    Policies::new([policy("quota", quota), other]).unwrap()
}

fn only_line(trace: &support::trace::Trace) -> String {
    let lines = trace.lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

#[test]
fn counts_that_start_empty_are_warned_of_once_with_the_rules_and_the_mend() {
    let live = ReloadablePolicies::new(policies("9/1m,100/month@UTC"));
    let (trace, _guard) = traced_here();
    for quiet in [
        "9/1m,100/month@UTC",
        "5/1s,200/month@UTC",
        "100/month@UTC,100/month@Europe/Berlin",
    ] {
        live.replace(policies(quiet)).unwrap();
    }
    assert_eq!(*trace.lines.lock().unwrap(), [""; 0]);
    live.replace(policies("100/month:15@UTC")).unwrap();
    live.replace(policies("300/month:15@UTC")).unwrap();
    let line = only_line(&trace);
    for part in [
        "WARN",
        r#"policy="quota""#,
        r#"old="100/month@UTC,100/month@Europe/Berlin""#,
        r#"new="100/month:15@UTC""#,
        "which start empty",
        "change the limit alone, or keep the old rule beside the new one",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn an_old_calendar_rule_beside_the_new_one_keeps_its_counts() {
    let clock = ManualClock::new(1_803_855_600_000); // 2027-02-28T23:00:00Z
    let limiter = support::limiter(MemoryStore::new().clock(clock.clone()));
    let live = ReloadablePolicies::new(policies("9/month@UTC"));
    let fits = async |cost| {
        let policy = live.get("quota").unwrap();
        let charge = charge(&policy, "alice", cost);
        limiter.check([charge]).await.unwrap().is_allowed()
    };
    assert!(fits(8).await);
    live.replace(policies("9/month:15@UTC")).unwrap();
    assert!(fits(7).await, "it starts empty");
    live.replace(policies("9/month@UTC,9/month:15@UTC"))
        .unwrap();
    assert!(fits(1).await, "9 of one month, 8 of the other");
    assert!(!fits(1).await, "the old rule has kept its counts");
    clock.advance(HOUR);
    assert!(fits(1).await, "its month has ended");
    assert!(!fits(1).await, "the other has not");
}
