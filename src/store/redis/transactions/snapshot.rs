//! [`Snapshot`]: the values of some keys at one time. The [engine](crate::store::engine) decides on them in memory, and
//! the changes are written afterwards.

use std::collections::BTreeSet;

use redis::{FromRedisValue, Pipeline, RedisResult, Value};

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
        window::{Section, SlotSet},
    },
    store::{
        Operation,
        engine::{Cells, StoreCells},
        entry::Entry,
        redis::{
            error::{UNREADABLE, store_error},
            key_names::{Names, window_of_slots},
            value::{Counts, read_block, read_slots},
        },
    },
};

/// The names of the keys that some operations use, each once, in their order.
pub(super) fn names_of(names: &Names, operations: &[Operation]) -> Vec<Vec<u8>> {
    let mut all = BTreeSet::new();
    for operation in operations {
        if let Some(check) = operation.check() {
            // A check that enforces no blocks reads and watches no key for them.
            let blocks = check.keys().filter(|_| check.enforces_blocks());
            all.extend(blocks.map(|key| names.name(BLOCKS, key)));
            let charges = check.all_charges().iter();
            all.extend(charges.map(|it| names.of_charge(it.policy(), it.key())));
        }
        if let Operation::Reset { policy, key } = operation {
            all.insert(names.of_charge(policy, key));
        } else if let Some(key) = operation.key() {
            all.extend([BLOCKS, STRIKES].map(|policy| names.name(policy, key)));
        }
    }
    all.into_iter().collect()
}

/// The values of some keys.
pub(super) struct Snapshot<'a> {
    names: &'a Names,
    now_ms: u64,
    /// The names of the keys, in order.
    keys: &'a [Vec<u8>],
    /// The contents of each key, or the reason why it cannot be used.
    stored: Vec<Result<Stored, StoreError>>,
    /// The place of the key of each cell of the operation under way.
    cells: Vec<usize>,
}

/// The contents of a key: a block, or counts or slots.
struct Stored {
    block: Option<HeldBlock>,
    counts: Counts,
    /// A changed key is written once, however many operations change it.
    is_changed: bool,
}

impl<'a> Snapshot<'a> {
    /// The values of these keys at this time.
    pub(super) fn new(
        names: &'a Names,
        now_ms: u64,
        keys: &'a [Vec<u8>],
        values: Vec<RedisResult<Value>>,
    ) -> Self {
        let stored = keys.iter().zip(values);
        let stored = stored.map(|(name, value)| Stored::read(name, value, now_ms));
        Self {
            names,
            now_ms,
            keys,
            stored: stored.collect(),
            cells: Vec::new(),
        }
    }

    /// The commands that write what was changed. Each key lives for this much longer than its value counts.
    pub(super) fn into_changes(self, longer_ms: u64) -> Pipeline {
        let mut cmds = Pipeline::new();
        for (name, stored) in self.keys.iter().zip(self.stored) {
            if let Ok(stored) = stored {
                stored.write(name, self.now_ms, longer_ms, &mut cmds);
            }
        }
        cmds
    }

    fn place(&self, name: &Vec<u8>) -> usize {
        self.keys.binary_search(name).unwrap_or(usize::MAX)
    }

    fn at(&mut self, place: usize) -> Result<&mut Stored, StoreError> {
        let stored = self.stored.get_mut(place).ok_or(UNREADABLE)?;
        stored.as_mut().map_err(|error| error.clone())
    }

    fn block_of(&mut self, key: &Key) -> Result<&mut Stored, StoreError> {
        self.at(self.place(&self.names.name(BLOCKS, key)))
    }

    fn forget_key(&mut self, name: &Vec<u8>) {
        let place = self.place(name);
        if let Some(stored) = self.stored.get_mut(place) {
            *stored = Ok(Stored::of(Counts::nothing(), true));
        }
    }
}

impl Stored {
    const fn of(counts: Counts, is_changed: bool) -> Self {
        Self {
            block: None,
            counts,
            is_changed,
        }
    }

    fn read(name: &[u8], value: RedisResult<Value>, now_ms: u64) -> Result<Self, StoreError> {
        if let Some(window_ms) = window_of_slots(name) {
            let slots = read_slots(window_ms, parsed(value)?)?;
            return Ok(Self::of(Counts::of_slots(slots), false));
        }
        let mut stored = Self::of(Counts::nothing(), false);
        let value: Option<Vec<u8>> = parsed(value)?;
        let is_block = name.ends_with(["}:", BLOCKS].concat().as_bytes());
        match value {
            Some(value) if is_block => stored.block = Some(read_block(&value)?),
            // As for the script, an empty value is none.
            Some(value) if !value.is_empty() => {
                let counts = Counts::read(&value)?;
                // Nothing counts any more when the key expires.
                if counts.expires_ms > now_ms {
                    stored.counts = counts;
                }
            }
            _ => {}
        }
        Ok(stored)
    }

    /// Adds the commands that write what was changed.
    fn write(&self, name: &[u8], now_ms: u64, longer_ms: u64, cmds: &mut Pipeline) {
        if !self.is_changed {
            return;
        }
        // The write is no earlier than the read.
        let ttl_ms = |expires_ms: u64| expires_ms.saturating_sub(now_ms).max(1) + longer_ms;
        let value = match &self.block {
            Some(held) => Some((held.to_bytes(), held.expires_ms())),
            None if window_of_slots(name).is_some() => None,
            None => self.counts.write(),
        };
        if let Some((value, expires_ms)) = value {
            let cmd = cmds.cmd("SET").arg(name).arg(value);
            cmd.arg("PX").arg(ttl_ms(expires_ms));
            return;
        }
        cmds.cmd("DEL").arg(name);
        let sets = self.counts.entry.sections().iter();
        for slots in sets.filter_map(Section::slots).map(SlotSet::slots) {
            if let Some((last_ms, _)) = slots.back() {
                let add = cmds.cmd("ZADD").arg(name);
                for (expiry_ms, id) in slots {
                    add.arg(*expiry_ms).arg(&id.to_bytes());
                }
                cmds.cmd("PEXPIRE").arg(name).arg(ttl_ms(*last_ms));
            }
        }
    }
}

impl Cells for Snapshot<'_> {
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        let now_ms = self.now_ms;
        check.keys().try_fold(None, |latest: Option<Blocked>, key| {
            let block = self.block_of(key)?.block.as_ref().map(|held| held.block);
            let block = block.filter(|block| block.holds(now_ms));
            let blocked = block.map(|block| Blocked::new(key.clone(), block, now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn begin(&mut self, charges: &[Charge]) {
        let names = charges
            .iter()
            .map(|it| self.names.of_charge(it.policy(), it.key()));
        self.cells = names.map(|name| self.place(&name)).collect();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.at(self.cells[cell])?.counts.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        _rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let stored = self.at(self.cells[cell])?;
        change(&mut stored.counts.entry, counts);
        stored.is_changed = true;
        Ok(())
    }
}

impl StoreCells for Snapshot<'_> {
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<Block, StoreError> {
        let now_ms = self.now_ms;
        let stored = self.block_of(key)?;
        let (block, held) = HeldBlock::request(stored.block.as_ref(), request, now_ms);
        if let Some(held) = held {
            stored.block = Some(held);
            stored.is_changed = true;
        }
        Ok(block)
    }

    fn unblock(&mut self, key: &Key) {
        self.forget_key(&self.names.name(BLOCKS, key));
    }

    fn forget(&mut self, policy: &Policy, key: &Key) {
        self.forget_key(&self.names.of_charge(policy, key));
    }
}

/// A value of another type is an error of its key alone.
fn parsed<T: FromRedisValue>(value: RedisResult<Value>) -> Result<T, StoreError> {
    let parsed = value.and_then(|value| Ok(T::from_redis_value(value)?));
    parsed.map_err(|error| store_error(&error).unsent())
}

#[cfg(test)]
mod tests {
    use std::{
        slice,
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
        let mut counts = Counts::nothing();
        counts.entry = Entry::of(vec![Section::Steps(queue)]);
        let (value, _) = counts.write().unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let check = Operation::Check(check);
        let keys = names_of(&names, slice::from_ref(&check));
        let took = |checks| -> Duration {
            let begun = Instant::now();
            let values = vec![Ok(Value::BulkString(value.clone()))];
            let mut snapshot = Snapshot::new(&names, now_ms, &keys, values);
            for _ in 0..checks {
                engine::execute(&check, &mut snapshot).unwrap();
            }
            let used = |entry: &Entry| entry.count(&rule, now_ms).used;
            let charged = snapshot.look(0, used).unwrap();
            assert_eq!(charged, STEPS + checks);
            assert_eq!(snapshot.into_changes(0).len(), 1);
            begun.elapsed()
        };
        let [one, many] = [1, 1_000].map(took);
        assert!(many < 200 * one, "{one:?} {many:?}");
    }
}
