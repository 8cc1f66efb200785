//! Replays the vectors: histories with the right answer for each step.

use std::{collections::BTreeMap, env, fs, path::Path, time::Duration};

use serde::Deserialize;
use sluicegate::{
    Charge, Decision, Key, Policy, Rule, Store, Usage,
    store::{Check, Operation, Reply, Settlement},
    test_util::TestClock,
};

use super::outcome::{Denied, Left, Outcome};

#[derive(Deserialize)]
struct File {
    policies: BTreeMap<String, Vec<RuleText>>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    kind: String,
    limit: u64,
    window_ms: u64,
    precision_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at_ms: u64,
    #[serde(default)]
    charges: Vec<ChargeText>,
    #[serde(default)]
    shadows: Vec<ChargeText>,
    fill: Option<u16>,
    settle: Option<usize>,
    #[serde(default)]
    costs: Vec<u64>,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeText {
    policy: String,
    key: String,
    cost: u64,
}

/// Of a check or a settlement, `usage`; of a fill, `decisions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    allowed: Option<bool>,
    #[serde(default)]
    usage: Vec<UsageText>,
    retry_after_ms: Option<u64>,
    refused_by: Option<DeniedBy>,
    shadow: Option<Box<Self>>,
    #[serde(default)]
    decisions: Vec<Self>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageText {
    policy: String,
    key: String,
    rules: Vec<LeftText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftText {
    remaining: u64,
    reset_after_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeniedBy {
    policy: String,
    key: String,
    rule: usize,
}

/// The vectors of this repository, and those of the folder that `SLUICEGATE_VECTORS` names.
pub(crate) async fn replay_all<S: Store>(new: impl AsyncFn() -> (S, TestClock)) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    replay_folder(&own, &new).await;
    replay_folder(&own.join("calls"), &new).await;
    if let Some(folder) = env::var_os("SLUICEGATE_VECTORS") {
        replay_folder(Path::new(&folder), &new).await;
    }
}

/// Replays every `*.json` of a folder, each against a store of its own; fails if there is none.
async fn replay_folder<S: Store>(folder: &Path, new: impl AsyncFn() -> (S, TestClock)) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut replayed = 0;
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let (store, clock) = new().await;
            let file = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            replay(&store, &clock, &file, &path.display().to_string()).await;
            replayed += 1;
        }
    }
    assert!(replayed > 0, "{folder:?} holds no vectors");
}

async fn replay(store: &dyn Store, clock: &TestClock, file: &File, name: &str) {
    let policies = policies(file);
    let mut usages: BTreeMap<usize, Usage> = BTreeMap::new();
    for (index, step) in file.steps.iter().enumerate() {
        clock.set(step.at_ms);
        let at = format!("{name}, step {index}");
        if let Some(settled) = step.settle {
            let costs = step.costs.iter().copied();
            let settlement = Settlement::new(&usages[&settled], costs).unwrap();
            let usage = store.settle(&settlement).await.unwrap();
            assert_eq!(Outcome::from(&usage), expected(&step.expect), "{at}");
        } else if let Some(count) = step.fill {
            let decisions = fill(store, step.check(&policies), count).await;
            assert_eq!(decisions.len(), step.expect.decisions.len(), "{at}");
            for (decision, expect) in decisions.iter().zip(&step.expect.decisions) {
                assert_decision(decision, expect, &at);
            }
        } else {
            let decision = store.check(&step.check(&policies)).await.unwrap();
            assert_decision(&decision, &step.expect, &at);
            assert_eq!(decision.usage().decided_at_ms(), step.at_ms, "{at}");
            usages.insert(index, decision.usage().clone());
        }
    }
    assert!(!usages.is_empty(), "{name} has no steps");
}

async fn fill(store: &dyn Store, check: Check, count: u16) -> Vec<Decision> {
    let operations = vec![Operation::Fill { check, count }];
    match store.call(operations).await.unwrap().remove(0).unwrap() {
        Reply::Fill(decisions) => decisions,
        other => panic!("not the reply to a fill: {other:?}"),
    }
}

fn assert_decision(decision: &Decision, expect: &Expect, at: &str) {
    assert_eq!(Outcome::from(decision), expected(expect), "{at}");
    assert_eq!(names(decision.usage()), expected_names(expect), "{at}");
    let shadow = decision.usage().shadow();
    assert_eq!(shadow.is_some(), expect.shadow.is_some(), "{at}");
    if let (Some(shadow), Some(expect)) = (shadow, &expect.shadow) {
        assert_decision(shadow, expect, &format!("{at}, shadow"));
    }
}

fn policies(file: &File) -> BTreeMap<&str, Policy> {
    let policies = file.policies.iter().map(|(name, rules)| {
        let rules = rules.iter().map(|text| {
            let rule = Rule::new(text.limit, Duration::from_millis(text.window_ms));
            match text.kind.as_str() {
                "sliding" => rule.precision(Duration::from_millis(text.precision_ms)),
                "fixed" => rule.fixed(),
                other => panic!("unknown kind of rule: {other}"),
            }
        });
        (name.as_str(), Policy::new(name.as_str(), rules).unwrap())
    });
    policies.collect()
}

impl Step {
    fn check(&self, policies: &BTreeMap<&str, Policy>) -> Check {
        let charge = |text: &ChargeText, policy: &Policy| {
            Charge::new(policy, Key::new("key", &text.key), text.cost)
        };
        let charges = self
            .charges
            .iter()
            .map(|it| charge(it, &policies[&*it.policy]));
        let shadows = self
            .shadows
            .iter()
            .map(|it| charge(it, &policies[&*it.policy].clone().shadow()));
        Check::new(charges.chain(shadows)).unwrap()
    }
}

fn expected(expect: &Expect) -> Outcome {
    let usage = expect.usage.iter().map(|usage| {
        let rules = usage.rules.iter().map(|left| Left {
            remaining: left.remaining,
            reset_after_ms: left.reset_after_ms,
        });
        rules.collect()
    });
    let denied = expect.refused_by.as_ref().map(|by| {
        let mut charges = expect.usage.iter();
        let charge = charges.position(|usage| usage.policy == by.policy && usage.key == by.key);
        Denied {
            charge: charge.unwrap(),
            rule: by.rule,
            retry_after_ms: expect.retry_after_ms,
        }
    });
    assert_eq!(expect.allowed.unwrap_or(true), denied.is_none());
    Outcome {
        usage: usage.collect(),
        denied,
    }
}

fn names(usage: &Usage) -> Vec<(String, Vec<u8>)> {
    let charges = usage.check().charges().iter();
    charges
        .map(|charge| (charge.policy().name().into(), charge.key().value().into()))
        .collect()
}

fn expected_names(expect: &Expect) -> Vec<(String, Vec<u8>)> {
    let charges = expect.usage.iter();
    charges
        .map(|usage| (usage.policy.clone(), usage.key.clone().into_bytes()))
        .collect()
}
