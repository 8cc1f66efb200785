//! The balance of a lease under every order of the steps of several threads.

mod sync {
    pub(super) use loom::sync::atomic;
}

#[path = "../../src/store/leases/balance.rs"]
mod core;

use core::Balance;

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
    });
}

#[test]
fn what_is_put_back_can_be_spent_or_taken_once() {
    loom::model(|| {
        let balance = Arc::new(Balance::new(1));
        let other = Arc::clone(&balance);
        let unused = thread::spawn(move || other.spend(1).is_some() && !other.put_back(1));
        let spent = u64::from(balance.spend(1).is_some());
        let taken = balance.close();
        // What is put back too late stays charged.
        let lost = u64::from(unused.join().unwrap());
        assert_eq!(spent + taken + lost, 1);
        assert_eq!(balance.left(), 0);
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
