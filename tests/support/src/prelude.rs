//! Names that most tests use, and short ways to charge, to ask and to read answers.

pub use std::{
    convert::Infallible,
    future::{pending, poll_fn, ready},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

pub use futures::{FutureExt, executor::block_on, future::join_all, poll};
pub use http::{Request, Response, StatusCode, request::Parts};
pub use sluicegate::{
    Charge, Decision, Denial, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    RedisStore, Rule, Store, StoreError, Usage,
    block::{Block, BlockRequest, BlockedBy, Until},
    error::StoreErrorKind,
    limiter::Slot,
    manual_clock::ManualClock,
    observe::{Event, Observer},
    store::{
        CallFuture, Check, CheckBatch, Leases, Operation, Reply, Settlement, Slots, StoreFuture,
    },
};
pub use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
pub use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService,
};

pub use super::{
    fated::{Asked, Fate, Fated},
    history::START_MS,
    log::Log,
    outcome::Outcome,
    rows::{hold, millis, rows},
    scripted::{Scripted, allowed, denied, unavailable},
    store_ext::StoreExt,
    trace::{traced, traced_here},
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

pub fn check_of(policy: &Policy, name: &str, cost: u64) -> Check {
    Check::new([charge(policy, name, cost)]).unwrap()
}

pub async fn check(limiter: &Limiter, policy: &Policy, name: &str, cost: u64) -> Decision {
    limiter.check([charge(policy, name, cost)]).await.unwrap()
}

pub async fn admits(limiter: &Limiter, policy: &Policy, name: &str, cost: u64) -> bool {
    check(limiter, policy, name, cost).await.is_allowed()
}

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
        yield_now().await;
    }
}

/// Acts until the condition holds, ten thousand times at most.
pub async fn until(mut holds: impl AsyncFnMut() -> bool, mut act: impl AsyncFnMut()) {
    for _ in 0..10_000 {
        if holds().await {
            return;
        }
        act().await;
    }
    panic!("the condition does not hold");
}

pub fn acme() -> Key {
    Key::new("account", "acme")
}

pub fn kind_of<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind())
}

/// Whether all of these callers are admitted, at the same time.
pub async fn all_admitted<F: Future<Output = Result<Decision, StoreError>>>(
    callers: impl IntoIterator<Item = F>,
) -> bool {
    let decisions = join_all(callers).await;
    decisions.into_iter().all(|it| it.unwrap().is_allowed())
}

pub type Inner = BoxCloneSyncService<Request<String>, Response<String>, Infallible>;

pub fn answering(
    answer: impl Fn(Request<String>) -> Response<String> + Clone + Send + Sync + 'static,
) -> Inner {
    Inner::new(service_fn(move |request| ready(Ok(answer(request)))))
}

pub fn hello() -> Inner {
    answering(|_| Response::new("hello".to_owned()))
}

pub fn to(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

/// Sends a request through this layer to a service that says hello.
pub async fn send(layer: &RateLimitLayer, request: Request<String>) -> Response<String> {
    layer.layer(hello()).oneshot(request).await.unwrap()
}
