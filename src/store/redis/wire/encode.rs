//! [`Call`]: what the script is called with, as `lua/README.md` describes it.

use std::{cell::RefCell, mem, ops::Range, sync::LazyLock};

use redis::{Cmd, Script};
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
        window::Spec,
    },
    store::redis::key_names::{Names, write_policy},
};

use super::{
    VERSION,
    label::{Places, label, mark},
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

/// The end of a part without steps and ids.
const NO_TAIL: [[u8; 0]; 0] = [];

/// Added to the version of the call if the last argument is the time.
const TIME_FOLLOWS: u8 = 128;

/// How far around a time to send the periods of the calendar: the server's clock is hardly further away.
const AROUND_MS: u64 = 48 * 3_600_000;

/// A call of the script: its keys, and what to do with each.
#[derive(Debug)]
pub(in crate::store::redis) struct Call {
    keys: Strings,
    /// Keys that are only looked at, behind the others.
    blocks: Strings,
    /// One for each of `keys`; then the time, where it is given.
    args: Strings,
    /// The first byte of each argument.
    version: u8,
    /// The call sends the periods of the calendar around this time.
    near_ms: u64,
    /// The policies of the latest parts: later parts name them.
    policies: Vec<Sent>,
    /// The starts of the names of a check.
    starts: Vec<u8>,
    written: Written,
}

/// The buffers of calls that have ended, for later calls of this thread.
struct Spare {
    keys: Strings,
    blocks: Strings,
    args: Strings,
    policies: Vec<Sent>,
    starts: Vec<u8>,
    written: Written,
}

/// How the rules of a policy were written last: most calls have the same.
#[derive(Debug, Default)]
struct Written {
    rules: Vec<Rule>,
    bytes: Vec<u8>,
}

/// As many calls as are in flight by default.
const MOST_SPARE: usize = 4;

/// The buffers of a larger call are not kept.
const MOST_KEPT: usize = 65_536;

thread_local! {
    static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

impl Spare {
    fn take() -> Self {
        let kept = SPARE.try_with(|spare| spare.borrow_mut().pop());
        kept.ok().flatten().unwrap_or_else(|| Self {
            keys: Strings::default(),
            blocks: Strings::default(),
            args: Strings::default(),
            policies: Vec::new(),
            starts: Vec::new(),
            written: Written::default(),
        })
    }

    fn keep(mut self) {
        let strings = [&mut self.keys, &mut self.blocks, &mut self.args];
        let is_small = strings.iter().all(|it| it.bytes.capacity() <= MOST_KEPT);
        strings.into_iter().for_each(Strings::clear);
        self.policies.clear();
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if is_small && spare.len() < MOST_SPARE {
                spare.push(self);
            }
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let spare = Spare {
            keys: mem::take(&mut self.keys),
            blocks: mem::take(&mut self.blocks),
            args: mem::take(&mut self.args),
            policies: mem::take(&mut self.policies),
            starts: mem::take(&mut self.starts),
            written: mem::take(&mut self.written),
        };
        spare.keep();
    }
}

/// A policy in an argument.
#[derive(Debug)]
struct Sent {
    /// The number of the part, from 1.
    part: u16,
    bytes: Range<usize>,
    /// The address of the rules in memory: most parts have the rules of one policy, and are not encoded again.
    address: usize,
}

/// No rules have this address.
const NOWHERE: usize = 0;

/// With more policies than these in a call, some are sent again.
const POLICIES: usize = 16;

/// Byte strings in one buffer.
#[derive(Debug, Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    fn reserve(&mut self, count: usize, size: usize) {
        self.bytes.reserve(size);
        self.ends.reserve(count);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |end| &self.bytes[mem::replace(&mut start, *end)..*end])
    }
}

/// The start of the names of each identity of a check, which is made once: some values are hashed.
struct Starts<'a> {
    names: &'a Names,
    bytes: Vec<u8>,
    made: SmallVec<[(&'a Key, Range<usize>); 4]>,
}

impl<'a> Starts<'a> {
    fn new(names: &'a Names, bytes: Vec<u8>) -> Self {
        let made = SmallVec::new();
        Self { names, bytes, made }
    }

    fn of(&mut self, key: &'a Key) -> &[u8] {
        let is_it = |other: &Key| std::ptr::eq(other, key) || other == key;
        if let Some((_, made)) = self.made.iter().find(|(other, _)| is_it(other)) {
            return &self.bytes[made.clone()];
        }
        let start = self.bytes.len();
        self.names.write_start(&mut self.bytes, key);
        self.made.push((key, start..self.bytes.len()));
        &self.bytes[start..]
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.made.clear();
    }
}

/// Room for most names, and for the argument of a key.
const TYPICAL_NAME: usize = 64;
const TYPICAL_ARG: usize = 24;
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
        let count = operations.len();
        let spare = Spare::take();
        let mut starts = Starts::new(names, spare.starts);
        let mut call = Self {
            keys: spare.keys,
            blocks: spare.blocks,
            args: spare.args,
            version: VERSION + if clock.is_some() { TIME_FOLLOWS } else { 0 },
            near_ms,
            policies: spare.policies,
            starts: Vec::new(),
            written: spare.written,
        };
        call.keys.reserve(count, count * TYPICAL_NAME);
        call.blocks.reserve(count, count * TYPICAL_NAME);
        let args = count * TYPICAL_ARG + TYPICAL_POLICY;
        call.args.reserve(count + 1, args);
        for operation in operations {
            match operation {
                Operation::Check(check) => call.push_check(&mut starts, check, 1, |_| check),
                Operation::CheckBatch(batch) => {
                    call.push_check(&mut starts, batch.check(), batch.count(), |place| {
                        batch.nth(place)
                    });
                }
                Operation::Settle(settlement) => call.push_settlement(names, settlement),
                Operation::Renew(slots) => call.push_slots(names, RENEW, slots),
                Operation::Return(slots) => call.push_slots(names, RETURN, slots),
                Operation::Reset { policy, key } => {
                    call.push_charge(names, policy, key);
                    call.push_task(Head::of(RESET), &[], NO_TAIL);
                }
                Operation::Block { key, request } => call.push_block(names, key, request),
                Operation::Ban {
                    key,
                    strikes,
                    request,
                } => call.push_ban(names, key, *strikes, request),
                Operation::Unblock { key } => {
                    call.push_reset(names, BLOCKS, key);
                    call.push_reset(names, STRIKES, key);
                }
                // The reply says so.
                _ => {}
            }
        }
        if let Some(now_ms) = clock {
            push_number(&mut call.args.bytes, now_ms, 6);
            call.args.end();
        }
        call.starts = starts.bytes;
        call
    }

    /// The key that says where the call belongs in a cluster; `None` when there is nothing to send.
    pub(in crate::store::redis) fn routing_key(&self) -> Option<&[u8]> {
        self.keys.iter().next()
    }

    /// The call by the script's hash, which a server that has not seen the script answers with `NOSCRIPT`.
    pub(in crate::store::redis) fn by_hash(&self) -> Cmd {
        self.cmd("EVALSHA", SCRIPT.get_hash())
    }

    /// The same call with the script itself.
    pub(in crate::store::redis) fn by_source(&self) -> Cmd {
        self.cmd("EVAL", source())
    }

    fn cmd(&self, name: &str, script: &str) -> Cmd {
        let strings = [&self.keys, &self.blocks, &self.args];
        let length: usize = strings.iter().map(|part| part.bytes.len()).sum();
        let count = self.keys.ends.len() + self.blocks.ends.len();
        let mut cmd = Cmd::with_capacity(4 + 2 * count, script.len() + length + 16);
        cmd.arg(name).arg(script).arg(count);
        for string in strings.into_iter().flat_map(Strings::iter) {
            cmd.arg(string);
        }
        cmd
    }

    /// `nth` returns the check at this index of `count` that differ in nothing but the ids of their slots.
    fn push_check<'a>(
        &mut self,
        starts: &mut Starts<'a>,
        check: &'a Check,
        count: u16,
        nth: impl Fn(u16) -> &'a Check + Copy,
    ) {
        // Shadows follow their check; where all charges are shadows, they are sent as a check.
        let shadow = if check.charges().is_empty() {
            CHECK
        } else {
            SHADOW
        };
        starts.clear();
        let mut block_count = 0;
        if check.enforces_blocks() {
            for key in check.keys() {
                self.blocks.bytes.extend_from_slice(starts.of(key));
                self.blocks.bytes.extend_from_slice(BLOCKS.as_bytes());
                self.blocks.end();
                block_count += 1;
            }
        }
        let shadows_at = check.charges().len();
        for (action, first, charges) in [
            (CHECK, 0, check.charges()),
            (shadow, shadows_at, check.shadow_charges()),
        ] {
            for (place, charge) in charges.iter().enumerate() {
                self.keys.bytes.extend_from_slice(starts.of(charge.key()));
                write_policy(&mut self.keys.bytes, charge.policy());
                self.keys.end();
                let head = Head {
                    action: action + joined(place),
                    count: count.into(),
                    units: charge.cost(),
                    block_count,
                };
                let charge_at = move |check: &'a Check| &check.all_charges()[first + place];
                let ids = (0..most_admitted(charge, count))
                    .flat_map(move |check| charge_at(nth(check)).slots());
                self.push_task(head, charge.policy().rules(), ids.map(SlotId::to_bytes));
            }
            block_count = 0;
        }
    }

    fn push_settlement(&mut self, names: &Names, settlement: &Settlement) {
        let charges = settlement.check().charges().iter().enumerate();
        let charged = settlement.usage().policies().zip(settlement.costs());
        for ((place, charge), (usage, cost)) in charges.zip(charged) {
            self.push_charge(names, charge.policy(), charge.key());
            let action = if *cost < charge.cost() { TAKE } else { ADD } + joined(place);
            let units = cost.abs_diff(charge.cost());
            let steps = usage.rules().iter().map(|rule| {
                let [a, b, c, d, e, f, ..] = settlement.end_ms(rule).to_le_bytes();
                [a, b, c, d, e, f]
            });
            let head = Head {
                count: 1,
                units,
                ..Head::of(action)
            };
            self.push_task(head, charge.policy().rules(), steps);
        }
    }

    fn push_slots(&mut self, names: &Names, action: u8, slots: &Slots) {
        let charge = slots.charge();
        self.push_charge(names, charge.policy(), charge.key());
        let head = Head {
            count: slots.ids().len(),
            ..Head::of(action)
        };
        let ids = slots.ids().iter().map(|id| id.to_bytes());
        self.push_task(head, charge.policy().rules(), ids);
    }

    fn push_reset(&mut self, names: &Names, policy: &str, key: &Key) {
        self.push_key(names, policy, key);
        self.push_task(Head::of(RESET), &[], NO_TAIL);
    }

    fn push_block(&mut self, names: &Names, key: &Key, request: &BlockRequest) {
        let (action, ms) = match request.until().ms() {
            UntilMs::After(ms) => (BLOCK_FOR, ms),
            UntilMs::At(ms) => (BLOCK_UNTIL, ms),
        };
        self.push_key(names, BLOCKS, key);
        self.push_head(Head {
            units: ms,
            ..Head::of(action)
        });
        let arg = &mut self.args.bytes;
        let (policy, rules, times_ms) = ([0, 0], 0, request.times_ms());
        arg.extend(policy);
        arg.push(rules);
        push_number(arg, times_ms.len() as u64, 1);
        for time_ms in times_ms {
            push_number(arg, *time_ms, 6);
        }
        arg.extend([request.source().code(), VERSION]);
        request.details().write_texts(arg);
        self.args.end();
    }

    /// The block, and the strikes that it needs and, if their count is 0, forgets.
    fn push_ban(&mut self, names: &Names, key: &Key, strikes: Rule, request: &BlockRequest) {
        self.push_block(names, key, request);
        self.push_key(names, STRIKES, key);
        self.push_head(Head {
            count: request.keeps_strikes().into(),
            ..Head::of(RESET + JOINED)
        });
        // The address of these rules will be that of others.
        if let Some(part) = self.push_policy_once(&[strikes], NOWHERE) {
            push_number(&mut self.args.bytes, part.into(), 2);
        }
        self.args.end();
    }

    fn push_charge(&mut self, names: &Names, policy: &Policy, key: &Key) {
        names.write_charge(&mut self.keys.bytes, policy, key);
        self.keys.end();
    }

    fn push_key(&mut self, names: &Names, policy: &str, key: &Key) {
        names.write(&mut self.keys.bytes, policy, key);
        self.keys.end();
    }

    fn push_head(&mut self, head: Head) {
        let mut bytes = [0; 14];
        bytes[0] = self.version;
        bytes[1] = head.action;
        bytes[2..6].copy_from_slice(&(head.count as u64).to_le_bytes()[..4]);
        bytes[6..13].copy_from_slice(&head.units.to_le_bytes()[..7]);
        bytes[13] = head.block_count;
        self.args.bytes.extend_from_slice(&bytes);
    }

    /// `rules` live as long as the operations. `tail` follows the policy: the ends of the charged steps, or the ids of slots.
    fn push_task<const SIZE: usize>(
        &mut self,
        head: Head,
        rules: &[Rule],
        tail: impl IntoIterator<Item = [u8; SIZE]>,
    ) {
        self.push_head(head);
        let address = rules.as_ptr().addr();
        let same = self.policies.iter().find(|it| it.address == address);
        let part = same.map(|it| it.part);
        let part = part.or_else(|| self.push_policy_once(rules, address));
        if let Some(part) = part {
            push_number(&mut self.args.bytes, part.into(), 2);
        }
        for bytes in tail {
            self.args.bytes.extend(bytes);
        }
        self.args.end();
    }

    /// Sends a policy with this part, unless an earlier part has an equal one: then returns the number of that part.
    fn push_policy_once(&mut self, rules: &[Rule], address: usize) -> Option<u16> {
        let at = self.args.bytes.len();
        push_number(&mut self.args.bytes, 0, 2); // this part has the policy
        let policy_at = self.args.bytes.len();
        self.push_policy(rules);
        let (before, policy) = self.args.bytes.split_at(policy_at);
        let is_it = |it: &&Sent| before.get(it.bytes.clone()) == Some(policy);
        if let Some(part) = self.policies.iter().find(is_it).map(|it| it.part) {
            self.args.bytes.truncate(at);
            return Some(part);
        }
        if let Ok(part) = u16::try_from(self.args.ends.len() + 1) {
            if self.policies.len() == POLICIES {
                self.policies.remove(0);
            }
            let bytes = policy_at..self.args.bytes.len();
            self.policies.push(Sent {
                part,
                bytes,
                address,
            });
        }
        None
    }

    fn push_policy(&mut self, rules: &[Rule]) {
        let arg = &mut self.args.bytes;
        let count = rules.len() as u64; // a policy has at most 16
        if rules.is_empty() {
            return push_number(arg, count, 1);
        }
        if self.written.rules == rules {
            return arg.extend_from_slice(&self.written.bytes);
        }
        let start = arg.len();
        push_number(arg, count, 1);
        let specs = rules.iter().map(Spec::of);
        let labels: SmallVec<[_; 16]> = specs.clone().map(label).collect();
        let sizes: SmallVec<[_; 16]> = specs.map(body_size).collect();
        push_number(arg, class(rules).into(), 1);
        push_number(arg, mark(&labels), 6);
        push_number(arg, last_read(rules, sizes[0]), 2);
        for rule in rules {
            push_number(arg, rule.limit(), 7);
        }
        for (label, size) in labels.iter().zip(&sizes) {
            push_number(arg, label[0], 6);
            push_number(arg, label[1], 6);
            push_number(arg, *size, 4);
        }
        push_number(arg, count, 1);
        arg.push(VERSION);
        for calendar in rules.iter().filter_map(Rule::in_calendar) {
            let boundaries = calendar.boundaries_ms(self.near_ms, AROUND_MS);
            push_number(arg, boundaries.len() as u64, 1);
            for boundary in boundaries {
                push_number(arg, boundary, 6);
            }
        }
        // The periods of a calendar are sent around the present.
        if rules.iter().all(|rule| rule.in_calendar().is_none()) {
            let Written { rules: last, bytes } = &mut self.written;
            last.clear();
            last.extend_from_slice(rules);
            bytes.clear();
            bytes.extend_from_slice(&arg[start..]);
        }
    }
}

/// How the fast path decides under a policy: 0 if it leaves that to the plain script.
fn class(rules: &[Rule]) -> u8 {
    const STEPS: u8 = 1;
    const STEPS_AND_CALENDARS: u8 = 2;
    const BUCKETS: u8 = 3;
    const SLOTS: u8 = 4;

    let of = |rule: &Rule| match Spec::of(rule) {
        Spec::Steps(spec) if !matches!(Places::of(spec), Places::Queue) => STEPS,
        Spec::Steps(_) => 0,
        Spec::Calendar(_) => STEPS_AND_CALENDARS,
        Spec::Bucket(_) => BUCKETS,
        Spec::Concurrency(_) => SLOTS,
    };
    let (least, most) = rules
        .iter()
        .map(of)
        .fold((u8::MAX, 0), |(least, most), class| {
            (class.min(least), class.max(most))
        });
    match (least, most) {
        (STEPS, STEPS_AND_CALENDARS) => STEPS_AND_CALENDARS,
        _ if least == most => least,
        _ => 0,
    }
}

/// The bytes of the totals that a new section has.
fn body_size(spec: Spec) -> u64 {
    match spec {
        Spec::Steps(spec) => match Places::of(spec) {
            Places::Ring(places) => 2 * places.get(),
            Places::None | Places::Queue => 0,
        },
        _ => 0,
    }
}

/// The last byte of a value, from 0, that the fast path reads first: as much as has the totals of the first rule, or all
/// buckets, and the front of three rules.
fn last_read(rules: &[Rule], first_size: u64) -> u64 {
    let (front, count_size, head) = (43, 7, 13);
    let count = rules.len() as u64;
    let is_bucket = rules[0].refill().is_some();
    let others = if is_bucket { (count - 1) * head } else { 0 };
    (front + count * count_size + others + first_size).max(front + 3 * count_size) - 1
}

/// The first fields of an argument, behind the version.
#[derive(Clone, Copy)]
struct Head {
    action: u8,
    count: usize,
    /// For a block, its time in ms.
    units: u64,
    /// How many keys of blocks are read.
    block_count: u8,
}

impl Head {
    const fn of(action: u8) -> Self {
        Self {
            action,
            count: 0,
            units: 0,
            block_count: 0,
        }
    }
}

/// How many of `count` checks with this charge can be admitted if nobody holds a slot; 0 if it takes none.
fn most_admitted(charge: &Charge, count: u16) -> u16 {
    let rule = charge.policy().rules().first();
    let limit = rule.map_or(0, |rule| {
        if rule.is_concurrency() {
            rule.limit()
        } else {
            0
        }
    });
    let fitting = limit.checked_div(charge.cost()).unwrap_or(0);
    u16::try_from(fitting).unwrap_or(u16::MAX).min(count)
}

fn joined(place: usize) -> u8 {
    if place == 0 { 0 } else { JOINED }
}

/// The lowest byte first.
#[inline]
pub(in crate::store::redis) fn push_number(bytes: &mut Vec<u8>, number: u64, size: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..size]);
}
