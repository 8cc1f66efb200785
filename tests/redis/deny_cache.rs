//! Proves that a limiter that caches denials denies no request that the server would admit.

use std::cell::Cell;

use proptest::prelude::*;
use support::{
    history::few_cases,
    redis::Server,
    served::fresh,
    verified::{Verified, acts},
};

#[test]
fn what_is_repeated_is_what_the_server_would_answer() {
    let (server, runtime) = (Server::start(), support::runtime());
    let repeated = Cell::new(0);
    proptest!(few_cases(), |(acts in acts())| {
        runtime.block_on(async {
            let mut verified = Verified::new(fresh(&server).await);
            verified.play(&acts).await;
            repeated.set(repeated.get() + verified.repeated);
        });
    });
    assert!(repeated.get() > 50, "{repeated:?}");
}
