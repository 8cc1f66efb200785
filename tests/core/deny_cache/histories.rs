//! Random acts. Compares each repeated denial with the store's own decision.

use std::cell::Cell;

use proptest::prelude::*;
use support::{
    prelude::*,
    verified::{Verified, acts},
};

#[test]
fn what_is_repeated_is_what_the_store_would_answer() {
    let repeated = Cell::new(0);
    proptest!(|(acts in acts(), has_leases: bool)| {
        support::runtime().block_on(async {
            let (store, clock) = memory();
            let mut verified = if has_leases {
                let leases = support::leases(store).clock(clock.clone());
                Verified::new((leases, clock))
            } else {
                Verified::new((store, clock))
            };
            verified.play(&acts).await;
            repeated.set(repeated.get() + verified.repeated);
        });
    });
    assert!(repeated.get() > 1_000, "{repeated:?}");
}
