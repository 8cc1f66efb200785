//! [`Tallies`]: what this process has counted for operators since the last report, in bounded memory.
//!
//! ```text
//! denial, contribution ──▶ tally of the account and span ──▶ taken once a second ──▶ added up by the store
//! ```

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{BuildHasher, RandomState},
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::{
    domain::{
        charge::Charge,
        decision::Decision,
        denials::SPAN_OF_MINUTE_MS,
        key::Key,
        policy::Policy,
        report::{Account, Label, Report, Span, longest},
    },
    lock::lock,
};

/// How many tallies there are in one second. Units of further accounts are not counted.
const MAX_TALLIES: usize = 1_024;

/// The tallies that are kept free for denials.
const OF_DENIALS: usize = 16;

/// How many labels a tally has.
const MAX_LABELS: usize = 64;

/// Longer values are not counted: otherwise clients could choose how much memory denials take.
const MAX_VALUE: usize = 2_048;

/// The hash of the account, which is 0 for denials, and the begin of the span. A client cannot choose two accounts of one hash.
type TallyId = (u64, u64);

/// The counts of one limiter and its clones.
#[derive(Default)]
pub(super) struct Tallies {
    hasher: RandomState,
    tallies: Mutex<BTreeMap<TallyId, Tally>>,
    /// Whether the store keeps no denials.
    denials_are_off: AtomicBool,
}

/// The units of the labels of one account in one span.
struct Tally {
    report: Report,
    /// The [mark] of each label, so that most searches look at no label.
    marks: Vec<u32>,
    /// The place after the label that was replaced last.
    next: usize,
}

impl Tallies {
    /// Counts units, at most 2^53, for the contributor to a charge; those below 0 are taken back. The charge was made at
    /// `at_ms`, and it is `now_ms` by the store.
    pub(super) fn contribute(&self, charge: &Charge, at_ms: u64, now_ms: u64, units: i64) {
        let Some(contributor) = charge.label().filter(|_| units != 0) else {
            return;
        };
        let (policy, key) = (charge.policy(), charge.key());
        let span = Span::at(longest(policy), at_ms);
        let id = (self.hasher.hash_one((policy.name(), key)), span.start_ms);
        let account = || Account::Contributors {
            policy: policy.clone(),
            key: key.clone(),
        };
        self.add(id, now_ms, account, (None, contributor), units);
    }

    /// Counts a denial for each policy and identity, or for the blocked identity. Returns whether anything was counted.
    pub(super) fn deny(&self, decision: &Decision) -> bool {
        if self.denials_are_off.load(Relaxed) {
            return false;
        }
        match decision {
            Decision::Allowed(_) => return false,
            Decision::Denied(denial) => {
                let (usage, at_ms) = (denial.usage(), denial.usage().decided_at_ms());
                let denying = usage.denying();
                denying.for_each(|it| self.deny_key(Some(it.policy()), it.key(), at_ms));
            }
            Decision::Blocked(blocked) => {
                self.deny_key(None, blocked.key(), blocked.decided_at_ms());
            }
        }
        true
    }

    /// Counts a denial under this policy, or by a block.
    fn deny_key(&self, policy: Option<&Policy>, key: &Key, at_ms: u64) {
        if key.value().len() > MAX_VALUE {
            return;
        }
        let id = (0, at_ms - at_ms % SPAN_OF_MINUTE_MS);
        self.add(id, at_ms, || Account::Denials, (policy, key), 1);
    }

    fn add(
        &self,
        id: TallyId,
        now_ms: u64,
        account: impl FnOnce() -> Account,
        label: (Option<&Policy>, &Key),
        units: i64,
    ) {
        let mut tallies = lock(&self.tallies);
        let kept_free = usize::from(id.0 != 0) * OF_DENIALS;
        let has_room = tallies.len() + kept_free < MAX_TALLIES;
        let tally = match tallies.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if has_room => new.insert(Tally::new(account(), id.1)),
            Entry::Vacant(_) => return,
        };
        tally.report.latest_ms = tally.report.latest_ms.max(now_ms);
        tally.add(label, units);
    }

    /// Takes the counts of some accounts.
    pub(super) fn take(&self, is_asked: impl Fn(&Account) -> bool) -> Vec<Report> {
        let mut tallies = lock(&self.tallies);
        let all = mem::take(&mut *tallies).into_iter();
        let (asked, others): (BTreeMap<TallyId, Tally>, _) =
            all.partition(|(_, tally)| is_asked(&tally.report.account));
        *tallies = others;
        drop(tallies);
        asked.into_values().map(Tally::into_report).collect()
    }

    /// Whether there is something to report.
    pub(super) fn has_news(&self) -> bool {
        !lock(&self.tallies).is_empty()
    }

    /// Whether half of the room for denials is used.
    pub(super) fn fills_up(&self) -> bool {
        lock(&self.tallies).len() >= OF_DENIALS / 2
    }

    /// Notes that the store keeps no denials.
    pub(super) fn switch_denials_off(&self) {
        self.denials_are_off.store(true, Relaxed);
    }
}

impl Tally {
    const fn new(account: Account, at_ms: u64) -> Self {
        Self {
            report: Report {
                account,
                at_ms,
                latest_ms: 0,
                units: Vec::new(),
                others: 0,
            },
            marks: Vec::new(),
            next: 0,
        }
    }

    fn add(&mut self, (policy, key): (Option<&Policy>, &Key), units: i64) {
        let mark = mark(key);
        if let Some(place) = self.place(mark, policy, key) {
            let known = &mut self.report.units[place].1;
            *known = known.saturating_add(units);
            return;
        }
        let (policy, key) = (policy.cloned(), key.clone());
        let new = (Label { policy, key }, units);
        if self.report.units.len() < MAX_LABELS {
            self.marks.push(mark);
            self.report.units.push(new);
            return;
        }
        let place = self.smallest();
        self.marks[place] = mark;
        let (_, replaced) = mem::replace(&mut self.report.units[place], new);
        self.report.others = self.report.others.saturating_add(replaced);
        self.next = place + 1;
    }

    fn place(&self, mark: u32, policy: Option<&Policy>, key: &Key) -> Option<usize> {
        // Without an early end, the processor compares several at a time.
        let is_marked = |found, other: &u32| found | (*other == mark);
        if !self.marks.iter().fold(false, is_marked) {
            return None;
        }
        let name = policy.map(Policy::name);
        let mut places = self.marks.iter().zip(&self.report.units);
        places.position(|(other, (label, _))| {
            *other == mark && label.key == *key && label.policy.as_ref().map(Policy::name) == name
        })
    }

    /// The place of the label with the fewest units. Among equals, the next in turn is replaced, so that a new label
    /// has time to grow.
    fn smallest(&self) -> usize {
        let size = |place: &usize| self.report.units[*place].1.unsigned_abs();
        let places = (self.next..MAX_LABELS).chain(0..self.next);
        // Mostly there is one with the least.
        let least = places.clone().find(|place| size(place) <= 1);
        least.or_else(|| places.min_by_key(size)).unwrap_or(0)
    }

    fn into_report(mut self) -> Report {
        self.report.units.retain(|(_, units)| *units != 0);
        self.report
    }
}

/// A number that few keys share.
fn mark(key: &Key) -> u32 {
    let value = key.value();
    let words = value.first_chunk().zip(value.last_chunk());
    let word = match words {
        Some((first, last)) => {
            u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(23)
        }
        None => value
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    let mixed = (word ^ value.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    //! Tallies in a flood, from several threads and of many accounts, and what a store makes of them.

    use std::{collections::HashMap, thread};

    use super::*;
    use crate::{
        domain::{
            denials::DeniedIdentity,
            operation::{Operation, answer_of},
        },
        manual_clock::ManualClock,
        store::{MemoryStore, Store},
    };

    const START_MS: u64 = 1_700_000_000_000;

    fn policy() -> Policy {
        Policy::parse("api", "10/1m").unwrap()
    }

    fn user(number: u64) -> Key {
        Key::new("user", number.to_string())
    }

    fn deny(counts: &Tallies, number: u64, at_ms: u64) {
        counts.deny_key(Some(&policy()), &user(number), at_ms);
    }

    /// A charge to this account, with this contributor.
    fn charge(account: u64, contributor: u64) -> Charge {
        let account = Key::new("account", account.to_string());
        Charge::new(&policy(), account, 1).with_contributor(user(contributor))
    }

    /// The seconds from the start to the span, the units by user, and those of others.
    type Taken = Vec<(u64, HashMap<u64, i64>, i64)>;

    fn taken(counts: &Tallies) -> Taken {
        let number = |label: &Label| str::from_utf8(label.key.value()).unwrap().parse().unwrap();
        let reports = counts.take(|_| true).into_iter().map(|report| {
            let units = report.units.iter();
            let units = units.map(|(label, units)| (number(label), *units));
            (
                (report.at_ms - START_MS) / 1_000,
                units.collect(),
                report.others,
            )
        });
        reports.collect()
    }

    #[test]
    fn counts_belong_to_the_span_of_their_time_and_are_taken_once() {
        let counts = Tallies::default();
        for seconds in [0, 9, 10, 31, 25] {
            deny(&counts, 1, START_MS + seconds * 1_000);
        }
        let expected = [(0, 2), (10, 1), (20, 1), (30, 1)];
        let expected = expected.map(|(seconds, units)| (seconds, [(1, units)].into(), 0));
        assert!(counts.has_news());
        assert_eq!(taken(&counts), expected);
        assert!(!counts.has_news() && taken(&counts).is_empty());
    }

    #[test]
    fn units_are_taken_back_in_the_span_that_they_were_charged_in() {
        let counts = Tallies::default();
        let now_ms = START_MS + 30_000;
        counts.contribute(&charge(1, 7), START_MS, START_MS, 10);
        counts.contribute(&charge(1, 7), START_MS, now_ms, -8);
        counts.contribute(&charge(1, 7), now_ms, now_ms, 5);
        counts.contribute(&charge(1, 8), START_MS, now_ms, 3);
        counts.contribute(&charge(1, 8), START_MS, now_ms, -3);
        let reports = counts.take(|_| true);
        let latest = reports.iter().map(|report| report.latest_ms);
        assert_eq!(latest.collect::<Vec<_>>(), [now_ms; 2]);
        let sums = reports.iter().map(|it| (it.units.len(), it.total()));
        assert_eq!(sums.collect::<Vec<_>>(), [(1, 2), (1, 5)]);
    }

    #[test]
    fn a_full_tally_gives_up_its_smallest_label_to_the_others() {
        let counts = Tallies::default();
        let most = MAX_LABELS as u64;
        for number in 0..most {
            let units = if number == 5 {
                2
            } else {
                3 + number.cast_signed()
            };
            counts.contribute(&charge(1, number), START_MS, START_MS, units);
        }
        counts.contribute(&charge(1, most), START_MS, START_MS, 40);
        let (_, units, others) = taken(&counts).remove(0);
        assert_eq!((units.len(), others), (MAX_LABELS, 2));
        assert!(!units.contains_key(&5) && units[&most] == 40);
        // A refund is as large as the units that it takes back.
        for number in 0..=most {
            let units = if number == 0 { -9 } else { 1 };
            counts.contribute(&charge(1, number), START_MS, START_MS, units);
        }
        let (_, units, others) = taken(&counts).remove(0);
        assert_eq!((units[&0], others), (-9, 1));
    }

    #[test]
    fn of_labels_with_the_same_units_the_oldest_leaves() {
        let counts = Tallies::default();
        for number in 0..300 {
            deny(&counts, number, START_MS);
        }
        let (_, units, others) = taken(&counts).remove(0);
        assert!((300 - MAX_LABELS as u64..300).all(|number| units[&number] == 1));
        assert_eq!(others.unsigned_abs(), 300 - MAX_LABELS as u64);
    }

    #[test]
    fn any_number_of_accounts_takes_bounded_room_and_leaves_some_for_denials() {
        let counts = Tallies::default();
        for number in 0..10_000 {
            counts.contribute(&charge(number, 1), START_MS, START_MS, 1);
        }
        deny(&counts, 1, START_MS);
        let reports = counts.take(|_| true);
        let of_denials = |report: &&Report| report.account.is_of_denials();
        assert_eq!(reports.iter().filter(of_denials).count(), 1);
        assert_eq!(reports.len(), MAX_TALLIES - OF_DENIALS + 1);
    }

    #[test]
    fn a_value_that_would_take_much_memory_is_not_counted() {
        let counts = Tallies::default();
        let long = Key::new("user", vec![b'x'; MAX_VALUE + 1]);
        counts.deny_key(Some(&policy()), &long, START_MS);
        assert!(!counts.has_news());
    }

    #[test]
    fn threads_that_count_at_the_same_time_lose_nothing() {
        let counts = Tallies::default();
        let sum = || {
            let all = taken(&counts).into_iter();
            all.map(|(_, units, _)| units[&0]).sum::<i64>()
        };
        let taken: i64 = thread::scope(|scope| {
            let taking = scope.spawn(|| (0..200).map(|_| sum()).sum::<i64>());
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| deny(&counts, 0, START_MS)));
            }
            taking.join().unwrap()
        });
        assert_eq!(taken + sum(), 20_000);
    }

    /// Each of two processes denies 50 000 users a second that come once, and one of each fifty requests is that of one user.
    #[test]
    fn in_a_flood_of_made_up_users_one_with_2_percent_of_the_denials_is_first() {
        const FLOOD: u64 = 100_000;
        let clock = ManualClock::new(START_MS);
        let store = MemoryStore::new().clock(clock.clone());
        let (processes, api) = ([Tallies::default(), Tallies::default()], policy());
        let (mut random, mut made_up) = (fastrand::Rng::with_seed(1), 1_000_000);
        for second in 1..=3 {
            for _ in 0..FLOOD {
                let number = if random.u8(..50) == 0 {
                    7
                } else {
                    made_up += 1;
                    made_up
                };
                let process = &processes[random.usize(..2)];
                process.deny_key(Some(&api), &user(number), clock.now_ms());
            }
            for process in &processes {
                let reports = process.take(|_| true);
                let units: usize = reports.iter().map(|it| it.units.len()).sum();
                assert_eq!(units, MAX_LABELS);
                let total: i64 = reports.iter().map(Report::total).sum();
                assert!(total > 45_000, "{total}");
                drop(store.execute(Operation::Report(reports)));
            }
            let rankings = store.execute(Operation::Rankings(Account::Denials));
            let rankings = rankings.read(answer_of!(Rankings)).into_ready();
            let listed = DeniedIdentity::list(rankings.ok().unwrap().unwrap());
            assert_eq!(listed[0].identity(), "user=7");
            let (counted, truth) = (listed[0].last_minute(), second * FLOOD / 50);
            assert!(counted * 10 >= truth * 9, "{counted} of {truth}");
            assert!(listed[1..].iter().all(|it| it.last_minute() <= 9));
            clock.advance(std::time::Duration::from_secs(1));
        }
    }
}
