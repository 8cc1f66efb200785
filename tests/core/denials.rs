//! Proves when the store receives denials, which answers count as denials, and that no request waits for this.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{executor::block_on, future::pending};
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, MemoryStore, Policy, Store, StoreError,
    denials::DeniedIdentity,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, Operation, Reply, StoreExt, StoreFuture},
};
use support::trace::traced;
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, advance},
};

/// A memory store that can ignore reports of denials or be down, and counts the reports.
#[derive(Clone, Debug, Default)]
struct Probe {
    store: MemoryStore,
    told: Arc<AtomicUsize>,
    is_deaf: Arc<AtomicBool>,
    is_down: Arc<AtomicBool>,
    /// The error that answers a report.
    refuses: Option<StoreErrorKind>,
}

impl Store for Probe {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        if self.is_down.load(SeqCst) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "down");
            return StoreFuture::ready(Err(error));
        }
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if let Operation::ReportDenials(_) = operation {
            self.told.fetch_add(1, SeqCst);
            if let Some(kind) = self.refuses {
                return StoreFuture::ready(Err(StoreError::new(kind, "refused")));
            }
            if self.is_deaf.load(SeqCst) {
                return StoreFuture::pending(pending());
            }
        }
        self.store.execute(operation)
    }
}

fn full() -> Policy {
    Policy::parse("api", "0/1h").unwrap()
}

async fn deny(limiter: &Limiter, user: &str) {
    let charge = Charge::new(&full(), Key::new("user", user), 1);
    assert!(!limiter.check([charge]).await.unwrap().is_allowed());
}

/// Admits a user under a policy of the same name.
async fn admit(limiter: &Limiter, user: &str, cost: u64) {
    let roomy = Policy::parse("api", "1000/1h").unwrap();
    let charge = Charge::new(&roomy, Key::new("user", user), cost);
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
}

/// The numbers of denials and admissions in the store. Asking the limiter would make it send more.
async fn known(store: &impl Store) -> (u64, u64) {
    sums(&store.denials().await.unwrap())
}

fn sums(denials: &[DeniedIdentity]) -> (u64, u64) {
    let hours = denials.iter().map(|it| it.last_hour());
    hours.fold((0, 0), |sums, it| {
        (sums.0 + it.denied(), sums.1 + it.admitted())
    })
}

/// Lets time pass, and lets waiting tasks run.
async fn pass(seconds: u64) {
    for _ in 0..seconds * 2 {
        advance(Duration::from_millis(500)).await;
        for _ in 0..8 {
            yield_now().await;
        }
    }
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn the_limiter_reports_once_a_second_until_nothing_happens_any_more() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    deny(&limiter, "alice").await;
    yield_now().await;
    assert_eq!((known(&probe).await, tasks()), ((0, 0), 1));
    pass(2).await;
    assert_eq!(known(&probe).await, (1, 0));
    for _ in 0..100 {
        deny(&limiter, "alice").await;
        deny(&limiter, "bob").await;
    }
    let told = probe.told.load(SeqCst);
    pass(2).await;
    assert_eq!((known(&probe).await, tasks()), ((201, 0), 1));
    assert_eq!(probe.told.load(SeqCst), told + 1, "in one call");
    pass(15).await;
    assert_eq!(tasks(), 0, "nothing happens");
    // An admission after a denial is also reported.
    admit(&limiter, "alice", 1).await;
    pass(2).await;
    assert_eq!(known(&probe).await, (201, 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_denial_no_task_is_spawned_and_no_report_sent() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    let roomy = Policy::parse("api", "100/1h").unwrap();
    for _ in 0..10 {
        let charge = Charge::new(&roomy, Key::new("user", "alice"), 1);
        limiter.check([charge]).await.unwrap();
    }
    pass(2).await;
    assert_eq!((tasks(), probe.told.load(SeqCst)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_counts_no_denials_reports_none() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone()).count_denials(false);
    deny(&limiter, "alice").await;
    pass(2).await;
    assert_eq!((tasks(), probe.told.load(SeqCst)), (0, 0));
    assert_eq!(sums(&limiter.denials().await.unwrap()), (0, 0));
    let limiter = limiter.count_denials(true);
    deny(&limiter, "alice").await;
    assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_limiter_reports_the_rest_and_leaves_no_task() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    let clone = limiter.clone().timeout(Duration::from_secs(1));
    deny(&limiter, "alice").await;
    deny(&clone, "alice").await;
    drop(limiter);
    pass(1).await;
    deny(&clone, "alice").await;
    drop(clone);
    yield_now().await;
    assert_eq!(known(&probe).await, (3, 0));
    pass(2).await;
    assert_eq!((tasks(), Arc::strong_count(&probe.told)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_delays_no_check_and_loses_its_reports() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    probe.is_deaf.store(true, SeqCst);
    let start = Instant::now();
    for _ in 0..1_000 {
        deny(&limiter, "alice").await;
    }
    assert_eq!(Instant::now(), start, "no check waits");
    pass(4).await;
    assert!(probe.told.load(SeqCst) >= 1);
    probe.is_deaf.store(false, SeqCst);
    pass(2).await;
    deny(&limiter, "alice").await;
    pass(2).await;
    assert_eq!(known(&probe).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_no_longer_than_the_timeout() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone()).timeout(Duration::from_millis(70));
    probe.is_deaf.store(true, SeqCst);
    deny(&limiter, "alice").await;
    let start = Instant::now();
    let error = limiter.denials().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(start.elapsed() < Duration::from_millis(80));
}

#[test]
fn outside_of_a_runtime_what_is_asked_for_is_told() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store.clone());
    block_on(async {
        deny(&limiter, "alice").await;
        assert_eq!(known(&store).await, (0, 0));
        assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 0));
    });
}

#[tokio::test(start_paused = true)]
async fn what_a_deny_cache_repeats_and_what_is_decided_locally_counts() {
    let probe = Probe::default();
    let cached = Limiter::new(probe.clone()).cache_denials(true);
    for _ in 0..5 {
        deny(&cached, "alice").await;
    }
    assert_eq!(sums(&cached.denials().await.unwrap()), (5, 0));
    let local = Limiter::new(probe.clone()).on_failure(FailurePolicy::Local);
    probe.is_down.store(true, SeqCst);
    for _ in 0..3 {
        deny(&local, "alice").await;
    }
    probe.is_down.store(false, SeqCst);
    pass(2).await;
    assert_eq!(known(&probe).await, (8, 0));
}

#[tokio::test]
async fn of_a_caller_that_waits_only_the_end_counts() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("api", "1/50ms@exact").unwrap();
    let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    for _ in 0..4 {
        let decision = limiter.acquire(charge(), Duration::from_secs(9)).await;
        assert!(decision.unwrap().is_allowed());
    }
    assert_eq!(sums(&limiter.denials().await.unwrap()), (0, 0));
    let policy = full();
    let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    let decision = limiter.acquire(charge(), Duration::from_millis(1)).await;
    assert!(!decision.unwrap().is_allowed());
    assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 0));
}

#[tokio::test]
async fn a_caller_that_leaves_is_neither_denied_nor_admitted() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("api", "1/1h").unwrap();
    let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    limiter.check(charge()).await.unwrap();
    limiter.check(charge()).await.unwrap();
    let waiting = limiter.acquire(charge(), Duration::from_secs(7_200));
    assert!(futures::poll!(std::pin::pin!(waiting)).is_pending());
    assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_denials_is_asked_once() {
    let refuses = Some(StoreErrorKind::InvalidRequest);
    let probe = Probe {
        refuses,
        ..Probe::default()
    };
    let limiter = Limiter::new(probe.clone());
    for _ in 0..5 {
        deny(&limiter, "alice").await;
        pass(2).await;
    }
    assert_eq!(probe.told.load(SeqCst), 1);
    let error = limiter.denials().await;
    assert!(error.is_ok(), "nothing is told any more");
}

#[tokio::test(start_paused = true)]
async fn once_a_store_has_said_that_it_keeps_no_denials_no_admission_is_reported() {
    let probe = Probe {
        refuses: Some(StoreErrorKind::InvalidRequest),
        ..Probe::default()
    };
    let limiter = Limiter::new(probe.clone());
    deny(&limiter, "alice").await;
    pass(2).await;
    for _ in 0..5 {
        admit(&limiter, "alice", 1).await;
        pass(2).await;
    }
    assert_eq!(probe.told.load(SeqCst), 1);
    pass(15).await;
    assert_eq!(tasks(), 0);
}

#[tokio::test]
async fn a_look_is_neither_denied_nor_admitted() {
    let limiter = Limiter::new(MemoryStore::new());
    deny(&limiter, "alice").await;
    admit(&limiter, "alice", 0).await;
    assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 0));
    admit(&limiter, "alice", 2).await;
    assert_eq!(sums(&limiter.denials().await.unwrap()), (1, 1));
}

#[test]
fn a_missing_right_gives_one_warning_and_other_errors_none() {
    for (refuses, expected) in [
        (StoreErrorKind::InvalidRequest, 0),
        (StoreErrorKind::Unavailable, 0),
        (StoreErrorKind::AccessDenied, 1),
    ] {
        let probe = Probe {
            refuses: Some(refuses),
            ..Probe::default()
        };
        let lines = traced(false, async {
            let limiter = Limiter::new(probe);
            for _ in 0..3 {
                deny(&limiter, "alice").await;
                pass(2).await;
            }
        });
        let warnings = lines
            .iter()
            .filter(|line| line.contains("which identities are denied"));
        assert_eq!(
            (warnings.count(), lines.len()),
            (expected, expected),
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn a_clock_that_was_ahead_for_a_moment_silences_no_identity() {
    const START_MS: u64 = 1_790_000_000_000;
    let clock = ManualClock::new(START_MS);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    for at_ms in [0, 86_400_000, 10_000] {
        clock.set(START_MS + at_ms);
        deny(&limiter, "alice").await;
    }
    admit(&limiter, "alice", 1).await;
    assert_eq!(sums(&limiter.denials().await.unwrap()), (2, 1));
}
