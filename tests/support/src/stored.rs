//! Compares the values that the script has stored after each step of a history.

use sluicegate::{
    Charge, Decision, MemoryStore, RedisStore, Store,
    store::{
        Check,
        redis::inspect::{Inspector, StoredValue, decide},
    },
    test_util::TestClock,
};

use super::{
    history::{History, Player, key_of, move_clock},
    model::Model,
    outcome::Outcome,
};

const KEYS: usize = 3;

/// The maximum time that a key has to live.
const FOR_EVER_MS: u64 = 1 << 47;

/// The stored value of a key. These histories spoil no value, so reading succeeds.
async fn value(inspector: &Inspector, policy: &str, key: usize) -> Option<StoredValue> {
    let name = inspector.name(&key_of(key), policy);
    inspector.read(&name).await.unwrap().unwrap()
}

/// After each step, the stored value has the steps of the model that keeps every charge.
pub async fn has_the_steps_of_the_model(store: &RedisStore, clock: &TestClock, history: &History) {
    clock.set(history.start_ms);
    let (mut player, mut model) = (Player::new(store, history), Model::new(history));
    let inspector = store.inspector();
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let now_ms = clock.now_ms();
        player.play(&step.act).await;
        model.play(now_ms, &step.act);
        for (policy, versions) in history.policies.iter().enumerate() {
            for key in 0..KEYS {
                let value = value(&inspector, versions[0].name(), key).await;
                for (rule_index, rule) in versions[0].rules().iter().enumerate() {
                    let section = value.as_ref().and_then(|value| value.section(rule));
                    let steps = section.map_or(Vec::new(), |section| section.steps(now_ms));
                    let read: Vec<(u64, u128)> = steps
                        .iter()
                        .map(|step| (step.release_ms, step.units.into()))
                        .collect();
                    let right = model.counting(now_ms, policy, key, rule_index);
                    assert_eq!(read, right, "step {index} at {now_ms}: {step:?}: {rule}");
                    let used = section.map_or(0, |section| section.used(now_ms));
                    assert_eq!(
                        u128::from(used),
                        model.used(now_ms, policy, key, rule_index)
                    );
                }
            }
        }
    }
}

/// After each step, the stored value gives all callers the answers of a memory store with the same history, also
/// callers with other rules. It does not expire before its last unit is released.
pub async fn answers_as_the_memory_store(store: &RedisStore, clock: &TestClock, history: &History) {
    clock.set(history.start_ms);
    let memory = MemoryStore::new().clock(clock.clone());
    let mut players = (Player::new(store, history), Player::new(&memory, history));
    let inspector = store.inspector();
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let now_ms = clock.now_ms();
        let outcomes = (
            players.0.play(&step.act).await,
            players.1.play(&step.act).await,
        );
        assert_eq!(outcomes.0, outcomes.1);
        for policy in history.policies.iter().flatten() {
            for key in 0..KEYS {
                let value = value(&inspector, policy.name(), key).await;
                if let Some(value) = &value {
                    for section in value.sections() {
                        let latest = section.newest_end_ms() + FOR_EVER_MS;
                        let release = section.reset_at_ms(now_ms).min(latest);
                        let slack = value.expires_ms().checked_sub(release);
                        assert!(
                            slack.is_some(),
                            "step {index} at {now_ms}: {step:?}: {release}"
                        );
                    }
                }
                for cost in [0, 1, 2, 5, 17, 100, 70_000, 1 << 34, 1 << 52] {
                    let charge = Charge::new(policy, key_of(key), cost);
                    let check = Check::new([charge]).unwrap();
                    let said = decide(&check, now_ms, &[value.as_ref()]).unwrap();
                    if cost > 0 && said.is_allowed() {
                        continue; // asking would charge
                    }
                    let right = memory.check(&check).await.unwrap();
                    assert_eq!(
                        Outcome::from(&said),
                        Outcome::from(&right),
                        "step {index} at {now_ms}: {step:?}: {policy} for {cost}"
                    );
                }
            }
        }
    }
}

/// A decision from the stored value before a check is the same as the script's decision.
pub async fn foretells_the_script(store: &RedisStore, clock: &TestClock, history: &History) {
    use super::history::Act;

    clock.set(history.start_ms);
    let mut player = Player::new(store, history);
    let inspector = store.inspector();
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let mut foretold = None;
        if let Act::Check(charges) = &step.act {
            let check = player.check_of(charges);
            let mut values = Vec::new();
            for charge in check.charges() {
                let name = inspector.name(charge.key(), charge.policy().name());
                values.push(inspector.read(&name).await.unwrap().unwrap());
            }
            let values: Vec<_> = values.iter().map(Option::as_ref).collect();
            let decision: Decision = decide(&check, clock.now_ms(), &values).unwrap();
            foretold = Some(Outcome::from(&decision));
        }
        let outcome = player.play(&step.act).await;
        if foretold.is_some() {
            let now_ms = clock.now_ms();
            assert_eq!(foretold, outcome, "step {index} at {now_ms}: {step:?}");
        }
    }
}
