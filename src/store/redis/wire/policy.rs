//! The policy in an argument of the script, as `lua/README.md` describes it.

use super::{VERSION, label::mark, push_number};
use crate::{
    domain::{
        policy::Policy,
        rule::Rule,
        window::{Spec, label},
    },
    store::engine::Places,
};

/// How the fast path decides under a rule, and the bytes of the totals that a new section has; of a queue, the most of a value.
struct Part {
    label: [u64; 2],
    class: u8,
    size: u64,
}

/// The classes of rules, and of policies: 0 leaves the decision to the plain script.
const STEPS: u8 = 1;
const STEPS_AND_CALENDARS: u8 = 2;
const BUCKETS: u8 = 3;
const SLOTS: u8 = 4;
/// Of one rule.
const QUEUE: u8 = 5;

impl Part {
    fn of(rule: &Rule) -> Self {
        let spec = Spec::of(rule);
        let (class, size) = match spec {
            Spec::Steps(spec) => match Places::of(spec) {
                Places::None => (STEPS, 0),
                Places::Ring(places) => (STEPS, 2 * places.get()),
                Places::Queue => (QUEUE, 1 << 16), // as much as the fast path reads
            },
            Spec::Calendar(_) => (STEPS_AND_CALENDARS, 0),
            Spec::Bucket(_) => (BUCKETS, 0),
            Spec::Concurrency(_) => (SLOTS, 0),
        };
        let label = label(spec);
        Self { label, class, size }
    }
}

/// Writes a policy, which is encoded once, with the periods of the calendar around a time.
pub(super) fn push_policy(arg: &mut Vec<u8>, policy: &Policy, near_ms: u64) {
    let encoded = &policy.marks().encoded;
    arg.extend_from_slice(encoded.get_or_init(|| encode(policy.rules()).into()));
    for calendar in policy.rules().iter().filter_map(Rule::in_calendar) {
        let boundaries = calendar.boundaries_ms(near_ms);
        push_number(arg, boundaries.len() as u64, 1);
        for boundary in boundaries {
            push_number(arg, boundary, 6);
        }
    }
}

/// The rules of a policy, without the periods of the calendar.
pub(super) fn encode(rules: &[Rule]) -> Vec<u8> {
    if rules.is_empty() {
        return vec![0];
    }
    let parts: Vec<Part> = rules.iter().map(Part::of).collect();
    let labels: Vec<_> = parts.iter().map(|part| part.label).collect();
    let mut arg = Vec::new();
    push_number(&mut arg, rules.len() as u64, 1); // a policy has at most 16
    push_number(&mut arg, class(&parts).into(), 1);
    push_number(&mut arg, mark(&labels), 6);
    push_number(&mut arg, last_read(rules, parts[0].size), 2);
    for rule in rules {
        push_number(&mut arg, rule.limit(), 7);
    }
    for part in &parts {
        push_number(&mut arg, part.label[0], 6);
        push_number(&mut arg, part.label[1], 6);
        push_number(&mut arg, part.size, 4);
    }
    push_number(&mut arg, rules.len() as u64, 1);
    arg.push(VERSION);
    arg
}

fn class(parts: &[Part]) -> u8 {
    let classes = || parts.iter().map(|part| part.class);
    let (least, most) = (classes().min().unwrap_or(0), classes().max().unwrap_or(0));
    match (least, most) {
        (STEPS, STEPS_AND_CALENDARS) => STEPS_AND_CALENDARS,
        (QUEUE, QUEUE) if parts.len() > 1 => 0,
        _ if least == most => least,
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
    (front + count * count_size + others + first_size).clamp(front + 3 * count_size, 1 << 16) - 1
}
