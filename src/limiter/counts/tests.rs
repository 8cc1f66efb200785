//! Counts in a flood, from several threads and of many accounts, and what a store makes of them.

use std::{collections::HashMap, thread};

use super::*;
use crate::{
    domain::{denials::DeniedIdentity, operation::Operation},
    manual_clock::ManualClock,
    store::{MemoryStore, Store, StoreExt},
};

const START_MS: u64 = 1_700_000_000_000;

fn policy() -> Policy {
    Policy::parse("api", "10/1m").unwrap()
}

fn user(number: u64) -> Key {
    Key::new("user", number.to_string())
}

fn deny(counts: &Counts, number: u64, at_ms: u64) {
    counts.deny_key(Some(&policy()), &user(number), at_ms);
}

/// A charge to this account, with this contributor.
fn charge(account: u64, contributor: u64) -> Charge {
    let account = Key::new("account", account.to_string());
    Charge::new(&policy(), account, 1).with_contributor(user(contributor))
}

/// The seconds from the start to the span, the units by user, and those of others.
type Taken = Vec<(u64, HashMap<u64, i64>, i64)>;

fn taken(counts: &Counts) -> Taken {
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
    let counts = Counts::default();
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
    let counts = Counts::default();
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
    let counts = Counts::default();
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
    let counts = Counts::default();
    for number in 0..300 {
        deny(&counts, number, START_MS);
    }
    let (_, units, others) = taken(&counts).remove(0);
    assert!((300 - MAX_LABELS as u64..300).all(|number| units[&number] == 1));
    assert_eq!(others.unsigned_abs(), 300 - MAX_LABELS as u64);
}

#[test]
fn any_number_of_accounts_takes_bounded_room_and_leaves_some_for_denials() {
    let counts = Counts::default();
    for number in 0..10_000 {
        counts.contribute(&charge(number, 1), START_MS, START_MS, 1);
    }
    deny(&counts, 1, START_MS);
    let reports = counts.take(Account::is_of_denials);
    assert_eq!(reports.len(), 1);
    assert_eq!(taken(&counts).len(), MAX_TALLIES - OF_DENIALS);
}

#[test]
fn a_value_that_would_take_much_memory_is_not_counted() {
    let counts = Counts::default();
    let long = Key::new("user", vec![b'x'; MAX_VALUE + 1]);
    counts.deny_key(Some(&policy()), &long, START_MS);
    assert!(!counts.has_news());
}

#[test]
fn threads_that_count_at_the_same_time_lose_nothing() {
    let counts = Counts::default();
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
    let (processes, api) = ([Counts::default(), Counts::default()], policy());
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
        let listed: Vec<DeniedIdentity> = store.denials().into_ready().ok().unwrap().unwrap();
        assert_eq!(listed[0].identity(), "user=7");
        let (counted, truth) = (listed[0].last_minute(), second * FLOOD / 50);
        assert!(counted * 10 >= truth * 9, "{counted} of {truth}");
        assert!(listed[1..].iter().all(|it| it.last_minute() <= 9));
        clock.advance(std::time::Duration::from_secs(1));
    }
}
