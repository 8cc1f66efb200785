//! Compares the values that the script has stored after each step of a history.

use std::collections::HashMap;

use sluicegate::store::redis::inspect::{Inspector, Section, StoredValue, decide};

use super::{
    history::{History, Player, key_of, move_clock},
    model::Model,
    outcome::ms,
    prelude::*,
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
                    let read = steps.iter().map(|it| (it.release_ms, it.units.into()));
                    let read: Vec<(u64, u128)> = read.collect();
                    let right = model.counting(now_ms, policy, key, rule_index);
                    assert_eq!(read, right, "step {index} at {now_ms}: {step:?}: {rule}");
                    let used = section.map_or(0, |section| section.used(now_ms));
                    let right = model.used(now_ms, policy, key, rule_index);
                    assert_eq!(u128::from(used), right);
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
        let outcome = players.0.play(&step.act).await;
        assert_eq!(outcome, players.1.play(&step.act).await);
        for policy in history.policies.iter().flatten() {
            for key in 0..KEYS {
                let value = value(&inspector, policy.name(), key).await;
                if let Some(value) = &value {
                    for section in value.sections() {
                        let latest = section.newest_end_ms() + FOR_EVER_MS;
                        let release = section.reset_at_ms(now_ms).min(latest);
                        let slack = value.expires_ms().checked_sub(release);
                        assert!(slack.is_some(), "step {index} at {now_ms}: {release}");
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
                    let (said, right) = (Outcome::from(&said), Outcome::from(&right));
                    let what = format!("step {index} at {now_ms}: {policy} for {cost}");
                    assert_eq!(said, right, "{what}: {step:?}");
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

const A_SECOND_MS: u64 = 1_000;
const A_MINUTE_MS: u64 = 60_000;

/// The numbers of a value, and of each section the size of its entries and how many units are used, by label.
struct Layout {
    mark: u64,
    since_ms: u64,
    /// Of the first section, and of all others.
    dues_ms: [u64; 2],
    used: Vec<u64>,
    newest_ms: Vec<u64>,
    expires_ms: u64,
    sizes: HashMap<Vec<u8>, (usize, u64)>,
}

impl Layout {
    fn read(value: &[u8]) -> Self {
        let count = usize::from(value[value.len() - 2]);
        let mut at = 0;
        let mut number = |size: usize| {
            at += size;
            let bytes = value[at - size..at].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let [mark, since_ms, due_ms, others_ms, expires_ms, first_ms] = [6; 6].map(&mut number);
        number(7);
        let used: Vec<u64> = (0..count).map(|_| number(7)).collect();
        let (mut newest_ms, mut sizes) = (Vec::new(), HashMap::new());
        let labels = value[value.len() - 2 - 16 * count..].chunks(16).take(count);
        for (place, (label, used)) in labels.zip(&used).enumerate() {
            newest_ms.push(if place == 0 { first_ms } else { number(6) });
            if place > 0 {
                number(7);
            }
            let part = |at: usize, size: usize| {
                let bytes = label[at..at + size].iter().rev();
                bytes.fold(0, |number, byte| number << 8 | usize::from(*byte))
            };
            let (length, places) = (part(12, 4), part(6, 6).div_ceil(part(0, 6).max(1)));
            let first_byte = usize::try_from(number(usize::from(length > 0))).unwrap();
            number(length.saturating_sub(1));
            if length > 0 {
                let is_narrow = places <= 256;
                let size = if is_narrow {
                    length / places
                } else {
                    first_byte
                };
                sizes.insert(label[..12].to_vec(), (size, *used));
            }
        }
        Self {
            mark,
            since_ms,
            dues_ms: [due_ms, others_ms],
            used,
            newest_ms,
            expires_ms,
            sizes,
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
    fn of(section: &Section, used: u64, newest_ms: u64, now_ms: u64) -> Self {
        let rule = section.rule(0);
        if let Some(refill) = rule.refill() {
            return Self {
                start_ms: newest_ms,
                due_ms: 0,
                release_ms: newest_ms + used.div_ceil(refill).min(FOR_EVER_MS),
            };
        }
        assert_eq!(newest_ms, section.newest_end_ms());
        if rule.in_calendar().is_some() {
            return Self {
                start_ms: 0,
                due_ms: newest_ms,
                release_ms: newest_ms,
            };
        }
        let release_ms = section.steps(now_ms).last().unwrap().release_ms;
        let start_ms = newest_ms - ms(rule.step());
        // Within the newest step, the units of another are released so long after the start.
        let within_ms = start_ms + (release_ms - newest_ms) % ms(rule.step());
        let is_ahead = within_ms > now_ms.max(start_ms);
        Self {
            start_ms,
            due_ms: if is_ahead { within_ms } else { newest_ms },
            release_ms,
        }
    }
}

/// The script has written a value at this time: then all times in it follow from the counts, as the README of the
/// script says. With the value before the operation, so does the expiry.
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
    let (mut since_ms, mut dues_ms, mut release_ms, mut windows) =
        (0, [FOR_EVER_MS; 2], 0, Vec::new());
    for (index, section) in read.sections().iter().enumerate() {
        let (used, newest_ms) = (layout.used[index], layout.newest_ms[index]);
        let due_ms = &mut dues_ms[index.min(1)];
        if used == 0 {
            *due_ms = 0;
            continue;
        }
        // The caller alone believes too late a time: of a bucket by its limit, of the calendar by its periods.
        let rule = section.rule(0);
        let may_be_ahead = rule.refill().is_some() || rule.in_calendar().is_some();
        let is_ahead = may_be_ahead && newest_ms > now_ms;
        let counts = is_ahead || section.used(now_ms) > 0;
        assert!(counts, "no longer at {now_ms}: {section:?}");
        let times = Times::of(section, used, newest_ms, now_ms);
        *due_ms = times.due_ms.min(*due_ms);
        since_ms = times.start_ms.max(since_ms);
        if times.release_ms > release_ms {
            (release_ms, windows) = (times.release_ms, windows_of(section, rules));
        }
    }
    assert_eq!(layout.since_ms, since_ms);
    assert_eq!(layout.dues_ms, dues_ms);
    let size = if layout.mark % 2 == 0 { 2 } else { 7 };
    assert!(layout.mark == 0 || layout.sizes.values().all(|it| it.0 == size));
    for (size, used) in layout.sizes.values() {
        let fits = *size == 7 || *size == 2 && *used < 1 << 16;
        assert!(fits, "{size}: {used}");
    }
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
    let is_right = expiries.contains(&layout.expires_ms);
    assert!(is_right, "{slack_ms}: {expiries:?}");
}

/// The script has written a value in the place of this one: entries are wide only if they have to be, or were.
pub fn assert_sizes(value: &[u8], before: Option<&[u8]>) {
    let before = before.map(Layout::read);
    let layout = Layout::read(value);
    let may_be_wide = layout.used.iter().any(|used| *used >= 1 << 16);
    for (label, (size, used)) in &layout.sizes {
        let was = before.as_ref().and_then(|it| it.sizes.get(label));
        let was_wide = was.is_some_and(|(size, _)| *size == 7);
        assert!(*size == 2 || may_be_wide || was_wide, "{used}");
    }
}

/// A caller with these rules has charged them: its sections come first, and others only if they still count.
pub fn assert_sections(value: &[u8], rules: &[Rule]) {
    let (read, layout) = (StoredValue::read(value).unwrap(), Layout::read(value));
    assert_eq!(layout.mark == 0, layout.used.len() > rules.len());
    for (index, section) in read.sections().iter().enumerate() {
        match rules.get(index) {
            Some(rule) => assert!(section.is_of(rule), "{rule}: {section:?}"),
            None => assert!(layout.used[index] > 0, "{section:?}"),
        }
    }
}

/// How long units count, about, and a second, at most a minute; that of a bucket depends on the rule that wrote it last.
fn windows_of(section: &Section, rules: &[Rule]) -> Vec<u64> {
    let rule = section.rule(0);
    let slack_ms = |window_ms: u64| (window_ms + A_SECOND_MS).min(A_MINUTE_MS);
    let Some(refill) = rule.refill() else {
        let of_steps_ms = rule.in_calendar().is_none().then(|| ms(rule.window()));
        return vec![slack_ms(of_steps_ms.unwrap_or(A_MINUTE_MS))];
    };
    let limits = rules.iter().filter(|it| section.is_of(it)).map(Rule::limit);
    let windows = limits.map(|it| it * ms(rule.window()) / refill);
    windows.chain([0]).map(slack_ms).collect()
}
