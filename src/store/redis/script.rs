//! The script's call and reply: the wire format that the head of `lua/sluicegate.lua` describes.

use std::sync::LazyLock;

use redis::{Arg, Cmd, Script, Value};

use super::names::Names;
use crate::{
    charge::Charge,
    check::Check,
    decision::{Count, Decision, PolicyUsage, Usage},
    error::{StoreError, StoreErrorKind},
    rule::Rule,
    settlement::Settlement,
    window::StepSpec,
};

/// Hashed once.
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

const SOURCE: &str = include_str!("../../../lua/sluicegate.lua");

/// Begins an answer that is long: all that is to be known of one rule after another.
const REFUSED: u8 = 0;
const ADMITTED: u8 = 1;

/// Begins an answer that is brief, since the newest step of each rule is that of the time.
const ADMITTED_NOW: u8 = 2;

/// The sizes of what is told: units, and a time.
const UNITS: usize = 7;
const TIME: usize = 6;

/// What the script is to do with one key.
#[derive(Clone, Copy)]
struct Item<'a> {
    charge: &'a Charge,
    action: Action,
    units: u64,
    /// What was left when the charge was made, if it is to be settled.
    charged: Option<PolicyUsage<'a>>,
}

#[derive(Clone, Copy)]
enum Action {
    Begin = 0,
    Join = 1,
    Add = 2,
    Take = 3,
}

/// The call for several checks, each all or nothing on its own.
pub(super) fn check_call<'a>(
    names: &Names,
    clock: Option<u64>,
    checks: impl IntoIterator<Item = &'a Check, IntoIter: Clone>,
) -> Cmd {
    let items = checks.into_iter().flat_map(|check| {
        check
            .charges()
            .iter()
            .enumerate()
            .map(|(index, charge)| Item {
                charge,
                action: if index == 0 {
                    Action::Begin
                } else {
                    Action::Join
                },
                units: charge.cost(),
                charged: None,
            })
    });
    call(names, clock, items)
}

/// The call for the differences between what was charged and what it finally cost.
pub(super) fn settle_call(names: &Names, clock: Option<u64>, settlement: &Settlement) -> Cmd {
    let charges = settlement.check().charges().iter();
    let charged = charges
        .zip(settlement.usage().policies())
        .zip(settlement.costs());
    let items = charged.map(|((charge, usage), cost)| Item {
        charge,
        action: if *cost < charge.cost() {
            Action::Take
        } else {
            Action::Add
        },
        units: cost.abs_diff(charge.cost()),
        charged: Some(usage),
    });
    call(names, clock, items)
}

/// The call by the script's hash, which a server that has not seen the script answers with `NOSCRIPT`.
fn call<'a>(
    names: &Names,
    clock: Option<u64>,
    items: impl Iterator<Item = Item<'a>> + Clone,
) -> Cmd {
    let mut cmd = Cmd::with_capacity(8, 256);
    let mut buffer = Vec::with_capacity(128);
    cmd.arg("EVALSHA")
        .arg(SCRIPT.get_hash())
        .arg(items.clone().count());
    for Item { charge, .. } in items.clone() {
        buffer.clear();
        names.write(&mut buffer, charge.policy().name(), charge.key());
        cmd.arg(&buffer[..]);
    }
    for item in items {
        buffer.clear();
        item.write(&mut buffer);
        cmd.arg(&buffer[..]);
    }
    if let Some(now_ms) = clock {
        cmd.arg(now_ms);
    }
    cmd
}

/// The same call with the script itself, for the same keys and so the same node.
pub(super) fn with_source(call: &Cmd) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(SOURCE);
    for arg in call.args_iter().skip(2) {
        if let Arg::Simple(arg) = arg {
            cmd.arg(arg);
        }
    }
    cmd
}

impl Item<'_> {
    fn write(&self, buffer: &mut Vec<u8>) {
        let rules = self.charge.policy().rules();
        let count = u8::try_from(rules.len()).unwrap_or(u8::MAX); // a policy has at most 16
        buffer.push(self.action as u8);
        buffer.extend_from_slice(&self.units.to_le_bytes()[..7]);
        buffer.push(count);
        for (index, rule) in rules.iter().enumerate() {
            let limit = self
                .charged
                .map_or(rule.limit(), |usage| usage.rules()[index].step_end_ms());
            buffer.extend_from_slice(&limit.to_le_bytes()[..7]);
        }
        for spec in rules.iter().map(StepSpec::of) {
            buffer.extend_from_slice(&spec.step_ms.to_le_bytes()[..6]);
            buffer.extend_from_slice(&spec.retention_ms.to_le_bytes()[..6]);
        }
    }
}

/// Reads the reply to several checks.
pub(super) fn decisions(checks: &[Check], reply: &Value) -> Result<Vec<Decision>, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let decisions = checks.iter().map(|check| {
        let (admitted, counts) = counts(check, now_ms, &mut rest)?;
        Decision::new(check, admitted, now_ms, &counts)
    });
    decisions.collect()
}

/// Reads the reply to one check.
pub(super) fn decision(check: &Check, reply: &Value) -> Result<Decision, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let (admitted, counts) = counts(check, now_ms, &mut rest)?;
    Decision::new(check, admitted, now_ms, &counts)
}

/// Reads the reply to a settlement.
pub(super) fn usage(settlement: &Settlement, reply: &Value) -> Result<Usage, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let (_, counts) = counts(settlement.check(), now_ms, &mut rest)?;
    Usage::settled(settlement.check(), now_ms, &counts)
}

fn bytes(reply: &Value) -> Result<&[u8], StoreError> {
    match reply {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(garbled()),
    }
}

fn split(reply: &[u8]) -> Result<(u64, &[u8]), StoreError> {
    let (now, rest) = reply.split_at_checked(6).ok_or_else(garbled)?;
    Ok((number(now), rest))
}

/// Reads one check: whether it was admitted, and the count under each of its rules.
fn counts(check: &Check, now_ms: u64, rest: &mut &[u8]) -> Result<(bool, Vec<Count>), StoreError> {
    let rules = check
        .charges()
        .iter()
        .map(|charge| charge.policy().rules().len())
        .sum();
    let mut counts = Vec::with_capacity(rules);
    let mut admitted = true;
    for charge in check.charges() {
        let rules = charge.policy().rules();
        let (flag, behind) = rest.split_first().ok_or_else(garbled)?;
        let length = match *flag {
            REFUSED | ADMITTED => rules.len() * (UNITS + 2 * TIME),
            ADMITTED_NOW => 1 + rules.len() * UNITS,
            _ => return Err(garbled()),
        };
        let (answer, behind) = behind.split_at_checked(length).ok_or_else(garbled)?;
        let answer = Answer {
            now_ms,
            flag: *flag,
            bytes: answer,
        };
        counts.extend((0..rules.len()).map(|index| answer.count(&rules[index], index)));
        admitted = matches!(*flag, ADMITTED | ADMITTED_NOW);
        *rest = behind;
    }
    Ok((admitted, counts))
}

/// What is told of one charge, as long as its flag says.
struct Answer<'a> {
    now_ms: u64,
    flag: u8,
    bytes: &'a [u8],
}

impl Answer<'_> {
    fn count(&self, rule: &Rule, index: usize) -> Count {
        let (used_at, newest_end_ms, fits_at_ms) = if self.flag == ADMITTED_NOW {
            (1 + index * UNITS, 0, 0)
        } else {
            let at = index * (UNITS + 2 * TIME);
            let time = |at: usize| number(&self.bytes[at..at + TIME]);
            (at, time(at + UNITS), time(at + UNITS + TIME))
        };
        Count {
            used: number(&self.bytes[used_at..used_at + UNITS]),
            newest_end_ms: match newest_end_ms {
                0 => StepSpec::of(rule).step_end(self.now_ms),
                end => end,
            },
            fits_at_ms,
        }
    }
}

/// A whole number of up to eight bytes, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn garbled() -> StoreError {
    StoreError::new(
        StoreErrorKind::Protocol,
        "the script's reply cannot be read",
    )
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{key::Key, policy::Policy};

    fn check() -> Check {
        let policies = ["1/1s,2/1m", "3/1d@fixed"].map(|rules| Policy::parse("p", rules).unwrap());
        let keys = ["alice", "bob"].map(|user| Key::new("user", user));
        let charges = policies.iter().zip(keys);
        Check::new(charges.map(|(policy, key)| Charge::new(policy, key, 1))).unwrap()
    }

    #[test]
    fn a_reply_that_is_no_text_or_too_short_is_an_error() {
        let whole = 6 + 2 + 3 * (UNITS + 2 * TIME);
        let reply = |length| Value::BulkString(vec![1; length]);
        assert!(decision(&check(), &reply(whole)).is_ok());
        let short = (0..whole).map(reply);
        for reply in short.chain([Value::Nil, Value::Int(1), Value::Array(vec![])]) {
            let error = decision(&check(), &reply).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
        }
    }

    proptest! {
        #[test]
        fn no_reply_panics(refused: bool, mut reply in vec(any::<u8>(), 0..300)) {
            if refused {
                // Zeros where a refusal has them, so that the times of a refusal are read.
                for at in [6, 7 + 2 * (UNITS + 2 * TIME)] {
                    if let Some(flag) = reply.get_mut(at) {
                        *flag = 0;
                    }
                }
            }
            let admitted = decision(&check(), &Value::BulkString(vec![1; 200])).unwrap();
            let settlement = Settlement::new(admitted.usage(), [1, 2]).unwrap();
            let reply = Value::BulkString(reply);
            let _ = decisions(&[check(), check()], &reply);
            let _ = decision(&check(), &reply);
            let _ = usage(&settlement, &reply);
        }
    }
}
