//! The script's call and reply: the wire format that the head of `lua/sluicegate.lua` describes.

use std::sync::LazyLock;

use redis::{Cmd, Script, Value};

use super::names::Names;
use crate::{
    charge::{Charge, Check, Settlement},
    decision::{Count, Decision, Usage},
    error::{StoreError, StoreErrorKind},
    rule::Rule,
    window::Span,
};

/// Hashed once.
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

const SOURCE: &str = include_str!("../../../lua/sluicegate.lua");

/// The size of a section's head in a reply.
const HEAD: usize = 43;

/// What a charge is to the script.
#[derive(Clone, Copy)]
enum Action {
    Begin = 0,
    Join = 1,
    Add = 2,
    Take = 3,
}

/// A call of the script that is being put together.
pub(super) struct Call {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Call {
    /// Several checks, each all or nothing on its own.
    pub(super) fn checks<'a>(names: &Names, checks: impl IntoIterator<Item = &'a Check>) -> Self {
        let mut call = Self {
            keys: Vec::new(),
            args: Vec::new(),
        };
        for check in checks {
            for (index, charge) in check.charges().iter().enumerate() {
                let action = if index == 0 {
                    Action::Begin
                } else {
                    Action::Join
                };
                let rules = charge
                    .policy()
                    .rules()
                    .iter()
                    .map(|rule| (*rule, rule.limit()));
                call.push(names, charge, action, charge.cost(), rules);
            }
        }
        call
    }

    /// The differences between what was charged and what it finally cost.
    pub(super) fn settlement(names: &Names, settlement: &Settlement) -> Self {
        let mut call = Self {
            keys: Vec::new(),
            args: Vec::new(),
        };
        let charges = settlement
            .check()
            .charges()
            .iter()
            .zip(settlement.usage().policies());
        for ((charge, usage), cost) in charges.zip(settlement.costs()) {
            let action = if *cost < charge.cost() {
                Action::Take
            } else {
                Action::Add
            };
            let rules = usage
                .rules()
                .iter()
                .map(|rule| (rule.rule(), rule.step_end_ms()));
            call.push(names, charge, action, cost.abs_diff(charge.cost()), rules);
        }
        call
    }

    fn push(
        &mut self,
        names: &Names,
        charge: &Charge,
        action: Action,
        units: u64,
        rules: impl ExactSizeIterator<Item = (Rule, u64)>,
    ) {
        let mut arg = Vec::with_capacity(9 + 19 * rules.len());
        arg.push(action as u8);
        arg.extend_from_slice(&units.to_le_bytes()[..7]);
        arg.push(u8::try_from(rules.len()).unwrap_or(u8::MAX)); // a policy has at most 16
        for (rule, last) in rules {
            let span = Span::of(&rule);
            arg.extend_from_slice(&span.step_ms.to_le_bytes()[..6]);
            arg.extend_from_slice(&span.hold_ms.to_le_bytes()[..6]);
            arg.extend_from_slice(&last.to_le_bytes()[..7]);
        }
        self.keys
            .push(names.name(charge.policy().name(), charge.key()));
        self.args.push(arg);
    }

    /// The command by the script's hash, which a server answers with `NOSCRIPT` until it has seen the script.
    pub(super) fn by_hash(&self, clock: Option<u64>) -> Cmd {
        self.command("EVALSHA", SCRIPT.get_hash(), clock)
    }

    /// The command with the script itself, for the same keys and so the same node.
    pub(super) fn by_source(&self, clock: Option<u64>) -> Cmd {
        self.command("EVAL", SOURCE, clock)
    }

    fn command(&self, command: &str, script: &str, clock: Option<u64>) -> Cmd {
        let bytes = self
            .keys
            .iter()
            .chain(&self.args)
            .map(Vec::len)
            .sum::<usize>();
        let mut cmd = Cmd::with_capacity(4 + 2 * self.keys.len(), script.len() + bytes + 32);
        cmd.arg(command)
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys);
        match clock {
            None => cmd.arg(""),
            Some(now_ms) => cmd.arg(now_ms),
        };
        cmd.arg(&self.args);
        cmd
    }
}

/// Reads the reply to several checks.
pub(super) fn decisions(checks: &[Check], reply: &Value) -> Result<Vec<Decision>, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let decisions = checks.iter().map(|check| {
        let (admitted, counts) = counts(check, &mut rest)?;
        Decision::new(check, admitted, now_ms, &counts)
    });
    decisions.collect()
}

/// Reads the reply to one check.
pub(super) fn decision(check: &Check, reply: &Value) -> Result<Decision, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let (admitted, counts) = counts(check, &mut rest)?;
    Decision::new(check, admitted, now_ms, &counts)
}

/// Reads the reply to a settlement.
pub(super) fn usage(settlement: &Settlement, reply: &Value) -> Result<Usage, StoreError> {
    let (now_ms, mut rest) = split(bytes(reply)?)?;
    let (_, counts) = counts(settlement.check(), &mut rest)?;
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
fn counts(check: &Check, rest: &mut &[u8]) -> Result<(bool, Vec<Count>), StoreError> {
    let rules = check
        .charges()
        .iter()
        .map(|charge| charge.policy().rules().len())
        .sum();
    let mut counts = Vec::with_capacity(rules);
    let mut admitted = true;
    for charge in check.charges() {
        let heads = charge.policy().rules().len() * HEAD;
        let (section, behind) = rest.split_at_checked(1 + heads).ok_or_else(garbled)?;
        admitted = section[0] != 0;
        counts.extend(section[1..].chunks_exact(HEAD).map(count));
        *rest = behind;
    }
    Ok((admitted, counts))
}

/// Reads a head: width, step, hold, newest, first, total, base, and the length of the queue.
fn count(head: &[u8]) -> Count {
    Count {
        used: number(&head[25..32]).saturating_sub(number(&head[32..39])),
        newest_end_ms: number(&head[13..19]),
        fits_at_ms: number(&head[19..25]),
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
