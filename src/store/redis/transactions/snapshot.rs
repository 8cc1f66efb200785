//! The values of some keys at one time, and the commands that write what the [engine](crate::store::engine) has changed.

use redis::{FromRedisValue, Pipeline, RedisResult, Value};

use crate::{
    domain::{
        block::BLOCKS,
        error::StoreError,
        key::Key,
        policy::Policy,
        window::{Section, SlotSet},
    },
    store::{
        engine::{Counts, Kept, Naming, Stored},
        redis::{
            error::{UNREADABLE, store_error},
            key_names::{Names, window_of_slots},
            value::{read_block, read_slots},
        },
    },
};

impl Naming for Names {
    type Name = Vec<u8>;

    fn of_block(&self, key: &Key) -> Vec<u8> {
        self.name(BLOCKS, key)
    }

    fn of_charge(&self, policy: &Policy, key: &Key) -> Vec<u8> {
        let mut name = Vec::new();
        self.write_charge(&mut name, policy, key);
        name
    }
}

/// The values of these keys, which are in order, at this time.
pub(super) fn snapshot<'a>(
    names: &'a Names,
    now_ms: u64,
    keys: &'a [Vec<u8>],
    values: &'a [RedisResult<Value>],
) -> Kept<'a, Names, impl FnMut(&Vec<u8>) -> Result<Stored, StoreError>> {
    Kept::new(names, now_ms, move |name: &Vec<u8>| {
        let place = keys.binary_search(name).map_err(|_| UNREADABLE)?;
        read(name, values.get(place).ok_or(UNREADABLE)?, now_ms)
    })
}

fn read(name: &[u8], value: &RedisResult<Value>, now_ms: u64) -> Result<Stored, StoreError> {
    if let Some(window_ms) = window_of_slots(name) {
        let slots = read_slots(window_ms, parsed(value)?)?;
        return Ok(Stored::of(Counts::of_slots(slots)));
    }
    match parsed::<Option<Vec<u8>>>(value)? {
        Some(value) if name.ends_with(["}:", BLOCKS].concat().as_bytes()) => {
            Ok(Stored::of_block(read_block(&value)?))
        }
        value => Stored::of_bytes(&value.unwrap_or_default(), now_ms).ok_or(UNREADABLE),
    }
}

/// Adds the commands that write a changed value. The key lives for this much longer than its value counts.
pub(super) fn write(
    name: &[u8],
    stored: &Stored,
    now_ms: u64,
    longer_ms: u64,
    cmds: &mut Pipeline,
) {
    // The write is no earlier than the read.
    let ttl_ms = |expires_ms: u64| expires_ms.saturating_sub(now_ms).max(1) + longer_ms;
    let value = match &stored.block {
        Some(held) => Some((held.to_bytes(), held.expires_ms())),
        None if window_of_slots(name).is_some() => None,
        None => stored.counts.write(),
    };
    if let Some((value, expires_ms)) = value {
        let cmd = cmds.cmd("SET").arg(name).arg(value);
        cmd.arg("PX").arg(ttl_ms(expires_ms));
        return;
    }
    cmds.cmd("DEL").arg(name);
    let sets = stored.counts.entry.sections().iter();
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

/// A value of another type is an error of its key alone.
fn parsed<T: FromRedisValue>(value: &RedisResult<Value>) -> Result<T, StoreError> {
    let parsed = match value {
        Ok(value) => T::from_redis_value_ref(value).map_err(Into::into),
        Err(error) => Err(error.clone()),
    };
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
        domain::{
            charge::Charge,
            check::Check,
            operation::Operation,
            window::{Spec, StepQueue},
        },
        store::{
            engine::{self, Cells, names_of},
            entry::Entry,
        },
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
            let values = [Ok(Value::BulkString(value.clone()))];
            let mut snapshot = snapshot(&names, now_ms, &keys, &values);
            for _ in 0..checks {
                engine::execute(&check, &mut snapshot).unwrap();
            }
            let used = |entry: &Entry| entry.count(&rule, now_ms).used;
            let charged = snapshot.look(0, used).unwrap();
            assert_eq!(charged, STEPS + checks);
            assert_eq!(snapshot.into_changes().count(), 1);
            begun.elapsed()
        };
        let [one, many] = [1, 1_000].map(took);
        assert!(many < 200 * one, "{one:?} {many:?}");
    }
}
