//! The balance of a lease under every order of the steps of several threads.

mod sync {
    pub(super) use loom::sync::atomic;
}

#[path = "../../../src/store/layers/leases/balance.rs"]
mod core;

use core::{Balance, MOST};

use loom::{sync::Arc, thread};

#[test]
fn no_unit_is_spent_twice_or_spent_and_taken() {
    loom::model(|| {
        let balance = Arc::new(Balance::new(2));
        let spender = || {
            let balance = Arc::clone(&balance);
            thread::spawn(move || u64::from(balance.spend(1).is_some()))
        };
        let spenders = [spender(), spender()];
        let taken = balance.close();
        let spent: u64 = spenders.into_iter().map(|it| it.join().unwrap()).sum();
        assert_eq!(spent + taken, 2);
        assert_eq!((balance.close(), balance.spend(1)), (0, None));
        assert!(!balance.claim(1));
    });
}

#[test]
fn only_its_claim_spends_a_claimed_unit_until_it_is_closed() {
    loom::model(|| {
        let balance = Arc::new(Balance::new(2));
        assert!(balance.claim(1));
        let other = Arc::clone(&balance);
        let claim = thread::spawn(move || u64::from(other.spend_claimed(1).is_some()));
        let spent = u64::from(balance.spend(1).is_some()) + u64::from(balance.spend(1).is_some());
        assert_eq!(spent, 1);
        let taken = balance.close();
        assert_eq!(spent + taken + claim.join().unwrap(), 2);
    });
}

#[test]
fn a_claim_that_is_released_can_be_spent_or_taken_once() {
    loom::model(|| {
        let balance = Arc::new(Balance::new(1));
        assert!(balance.claim(1));
        assert!(!balance.is_used_up(1), "it may be released");
        let other = Arc::clone(&balance);
        let claim = thread::spawn(move || other.release(1));
        let spent = u64::from(balance.spend(1).is_some());
        let taken = balance.close();
        claim.join().unwrap();
        assert_eq!(spent + taken, 1);
        assert_eq!(balance.unspent(), 0);
        assert!(balance.is_used_up(1));
    });
}

#[test]
fn of_two_who_end_it_one_has_the_units() {
    loom::model(|| {
        let balance = Arc::new(Balance::new(3));
        let other = Arc::clone(&balance);
        let task = thread::spawn(move || other.close());
        let taken = balance.close();
        assert_eq!(taken + task.join().unwrap(), 3);
    });
}

#[test]
fn the_most_units_can_be_claimed_and_spent() {
    loom::model(|| {
        let balance = Balance::new(MOST);
        assert!(balance.claim(MOST - 1) && !balance.claim(2));
        assert_eq!(balance.spend(1), Some(MOST - 1));
        assert_eq!(balance.spend_claimed(MOST - 1), Some(0));
    });
}
