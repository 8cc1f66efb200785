//! Compares the values that the script has stored after each step of a history.

use std::collections::HashMap;

use sluicegate::{
    Charge, Decision, MemoryStore, RedisStore, Rule, Store,
    manual_clock::ManualClock,
    store::{
        Check,
        redis::inspect::{Inspector, Section, StoredValue, decide},
    },
};

use super::{
    history::{History, Player, key_of, move_clock},
    model::Model,
    outcome::{Outcome, ms},
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
pub async fn has_the_steps_of_the_model(
    store: &RedisStore,
    clock: &ManualClock,
    history: &History,
) {
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
pub async fn answers_as_the_memory_store(
    store: &RedisStore,
    clock: &ManualClock,
    history: &History,
) {
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
pub async fn foretells_the_script(store: &RedisStore, clock: &ManualClock, history: &History) {
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

const A_MINUTE_MS: u64 = 60_000;

/// The numbers of a value beside its counts.
struct Layout {
    used: Vec<u64>,
    dues: Vec<u64>,
    since_ms: u64,
    expires_ms: u64,
    /// By label, the length of the queue and its room.
    rooms: HashMap<Vec<u8>, (u64, u64)>,
}

impl Layout {
    fn read(value: &[u8]) -> Self {
        let number = |at: usize, size: usize| {
            let bytes = value[at..at + size].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let count = usize::from(value[0]);
        let (mut head, labels) = (13 + 14 * count, value.len() - 1 - 12 * count);
        let rooms = (0..count).map(|section| {
            let (length, room) = (number(head + 19, 4), number(head + 23, 4));
            head += 28 + usize::try_from(room).unwrap();
            let label = labels + 12 * section;
            (value[label..label + 12].to_vec(), (length, room))
        });
        Self {
            rooms: rooms.collect(),
            used: (0..count).map(|it| number(1 + 7 * it, 7)).collect(),
            dues: (count..2 * count).map(|it| number(1 + 7 * it, 7)).collect(),
            since_ms: number(1 + 14 * count, 6),
            expires_ms: number(7 + 14 * count, 6),
        }
    }
}

/// The times that follow from the steps of a section.
struct Times {
    start_ms: u64,
    due_ms: u64,
    release_ms: u64,
}

impl Times {
    fn of(section: &Section, used: u64, due_ms: u64, now_ms: u64) -> Self {
        let rule = section.rule(0);
        if let Some(refill) = rule.refill() {
            return Self {
                start_ms: due_ms,
                due_ms,
                release_ms: due_ms + used.div_ceil(refill).min(FOR_EVER_MS),
            };
        }
        let newest_ms = section.newest_end_ms();
        if rule.in_calendar().is_some() {
            return Self {
                start_ms: 0,
                due_ms: newest_ms,
                release_ms: newest_ms,
            };
        }
        let steps = section.steps(now_ms);
        let (oldest, newest) = (steps[0], steps[steps.len() - 1]);
        let start_ms = newest.end_ms - ms(rule.step());
        let mut right_ms = newest.end_ms.min(oldest.release_ms);
        if steps.iter().map(|it| it.units).sum::<u64>() != used {
            assert!(
                start_ms > now_ms,
                "only a settlement ahead of the clock leaves steps that are released"
            );
            right_ms = due_ms.min(right_ms);
        }
        Self {
            start_ms,
            due_ms: right_ms,
            release_ms: newest.release_ms,
        }
    }
}

/// The script has written a value at this time: then all times in it follow from the counts, as the README of the
/// script says. With the value before the operation, so do the expiry and the room of each queue.
pub fn assert_written(
    value: &[u8],
    gone_ms: u64,
    now_ms: u64,
    before: Option<Option<&[u8]>>,
    rules: &[Rule],
) {
    let (read, layout) = (StoredValue::read(value).unwrap(), Layout::read(value));
    assert_eq!(layout.expires_ms, gone_ms);
    assert_eq!(read.sections().len(), layout.used.len());
    let (mut since_ms, mut release_ms, mut windows) = (0, 0, Vec::new());
    for (index, section) in read.sections().iter().enumerate() {
        let (used, due_ms) = (layout.used[index], layout.dues[index]);
        if used == 0 {
            assert_eq!(due_ms, 0);
            continue;
        }
        // The caller alone believes too late a time: of a bucket by its limit, of the calendar by its periods.
        let rule = section.rule(0);
        let may_be_ahead = rule.refill().is_some() || rule.in_calendar().is_some();
        let is_ahead = may_be_ahead && due_ms > now_ms;
        assert!(
            is_ahead || section.used(now_ms) > 0,
            "it counts no longer at {now_ms}: {section:?}"
        );
        let times = Times::of(section, used, due_ms, now_ms);
        assert_eq!(due_ms, times.due_ms);
        since_ms = times.start_ms.max(since_ms);
        if times.release_ms > release_ms {
            (release_ms, windows) = (times.release_ms, windows_of(section, rules));
        }
    }
    // The fast path leaves it where all rules are buckets.
    let are_buckets = read
        .sections()
        .iter()
        .all(|it| it.rule(0).refill().is_some());
    assert!(layout.since_ms == since_ms || are_buckets);
    assert!(release_ms > now_ms, "nothing counts");
    let slack_ms = layout.expires_ms.checked_sub(release_ms).unwrap();
    assert!(slack_ms <= A_MINUTE_MS, "{slack_ms}");
    let Some(before) = before else { return };
    let before = before.map(Layout::read);
    let before = before.filter(|it| it.expires_ms > now_ms);
    let expired_ms = before.as_ref().map_or(0, |it| it.expires_ms);
    let expiries = match expired_ms.checked_sub(release_ms) {
        Some(0..=A_MINUTE_MS) => vec![expired_ms],
        _ => windows.iter().map(|it| release_ms + it).collect(),
    };
    assert!(
        expiries.contains(&layout.expires_ms),
        "{slack_ms}: {expiries:?}"
    );
}

/// The plain script has written a value in the place of this one: queues have the room that they need.
pub fn assert_room(value: &[u8], before: Option<&[u8]>, now_ms: u64) {
    let before = before.map(Layout::read);
    let before = before.filter(|it| it.expires_ms > now_ms);
    for (label, (length, room)) in &Layout::read(value).rooms {
        let was = before.as_ref().and_then(|it| it.rooms.get(label));
        let is_fixed = label[6..] == [0; 6];
        let least = if label[5] < 32 && !is_fixed { 32 } else { 0 };
        let was = was.map_or(0, |(_, room)| *room).max(least);
        let expected = match *length {
            longer if longer > was => longer.max(2 * was).max(32),
            short if was > 64 && 4 * short < was => (2 * short).max(32),
            _ => was,
        };
        assert_eq!(*room, expected, "of {length}, and {was} before");
    }
}

/// A caller with these rules has charged them: its sections come first, and others only if they still count.
pub fn assert_sections(value: &[u8], rules: &[Rule]) {
    let (read, layout) = (StoredValue::read(value).unwrap(), Layout::read(value));
    for (index, section) in read.sections().iter().enumerate() {
        match rules.get(index) {
            Some(rule) => assert!(section.is_of(rule), "{rule}: {section:?}"),
            None => assert!(layout.used[index] > 0, "{section:?}"),
        }
    }
}

/// How long units of a section count, about, at most a minute; that of a bucket depends on the rule that wrote it last.
fn windows_of(section: &Section, rules: &[Rule]) -> Vec<u64> {
    let rule = section.rule(0);
    let Some(refill) = rule.refill() else {
        let window_ms = if rule.in_calendar().is_some() {
            0
        } else {
            ms(rule.window())
        };
        return vec![window_ms.min(A_MINUTE_MS)];
    };
    let limits = rules.iter().filter(|it| section.is_of(it)).map(Rule::limit);
    let windows = limits.map(|it| it * ms(rule.window()) / refill);
    windows.chain([0]).map(|it| it.min(A_MINUTE_MS)).collect()
}
