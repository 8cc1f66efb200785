//! [`Call`]: what the script is called with, as `lua/README.md` describes it.

use std::{ops::Range, ptr, slice, sync::LazyLock};

use redis::{Arg, Cmd, Script};
use smallvec::SmallVec;

use crate::{
    domain::{
        block::{BLOCKS, BlockRequest, STRIKES, UntilMs},
        charge::Charge,
        check::Check,
        key::Key,
        operation::Operation,
        policy::Policy,
        rule::Rule,
        settlement::Settlement,
        slot_id::SlotId,
        slots::Slots,
    },
    store::redis::key_names::Names,
};

use super::{
    VERSION,
    policy::{encode, push_policy},
    push_number,
};

/// Hashed once.
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(source()));

/// The files of `lua/`, joined.
const SOURCE: &str = include!("../../../../lua/source.rs");

/// The script's text. `./test plain-script` builds the tests without the fast path.
fn source() -> &'static str {
    static PLAIN: LazyLock<String> =
        LazyLock::new(|| SOURCE.replacen("fast_path = true", "fast_path = false", 1));
    match option_env!("SLUICEGATE_PLAIN_SCRIPT") {
        Some(_) => &PLAIN,
        None => SOURCE,
    }
}

/// The task of the script for a key. [`JOINED`] is added if the key belongs to the operation of the key before it.
const CHECK: u8 = 0;
const SHADOW: u8 = 1;
const ADD: u8 = 2;
const TAKE: u8 = 3;
const RESET: u8 = 4;
const BLOCK_FOR: u8 = 5;
const BLOCK_UNTIL: u8 = 6;
const RENEW: u8 = 7;
const RETURN: u8 = 8;
const JOINED: u8 = 16;

/// Added to the version of the call if the last argument is the time.
const TIME_FOLLOWS: u8 = 128;

/// A call of the script.
#[derive(Debug)]
pub(in crate::store::redis) struct Call(Cmd);

/// The places of strings in the bytes of a call. Most calls have few.
type Places = SmallVec<[Range<usize>; 4]>;

/// Writes a call: its keys, and what to do with each.
struct Writer<'a> {
    names: &'a Names,
    /// The strings below, in the order in which they were written.
    bytes: Vec<u8>,
    /// The begin of the string under way.
    begun: usize,
    keys: Places,
    /// Keys that are only looked at, behind the others.
    blocks: Places,
    /// One for each of `keys`; then the time, where it is given.
    args: Places,
    /// The first byte of each argument.
    version: u8,
    /// The call sends the periods of the calendar around this time.
    near_ms: u64,
    /// The latest policies, each with the number of its part, from 1: later parts name them.
    policies: SmallVec<[(u16, &'a Policy); 4]>,
    /// The start of the names of each identity of a check, which is made once: some values are hashed.
    starts: SmallVec<[(&'a Key, Range<usize>); 4]>,
}

/// With more policies than these in a call, some are sent again.
const POLICIES: usize = 16;

/// Room for the key of a block, and for a key with its argument.
const TYPICAL_SIZE: usize = 160;
/// Room for the policy that most calls have.
const TYPICAL_POLICY: usize = 128;

impl Call {
    /// `clock` is the time where it is not the server's clock that counts; `near_ms` is a time near that of the server,
    /// from which it finds the periods of calendar rules.
    pub(in crate::store::redis) fn new(
        names: &Names,
        clock: Option<u64>,
        near_ms: u64,
        operations: &[Operation],
    ) -> Self {
        let mut writer = Writer {
            names,
            bytes: Vec::with_capacity(operations.len() * TYPICAL_SIZE + TYPICAL_POLICY),
            begun: 0,
            keys: Places::new(),
            blocks: Places::new(),
            args: Places::new(),
            version: VERSION + if clock.is_some() { TIME_FOLLOWS } else { 0 },
            near_ms,
            policies: SmallVec::new(),
            starts: SmallVec::new(),
        };
        for operation in operations {
            writer.push(operation);
        }
        if let Some(now_ms) = clock.filter(|_| !writer.keys.is_empty()) {
            push_number(&mut writer.bytes, now_ms, 6);
            writer.end_arg();
        }
        Self(writer.cmd())
    }

    /// The key that says where the call belongs in a cluster; `None` when there is nothing to send.
    pub(in crate::store::redis) fn routing_key(&self) -> Option<&[u8]> {
        match self.0.args_iter().nth(3)? {
            Arg::Simple(key) => Some(key),
            _ => None,
        }
    }

    /// The call by the script's hash, which a server that has not seen the script answers with `NOSCRIPT`.
    pub(in crate::store::redis) const fn by_hash(&self) -> &Cmd {
        &self.0
    }

    /// The same call with the script itself.
    pub(in crate::store::redis) fn by_source(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(source());
        for arg in self.0.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

impl<'a> Writer<'a> {
    fn cmd(&self) -> Cmd {
        let strings = [&self.keys, &self.blocks, &self.args];
        let count = self.keys.len() + self.blocks.len();
        let mut cmd = Cmd::with_capacity(3 + count + self.args.len(), self.bytes.len() + 64);
        cmd.arg("EVALSHA").arg(SCRIPT.get_hash()).arg(count);
        for place in strings.into_iter().flatten() {
            cmd.arg(&self.bytes[place.clone()]);
        }
        cmd
    }

    fn end(&mut self) -> Range<usize> {
        let place = self.begun..self.bytes.len();
        self.begun = place.end;
        place
    }

    fn end_key(&mut self) {
        let place = self.end();
        self.keys.push(place);
    }

    fn end_arg(&mut self) {
        let place = self.end();
        self.args.push(place);
    }

    fn push(&mut self, operation: &'a Operation) {
        match operation {
            Operation::Check(check) => self.push_check(check, 1, |_| check),
            Operation::CheckBatch(batch) => {
                self.push_check(batch.check(), batch.count(), |place| batch.nth(place));
            }
            Operation::Settle(settlement) => self.push_settlement(settlement),
            Operation::Renew(slots) => self.push_slots(RENEW, slots),
            Operation::Return(slots) => self.push_slots(RETURN, slots),
            Operation::Reset { policy, key } => {
                self.push_charge(policy, key);
                self.push_nothing();
            }
            Operation::Block { key, request } => self.push_block(key, request),
            Operation::Ban {
                key,
                strikes,
                request,
            } => self.push_ban(key, strikes, request),
            Operation::Unblock { key } => {
                self.push_reset(BLOCKS, key);
                self.push_reset(STRIKES, key);
            }
            // The reply says so.
            _ => {}
        }
    }

    /// Writes the start of the names of an identity.
    fn push_start(&mut self, key: &'a Key) {
        let is_it = |other: &Key| ptr::eq(other, key) || other == key;
        if let Some((_, made)) = self.starts.iter().find(|(other, _)| is_it(other)) {
            return self.bytes.extend_from_within(made.clone());
        }
        let start = self.bytes.len();
        self.names.write_start(&mut self.bytes, key);
        self.starts.push((key, start..self.bytes.len()));
    }

    /// `nth` returns the check at this index of `count` that differ in nothing but the ids of their slots.
    fn push_check(&mut self, check: &'a Check, count: u16, nth: impl Fn(u16) -> &'a Check + Copy) {
        // Shadows follow their check; where all charges are shadows, they are sent as a check.
        let shadow = if check.charges().is_empty() {
            CHECK
        } else {
            SHADOW
        };
        self.starts.clear();
        let mut block_count = 0;
        if check.enforces_blocks() {
            for key in check.keys() {
                self.push_start(key);
                self.bytes.extend_from_slice(BLOCKS.as_bytes());
                let place = self.end();
                self.blocks.push(place);
                block_count += 1;
            }
        }
        let shadows_at = check.charges().len();
        for (action, first, charges) in [
            (CHECK, 0, check.charges()),
            (shadow, shadows_at, check.shadow_charges()),
        ] {
            for (place, charge) in charges.iter().enumerate() {
                self.push_start(charge.key());
                self.names.write_policy(&mut self.bytes, charge.policy());
                self.end_key();
                let action = action + joined(place);
                self.push_head(action, count.into(), charge.cost(), block_count);
                let charge_at = move |check: &'a Check| &check.all_charges()[first + place];
                let ids = (0..most_admitted(charge, count))
                    .flat_map(move |check| charge_at(nth(check)).slots());
                self.push_policy(charge.policy(), ids.map(SlotId::to_bytes));
            }
            block_count = 0;
        }
    }

    fn push_settlement(&mut self, settlement: &'a Settlement) {
        let charges = settlement.check().charges().iter().enumerate();
        let charged = settlement.usage().policies().zip(settlement.costs());
        for ((place, charge), (usage, cost)) in charges.zip(charged) {
            self.push_charge(charge.policy(), charge.key());
            let action = if *cost < charge.cost() { TAKE } else { ADD } + joined(place);
            let units = cost.abs_diff(charge.cost());
            let steps = usage.rules().iter().map(|rule| {
                let [a, b, c, d, e, f, ..] = settlement.end_ms(rule).to_le_bytes();
                [a, b, c, d, e, f]
            });
            self.push_head(action, 1, units, 0);
            self.push_policy(charge.policy(), steps);
        }
    }

    fn push_slots(&mut self, action: u8, slots: &'a Slots) {
        let charge = slots.charge();
        self.push_charge(charge.policy(), charge.key());
        self.push_head(action, slots.ids().len(), 0, 0);
        let ids = slots.ids().iter().map(|id| id.to_bytes());
        self.push_policy(charge.policy(), ids);
    }

    fn push_reset(&mut self, policy: &str, key: &Key) {
        self.push_key(policy, key);
        self.push_nothing();
    }

    /// A reset, which has no policy.
    fn push_nothing(&mut self) {
        self.push_head(RESET, 0, 0, 0);
        self.bytes.extend([0; 3]);
        self.end_arg();
    }

    fn push_block(&mut self, key: &Key, request: &BlockRequest) {
        let (action, ms) = match request.until().ms() {
            UntilMs::After(ms) => (BLOCK_FOR, ms),
            UntilMs::At(ms) => (BLOCK_UNTIL, ms),
        };
        self.push_key(BLOCKS, key);
        self.push_head(action, 0, ms, 0);
        let (arg, times_ms) = (&mut self.bytes, &request.times_ms);
        arg.extend([0; 3]); // no policy
        push_number(arg, times_ms.len() as u64, 1);
        for time_ms in times_ms {
            push_number(arg, *time_ms, 6);
        }
        arg.extend([request.source().code(), VERSION]);
        request.details().write_texts(arg);
        self.end_arg();
    }

    /// The block, and the strikes that it needs and, if their count is 0, forgets.
    fn push_ban(&mut self, key: &Key, strikes: &Rule, request: &BlockRequest) {
        self.push_block(key, request);
        self.push_key(STRIKES, key);
        self.push_head(RESET + JOINED, request.keeps_strikes.into(), 0, 0);
        self.bytes.extend([0; 2]);
        self.bytes.extend(encode(slice::from_ref(strikes)));
        self.end_arg();
    }

    fn push_charge(&mut self, policy: &Policy, key: &Key) {
        self.names.write_charge(&mut self.bytes, policy, key);
        self.end_key();
    }

    fn push_key(&mut self, policy: &str, key: &Key) {
        self.names.write_start(&mut self.bytes, key);
        self.bytes.extend_from_slice(policy.as_bytes());
        self.end_key();
    }

    /// The first fields of an argument. `units` are the time of a block in ms; `blocks` is how many keys of blocks are read.
    fn push_head(&mut self, action: u8, count: usize, units: u64, blocks: u8) {
        let mut bytes = [0; 14];
        bytes[0] = self.version;
        bytes[1] = action;
        bytes[2..6].copy_from_slice(&(count as u64).to_le_bytes()[..4]);
        bytes[6..13].copy_from_slice(&units.to_le_bytes()[..7]);
        bytes[13] = blocks;
        self.bytes.extend_from_slice(&bytes);
    }

    /// Sends a policy with this part, or names the earlier part that has an equal one. `tail` follows it: the ends of the
    /// charged steps, or the ids of slots.
    fn push_policy<const SIZE: usize>(
        &mut self,
        policy: &'a Policy,
        tail: impl IntoIterator<Item = [u8; SIZE]>,
    ) {
        let mut policies = self.policies.iter();
        let rules = policy.rules();
        let is_same = |other: &Policy| ptr::eq(other.rules(), rules) || other.rules() == rules;
        let same = policies.find(|(_, other)| is_same(other));
        let earlier = same.map_or(0, |(part, _)| *part); // 0: this part has the policy
        push_number(&mut self.bytes, earlier.into(), 2);
        if earlier == 0 {
            push_policy(&mut self.bytes, policy, self.near_ms);
            if let Ok(part) = u16::try_from(self.args.len() + 1) {
                if self.policies.len() == POLICIES {
                    self.policies.remove(0);
                }
                self.policies.push((part, policy));
            }
        }
        for bytes in tail {
            self.bytes.extend_from_slice(&bytes);
        }
        self.end_arg();
    }
}

/// How many of `count` checks with this charge can be admitted while no slot is held; 0 if it takes none.
fn most_admitted(charge: &Charge, count: u16) -> u16 {
    let rule = charge.policy().rules().first();
    let limit = rule.filter(|it| it.is_concurrency()).map_or(0, Rule::limit);
    let fitting = limit.checked_div(charge.cost()).unwrap_or(0);
    u16::try_from(fitting).unwrap_or(u16::MAX).min(count)
}

fn joined(place: usize) -> u8 {
    if place == 0 { 0 } else { JOINED }
}
