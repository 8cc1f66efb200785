//! Replays the vectors: histories with the right answer for each step.

use std::{collections::BTreeMap, env, fs, path::Path, time::UNIX_EPOCH};

use serde::Deserialize;

use super::{
    contract::patient,
    history::enforcing,
    outcome::{Denied, Left},
    prelude::*,
    root,
};

#[derive(Deserialize)]
struct File {
    policies: BTreeMap<String, Vec<RuleText>>,
    /// The bans of policies, for a limiter.
    bans: Option<BTreeMap<String, String>>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    kind: String,
    limit: u64,
    #[serde(default)]
    window_ms: u64,
    #[serde(default)]
    precision_ms: u64,
    #[serde(default)]
    refill: u64,
    period: Option<String>,
    zone: Option<String>,
    /// The day on which a month begins; without meaning for other periods.
    anchor: Option<u8>,
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
    /// `None` for a charge of slots.
    #[serde(default)]
    costs: Vec<Option<u64>>,
    renew: Option<usize>,
    r#return: Option<usize>,
    #[serde(default)]
    enforces_blocks: bool,
    #[serde(default)]
    expect: Expect,
    block: Option<String>,
    by: Option<String>,
    for_ms: Option<u64>,
    /// Without this and `for_ms`, the block has no end.
    until_ms: Option<u64>,
    /// The block in force afterwards; `None` if the new one is over already.
    holds: Option<BlockText>,
    unblock: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockText {
    key: String,
    until_ms: Option<u64>,
    by: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeText {
    policy: String,
    key: String,
    cost: u64,
}

/// A check or a settlement has `usage` or `blocked`; a batch has `decisions`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    allowed: Option<bool>,
    #[serde(default)]
    usage: Vec<UsageText>,
    retry_after_ms: Option<u64>,
    refused_by: Option<DeniedBy>,
    blocked: Option<BlockText>,
    shadow: Option<Box<Self>>,
    #[serde(default)]
    decisions: Vec<Self>,
    /// For each charge of slots.
    renewed: Option<Vec<bool>>,
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

/// Replays the vectors of this repository, and those in the folder that `SLUICEGATE_VECTORS` names.
pub async fn replay_all<S: Store>(new: impl AsyncFn() -> (S, ManualClock)) {
    let own = root().join("tests/vectors");
    for folder in ["", "calls", "buckets", "concurrency", "calendar", "blocks"] {
        replay_folder(&own.join(folder), &new).await;
    }
    if let Some(folder) = env::var_os("SLUICEGATE_VECTORS") {
        replay_folder(Path::new(&folder), &new).await;
    }
}

/// Replays every `*.json` of a folder with a new store for each. Fails if there is none.
async fn replay_folder<S: Store>(folder: &Path, new: impl AsyncFn() -> (S, ManualClock)) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut replayed = 0;
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|it| it == "json") {
            let (store, clock) = new().await;
            let file: File = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let name = path.display().to_string();
            match &file {
                File { bans: None, .. } => replay(&store, &clock, &file, &name).await,
                _ => replay_limiter(&patient(store), &clock, &file, &name).await,
            }
            replayed += 1;
        }
    }
    assert!(replayed > 0, "{folder:?} holds no vectors");
}

async fn replay(store: &dyn Store, clock: &ManualClock, file: &File, name: &str) {
    let policies = policies(file);
    let mut usages: BTreeMap<usize, Usage> = BTreeMap::new();
    for (index, step) in file.steps.iter().enumerate() {
        clock.set(step.at_ms);
        let at = format!("{name}, step {index}");
        if let Some(key) = &step.unblock {
            store.unblock(&key_of(key)).await.unwrap();
        } else if let Some(key) = &step.block {
            let by = by(step.by.as_deref().unwrap());
            let request = super::blocks::request(step.until(), by);
            let block = store.block(&key_of(key), request).await.unwrap();
            match &step.holds {
                Some(holds) => assert_eq!(block, holds.block(), "{at}"),
                None => assert!(block.until_ms().unwrap() <= step.at_ms, "{at}"),
            }
        } else if let Some(settled) = step.settle {
            let usage = &usages[&settled];
            let charges = usage.check().charges();
            assert_eq!(charges.len(), step.costs.len(), "{at}");
            let place = |charge: &_| charges.iter().position(|it| it == charge).unwrap();
            let cost = |charge: &_| step.costs[place(charge)].unwrap_or(0);
            let settlement = Settlement::new(usage, cost).unwrap();
            let outcome = Outcome::from(&store.settle(&settlement).await.unwrap());
            assert_eq!(outcome, expected(&step.expect), "{at}");
        } else if let Some(taken) = step.renew.or(step.r#return) {
            let (mut held, mut left, mut of) = (Vec::new(), Vec::new(), Vec::new());
            for slots in Slots::of(&usages[&taken]) {
                let answer = match step.renew {
                    Some(_) => store.renew(&slots).await,
                    None => store.give_back(&slots).await,
                };
                let answer = answer.unwrap();
                held.push(answer.are_held());
                left.extend(Outcome::from(&answer).usage);
                of.extend(names(answer.usage()));
            }
            assert_eq!(left, expected(&step.expect).usage, "{at}");
            assert_eq!(of, expected_names(&step.expect), "{at}");
            let renewed = step.expect.renewed.as_ref();
            assert!(renewed.is_none_or(|it| *it == held), "{at}");
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

/// Waits until the strikes of a denial are counted before the next step.
async fn replay_limiter(limiter: &Limiter, clock: &ManualClock, file: &File, name: &str) {
    let mut policies = policies(file);
    for (name, ban) in file.bans.iter().flatten() {
        let policy = policies.get_mut(name.as_str()).unwrap();
        *policy = policy.clone().ban(ban.parse().unwrap());
    }
    // In these files, only policies with a ban enforce blocks.
    let by_bans = limiter.clone().enforce_blocks(false);
    for (index, step) in file.steps.iter().enumerate() {
        clock.set(step.at_ms);
        let at = format!("{name}, step {index}");
        if let Some(key) = &step.unblock {
            limiter.unblock(&key_of(key)).await.unwrap();
        } else if let Some(key) = &step.block {
            limiter.block(&key_of(key), step.until()).await.unwrap();
        } else {
            let charges = step.check(&policies).charges().to_vec();
            let decision = by_bans.check(charges).await.unwrap();
            assert_decision(&decision, &step.expect, &at);
            limiter.strikes_counted().await;
        }
    }
}

async fn fill(store: &dyn Store, check: Check, count: u16) -> Vec<Decision> {
    let operations = vec![Operation::CheckBatch(CheckBatch::new(check, count))];
    match store.call(operations).await.unwrap().remove(0).unwrap() {
        Reply::CheckBatch(decisions) => decisions,
        other => panic!("not the reply to a batch: {other:?}"),
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
        let rules = rules.iter().map(|it| it.text());
        let rules = rules.collect::<Vec<_>>().join(",");
        (name.as_str(), policy(name, &rules))
    });
    policies.collect()
}

impl RuleText {
    fn text(&self) -> String {
        let (limit, window, of) = (self.limit, self.window_ms, |it: &Option<String>| {
            it.clone().unwrap()
        });
        match self.kind.as_str() {
            "sliding" => format!("{limit}/{window}ms@{}ms", self.precision_ms),
            "fixed" => format!("{limit}/{window}ms@fixed"),
            "bucket" => format!("{limit}+{}/{window}ms@bucket", self.refill),
            "concurrency" => format!("{limit}/{window}ms@concurrent"),
            "calendar" => {
                let (period, zone) = (of(&self.period), of(&self.zone));
                let day = match (&*period, self.anchor) {
                    ("month", Some(day)) => format!(":{day}"),
                    _ => String::new(),
                };
                format!("{limit}/{period}{day}@{zone}")
            }
            other => panic!("unknown kind of rule: {other}"),
        }
    }
}

impl Step {
    fn check(&self, policies: &BTreeMap<&str, Policy>) -> Check {
        let charge =
            |policy: &Policy, it: &ChargeText| Charge::new(policy, key_of(&it.key), it.cost);
        let of = |it: &ChargeText| &policies[&*it.policy];
        let charges = self.charges.iter().map(|it| charge(of(it), it));
        let shadows = self.shadows.iter();
        let shadows = shadows.map(|it| charge(&of(it).clone().shadow(), it));
        let check = Check::new(charges.chain(shadows)).unwrap();
        enforcing(check, self.enforces_blocks)
    }

    fn until(&self) -> Until {
        match (self.for_ms, self.until_ms) {
            (Some(ms), _) => Until::After(Duration::from_millis(ms)),
            (_, Some(ms)) => Until::At(UNIX_EPOCH + Duration::from_millis(ms)),
            _ => Until::Forever,
        }
    }
}

impl BlockText {
    fn block(&self) -> Block {
        Block::new(self.until_ms.unwrap_or(u64::MAX), by(&self.by))
    }
}

fn by(text: &str) -> BlockedBy {
    match text {
        "operator" => BlockedBy::Operator,
        "ban" => BlockedBy::Ban,
        other => panic!("nobody blocks as {other}"),
    }
}

fn key_of(text: &str) -> Key {
    Key::new("key", text)
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
    let blocked = expect.blocked.as_ref();
    let blocked = blocked.map(|it| (key_of(&it.key), it.block()));
    let is_allowed = denied.is_none() && blocked.is_none();
    assert_eq!(expect.allowed.unwrap_or(true), is_allowed);
    Outcome {
        usage: usage.collect(),
        denied,
        blocked,
        held: None,
    }
}

fn names(usage: &Usage) -> Vec<(String, Vec<u8>)> {
    let charges = usage.check().charges().iter();
    let name = |it: &Charge| (it.policy().name().into(), it.key().value().into());
    charges.map(name).collect()
}

fn expected_names(expect: &Expect) -> Vec<(String, Vec<u8>)> {
    let name = |it: &UsageText| (it.policy.clone(), it.key.clone().into_bytes());
    expect.usage.iter().map(name).collect()
}
