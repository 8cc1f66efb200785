//! [`Snapshot`]: the values of some keys at one time. The [engine](crate::store::engine) decides on them in memory, and
//! the changes are written afterwards.

use std::collections::{BTreeSet, HashMap};

use crate::{
    domain::{
        block::{BLOCKS, Block, BlockRequest, HeldBlock, STRIKES},
        charge::Charge,
        check::Check,
        decision::{Blocked, Count},
        error::StoreError,
        key::Key,
        policy::Policy,
        rule::Rule,
        slots::SlotId,
        window::{Section, SlotSet},
    },
    store::{
        Operation,
        engine::{Cells, StoreCells},
        entry::Entry,
        redis::{
            error::UNREADABLE,
            key_names::{Names, window_of_slots},
            value::{Counts, read_block, read_slots, write_block},
        },
    },
};

/// The values of some keys, by name: each `None` for no value, or the reason why a value cannot be used.
pub(super) struct Snapshot<'a> {
    names: &'a Names,
    now_ms: u64,
    blocks: HashMap<Vec<u8>, Result<Option<HeldBlock>, StoreError>>,
    counts: HashMap<Vec<u8>, Result<Counts, StoreError>>,
    /// The names of the cells of the operation under way.
    cells: Vec<Vec<u8>>,
    /// The changed counts by name, each with the rules of the last operation that changed them. They are written once,
    /// however many operations change them.
    changed: HashMap<Vec<u8>, Vec<Rule>>,
    /// The slots that were read, by name.
    slots: HashMap<Vec<u8>, Vec<(u64, SlotId)>>,
    /// The changes of blocks.
    changes: Changes,
}

/// The changes of keys by name.
pub(super) type Changes = HashMap<Vec<u8>, Change>;

pub(super) enum Change {
    /// A new value, and when it expires, in ms.
    Set(Vec<u8>, u64),
    Delete,
    /// Slots that are gone, and slots with a new expiry.
    Slots {
        gone: Vec<SlotId>,
        held: Vec<(u64, SlotId)>,
    },
}

/// What is stored under a name.
pub(super) enum Stored {
    Value(Option<Vec<u8>>),
    /// The members of a sorted set, with their scores.
    Slots(Vec<(Vec<u8>, f64)>),
}

/// The names of the keys that some operations use, each once.
pub(super) fn names_of<'a>(
    names: &Names,
    operations: impl Iterator<Item = &'a Operation>,
) -> Vec<Vec<u8>> {
    let mut all = BTreeSet::new();
    for operation in operations {
        let decides = matches!(operation, Operation::Check(_) | Operation::CheckBatch(_));
        if let Some(check) = operation.check() {
            // A check that enforces no blocks reads and watches no key for them.
            for key in check.keys().filter(|_| decides && check.enforces_blocks()) {
                all.insert(names.name(BLOCKS, key));
            }
            let charges = if decides {
                check.all_charges()
            } else {
                check.charges()
            };
            all.extend(
                charges
                    .iter()
                    .map(|it| names.of_charge(it.policy(), it.key())),
            );
        }
        match (operation, operation.key()) {
            (Operation::Reset { policy, key }, _) => {
                all.insert(names.of_charge(policy, key));
            }
            (_, Some(key)) => {
                all.insert(names.name(BLOCKS, key));
                all.insert(names.name(STRIKES, key));
            }
            (_, None) => {}
        }
    }
    all.into_iter().collect()
}

impl<'a> Snapshot<'a> {
    /// The values of these keys at this time.
    pub(super) fn new(
        names: &'a Names,
        now_ms: u64,
        keys: &[Vec<u8>],
        values: Vec<Result<Stored, StoreError>>,
    ) -> Self {
        let mut snapshot = Self {
            names,
            now_ms,
            blocks: HashMap::new(),
            counts: HashMap::new(),
            cells: Vec::new(),
            changed: HashMap::new(),
            slots: HashMap::new(),
            changes: Changes::new(),
        };
        let of_block = ["}:", BLOCKS].concat();
        for (name, value) in keys.iter().cloned().zip(values) {
            let value = match value {
                Ok(Stored::Slots(members)) => {
                    snapshot.add_slots(name, members);
                    continue;
                }
                Ok(Stored::Value(value)) => Ok(value),
                Err(error) => Err(error),
            };
            if name.ends_with(of_block.as_bytes()) {
                snapshot
                    .blocks
                    .insert(name, value.and_then(|value| block(value.as_deref())));
            } else {
                let counts = value.and_then(|value| counts_at(now_ms, value.as_deref()));
                snapshot.counts.insert(name, counts);
            }
        }
        snapshot
    }

    fn add_slots(&mut self, name: Vec<u8>, members: Vec<(Vec<u8>, f64)>) {
        let window_ms = window_of_slots(&name).unwrap_or(0);
        let slots = read_slots(window_ms, members);
        if let Ok(slots) = &slots {
            self.slots.insert(name.clone(), slots.slots().to_vec());
        }
        let counts = slots.map(Counts::of_slots).map_err(StoreError::from);
        self.counts.insert(name, counts);
    }

    pub(super) fn into_changes(mut self) -> Changes {
        for (name, rules) in self.changed {
            let Some(Ok(counts)) = self.counts.get_mut(&name) else {
                continue;
            };
            let change = match self.slots.remove(&name) {
                Some(before) => slots_changed(&before, &counts.entry),
                None => match counts.write(rules.into_iter(), self.now_ms) {
                    Some(value) => Change::Set(value, counts.expires_ms),
                    None => Change::Delete,
                },
            };
            self.changes.insert(name, change);
        }
        self.changes
    }

    /// The block of an identity, which may have ended.
    fn held_block(&self, key: &Key) -> Result<Option<&HeldBlock>, StoreError> {
        match self.blocks.get(&self.names.name(BLOCKS, key)) {
            Some(Ok(held)) => Ok(held.as_ref()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(UNREADABLE),
        }
    }

    fn counts(&mut self, cell: usize) -> Result<&mut Counts, StoreError> {
        match self.counts.get_mut(&self.cells[cell]) {
            Some(counts) => counts.as_mut().map_err(|error| error.clone()),
            None => Err(UNREADABLE),
        }
    }
}

impl Cells for Snapshot<'_> {
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        check.keys().try_fold(None, |latest: Option<Blocked>, key| {
            let block = self.held_block(key)?.map(|held| held.block);
            let block = block.filter(|block| block.holds(self.now_ms));
            let blocked = block.map(|block| Blocked::new(key.clone(), block, self.now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn begin(&mut self, charges: &[Charge]) {
        let names = self.names;
        let name = |charge: &Charge| names.of_charge(charge.policy(), charge.key());
        self.cells = charges.iter().map(name).collect();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.counts(cell)?.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        change(&mut self.counts(cell)?.entry, counts);
        let name = self.cells[cell].clone();
        self.changed.insert(name, rules.collect());
        Ok(())
    }
}

impl StoreCells for Snapshot<'_> {
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<Block, StoreError> {
        let known = self.held_block(key)?;
        let (block, held) = HeldBlock::request(known, request, self.now_ms);
        if let Some(held) = held {
            let name = self.names.name(BLOCKS, key);
            let change = Change::Set(write_block(&held), held.expires_ms());
            self.changes.insert(name.clone(), change);
            self.blocks.insert(name, Ok(Some(held)));
        }
        Ok(block)
    }

    fn unblock(&mut self, key: &Key) {
        let name = self.names.name(BLOCKS, key);
        if !matches!(self.blocks.get(&name), Some(Ok(None))) {
            self.blocks.insert(name.clone(), Ok(None));
            self.changes.insert(name, Change::Delete);
        }
    }

    fn forget(&mut self, policy: &Policy, key: &Key) {
        let name = self.names.of_charge(policy, key);
        if let Some(window_ms) = window_of_slots(&name) {
            let nothing = Counts::of_slots(SlotSet::of(window_ms, Vec::new()));
            self.counts.insert(name.clone(), Ok(nothing));
            self.changed.insert(name, Vec::new());
            return;
        }
        // Without a key there is nothing to delete.
        let is_no_key = |counts: &Counts| counts.expires_ms == 0 && counts.entry.is_empty();
        if !matches!(self.counts.get(&name), Some(Ok(counts)) if is_no_key(counts)) {
            self.counts.insert(name.clone(), Ok(Counts::nothing(0)));
            self.changed.insert(name, Vec::new());
        }
    }
}

fn slots_changed(before: &[(u64, SlotId)], entry: &Entry) -> Change {
    let sets = entry.sections().iter().filter_map(Section::slots);
    let now: Vec<_> = sets.flat_map(|slots| slots.slots()).copied().collect();
    let is_gone = |slot: &&(u64, SlotId)| now.iter().all(|it| it.1 != slot.1);
    Change::Slots {
        gone: before.iter().filter(is_gone).map(|slot| slot.1).collect(),
        held: now
            .iter()
            .filter(|slot| !before.contains(slot))
            .copied()
            .collect(),
    }
}

fn block(value: Option<&[u8]>) -> Result<Option<HeldBlock>, StoreError> {
    Ok(value.map(read_block).transpose()?)
}

/// The counts of a key, of which nothing counts any more when the key expires.
fn counts_at(now_ms: u64, value: Option<&[u8]>) -> Result<Counts, StoreError> {
    // As for the script, an empty value is none.
    let value = value.filter(|value| !value.is_empty());
    let counts = value.map(Counts::read).transpose()?;
    let counts = counts.unwrap_or_else(|| Counts::nothing(0));
    if counts.expires_ms > now_ms {
        return Ok(counts);
    }
    Ok(Counts::nothing(counts.expires_ms))
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        domain::window::{Spec, StepQueue},
        store::engine,
    };

    #[test]
    fn many_checks_of_a_key_with_many_steps_write_it_once() {
        const STEPS: u64 = 10_000;
        let (names, now_ms) = (Names::new("p"), 1_700_000_000_000);
        let policy = Policy::parse("api", "1000000/1m@exact").unwrap();
        let rule = policy.rules()[0];
        let Spec::Steps(spec) = Spec::of(&rule) else {
            unreachable!()
        };
        let queue = StepQueue::from_steps(spec, (1..=STEPS).map(|step| (now_ms - STEPS + step, 1)));
        let mut counts = Counts::nothing(0);
        counts.entry = Entry::of(vec![Section::Steps(queue)]);
        let value = counts.write(iter::once(rule), now_ms).unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let check = Operation::Check(check);
        let keys = names_of(&names, iter::once(&check));
        let took = |checks| -> Duration {
            let begun = Instant::now();
            let values = vec![Ok(Stored::Value(Some(value.clone())))];
            let mut snapshot = Snapshot::new(&names, now_ms, &keys, values);
            for _ in 0..checks {
                engine::execute(&check, &mut snapshot).unwrap();
            }
            let changes = snapshot.into_changes();
            let Change::Set(written, _) = &changes[&keys[0]] else {
                panic!("it is written");
            };
            let written = Counts::read(written).unwrap();
            let charged = written.entry.count(&rule, now_ms).used;
            assert_eq!(charged, STEPS + checks);
            begun.elapsed()
        };
        let [one, many] = [1, 1_000].map(took);
        assert!(many < 20 * one, "{one:?} {many:?}");
    }
}
