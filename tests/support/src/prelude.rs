//! Names that most tests use, and short ways to charge, to ask and to read answers.

pub use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

pub use sluicegate::{
    Charge, Decision, Denial, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    RedisStore, Rule, Store, StoreError, Usage,
    block::{Block, BlockRequest, BlockedBy, Until},
    error::StoreErrorKind,
    limiter::Slot,
    manual_clock::ManualClock,
    observe::{Event, Observer},
    store::{
        CallFuture, Check, CheckBatch, Leases, Operation, Reply, Settlement, Slots, StoreExt,
        StoreFuture,
    },
};

pub use super::{
    fated::{Asked, Fate, Fated},
    history::START_MS,
    outcome::Outcome,
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

pub fn user(name: &str) -> Key {
    Key::new("user", name)
}

pub fn charge(policy: &Policy, name: &str, cost: u64) -> Charge {
    Charge::new(policy, user(name), cost)
}

/// A check of one charge.
pub fn check_of(policy: &Policy, name: &str, cost: u64) -> Check {
    Check::new([charge(policy, name, cost)]).unwrap()
}

pub async fn check(limiter: &Limiter, policy: &Policy, name: &str, cost: u64) -> Decision {
    limiter.check([charge(policy, name, cost)]).await.unwrap()
}

pub async fn admits(limiter: &Limiter, policy: &Policy, name: &str, cost: u64) -> bool {
    check(limiter, policy, name, cost).await.is_allowed()
}

/// The units left under the first rule.
pub async fn left(limiter: &Limiter, policy: &Policy, name: &str) -> u64 {
    let usage = limiter.peek([charge(policy, name, 0)]).await.unwrap();
    remaining(&usage)[0]
}

pub fn remaining(usage: &Usage) -> Vec<u64> {
    usage.rules().map(|rule| rule.remaining()).collect()
}

pub fn is_denied(decision: &Decision) -> bool {
    matches!(decision, Decision::Denied(_))
}

pub fn is_blocked(decision: &Decision) -> bool {
    matches!(decision, Decision::Blocked(_))
}

/// How long a check was refused for; `None` for ever.
pub fn retry_after(decision: &Decision) -> Option<Duration> {
    match decision {
        Decision::Denied(denial) => denial.retry_after(),
        Decision::Blocked(blocked) => blocked.retry_after(),
        other => panic!("it was not refused: {other:?}"),
    }
}

pub fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    (MemoryStore::new().clock(clock.clone()), clock)
}

/// Lets spawned tasks run.
pub async fn others_run() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}
