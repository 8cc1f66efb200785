//! Counts of denied identities, also in a flood and from several threads, and the bound of the tallies.

use std::{collections::BTreeMap, thread};

use super::*;
use crate::domain::{check::Check, decision::Count};

const START_MS: u64 = 1_700_000_000_000;

fn policy() -> Policy {
    Policy::parse("api", "10/1m").unwrap()
}

fn user(number: u64) -> Key {
    Key::new("user", number.to_string())
}

fn deny(counts: &Counts, number: u64, at_ms: u64) {
    counts.deny(Some(&policy()), &user(number), at_ms);
}

fn admit(counts: &Counts, number: u64, at_ms: u64) {
    let check = Check::new([Charge::new(&policy(), user(number), 1)]).unwrap();
    let decision = Decision::new(&check, true, at_ms, &[Count::default()]);
    counts.count(&decision.unwrap());
}

/// Whether an admission at this time is counted, and reported alone.
fn is_counted(counts: &Counts, number: u64, at_ms: u64) -> bool {
    taken(counts);
    admit(counts, number, at_ms);
    !taken(counts).is_empty()
}

/// Denied and admitted, by the seconds after the start at which the short span begins, and the user.
fn taken(counts: &Counts) -> BTreeMap<(u64, u64), (i64, i64)> {
    let mut sums = BTreeMap::new();
    let reports = counts.take(Account::is_of_denials).into_iter();
    for report in reports.filter(|it| it.span.length_ms == 10_000) {
        for (label, units) in &report.units {
            let user = str::from_utf8(label.key.value()).unwrap();
            let seconds = (report.span.start_ms - START_MS) / 1_000;
            let sum: &mut (i64, i64) = sums.entry((seconds, user.parse().unwrap())).or_default();
            sum.0 += units / DENIED.cast_signed();
            sum.1 += units % DENIED.cast_signed();
        }
    }
    sums
}

#[test]
fn admissions_count_from_the_first_denial_on_under_its_policy() {
    let counts = Counts::default();
    admit(&counts, 1, START_MS);
    deny(&counts, 1, START_MS);
    admit(&counts, 1, START_MS + 1);
    admit(&counts, 2, START_MS + 1);
    let other = Policy::parse("other", "1/1m").unwrap();
    counts.admit(&other, &user(1), START_MS + 1);
    deny(&counts, 1, START_MS + 2);
    assert!(counts.has_news());
    assert_eq!(taken(&counts), [((0, 1), (2, 1))].into());
    assert!(!counts.has_news() && taken(&counts).is_empty());
}

#[test]
fn counts_belong_to_the_span_of_their_time() {
    let counts = Counts::default();
    for seconds in [0, 9, 10, 31, 25] {
        deny(&counts, 1, START_MS + seconds * 1_000);
        admit(&counts, 1, START_MS + (seconds + 1) * 1_000);
    }
    let expected = [
        ((0, 1), (2, 1)),
        ((10, 1), (1, 2)),
        ((20, 1), (1, 1)),
        ((30, 1), (1, 1)),
    ];
    assert_eq!(taken(&counts), expected.into());
}

#[test]
fn an_hour_after_its_latest_denial_an_identity_is_forgotten() {
    let counts = Counts::default();
    deny(&counts, 1, START_MS);
    deny(&counts, 2, START_MS + 1_800_000);
    assert!(is_counted(&counts, 1, START_MS + 3_600_000));
    assert!(!is_counted(&counts, 1, START_MS + 3_610_000));
    assert!(is_counted(&counts, 2, START_MS + 5_400_000));
    assert!(!is_counted(&counts, 3, START_MS + 5_410_000));
    assert_eq!(counts.newest_ms.load(Relaxed), 0, "no denial is younger");
    assert!(!is_counted(&counts, 2, START_MS + 5_410_000));
    // The store's clock is set back, and it begins again.
    deny(&counts, 2, START_MS);
    assert!(is_counted(&counts, 2, START_MS));
}

#[test]
fn hundreds_of_identities_are_counted_exactly() {
    // Of twice as many, one run in eighty puts more into one of the sets than it has room for.
    let (counts, policy) = (Counts::default(), policy());
    for round in 0..3 {
        for number in 0..500 {
            deny(&counts, number, START_MS);
            if number % 2 == 0 {
                counts.admit(&policy, &user(number), START_MS);
            }
            if round == 1 && number % 5 == 0 {
                counts.deny(None, &user(number), START_MS);
            }
        }
    }
    let mut sums = BTreeMap::<_, i64>::new();
    let reports = counts.denied.iter().flat_map(Set::take_unsent);
    for (label, units) in reports.flat_map(|report| report.units) {
        *sums.entry(label.key.value().to_vec()).or_default() += units;
    }
    assert_eq!(sums.len(), 500);
    for number in 0..500 {
        let denied = 3 + i64::from(number % 5 == 0);
        let admitted = 3 * i64::from(number % 2 == 0);
        let units = sums[&number.to_string().into_bytes()];
        assert_eq!(units, denied * DENIED.cast_signed() + admitted, "{number}");
    }
}

#[test]
fn a_flood_of_made_up_identities_forgets_none_that_is_denied_often() {
    let (counts, often) = (Counts::default(), [1_000_001, 1_000_002, 1_000_003]);
    let mut sums = [0; 3];
    for number in 0..300_000 {
        // Thirty seconds, in each of which all identities are others, but three that make a hundredth of the flood.
        let at_ms = START_MS + number / 10;
        deny(&counts, number, at_ms);
        if number % 100 < 3 {
            deny(
                &counts,
                often[usize::try_from(number % 100).unwrap()],
                at_ms,
            );
        }
        if number % 10_000 == 9_999 {
            for ((_, user), (denied, _)) in taken(&counts) {
                if let Some(place) = often.iter().position(|it| *it == user) {
                    sums[place] += denied;
                }
            }
        }
    }
    assert!(sums.iter().all(|sum| *sum > 2_900), "{sums:?} of 3000");
    for set in &counts.denied {
        assert!(lock(&set.tally).as_ref().unwrap().hashes().len() <= 16);
    }
}

#[test]
fn a_value_that_would_take_much_memory_is_not_counted() {
    let counts = Counts::default();
    let long = Key::new("user", vec![b'x'; MAX_VALUE + 1]);
    counts.deny(Some(&policy()), &long, START_MS);
    assert!(!counts.has_news());
}

#[test]
fn threads_that_count_at_the_same_time_lose_nothing() {
    let (counts, policy) = (Counts::default(), policy());
    deny(&counts, 0, START_MS);
    let sum = || {
        taken(&counts)
            .values()
            .map(|sums| sums.0 + sums.1)
            .sum::<i64>()
    };
    let taken: i64 = thread::scope(|scope| {
        let taking = scope.spawn(|| (0..200).map(|_| sum()).sum::<i64>());
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    deny(&counts, 0, START_MS);
                    counts.admit(&policy, &user(0), START_MS);
                }
            });
        }
        taking.join().unwrap()
    });
    assert_eq!(taken + sum(), 40_001);
}

#[test]
fn any_number_of_accounts_leaves_the_denied_identities_known() {
    let counts = Counts::default();
    deny(&counts, 1, START_MS);
    counts.end_flush();
    for number in 0..10_000 {
        let account = Charge::new(&policy(), user(number), 1);
        let account = account.with_contributor(Key::new("ip", "192.0.2.1"));
        counts.contribute(&account, START_MS, 1, true);
    }
    assert!(is_counted(&counts, 1, START_MS + 1));
}

#[test]
fn a_shard_keeps_the_tallies_that_were_used_last() {
    let policy = policy();
    let mut tallies = Tallies::new();
    for number in 0..100 {
        if tallies.len() >= MAX_TALLIES / SHARDS {
            make_room(&mut tallies);
        }
        let acme = Key::new("account", "acme");
        let mut tally = Tally::of_contributors(&policy, &acme, longest(&policy), 0);
        tally.used = if number == 7 { 1_000 } else { number };
        tallies.insert(number, Box::new(tally));
    }
    let kept: Vec<_> = tallies.into_keys().collect();
    let expected: Vec<_> = [7].into_iter().chain(37..100).collect();
    assert_eq!(kept, expected);
}
