//! Counts of the table of denials, also in a flood and from several threads.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use super::*;

const START_MS: u64 = 1_700_000_000_000;

fn policy() -> Policy {
    Policy::parse("api", "10/1m").unwrap()
}

fn user(number: u64) -> Key {
    Key::new("user", number.to_string())
}

/// Denied and admitted, by the seconds after the start at which the span begins, and the user.
fn taken(table: &Table) -> BTreeMap<(u64, String), (u64, u64)> {
    let mut sums = BTreeMap::new();
    for Counted { span, count } in table.take() {
        let user = String::from_utf8(count.key.value().to_vec()).unwrap();
        let seconds = (start_ms(span) - START_MS) / 1_000;
        let sum: &mut (u64, u64) = sums.entry((seconds, user)).or_default();
        sum.0 += count.counts.denied();
        sum.1 += count.counts.admitted();
    }
    sums
}

fn of<const N: usize>(rows: [(u64, u64, u64, u64); N]) -> BTreeMap<(u64, String), (u64, u64)> {
    let rows = rows
        .map(|(seconds, user, denied, admitted)| ((seconds, user.to_string()), (denied, admitted)));
    rows.into()
}

#[test]
fn admissions_count_from_the_first_denial_on() {
    let (table, policy) = (Table::default(), policy());
    assert!(!table.is_active());
    assert!(table.admit(&policy, &user(1), START_MS).is_none());
    table.deny(Some(&policy), &user(1), START_MS);
    assert!(table.is_active());
    assert!(table.admit(&policy, &user(1), START_MS + 1).is_some());
    assert!(table.admit(&policy, &user(2), START_MS + 1).is_none());
    let other = Policy::parse("other", "1/1m").unwrap();
    assert!(table.admit(&other, &user(1), START_MS + 1).is_none());
    table.deny(Some(&policy), &user(1), START_MS + 2);
    assert!(table.has_counts());
    assert_eq!(taken(&table), of([(0, 1, 2, 1)]));
    assert!(!table.has_counts() && table.take().is_empty());
}

#[test]
fn what_is_counted_belongs_to_the_span_of_its_time() {
    let (table, policy) = (Table::default(), policy());
    for seconds in [0, 9, 10, 31, 25] {
        table.deny(Some(&policy), &user(1), START_MS + seconds * 1_000);
        table.admit(&policy, &user(1), START_MS + (seconds + 1) * 1_000);
    }
    let expected = [(0, 1, 2, 1), (10, 1, 1, 2), (20, 1, 1, 1), (30, 1, 1, 1)];
    assert_eq!(taken(&table), of(expected));
}

#[test]
fn an_hour_after_its_latest_denial_an_identity_is_forgotten() {
    let (table, policy) = (Table::default(), policy());
    table.deny(Some(&policy), &user(1), START_MS);
    table.deny(Some(&policy), &user(2), START_MS + 1_800_000);
    assert!(
        table
            .admit(&policy, &user(1), START_MS + 3_600_000)
            .is_some()
    );
    assert!(
        table
            .admit(&policy, &user(1), START_MS + 3_610_000)
            .is_none()
    );
    assert!(
        table
            .admit(&policy, &user(1), START_MS + 3_600_000)
            .is_none(),
        "it has left"
    );
    assert!(
        table
            .admit(&policy, &user(2), START_MS + 5_400_000)
            .is_some()
    );
    assert_eq!(
        taken(&table)[&(3_600, "1".to_owned())],
        (0, 1),
        "what was counted is reported"
    );
    assert!(table.is_active());
    assert!(
        table
            .admit(&policy, &user(3), START_MS + 5_410_000)
            .is_none()
    );
    assert!(!table.is_active(), "no denial is younger than an hour");
    assert!(
        table
            .admit(&policy, &user(2), START_MS + 5_410_000)
            .is_none()
    );
    // The store's clock is set back, and it begins again.
    table.deny(Some(&policy), &user(2), START_MS);
    assert!(table.admit(&policy, &user(2), START_MS).is_some());
}

#[test]
fn a_thousand_identities_are_counted_exactly() {
    let (table, policy) = (Table::default(), policy());
    for round in 0..3 {
        for number in 0..1_000 {
            table.deny(Some(&policy), &user(number), START_MS);
            if number % 2 == 0 {
                assert!(table.admit(&policy, &user(number), START_MS).is_some());
            }
            if round == 1 && number % 5 == 0 {
                table.deny(None, &user(number), START_MS);
            }
        }
    }
    let counted = taken(&table);
    assert_eq!(counted.len(), 1_000);
    for number in 0..1_000 {
        let denied = 3 + u64::from(number % 5 == 0);
        let admitted = 3 * u64::from(number % 2 == 0);
        assert_eq!(
            counted[&(0, number.to_string())],
            (denied, admitted),
            "{number}"
        );
    }
}

#[test]
fn a_flood_of_identities_takes_no_more_room_and_forgets_those_that_were_denied_least() {
    let (table, policy) = (Table::default(), policy());
    let often = [1_000_001, 1_000_002, 1_000_003];
    for number in 0..100_000 {
        table.deny(Some(&policy), &user(number), START_MS + number / 10);
        if number % 1_000 < 3 {
            // Every tenth of a second once.
            let number = often[usize::try_from(number % 1_000).unwrap()];
            table.deny(Some(&policy), &user(number), START_MS + number % 10_000);
        }
        if number % 1_000 == 999 && number > 9_000 {
            for number in often {
                assert!(
                    table.admit(&policy, &user(number), START_MS).is_some(),
                    "{number}"
                );
            }
        }
    }
    let counted = table.take();
    assert!(
        counted.len() <= SETS * (WAYS + MAX_LATE),
        "{}",
        counted.len()
    );
}

#[test]
fn a_value_that_would_take_much_memory_is_not_counted() {
    let (table, policy) = (Table::default(), policy());
    table.deny(
        Some(&policy),
        &Key::new("user", vec![b'x'; MAX_VALUE + 1]),
        START_MS,
    );
    assert!(!table.is_active() && table.take().is_empty());
}

#[test]
fn threads_that_count_at_the_same_time_lose_nothing() {
    let (table, policy) = (Table::default(), policy());
    table.deny(Some(&policy), &user(0), START_MS);
    let taken: u64 = thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let taken = (0..200).flat_map(|_| table.take());
            taken.map(|it| it.count.counts.total()).sum::<u64>()
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    table.deny(Some(&policy), &user(0), START_MS);
                    assert!(table.admit(&policy, &user(0), START_MS).is_some());
                }
            });
        }
        taking.join().unwrap()
    });
    let rest: u64 = table.take().iter().map(|it| it.count.counts.total()).sum();
    assert_eq!(taken + rest, 40_001);
}

#[test]
fn a_denial_of_a_known_identity_waits_for_no_lock() {
    let (table, policy) = (Arc::new(Table::default()), policy());
    table.deny(Some(&policy), &user(1), START_MS);
    let hash = table.hasher.hash(Some(&policy), &user(1));
    let held = table.set_of(hash).get().unwrap().lock();
    let (sender, receiver) = mpsc::channel();
    let denying = Arc::clone(&table);
    thread::spawn(move || {
        denying.deny(Some(&policy), &user(1), START_MS + 1);
        sender.send(())
    });
    let denied = receiver.recv_timeout(Duration::from_secs(10));
    assert_eq!(denied, Ok(()));
    drop(held);
    assert_eq!(taken(&table), of([(0, 1, 2, 0)]));
}

#[test]
fn a_denial_after_an_admission_of_its_span_prolongs_the_hour() {
    let (table, policy) = (Table::default(), policy());
    table.deny(Some(&policy), &user(1), START_MS);
    table.admit(&policy, &user(1), START_MS + 1_800_000);
    table.deny(Some(&policy), &user(1), START_MS + 1_800_000);
    let later = table.admit(&policy, &user(1), START_MS + 5_400_000);
    assert_eq!(later, Some(true));
    assert!(
        table
            .admit(&policy, &user(1), START_MS + 5_410_000)
            .is_none()
    );
}

#[test]
fn only_sets_with_a_denial_take_memory() {
    let (table, policy) = (Table::default(), policy());
    assert_eq!(table.made().count(), 0);
    for _ in 0..3 {
        table.deny(Some(&policy), &user(1), START_MS);
    }
    assert_eq!(table.made().count(), 1);
}

#[test]
fn what_was_added_to_a_free_slot_is_no_news_for_ever() {
    let (table, policy) = (Table::default(), policy());
    table.deny(Some(&policy), &user(1), START_MS);
    table.forget_all();
    let set = table.made().next().unwrap();
    // As by a thread that had found the identity just before.
    set.slots[0].counts.store(ADMITTED, Relaxed);
    assert!(table.has_counts());
    assert!(table.take().is_empty() && !table.has_counts());
}
