//! A publication that ends while other threads note policies.

use std::{hint::spin_loop, thread};

use super::*;
use crate::domain::{key::Key, wanted::UNSEEN};

#[test]
fn the_next_request_after_a_publication_notes_its_policy_again() {
    let publisher = Publisher::default();
    let policy = Policy::parse("api", "10/1m").unwrap();
    let check = || Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
    let (noted, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let publish = || publisher.begin();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                if check().wanted_by(publisher.number(true)) & UNSEEN != 0 {
                    publisher.note(&check(), FailurePolicy::Open, true);
                }
                noted.fetch_add(1, Relaxed);
            }
        });
        for round in 0..10_000 {
            publish();
            (0..round % 64).for_each(|_| spin_loop());
            publish(); // while the thread notes the policy
            let before = noted.load(Relaxed);
            while noted.load(Relaxed) < before + 3 {
                spin_loop();
            }
            if !publisher.has_news() {
                ended.store(true, Relaxed);
                panic!("no request notes the policy any more");
            }
        }
        ended.store(true, Relaxed);
    });
}

#[test]
fn the_kinds_of_many_uses_are_noted_and_then_a_policy_is_marked() {
    let publisher = Publisher::default();
    let policy = Policy::parse("api", "10/1m").unwrap();
    let note = |kind: &'static str| {
        let check = Check::new([Charge::new(&policy, Key::new(kind, "alice"), 1)]).unwrap();
        let is_wanted = check.wanted_by(publisher.number(true)) & UNSEEN != 0;
        is_wanted && publisher.note(&check, FailurePolicy::Open, true)
    };
    assert!(note("ip") && note("user"));
    assert!((2..NOTED).all(|_| note("ip")));
    assert!(!note("ip"));
    let published = publisher.begin();
    assert_eq!(published[0].kinds().collect::<Vec<_>>(), ["ip", "user"]);
    assert!(note("ip"), "its mark is over");
}

#[test]
fn a_policy_that_is_only_looked_at_is_noted_once_and_again_when_it_is_used() {
    let publisher = Publisher::default();
    let policy = Policy::parse("api", "10/1m").unwrap();
    let is_noted = |cost| {
        let charge = Charge::new(&policy, Key::new("user", "alice"), cost);
        let check = Check::new([charge]).unwrap();
        let is_wanted = check.wanted_by(publisher.number(true)) & UNSEEN != 0;
        if is_wanted {
            publisher.note(&check, FailurePolicy::Open, true);
        }
        is_wanted
    };
    assert!(is_noted(0) && !is_noted(0) && is_noted(1));
    assert!((1..NOTED).all(|_| is_noted(1)));
    assert!(!is_noted(0) && !is_noted(1));
    let use_it = Check::new([Charge::new(&policy, Key::new("user", "bob"), 1)]).unwrap();
    let number = publisher.number(true);
    assert_eq!(use_it.without_cost().wanted_by(number) & UNSEEN, 0);
    assert_eq!(publisher.begin().len(), 1);
    assert!(
        is_noted(0) && !is_noted(0) && is_noted(1),
        "its marks are over"
    );
}

#[test]
fn a_policy_without_room_is_noted_once_until_the_next_publication() {
    let publisher = Publisher::default();
    let policies: Vec<_> = (0..=MAX_POLICIES)
        .map(|place| Policy::parse(format!("p{place}"), "10/1m").unwrap())
        .collect();
    let is_noted = |policy: &Policy| {
        let check = Check::new([Charge::new(policy, Key::new("user", "alice"), 1)]).unwrap();
        let is_wanted = check.wanted_by(publisher.number(true)) & UNSEEN != 0;
        if is_wanted {
            publisher.note(&check, FailurePolicy::Open, true);
        }
        is_wanted
    };
    assert!(policies.iter().all(is_noted));
    let last = &policies[MAX_POLICIES];
    assert!(!is_noted(last) && !publisher.all_known().1);
    publisher.begin();
    assert!(is_noted(last) && !is_noted(last));
}
