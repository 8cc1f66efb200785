//! A decision in a form that you can compare: with a vector, with the model, or with another store.

use sluicegate::{Decision, Denial, Key, Usage, block::Block, store::HeldSlots};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The remaining units of each charge under each rule.
    pub usage: Vec<Vec<Left>>,
    /// `None` if the check was allowed or blocked.
    pub denied: Option<Denied>,
    pub blocked: Option<(Key, Block)>,
    /// Whether all slots of a message were held.
    pub held: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub remaining: u64,
    pub reset_after_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    pub charge: usize,
    pub rule: usize,
    /// `None` for never.
    pub retry_after_ms: Option<u64>,
}

impl From<&Decision> for Outcome {
    fn from(decision: &Decision) -> Self {
        let (denied, blocked) = match decision {
            Decision::Allowed(_) => (None, None),
            Decision::Denied(denial) => (Some(denied(denial)), None),
            Decision::Blocked(it) => (None, Some((it.key().clone(), it.block()))),
            other => panic!("no outcome is known of {other:?}"),
        };
        Self {
            denied,
            blocked,
            ..Self::from(decision.usage())
        }
    }
}

impl From<&Usage> for Outcome {
    fn from(usage: &Usage) -> Self {
        let left = usage.policies().map(|policy| {
            let rules = policy.rules().iter().map(|rule| Left {
                remaining: rule.remaining(),
                reset_after_ms: ms(rule.reset_after()),
            });
            rules.collect()
        });
        Self {
            usage: left.collect(),
            denied: None,
            blocked: None,
            held: None,
        }
    }
}

impl From<&HeldSlots> for Outcome {
    fn from(answer: &HeldSlots) -> Self {
        Self {
            held: Some(answer.are_held()),
            ..Self::from(answer.usage())
        }
    }
}

/// The rule that the denial names; among equal rules, the first.
fn denied(denial: &Denial) -> Denied {
    let usage = denial.usage();
    let places = usage.policies().enumerate().flat_map(|(charge, policy)| {
        let rules = policy.rules().iter().enumerate();
        rules.map(move |(rule, usage)| (charge, rule, policy.policy(), usage))
    });
    let mut named = places
        .filter(|(_, _, policy, usage)| *policy == denial.policy() && *usage == denial.rule());
    let (charge, rule, ..) = named.next().unwrap();
    Denied {
        charge,
        rule,
        retry_after_ms: denial.retry_after().map(ms),
    }
}

pub fn ms(duration: std::time::Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}
