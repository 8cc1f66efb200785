//! Random histories, and what plays them: two stores that must agree, or a store and the model.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, subsequence},
};
use sluicegate::{
    Charge, Key, Policy, Rule, Store, Usage,
    rule::MAX_UNITS,
    store::{Check, Settlement},
    test_util::TestClock,
};

use super::outcome::Outcome;

/// A day's first millisecond, so that every shorter window is aligned to it.
pub(crate) const START_MS: u64 = 1_700_006_400_000;

const YEAR_MS: u64 = 365 * 86_400_000;

#[derive(Clone, Debug)]
pub(crate) struct History {
    /// What the clock shows first: the epoch, now and then.
    pub(crate) start_ms: u64,
    /// For each name, the policies that it stands for in turn.
    pub(crate) policies: Vec<Vec<Policy>>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// How far the clock moves before the step.
    pub(crate) gap_ms: i64,
    pub(crate) act: Act,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Checks charges of (policy, key, cost).
    Check(Vec<(usize, usize, u64)>),
    /// Settles one of the admitted checks, if one is left; costs are repeated as needed.
    Settle(Index, Vec<u64>),
    Reset(usize, usize),
    /// Gives a policy's name its next rules.
    NextRules(usize),
}

/// The histories that the semantics are defined for: the clock goes forward and the rules stay.
pub(crate) fn steady() -> impl Strategy<Value = History> {
    let acts = prop_oneof![8 => checks(), 2 => settlements(), 1 => resets()];
    histories(1, gaps(), acts)
}

/// All that may happen: also rules that change, clocks that step back and far ahead.
pub(crate) fn wild() -> impl Strategy<Value = History> {
    let acts = prop_oneof![
        8 => checks(),
        3 => settlements(),
        1 => resets(),
        1 => (0..3_usize).prop_map(Act::NextRules),
    ];
    let gaps = prop_oneof![4 => gaps(), 1 => gaps().prop_map(|gap| -gap)];
    histories(3, gaps, acts)
}

/// One key that is charged so much that its totals outgrow what is stored of them: 16 bits, 32, and 53.
pub(crate) fn large() -> impl Strategy<Value = History> {
    let bits = prop_oneof![Just(16), Just(32), Just(53)];
    bits.prop_flat_map(|bits| {
        let scale = 1_u64 << bits;
        let costs = move || {
            prop_oneof![
                1 => 0..=1_u64,
                4 => 2..=scale / 16,
                2 => scale / 16..=scale / 2,
                1 => Just(scale - 1),
            ]
        };
        let acts = prop_oneof![
            16 => costs().prop_map(|cost| Act::Check(vec![(0, 0, cost)])),
            4 => (any::<Index>(), costs()).prop_map(|(check, cost)| Act::Settle(check, vec![cost])),
            1 => Just(Act::Reset(0, 0)),
        ];
        let gaps = prop_oneof![
            2 => Just(0),
            8 => 1..=120_i64,
            1 => 121..=1_100_i64,
            1 => 1_101..=66_000_i64,
            1 => 66_001..=1_100_000_i64,
            1 => -150_000..=-1_i64,
        ];
        let limits = prop_oneof![Just(scale - 1), Just(MAX_UNITS.min(4 * scale))];
        let windows = prop_oneof![Just(100), Just(65_000), Just(1_000_000), Just(4_000_000)];
        let rule = (limits, windows, 0..3_u64).prop_map(|(limit, window_ms, kind)| {
            let rule = Rule::new(limit, Duration::from_millis(window_ms));
            match kind {
                0 => rule.exact(),
                1 => rule.precision(Duration::from_millis(window_ms / 10)),
                _ => rule,
            }
        });
        let policy = vec(rule, 1..=2).prop_filter_map("two rules have one window", |rules| {
            Policy::new("large", rules).ok()
        });
        let steps = (gaps, acts).prop_map(|(gap_ms, act)| Step { gap_ms, act });
        (policy, vec(steps, 1..120)).prop_map(|(policy, steps)| History {
            start_ms: START_MS,
            policies: vec![vec![policy]],
            steps,
        })
    })
}

fn histories(
    versions: usize,
    gaps: impl Strategy<Value = i64>,
    acts: impl Strategy<Value = Act>,
) -> impl Strategy<Value = History> {
    let steps = (gaps, acts).prop_map(|(gap_ms, act)| Step { gap_ms, act });
    let of_name = |name: &'static str| {
        prop_oneof![
            vec(policy(name), 1..=versions),
            vec(rule(), 2..=5).prop_flat_map(move |rules| vec(some_of(name, &rules), 1..=versions)),
        ]
    };
    let start = prop_oneof![4 => Just(START_MS), 1 => Just(0)];
    let policies = (of_name("ip"), of_name("user"), of_name("tenant"));
    (start, policies, vec(steps, 1..80)).prop_map(|(start_ms, (ip, user, tenant), steps)| History {
        start_ms,
        policies: vec![ip, user, tenant],
        steps,
    })
}

fn policy(name: &'static str) -> impl Strategy<Value = Policy> {
    vec(rule(), 1..=3).prop_filter_map("two rules have one window", move |rules| {
        Policy::new(name, rules).ok()
    })
}

/// Some of these rules, in any order.
fn some_of(name: &'static str, rules: &[Rule]) -> impl Strategy<Value = Policy> + use<> {
    let some = subsequence(rules.to_vec(), 1..=rules.len()).prop_shuffle();
    some.prop_filter_map("two rules have one window", move |rules| {
        Policy::new(name, rules).ok()
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let windows = prop_oneof![
        Just(1),
        Just(2),
        Just(7),
        Just(100),
        Just(1_000),
        Just(60_000),
        Just(YEAR_MS)
    ];
    let limits = prop_oneof![
        1 => Just(0),
        8 => 1..=10_u64,
        3 => Just(100),
        1 => Just(1 << 33),
        2 => Just(MAX_UNITS),
    ];
    (limits, windows, 0..6_u64).prop_map(|(limit, window_ms, kind)| {
        let rule = Rule::new(limit, Duration::from_millis(window_ms));
        match kind {
            0 | 1 => rule,
            2 => rule.exact(),
            3 => rule.fixed(),
            parts => rule.precision(Duration::from_millis(window_ms.div_ceil(parts - 3))),
        }
    })
}

fn gaps() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0),
        4 => 1..=3_i64,
        4 => 4..=120_i64,
        3 => 121..=1_100_i64,
        2 => 1_101..=70_000_i64,
        1 => 70_001..=4_000_000_i64,
        1 => 4_000_001..=(2 * YEAR_MS).cast_signed(),
    ]
}

fn checks() -> impl Strategy<Value = Act> {
    vec((0..3_usize, 0..3_usize, costs()), 1..=4).prop_map(Act::Check)
}

fn settlements() -> impl Strategy<Value = Act> {
    (any::<Index>(), vec(costs(), 1..=3)).prop_map(|(check, costs)| Act::Settle(check, costs))
}

fn resets() -> impl Strategy<Value = Act> {
    (0..3_usize, 0..3_usize).prop_map(|(policy, key)| Act::Reset(policy, key))
}

fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        8 => Just(1),
        4 => 2..=12_u64,
        1 => Just(100),
        // Totals outgrow 32 bits, and 53.
        1 => (1_u64 << 30)..=(1 << 33),
        1 => Just(MAX_UNITS / 2),
        1 => Just(MAX_UNITS),
        1 => Just(u64::MAX),
    ]
}

/// Plays a history on one store.
pub(crate) struct Player<'a> {
    store: &'a dyn Store,
    policies: &'a [Vec<Policy>],
    version: Vec<usize>,
    /// What was admitted and has not been settled.
    open: Vec<Usage>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(store: &'a dyn Store, history: &'a History) -> Self {
        Self {
            store,
            policies: &history.policies,
            version: vec![0; history.policies.len()],
            open: Vec::new(),
        }
    }

    /// Answers what came out of it, if anything did.
    pub(crate) async fn play(&mut self, act: &Act) -> Option<Outcome> {
        match act {
            Act::Check(charges) => return Some(self.check(charges).await),
            Act::Settle(check, costs) => return self.settle(check, costs).await,
            Act::Reset(policy, key) => {
                let reset = self.store.reset(self.policy(*policy), &key_of(*key));
                reset.await.unwrap();
            }
            Act::NextRules(policy) => self.version[*policy] += 1,
        }
        None
    }

    /// The check of these charges, under the rules of now.
    pub(crate) fn check_of(&self, charges: &[(usize, usize, u64)]) -> Check {
        let charges = charges
            .iter()
            .map(|(policy, key, cost)| Charge::new(self.policy(*policy), key_of(*key), *cost));
        Check::new(charges).unwrap()
    }

    async fn check(&mut self, charges: &[(usize, usize, u64)]) -> Outcome {
        let check = self.check_of(charges);
        let decision = self.store.check(&check).await.unwrap();
        if decision.is_allowed() {
            self.open.push(decision.usage().clone());
        }
        Outcome::from(&decision)
    }

    async fn settle(&mut self, check: &Index, costs: &[u64]) -> Option<Outcome> {
        if self.open.is_empty() {
            return None;
        }
        let usage = self.open.remove(check.index(self.open.len()));
        let costs = costs.iter().copied().cycle();
        let costs = costs.take(usage.check().charges().len());
        let settlement = Settlement::new(&usage, costs).unwrap();
        let settled = self.store.settle(&settlement).await.unwrap();
        Some(Outcome::from(&settled))
    }

    fn policy(&self, index: usize) -> &'a Policy {
        let versions = &self.policies[index];
        &versions[self.version[index] % versions.len()]
    }
}

pub(crate) fn key_of(index: usize) -> Key {
    Key::new("key", index.to_string())
}

/// Moves the clock as a step says; never to before the epoch.
pub(crate) fn move_clock(clock: &TestClock, gap_ms: i64) {
    clock.set(clock.now_ms().saturating_add_signed(gap_ms));
}

/// Plays a history on two empty stores that share one clock: they must agree at every step.
pub(crate) async fn agree(
    first: &dyn Store,
    second: &dyn Store,
    clock: &TestClock,
    history: &History,
) {
    let mut players = (Player::new(first, history), Player::new(second, history));
    clock.set(history.start_ms);
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let outcomes = (
            players.0.play(&step.act).await,
            players.1.play(&step.act).await,
        );
        let now_ms = clock.now_ms();
        assert_eq!(outcomes.0, outcomes.1, "step {index} at {now_ms}: {step:?}");
    }
}
