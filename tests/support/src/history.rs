//! Random histories, and players for them: two stores that must agree, or a store and the model.

use std::time::SystemTime;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, subsequence},
};
use sluicegate::{calendar::Period, rule::MAX_UNITS};

use super::prelude::*;

/// The first millisecond of a day, so that all shorter windows are aligned.
pub const START_MS: u64 = 1_700_006_400_000;

const YEAR_MS: u64 = 365 * 86_400_000;

#[derive(Clone, Debug)]
pub struct History {
    /// The start of the clock; sometimes the epoch.
    pub start_ms: u64,
    /// For each name, the policies that use that name in turn.
    pub policies: Vec<Vec<Policy>>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub gap_ms: i64,
    pub act: Act,
}

#[derive(Clone, Debug)]
pub enum Act {
    /// Checks charges of (policy, key, cost).
    Check(Vec<(usize, usize, u64)>),
    /// Settles one of the admitted checks, if there is one. The costs are repeated as needed.
    Settle(Index, Vec<u64>),
    TakeBack(Index),
    Reset(usize, usize),
    /// Renews the slots of a charge that was admitted, if some are left. They may be lost.
    Renew(Index),
    GiveBack(Index),
    /// Gives the next rules to the name of a policy.
    NextRules(usize),
    Call(Vec<Part>),
    /// Replaces the counts by a value that the store cannot use.
    Spoil(usize, usize, Spoiled),
}

#[derive(Clone, Debug)]
pub enum Part {
    /// A single check, and whether it enforces blocks.
    Check(Vec<(usize, usize, u64)>, bool),
    CheckBatch(Vec<(usize, usize, u64)>, u16, bool),
    Settle(Index, Vec<u64>),
    Reset(usize, usize),
    Block(usize, Until, BlockedBy),
    Unblock(usize),
    /// Renews slots that were taken before the call, if some are left. They may be lost.
    Renew(Index),
    GiveBack(Index),
}

/// The reason why a value cannot be read.
#[derive(Clone, Copy, Debug)]
pub enum Spoiled {
    WrongType,
    Unreadable,
    Garbage,
}

/// The answer to a part of a call: the decision of each check, with that of the shadows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Decided(Vec<(Outcome, Option<Outcome>)>),
    Settled(Outcome),
    Held(Outcome),
    Reset,
    Block(Block),
    Unblocked,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    Nothing,
    Of(Outcome),
    Answers(Vec<Answer>),
}

/// Histories within the defined semantics: the clock goes forward and the rules stay.
pub fn steady() -> impl Strategy<Value = History> {
    let acts = prop_oneof![8 => checks(), 2 => settlements(), 1 => resets()];
    histories(policies(1), gaps(), acts)
}

/// The same, of all kinds of rules.
pub fn steady_kinds() -> impl Strategy<Value = History> {
    histories(policies_of_all_kinds(1), gaps(), acts_of_all_kinds())
}

/// All that may happen to all kinds of rules.
pub fn wild_kinds() -> impl Strategy<Value = History> {
    let acts = prop_oneof![12 => acts_of_all_kinds(), 1 => (0..3_usize).prop_map(Act::NextRules)];
    let gaps = prop_oneof![4 => gaps(), 1 => gaps().prop_map(|gap| -gap)];
    histories(policies_of_all_kinds(3), gaps, acts)
}

fn acts_of_all_kinds() -> impl Strategy<Value = Act> {
    let any_held = any::<Index>;
    prop_oneof![
        8 => checks(),
        2 => settlements(),
        1 => resets(),
        4 => any_held().prop_map(Act::Renew),
        2 => any_held().prop_map(Act::GiveBack),
    ]
}

/// Histories of everything that can happen, also with changed rules, and clocks that step back or far ahead.
pub fn wild() -> impl Strategy<Value = History> {
    let acts = prop_oneof![
        8 => checks(),
        3 => settlements(),
        1 => resets(),
        1 => (0..3_usize).prop_map(Act::NextRules),
    ];
    let gaps = prop_oneof![4 => gaps(), 1 => gaps().prop_map(|gap| -gap)];
    histories(policies(3), gaps, acts)
}

/// A few identities with several checks in each millisecond, so that leases are worth a call: up to their limits, and
/// again after the release. The clock goes forward and the rules stay.
pub fn hot() -> impl Strategy<Value = History> {
    let checks = prop_oneof![
        4 => (0..2_usize).prop_map(|policy| vec![(policy, 0)]),
        1 => (0..2_usize).prop_map(|key| vec![(2, 1), (0, key)]),
    ];
    let costs = prop_oneof![6 => Just(1), 1 => 2..=9_u64];
    let acts = (checks, costs).prop_map(|(charges, cost)| {
        let charges = charges.into_iter().map(|(policy, key)| (policy, key, cost));
        Act::Check(charges.collect())
    });
    let gaps = prop_oneof![60 => Just(0), 10 => 1..=2_i64, 1 => 3..=60_i64];
    let steps = (gaps, acts).prop_map(|(gap_ms, act)| Step { gap_ms, act });
    let policy = |name: &'static str| {
        let parts = (64..=300_u64, 100..=400_u64, 2..=4_u64);
        parts.prop_map(move |(limit, window_ms, parts)| {
            let rule = Rule::new(limit, Duration::from_millis(window_ms));
            let rule = rule.precision(Duration::from_millis(window_ms.div_ceil(parts)));
            vec![Policy::new(name, [rule]).unwrap()]
        })
    };
    let policies = (policy("user"), policy("tenant"), policy("all"));
    (policies, vec(steps, 600..1_200)).prop_map(|((user, tenant, all), steps)| History {
        start_ms: START_MS,
        policies: vec![user, tenant, all],
        steps,
    })
}

/// Windows of a few milliseconds, so that most steps are at an edge: of a step, of a window, or of a clock that has
/// stepped back.
pub fn dense() -> impl Strategy<Value = History> {
    let rules = [
        "5/6ms@2ms,9/10ms@3ms",
        "5/6ms@2ms,30/90ms@1ms",
        "9/10ms@3ms,6/8ms@1ms",
        "4/5ms@fixed,6/8ms@1ms",
        "4/5ms@fixed,6+2/3ms@bucket",
        "6+2/3ms@bucket,40+9/7ms@bucket",
        "3/10ms@concurrent",
        "4/6ms@concurrent",
        "5/9ms@concurrent",
    ];
    let gaps = prop_oneof![4 => Just(0), 8 => 1..=3_i64, 2 => 4..=12_i64, 1 => 13..=100_i64, 4 => -4..=-1_i64, 1 => -40..=-5_i64];
    histories(policies_of(&rules), gaps, few_units())
}

/// Checks that are taken back, mostly of buckets.
pub fn taken_back() -> impl Strategy<Value = History> {
    let rules = [
        "20+7/100ms@bucket",
        "6+2/3ms@bucket,40+9/7ms@bucket",
        "9/20ms@5ms",
    ];
    let gaps = prop_oneof![4 => Just(0), 4 => 1..=9_i64, 2 => 10..=300_i64, 1 => -9..=-1_i64];
    let back = any::<Index>().prop_map(Act::TakeBack);
    let acts = prop_oneof![4 => few_units(), 1 => back];
    histories(policies_of(&rules), gaps, acts)
}

/// Periods of the calendar, with clocks that step by hours and days from the first millisecond of a day.
pub fn days() -> impl Strategy<Value = History> {
    let rules = [
        "5/day@UTC",
        "5/day@UTC,9/week@UTC",
        "9/week@UTC,9/40d",
        "7/day@UTC,9/40d",
    ];
    let hours = prop_oneof![4 => Just(0), 2 => Just(12), 4 => Just(24), 2 => Just(48), 1 => 1..=23_i64, 1 => Just(168)];
    let gaps = (hours, -1..=1_i64, prop_oneof![3 => Just(1), 1 => Just(-1)]);
    let gaps = gaps.prop_map(|(hours, ms, way)| way * hours * 3_600_000 + ms);
    histories(policies_of(&rules), gaps, few_units())
}

fn policies_of(rules: &[&'static str]) -> Policies {
    let rules = rules.to_vec();
    of_each_name(move |name| {
        // Slots and other rules of one name have keys of their own, which expire apart.
        let rules = rules.clone();
        let are_slots = prop::sample::select(rules.clone()).prop_map(is_of_slots);
        let versions = are_slots.prop_flat_map(move |are_slots| {
            let alike = rules.iter().filter(|rule| is_of_slots(rule) == are_slots);
            let policy = prop::sample::select(alike.copied().collect::<Vec<_>>());
            let policy = policy.prop_map(move |rules| Policy::parse(name, rules).unwrap());
            vec(policy, 1..=3)
        });
        versions.boxed()
    })
}

fn is_of_slots(rules: &str) -> bool {
    rules.contains("concurrent")
}

/// Acts of all kinds on two keys, of at most five units.
fn few_units() -> impl Strategy<Value = Act> {
    let units = || prop_oneof![1 => Just(0), 6 => Just(1), 3 => 2..=5_u64];
    let charges = vec((0..3_usize, 0..2_usize, units()), 1..=3);
    // So many that a bucket is emptied below nothing, and a clock steps back while it refills.
    let settled = prop_oneof![6 => units(), 1 => 6..=60_u64];
    let settled = (any::<Index>(), vec(settled, 1..=3));
    prop_oneof![
        12 => charges.prop_map(Act::Check),
        6 => settled.prop_map(|(check, costs)| Act::Settle(check, costs)),
        4 => any::<Index>().prop_map(Act::Renew),
        2 => any::<Index>().prop_map(Act::GiveBack),
        1 => resets(),
        3 => (0..3_usize).prop_map(Act::NextRules),
    ]
}

/// A configuration with few cases, because each case is long. You can ask for more in the environment.
pub fn few_cases() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: if asked { default.cases } else { 48 },
        ..default
    }
}

/// Calls of several operations, with fills and shadows; clocks and rules as in [`wild`]. The third policy is a shadow.
pub fn calls() -> impl Strategy<Value = History> {
    calls_of(policies(3), parts().boxed(), Just(None::<Act>).boxed())
}

/// The same calls under all kinds of rules, with renewals and returns of slots.
pub fn calls_of_all_kinds() -> impl Strategy<Value = History> {
    let parts = prop_oneof![
        8 => parts(),
        3 => any::<Index>().prop_map(Part::Renew),
        2 => any::<Index>().prop_map(Part::GiveBack),
    ];
    let others = Just(None::<Act>).boxed();
    calls_of(policies_of_all_kinds(3), parts.boxed(), others)
}

/// The same calls, with values that cannot be read.
pub fn spoiled_calls() -> impl Strategy<Value = History> {
    use Spoiled::{Garbage, Unreadable, WrongType};
    let kinds = prop_oneof![Just(WrongType), Just(Unreadable), Just(Garbage)];
    let spoil = (0..3_usize, 0..3_usize, kinds);
    let spoil = spoil.prop_map(|(policy, key, kind)| Some(Act::Spoil(policy, key, kind)));
    calls_of(policies(3), parts().boxed(), spoil.boxed())
}

fn calls_of(
    policies: Policies,
    parts: BoxedStrategy<Part>,
    others: BoxedStrategy<Option<Act>>,
) -> impl Strategy<Value = History> {
    let next_rules = || (0..3_usize).prop_map(Act::NextRules);
    let others = (others, next_rules()).prop_map(|(other, next)| other.unwrap_or(next));
    let acts =
        prop_oneof![8 => vec(parts, 1..=5).prop_map(Act::Call), 1 => others, 1 => next_rules()];
    let gaps = prop_oneof![4 => gaps(), 1 => gaps().prop_map(|gap| -gap)];
    histories(policies, gaps, acts).prop_map(|mut history| {
        for policy in &mut history.policies[2] {
            *policy = policy.clone().shadow();
        }
        history
    })
}

fn parts() -> impl Strategy<Value = Part> {
    let charges = || vec((0..3_usize, 0..3_usize, costs()), 1..=4);
    let counts = prop_oneof![12 => 0..=20_u16, 3 => Just(2), 1 => Just(70)];
    let by = prop_oneof![Just(BlockedBy::Operator), Just(BlockedBy::Ban)];
    prop_oneof![
        6 => (charges(), any::<bool>()).prop_map(|(charges, enforces)| Part::Check(charges, enforces)),
        6 => (charges(), counts, any::<bool>())
            .prop_map(|(charges, count, enforces)| Part::CheckBatch(charges, count, enforces)),
        3 => (0..3_usize, ends(), by).prop_map(|(key, until, by)| Part::Block(key, until, by)),
        1 => (0..3_usize).prop_map(Part::Unblock),
        4 => (any::<Index>(), vec(costs(), 1..=3)).prop_map(|(check, costs)| Part::Settle(check, costs)),
        1 => (0..3_usize, 0..3_usize).prop_map(|(policy, key)| Part::Reset(policy, key)),
    ]
}

/// The ends of blocks: most are soon, and some are over.
fn ends() -> impl Strategy<Value = Until> {
    let time = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
    prop_oneof![
        8 => (0..=2_000_u64).prop_map(|ms| Until::After(Duration::from_millis(ms))),
        4 => (0..=100_000_u64).prop_map(move |ms| Until::At(time(START_MS + ms))),
        1 => (0..=2_000_u64).prop_map(move |ms| Until::At(time(ms))),
        1 => Just(Until::Forever),
    ]
}

/// One key with so many charges that the totals outgrow their stored form: 16 bits, 32, and 53.
pub fn large() -> impl Strategy<Value = History> {
    let bits = prop_oneof![Just(16), Just(32), Just(53)];
    bits.prop_flat_map(|bits| {
        let scale = 1_u64 << bits;
        let costs = move || {
            prop_oneof![
                1 => 0..=1_u64,
                4 => 2..=scale / 16,
                2 => scale / 16..=scale / 2,
                1 => scale - 1..=scale,
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

/// The policies that each of three names stands for in turn.
type Policies = BoxedStrategy<Vec<Vec<Policy>>>;

fn histories(
    policies: Policies,
    gaps: impl Strategy<Value = i64>,
    acts: impl Strategy<Value = Act>,
) -> impl Strategy<Value = History> {
    let steps = (gaps, acts).prop_map(|(gap_ms, act)| Step { gap_ms, act });
    let start = prop_oneof![4 => Just(START_MS), 1 => Just(0)];
    (start, policies, vec(steps, 1..80)).prop_map(|(start_ms, policies, steps)| History {
        start_ms,
        policies,
        steps,
    })
}

/// Policies of all kinds of rules that any other may stand beside.
fn policies(versions: usize) -> Policies {
    of_each_name(move |name| versions_of(name, versions, rule).boxed())
}

/// Also with concurrency rules, each alone, and with rules of the calendar.
fn policies_of_all_kinds(versions: usize) -> Policies {
    let any_rule = || prop_oneof![2 => rule(), 1 => calendar_rule()];
    of_each_name(move |name| {
        let slots = slots().prop_map(move |rule| Policy::new(name, [rule]).unwrap());
        let others = versions_of(name, versions, any_rule);
        prop_oneof![1 => vec(slots, 1..=versions), 2 => others].boxed()
    })
}

fn of_each_name(policies: impl Fn(&'static str) -> BoxedStrategy<Vec<Policy>>) -> Policies {
    let all = (policies("ip"), policies("user"), policies("tenant"));
    all.prop_map(|(ip, user, tenant)| vec![ip, user, tenant])
        .boxed()
}

fn versions_of<R: Strategy<Value = Rule> + 'static>(
    name: &'static str,
    versions: usize,
    rule: impl Fn() -> R,
) -> impl Strategy<Value = Vec<Policy>> {
    let any = vec(rule(), 1..=3).prop_filter_map("two rules have one window", move |rules| {
        Policy::new(name, rules).ok()
    });
    prop_oneof![
        vec(any, 1..=versions),
        vec(rule(), 2..=5).prop_flat_map(move |rules| vec(some_of(name, &rules), 1..=versions)),
    ]
}

fn slots() -> impl Strategy<Value = Rule> {
    let windows = prop_oneof![Just(7), Just(1_000), Just(60_000)];
    // So few that one message has all slots of a charge.
    let limits = prop_oneof![1 => Just(0), 8 => 1..=10_u64, 1 => Just(Slots::MOST as u64)];
    (limits, windows).prop_map(|(limit, window_ms)| {
        Rule::concurrent(limit).expires_after(Duration::from_millis(window_ms))
    })
}

fn calendar_rule() -> impl Strategy<Value = Rule> {
    let limits = prop_oneof![1 => Just(0), 8 => 1..=10_u64, 3 => Just(100), 1 => Just(MAX_UNITS)];
    let zones = prop_oneof![
        Just("UTC"),
        Just("Europe/Berlin"),
        Just("Pacific/Apia"),
        Just("America/Santiago"),
    ];
    (limits, 0..4_usize, 1..=31_u8, zones).prop_map(|(limit, period, day, zone)| {
        let rule = match period {
            0 => Rule::calendar(limit, Period::Day),
            1 => Rule::calendar(limit, Period::Week),
            2 => Rule::per_month(limit).from_day(day),
            _ => Rule::calendar(limit, Period::Year),
        };
        rule.in_zone(zone).unwrap()
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
    let refills = prop_oneof![4 => 1..=20_u64, 1 => Just(1_000), 1 => Just(1 << 40)];
    (limits, windows, 0..8_u64, refills).prop_map(|(limit, window_ms, kind, refill)| {
        let window = Duration::from_millis(window_ms);
        let rule = Rule::new(limit, window);
        let most = MAX_UNITS / window_ms;
        match kind {
            0 | 1 => rule,
            2 => rule.exact(),
            3 => rule.fixed(),
            6 | 7 => {
                let burst = limit.min(most);
                // At least one refill within a hundred years, because no clock goes much further.
                let least = burst * window_ms / (100 * YEAR_MS) + 1;
                Rule::new(refill.clamp(least, most.max(least)), window).bucket(burst)
            }
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
        // Totals that outgrow 32 bits, and 53.
        1 => (1_u64 << 30)..=(1 << 33),
        1 => Just(MAX_UNITS / 2),
        1 => Just(MAX_UNITS),
        1 => Just(u64::MAX),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    Together,
    /// Executes each check separately, also those of a batch. A spoiled value gets its answer without the store.
    Apart,
}

/// Replaces the value of a policy's name and a key, in stores that allow this.
type Spoil<'a> = dyn Fn(&str, &Key, Spoiled) + 'a;

pub struct Player<'a> {
    store: &'a dyn Store,
    policies: &'a [Vec<Policy>],
    calls: Calls,
    spoil: Option<&'a Spoil<'a>>,
    version: Vec<usize>,
    /// Admitted checks that have not been settled.
    open: Vec<Usage>,
    held: Vec<Slots>,
    /// The policies and keys whose values cannot be read.
    spoiled: Vec<(usize, usize)>,
}

impl<'a> Player<'a> {
    pub fn new(store: &'a dyn Store, history: &'a History) -> Self {
        Self {
            store,
            policies: &history.policies,
            calls: Calls::Together,
            spoil: None,
            version: vec![0; history.policies.len()],
            open: Vec::new(),
            held: Vec::new(),
            spoiled: Vec::new(),
        }
    }

    pub fn calls(self, calls: Calls) -> Self {
        Self { calls, ..self }
    }

    pub fn spoil(self, spoil: &'a Spoil<'a>) -> Self {
        Self {
            spoil: Some(spoil),
            ..self
        }
    }

    /// Plays an act. Returns the outcome of a single check or settlement.
    pub async fn play(&mut self, act: &Act) -> Option<Outcome> {
        match self.come(act).await {
            Came::Of(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub async fn come(&mut self, act: &Act) -> Came {
        let part = match act {
            Act::Check(charges) => return Came::Of(self.check(charges).await),
            Act::TakeBack(check) => {
                let Some(settlement) = self.settlement(*check, &[0]) else {
                    return Came::Nothing;
                };
                let settled = self.store.settle(&settlement.taking_back()).await;
                return Came::Of(Outcome::from(&settled.unwrap()));
            }
            Act::NextRules(policy) => {
                self.version[*policy] += 1;
                return Came::Nothing;
            }
            Act::Call(parts) => return Came::Answers(self.call(parts).await),
            Act::Spoil(policy, key, kind) => {
                self.spoiled.push((*policy, *key));
                if let Some(spoil) = self.spoil {
                    spoil(self.policy(*policy).name(), &key_of(*key), *kind);
                }
                return Came::Nothing;
            }
            Act::Settle(check, costs) => Part::Settle(*check, costs.clone()),
            Act::Renew(check) => Part::Renew(*check),
            Act::GiveBack(check) => Part::GiveBack(*check),
            Act::Reset(policy, key) => Part::Reset(*policy, *key),
        };
        let Some(operation) = self.operation(&part) else {
            return Came::Nothing;
        };
        let reply = self.store.execute(operation).await.unwrap();
        match self.answer(Some(reply)) {
            Answer::Settled(outcome) | Answer::Held(outcome) => Came::Of(outcome),
            _ => Came::Nothing,
        }
    }

    /// The check of these charges, under the current rules.
    pub fn check_of(&self, charges: &[(usize, usize, u64)]) -> Check {
        let charge = |it: &(_, _, _)| Charge::new(self.policy(it.0), key_of(it.1), it.2);
        Check::new(charges.iter().map(charge)).unwrap()
    }

    fn check_in(&self, charges: &[(usize, usize, u64)], enforces_blocks: bool) -> Check {
        enforcing(self.check_of(charges), enforces_blocks)
    }

    async fn check(&mut self, charges: &[(usize, usize, u64)]) -> Outcome {
        let check = self.check_of(charges);
        let decision = self.store.check(&check).await.unwrap();
        if decision.is_allowed() {
            self.open.push(decision.usage().clone());
            self.held.extend(Slots::of(decision.usage()));
        }
        Outcome::from(&decision)
    }

    fn settlement(&mut self, check: Index, costs: &[u64]) -> Option<Settlement> {
        if self.open.is_empty() {
            return None;
        }
        let usage = self.open.remove(check.index(self.open.len()));
        let charges = usage.check().charges();
        let place = |charge: &_| charges.iter().position(|it| it == charge).unwrap();
        let cost = |charge: &_| costs[place(charge) % costs.len()];
        Some(Settlement::new(&usage, cost).unwrap())
    }

    /// Takes out one of the messages about slots.
    fn slots(&mut self, check: Index) -> Option<Slots> {
        let held = self.held.len();
        (held > 0).then(|| self.held.remove(check.index(held)))
    }

    /// A settlement in a call is for a check before the call.
    async fn call(&mut self, parts: &[Part]) -> Vec<Answer> {
        let operations: Vec<Operation> = parts.iter().filter_map(|it| self.operation(it)).collect();
        let replies = match self.calls {
            Calls::Together => {
                let replies = self.store.call(operations).await.unwrap();
                replies.into_iter().map(Result::ok).collect()
            }
            Calls::Apart => {
                let mut replies = Vec::new();
                for operation in operations {
                    replies.push(self.alone(operation).await);
                }
                replies
            }
        };
        let answers = replies.into_iter().map(|reply| self.answer(reply));
        answers.collect()
    }

    /// The answer in a reply; `None` for one that failed.
    fn answer(&mut self, reply: Option<Reply>) -> Answer {
        match reply {
            Some(Reply::Check(decision)) => self.decided(&[decision]),
            Some(Reply::CheckBatch(decisions)) => self.decided(&decisions),
            Some(Reply::Settle(usage)) => Answer::Settled(Outcome::from(&usage)),
            Some(Reply::Renew(answer) | Reply::Return(answer)) => {
                Answer::Held(Outcome::from(&answer))
            }
            Some(Reply::Reset) => Answer::Reset,
            Some(Reply::Block(block)) => Answer::Block(block),
            Some(Reply::Unblock) => Answer::Unblocked,
            Some(other) => unreachable!("histories have no {other:?}"),
            None => Answer::Failed,
        }
    }

    fn operation(&mut self, part: &Part) -> Option<Operation> {
        Some(match part {
            Part::Check(charges, enforces) => Operation::Check(self.check_in(charges, *enforces)),
            Part::CheckBatch(charges, count, enforces) => {
                Operation::CheckBatch(CheckBatch::new(self.check_in(charges, *enforces), *count))
            }
            Part::Block(key, until, by) => Operation::Block {
                key: key_of(*key),
                request: match by {
                    BlockedBy::Ban => super::blocks::ban_until("3/10m=400ms,900ms,3s", *until),
                    by => super::blocks::request(*until, *by),
                },
            },
            Part::Unblock(key) => Operation::Unblock { key: key_of(*key) },
            Part::Settle(check, costs) => Operation::Settle(self.settlement(*check, costs)?),
            Part::Renew(check) => {
                let slots = self.slots(*check)?;
                self.held.push(slots.clone());
                Operation::Renew(slots)
            }
            Part::GiveBack(check) => Operation::Return(self.slots(*check)?),
            Part::Reset(policy, key) => Operation::Reset {
                policy: self.policy(*policy).clone(),
                key: key_of(*key),
            },
        })
    }

    /// Executes one operation separately; `None` if it touches a value that cannot be read.
    async fn alone(&mut self, operation: Operation) -> Option<Reply> {
        Some(match operation {
            Operation::Check(check) => Reply::Check(self.check_alone(&check).await?),
            Operation::CheckBatch(batch) => {
                let (mut decisions, count) = (Vec::new(), batch.count());
                for place in 0..count {
                    let decision = self.check_alone(batch.nth(place)).await?;
                    let is_last = !decision.is_allowed();
                    decisions.push(decision);
                    if is_last {
                        // A denial changes nothing, so the other checks get the same denial.
                        decisions.resize(count.into(), decisions[decisions.len() - 1].clone());
                        break;
                    }
                }
                Reply::CheckBatch(decisions)
            }
            Operation::Settle(it) if !self.can_read(it.usage().check().charges()) => return None,
            operation => {
                if let Operation::Reset { policy, key } = &operation {
                    let policies = self.policies;
                    let is_it = |it: &(usize, usize)| {
                        policies[it.0][0].name() == policy.name() && key_of(it.1) == *key
                    };
                    self.spoiled.retain(|it| !is_it(it));
                }
                self.store.execute(operation).await.unwrap()
            }
        })
    }

    async fn check_alone(&self, check: &Check) -> Option<Decision> {
        if !self.can_read(check.charges()) {
            // The decision of a blocked check has no counts.
            let look = enforcing(check.without_cost(), check.enforces_blocks());
            let decision = self.store.check(&look).await.unwrap();
            return Some(decision).filter(|it| matches!(it, Decision::Blocked(_)));
        }
        if self.can_read(check.shadow_charges()) {
            return Some(self.store.check(check).await.unwrap());
        }
        let counting = Check::new(check.charges().iter().cloned()).unwrap();
        let counting = enforcing(counting, check.enforces_blocks());
        let decision = self.store.check(&counting).await.unwrap();
        if let Decision::Allowed(usage) = &decision {
            assert!(usage.shadow().is_none());
        }
        Some(decision)
    }

    fn can_read(&self, charges: &[Charge]) -> bool {
        charges.iter().all(|charge| {
            let mut spoiled = self.spoiled.iter();
            !spoiled.any(|(policy, key)| {
                self.policies[*policy][0].name() == charge.policy().name()
                    && key_of(*key) == *charge.key()
            })
        })
    }

    /// Keeps some of the admitted checks, and the charges of their shadows, for settlements.
    fn decided(&mut self, decisions: &[Decision]) -> Answer {
        let usages = decisions.iter().take(3).filter(|it| it.is_allowed());
        for usage in usages.map(Decision::usage) {
            let shadow = match usage.shadow() {
                Some(Decision::Allowed(shadow)) => Some(shadow),
                _ => None,
            };
            for usage in [usage].into_iter().chain(shadow) {
                self.open.push(usage.clone());
                self.held.extend(Slots::of(usage));
            }
        }
        let both = |it: &Decision| {
            let shadow = it.usage().shadow().map(Outcome::from);
            (Outcome::from(it), shadow)
        };
        Answer::Decided(decisions.iter().map(both).collect())
    }

    /// The policy that a name stands for now.
    pub fn policy(&self, index: usize) -> &'a Policy {
        let versions = &self.policies[index];
        &versions[self.version[index] % versions.len()]
    }
}

pub fn enforcing(check: Check, enforces_blocks: bool) -> Check {
    match enforces_blocks {
        true => check.enforce_blocks(true),
        false => check,
    }
}

pub fn key_of(index: usize) -> Key {
    Key::new("key", index.to_string())
}

/// Moves the clock by the time in a step, but never before the epoch.
pub fn move_clock(clock: &ManualClock, gap_ms: i64) {
    clock.set(clock.now_ms().saturating_add_signed(gap_ms));
}

/// Plays a history on two empty stores that share one clock. They must agree at every step.
pub async fn agree(first: &dyn Store, second: &dyn Store, clock: &ManualClock, history: &History) {
    let players = (Player::new(first, history), Player::new(second, history));
    same(players, clock, history).await;
}

/// The same with the given players.
pub async fn same(
    (mut first, mut second): (Player<'_>, Player<'_>),
    clock: &ManualClock,
    history: &History,
) {
    clock.set(history.start_ms);
    for (index, step) in history.steps.iter().enumerate() {
        move_clock(clock, step.gap_ms);
        let outcomes = (first.come(&step.act).await, second.come(&step.act).await);
        let now_ms = clock.now_ms();
        let are_same = outcomes.0 == outcomes.1;
        let differ = || difference(&outcomes.0, &outcomes.1);
        assert!(are_same, "step {index} at {now_ms}: {step:?}: {}", differ());
    }
}

/// The first difference, because a batch has many decisions.
fn difference(left: &Came, right: &Came) -> String {
    let (Came::Answers(lefts), Came::Answers(rights)) = (left, right) else {
        return format!("{left:?} is not {right:?}");
    };
    let mut pairs = lefts.iter().zip(rights).enumerate();
    match pairs.find(|(_, (left, right))| left != right) {
        Some((part, (Answer::Decided(lefts), Answer::Decided(rights)))) => {
            let mut pairs = lefts.iter().zip(rights).enumerate();
            let differ = pairs.find(|(_, (left, right))| left != right);
            format!("part {part}: {differ:?}")
        }
        other => format!("{other:?}"),
    }
}
