//! The script's call and reply: the wire format that `lua/README.md` describes.

use std::sync::LazyLock;

use redis::{Cmd, Script, Value};

use super::names::Names;
use crate::{
    charge::Charge,
    check::Check,
    decision::{Count, Decision, Usage},
    error::{StoreError, StoreErrorKind},
    operation::{Operation, Reply},
    policy::Policy,
    rule::Rule,
    settlement::Settlement,
    window::StepSpec,
};

/// Hashed once.
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

/// The files of `lua/`, joined.
const SOURCE: &str = include!("../../../lua/source.rs");

/// Of the call, and of the stored value, in which it stands behind the labels of the rules.
const VERSION: u8 = 1;

/// What the script is to do with a key; [`JOINED`] is added where it belongs to the operation of the key before it.
const CHECK: u8 = 0;
const SHADOW: u8 = 1;
const ADD: u8 = 2;
const TAKE: u8 = 3;
const RESET: u8 = 4;
const JOINED: u8 = 8;

/// How the reply to an operation begins.
const FAILED: u8 = 0;
const DONE: u8 = 1;
const NOT_ASKED: u8 = 2;

/// How the counts of a key begin: those of rules whose newest step is that of the time are told in brief.
const LONG: u8 = 1;
const BRIEF: u8 = 2;

/// Why an operation failed.
const WRONG_TYPE: u8 = 1;
const OTHER_VERSION: u8 = 3;

/// A call of the script: its keys, and what to do with each.
#[derive(Debug, Default)]
pub(super) struct Call {
    keys: Strings,
    /// The head, then one for each key.
    args: Strings,
}

/// Byte strings in one buffer.
#[derive(Debug, Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |end| &self.bytes[std::mem::replace(&mut start, *end)..*end])
    }
}

impl Call {
    /// `clock` is the time where it is not the server's clock that counts.
    pub(super) fn new<'a>(
        names: &Names,
        clock: Option<u64>,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        let mut call = Self::default();
        call.args.bytes.push(VERSION);
        if let Some(now_ms) = clock {
            push_number(&mut call.args.bytes, now_ms, 6);
        }
        call.args.end();
        for operation in operations {
            match operation {
                Operation::Check(check) => call.push_check(names, check, 1),
                Operation::Fill { check, count } => call.push_check(names, check, *count),
                Operation::Settle(settlement) => call.push_settlement(names, settlement),
                Operation::Reset { policy, key } => {
                    names.write(&mut call.keys.bytes, policy.name(), key);
                    call.keys.end();
                    call.push_task(RESET, 0, 0, policy, std::iter::empty());
                }
            }
        }
        call
    }

    /// The key that says where the call belongs in a cluster; `None` when there is nothing to send.
    pub(super) fn routing_key(&self) -> Option<&[u8]> {
        self.keys.iter().next()
    }

    /// The call by the script's hash, which a server that has not seen the script answers with `NOSCRIPT`.
    pub(super) fn by_hash(&self) -> Cmd {
        self.cmd("EVALSHA", SCRIPT.get_hash())
    }

    /// The same call with the script itself.
    pub(super) fn by_source(&self) -> Cmd {
        self.cmd("EVAL", SOURCE)
    }

    fn cmd(&self, name: &str, script: &str) -> Cmd {
        let length = script.len() + self.keys.bytes.len() + self.args.bytes.len() + 16;
        let count = self.keys.ends.len();
        let mut cmd = Cmd::with_capacity(4 + 2 * count, length);
        cmd.arg(name).arg(script).arg(count);
        for string in self.keys.iter().chain(self.args.iter()) {
            cmd.arg(string);
        }
        cmd
    }

    fn push_check(&mut self, names: &Names, check: &Check, count: u16) {
        // Shadows follow a check; where none counts, they are one.
        let shadow = if check.charges().is_empty() {
            CHECK
        } else {
            SHADOW
        };
        for (action, charges) in [(CHECK, check.charges()), (shadow, check.shadow_charges())] {
            for (place, charge) in charges.iter().enumerate() {
                self.push_key(names, charge);
                let rules = charge.policy().rules().iter();
                let limits = rules.map(Rule::limit);
                let action = action + joined(place);
                self.push_task(action, count, charge.cost(), charge.policy(), limits);
            }
        }
    }

    fn push_settlement(&mut self, names: &Names, settlement: &Settlement) {
        let charges = settlement.check().charges().iter().enumerate();
        let charged = settlement.usage().policies().zip(settlement.costs());
        for ((place, charge), (usage, cost)) in charges.zip(charged) {
            self.push_key(names, charge);
            let action = if *cost < charge.cost() { TAKE } else { ADD } + joined(place);
            let units = cost.abs_diff(charge.cost());
            let steps = usage.rules().iter().map(|rule| rule.step_end_ms());
            self.push_task(action, 1, units, charge.policy(), steps);
        }
    }

    fn push_key(&mut self, names: &Names, charge: &Charge) {
        names.write(&mut self.keys.bytes, charge.policy().name(), charge.key());
        self.keys.end();
    }

    /// `limits` are the ends of the charged steps in a settlement, and none in a reset.
    fn push_task(
        &mut self,
        action: u8,
        count: u16,
        units: u64,
        policy: &Policy,
        limits: impl Iterator<Item = u64>,
    ) {
        let arg = &mut self.args.bytes;
        arg.push(action);
        push_number(arg, count.into(), 4);
        push_number(arg, units, 7);
        let rules_at = arg.len();
        arg.push(0);
        for limit in limits {
            arg[rules_at] += 1; // a policy has at most 16
            push_number(arg, limit, 7);
        }
        let rules = usize::from(arg[rules_at]);
        for spec in policy.rules()[..rules].iter().map(StepSpec::of) {
            push_number(arg, spec.step_ms, 6);
            push_number(arg, spec.retention_ms, 6);
        }
        arg.push(VERSION);
        self.args.end();
    }
}

fn joined(place: usize) -> u8 {
    if place == 0 { 0 } else { JOINED }
}

/// The lowest byte first.
fn push_number(bytes: &mut Vec<u8>, number: u64, size: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..size]);
}

/// The reply to a call that was not sent, since it has no keys.
pub(super) fn no_reply() -> Value {
    Value::BulkString(vec![0; 6])
}

/// Reads the reply to these operations: one result for each, whatever the bytes are.
pub(super) fn replies(operations: &[Operation], reply: &Value) -> Vec<Result<Reply, StoreError>> {
    let bytes = match reply {
        Value::BulkString(bytes) => &bytes[..],
        _ => &[],
    };
    let mut reader = Reader { now_ms: 0, bytes };
    // A time that is missing leaves nothing to read for the operations either.
    reader.now_ms = reader.number(6).unwrap_or_default();
    operations.iter().map(|it| reader.reply(it)).collect()
}

/// What has not been read yet. Nothing is, after an error.
struct Reader<'a> {
    now_ms: u64,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn reply(&mut self, operation: &Operation) -> Result<Reply, StoreError> {
        match operation {
            Operation::Check(check) => {
                let now_ms = self.now_ms;
                let (decision, shadow) = self.decide(check, 1, |check, _, admitted, counts| {
                    Decision::new(check, admitted == 1, now_ms, counts)
                })?;
                Ok(Reply::Check(match shadow {
                    Some(shadow) => decision.with_shadow(shadow),
                    None => decision,
                }))
            }
            Operation::Fill { check, count } => {
                let now_ms = self.now_ms;
                let (mut decisions, shadows) =
                    self.decide(check, *count, |check, count, admitted, counts| {
                        Decision::fill(check, count, admitted, now_ms, counts)
                    })?;
                for (decision, shadow) in decisions.iter_mut().zip(shadows.into_iter().flatten()) {
                    *decision = decision.clone().with_shadow(shadow);
                }
                Ok(Reply::Fill(decisions))
            }
            Operation::Settle(settlement) => {
                let check = settlement.check().without_shadows();
                if !check.charges().is_empty() {
                    self.done()?;
                }
                let counts = self.counts(&check)?;
                Usage::settled(&check, self.now_ms, &counts).map(Reply::Settle)
            }
            Operation::Reset { .. } => self.done().map(|()| Reply::Reset),
        }
    }

    /// Reads a check or a fill, and its shadows: a fill of as many as were admitted. What went wrong with these is dropped.
    ///
    /// `tell` is given how many checks there were, and how many were admitted.
    fn decide<T>(
        &mut self,
        check: &Check,
        count: u16,
        tell: impl Fn(&Check, u16, u16, &[Count]) -> Result<T, StoreError>,
    ) -> Result<(T, Option<T>), StoreError> {
        let shadows = check.shadow_check();
        let decided = self.fill(check, count);
        let shadows = shadows.map(|it| {
            let asked = decided.as_ref().map_or(0, |(admitted, _)| *admitted);
            (self.fill(&it, asked), it)
        });
        let (admitted, counts) = decided?;
        let shadow = match shadows {
            Some((Ok((shadow_admitted, counts)), shadows)) if admitted > 0 => {
                tell(&shadows, admitted, shadow_admitted, &counts).ok()
            }
            _ => None,
        };
        Ok((tell(check, count, admitted, &counts)?, shadow))
    }

    /// Reads how many checks of a fill were admitted, and the counts after them.
    fn fill(&mut self, check: &Check, count: u16) -> Result<(u16, Vec<Count>), StoreError> {
        if check.charges().is_empty() {
            return Ok((count, Vec::new()));
        }
        if let [NOT_ASKED, rest @ ..] = self.bytes {
            self.bytes = rest;
            return Ok((0, vec![Count::default(); check.rule_count()]));
        }
        self.done()?;
        let admitted = self.number(4)?;
        let counts = self.counts(check)?;
        let admitted = u16::try_from(admitted).map_err(|_| self.garbled())?;
        Ok((admitted, counts))
    }

    /// Reads that an operation was done, or why not.
    fn done(&mut self) -> Result<(), StoreError> {
        match self.byte()? {
            DONE => Ok(()),
            FAILED => Err(failure(self.byte()?)),
            _ => Err(self.garbled()),
        }
    }

    /// Reads the count under each rule of each charge that counts.
    fn counts(&mut self, check: &Check) -> Result<Vec<Count>, StoreError> {
        let mut counts = Vec::with_capacity(check.rule_count());
        for charge in check.charges() {
            let is_brief = match self.byte()? {
                LONG => false,
                BRIEF => self.byte().map(|_rules_in_the_value| true)?,
                _ => return Err(self.garbled()),
            };
            for rule in charge.policy().rules() {
                let used = self.number(7)?;
                let (newest_end_ms, fits_at_ms) = if is_brief {
                    (StepSpec::of(rule).step_end(self.now_ms), 0)
                } else {
                    (self.number(6)?, self.number(6)?)
                };
                counts.push(Count {
                    used,
                    newest_end_ms,
                    fits_at_ms,
                });
            }
        }
        Ok(counts)
    }

    fn byte(&mut self) -> Result<u8, StoreError> {
        Ok(self.number(1)?.to_le_bytes()[0])
    }

    /// A whole number of up to eight bytes, the lowest first.
    fn number(&mut self, size: usize) -> Result<u64, StoreError> {
        let Some((bytes, rest)) = self.bytes.split_at_checked(size) else {
            return Err(self.garbled());
        };
        self.bytes = rest;
        let bytes = bytes.iter().rev();
        Ok(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn garbled(&mut self) -> StoreError {
        self.bytes = &[];
        garbled()
    }
}

fn failure(reason: u8) -> StoreError {
    let message = match reason {
        WRONG_TYPE => "a key holds a value of another type, not written by this crate",
        OTHER_VERSION => "a key holds a value that another version of this crate has written",
        _ => "a key holds a value that cannot be read, not written by this crate",
    };
    StoreError::new(StoreErrorKind::Protocol, message)
}

fn garbled() -> StoreError {
    StoreError::new(
        StoreErrorKind::Protocol,
        "the script's reply cannot be read",
    )
}

#[cfg(test)]
mod tests;
