//! A flood of made-up keys over a full `MemoryStore`: the time of a decision, the bytes of a key, and whether a limit is
//! lifted. `cargo bench --bench memory -- flood` takes some seconds.
//!
//! Fails when a decision in the full store takes more than twice as long as in a store that is filling, when a client
//! at its limit gets one unit more, or when the store grows after it is full.

use std::{ops::Range, time::Instant};

use futures::executor::block_on;
use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};

use crate::resident_kib;

/// Keys that fit, as by default.
const CAPACITY: u64 = 100_000;
/// Clients that are at their limit before the flood begins.
const LIMITED: u64 = 1_000;
const LIMIT: u64 = 5;
/// Made-up keys, in multiples of the capacity.
const FLOOD: u64 = 10;
const MAX_SLOWDOWN: f64 = 2.0;
/// The resident memory varies by this much without any flood.
const SLACK_KIB: u64 = 1_024;

/// Returns whether each bar is met.
pub(crate) fn run() -> bool {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("p", "5/1h").unwrap();
    let before_kib = resident_kib();
    // The flood counts from 0, so it never has the name of a limited client.
    let limited = |client: u64| ask(&limiter, &policy, u64::MAX - client);
    let admitted = || (0..LIMITED).filter(|client| limited(*client)).count();
    for _ in 0..LIMIT {
        assert_eq!(admitted(), usize::try_from(LIMITED).unwrap());
    }

    let filling = cost(&limiter, &policy, 0..CAPACITY / 2);
    let _ = cost(&limiter, &policy, CAPACITY / 2..2 * CAPACITY);
    let full_kib = resident_kib();
    let full = cost(&limiter, &policy, 2 * CAPACITY..FLOOD * CAPACITY);
    let grown_kib = resident_kib().saturating_sub(full_kib);
    let over = admitted();

    let slowdown = full / filling;
    #[expect(clippy::cast_precision_loss, reason = "these are small")]
    let bytes = ((full_kib - before_kib) * 1_024) as f64 / CAPACITY as f64;
    println!(
        "{filling:.0} ns a decision while the store fills, {full:.0} ns under the flood: {slowdown:.2}"
    );
    println!("{bytes:.0} bytes a key, and {grown_kib} KiB more after the flood");
    println!("{over} of {LIMITED} clients at their limit got another unit");
    slowdown <= MAX_SLOWDOWN && over == 0 && grown_kib <= SLACK_KIB
}

/// Nanoseconds for the decision about each of these keys, all of which are new.
fn cost(limiter: &Limiter, policy: &Policy, keys: Range<u64>) -> f64 {
    let (count, start) = (keys.end - keys.start, Instant::now());
    for key in keys {
        assert!(ask(limiter, policy, key), "a new key has its whole limit");
    }
    #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
    let each = start.elapsed().as_nanos() as f64 / count as f64;
    each
}

fn ask(limiter: &Limiter, policy: &Policy, key: u64) -> bool {
    let charge = Charge::new(policy, Key::new("user", key.to_string()), 1);
    block_on(limiter.check([charge])).unwrap().is_allowed()
}
