//! Slots that a process holds: renewed while they are held, returned when dropped, and known to be lost.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, StoreError,
    error::StoreErrorKind,
    limiter::Slot,
    store::{Check, Operation, Reply, StoreFuture},
    test_util::TestClock,
};
use tokio::time::{advance, sleep};

const WINDOW: Duration = Duration::from_secs(30);

/// A memory store whose clock goes with the runtime's, and whose answers can be lost.
#[derive(Clone, Debug)]
struct Cluster {
    store: MemoryStore,
    clock: TestClock,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug, Default)]
struct Script {
    renewals: Vec<usize>,
    fails: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The store does it, and the answer is lost.
    AnswerLost,
    /// The store is not even asked.
    Unsent,
    /// The store takes a while to answer a check.
    Slow,
    /// The store takes a while to answer a renewal.
    SlowRenewal,
}

impl Cluster {
    fn new() -> Self {
        let clock = TestClock::new(1_700_000_000_000);
        Self {
            store: MemoryStore::new().clock(clock.clone()),
            clock,
            script: Arc::default(),
        }
    }

    fn fail(&self, failure: Option<Failure>) {
        self.script.lock().unwrap().fails = failure;
    }

    fn renewals(&self) -> Vec<usize> {
        self.script.lock().unwrap().renewals.clone()
    }

    /// Lets time pass at once, as for a process that is stopped.
    async fn stop(&self, time: Duration) {
        self.clock.advance(time);
        advance(time).await;
    }

    /// Lets time pass, for the store and for this process, in small steps.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            let by = step.min(left);
            self.stop(by).await;
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            left -= by;
        }
    }
}

impl Store for Cluster {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let decision = self.store.check(check);
        let is_slow = matches!(self.script.lock().unwrap().fails, Some(Failure::Slow));
        match is_slow {
            true => StoreFuture::pending(async {
                sleep(Duration::from_millis(50)).await;
                decision.await
            }),
            false => decision,
        }
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let is_message = matches!(operation, Operation::Renew(_) | Operation::Settle(_));
        let failure = self.script.lock().unwrap().fails.filter(|_| is_message);
        if let Some(Failure::Unsent) = failure {
            let error = StoreError::new(StoreErrorKind::Unavailable, "no connection").unsent();
            return StoreFuture::ready(Err(error));
        }
        let reply = self.store.execute(operation);
        match failure {
            Some(Failure::AnswerLost) => StoreFuture::pending(async {
                drop(reply);
                sleep(Duration::from_secs(3_600)).await;
                unreachable!("the timeout comes first")
            }),
            Some(Failure::SlowRenewal) => StoreFuture::pending(async {
                sleep(Duration::from_millis(50)).await;
                reply.await
            }),
            _ => reply,
        }
    }

    fn call(&self, operations: Vec<Operation>) -> sluicegate::store::CallFuture {
        let renewals = operations
            .iter()
            .filter(|it| matches!(it, Operation::Renew(_)));
        let renewals = renewals.count();
        if renewals > 0 {
            self.script.lock().unwrap().renewals.push(renewals);
        }
        let replies: Vec<_> = operations.into_iter().map(|it| self.execute(it)).collect();
        StoreFuture::pending(async move {
            let mut all = Vec::new();
            for reply in replies {
                all.push(reply.await);
            }
            Ok(all)
        })
    }
}

fn one() -> Policy {
    Policy::parse("jobs", "1/30s@concurrent").unwrap()
}

async fn acquire(limiter: &Limiter, policy: &Policy) -> Option<Slot> {
    let job = Charge::new(policy, Key::new("user", "alice"), 1);
    let slot = limiter.acquire_slot([job], Duration::ZERO).await.unwrap();
    slot.ok().map(|slot| slot.expect("the policy has slots"))
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_renewed_as_long_as_it_is_held() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    for _ in 0..10 {
        cluster.pass(WINDOW).await;
        assert!(slot.is_held());
        assert!(acquire(&limiter, &one()).await.is_none());
    }
    let renewals = cluster.renewals().len();
    assert!(
        (30..=42).contains(&renewals),
        "at a third of the window: {renewals}"
    );

    drop(slot);
    cluster.pass(Duration::from_secs(1)).await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn slots_that_nobody_holds_are_not_renewed() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    drop(acquire(&limiter, &one()).await);
    cluster.pass(WINDOW * 3).await;
    assert!(cluster.renewals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn renewals_that_are_due_together_share_a_call() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let many = Policy::parse("jobs", "1000/30s@concurrent").unwrap();
    let mut slots = Vec::new();
    for _ in 0..600 {
        slots.push(acquire(&limiter, &many).await.unwrap());
    }
    // Stopped for long enough that all are due.
    cluster.stop(WINDOW / 2).await;
    cluster.pass(Duration::from_millis(100)).await;
    assert_eq!(cluster.renewals(), [256, 256, 88]);
    assert!(slots.iter().all(Slot::is_held));
}

#[tokio::test(start_paused = true)]
async fn after_a_renewal_of_unknown_outcome_the_slot_is_neither_renewed_nor_returned() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::AnswerLost));
    cluster.pass(WINDOW / 3 + Duration::from_millis(200)).await;
    cluster.fail(None);
    assert_eq!(cluster.renewals().len(), 1);
    assert!(slot.is_held(), "until the time of which it is sure");

    let watch = slot.watch();
    let lost = tokio::spawn(async move { watch.lost().await });
    cluster.pass(WINDOW * 2 / 3).await;
    assert!(!slot.is_held());
    lost.await.unwrap();
    assert_eq!(cluster.renewals().len(), 1);

    // The store did renew it: the slot is free when that time is over, and not by a return.
    drop(slot);
    cluster.pass(Duration::from_secs(1)).await;
    assert!(acquire(&limiter, &one()).await.is_none());
    cluster.pass(WINDOW / 3).await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_dropped_during_a_renewal_is_returned_after_the_answer() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    let other = tokio::spawn({
        let cluster = cluster.clone();
        async move { cluster.pass(WINDOW / 3).await }
    });
    drop(slot);
    other.await.unwrap();
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_not_sent_is_tried_again() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::Unsent));
    cluster.pass(WINDOW / 3 + Duration::from_secs(5)).await;
    assert!(cluster.renewals().len() > 1);
    cluster.fail(None);
    cluster.pass(WINDOW).await;
    assert!(slot.is_held());
    assert!(acquire(&limiter, &one()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_return_that_was_not_sent_is_tried_again() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::Unsent));
    drop(slot);
    cluster.pass(Duration::from_secs(2)).await;
    cluster.fail(None);
    cluster.pass(Duration::from_secs(2)).await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_is_longer_than_the_expiry_loses_the_slot() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::Unsent));
    cluster.pass(WINDOW - Duration::from_secs(1)).await;
    assert!(slot.is_held());
    cluster.pass(Duration::from_secs(1)).await;
    assert!(!slot.is_held());
    cluster.fail(None);
    cluster.pass(WINDOW).await;
    assert!(!slot.is_held(), "a lost slot is not acquired again");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_for_longer_than_the_expiry_holds_nothing() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.stop(WINDOW * 2).await;
    assert!(!slot.is_held());
    slot.lost().await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_renewal_is_answered_after_it_was_lost_stays_lost_and_is_returned() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::SlowRenewal));
    while cluster.renewals().is_empty() {
        cluster.pass(Duration::from_millis(10)).await;
    }
    cluster.fail(None);
    // Stopped while the answer is under way, until the first time is over, and that of the renewal is not.
    cluster.stop(WINDOW * 5 / 6).await;
    cluster.pass(Duration::from_millis(100)).await;
    assert!(!slot.is_held());
    assert_eq!(cluster.renewals().len(), 1);
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_no_limiter_has_made_is_not_held() {
    let cluster = Cluster::new();
    let job = Charge::new(&one(), Key::new("user", "alice"), 1);
    let decision = cluster.check(&Check::new([job]).unwrap()).await.unwrap();
    assert!(decision.is_allowed());
    // When it was asked for is unknown.
    assert!(Limiter::new(cluster).hold(&decision).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_the_answer_leaves_no_slot_taken() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    cluster.fail(Some(Failure::Slow));
    for _ in 0..3 {
        let jobs = one();
        let mut asking = Box::pin(acquire(&limiter, &jobs));
        assert!(futures::poll!(&mut asking).is_pending());
        drop(asking);
        cluster.pass(Duration::from_millis(100)).await;
    }
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_starts_when_another_returns_its_slot() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            let job = Charge::new(&one(), Key::new("user", "alice"), 1);
            limiter.acquire_slot([job], WINDOW).await.unwrap().is_ok()
        }
    });
    cluster.pass(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    drop(slot);
    cluster.pass(Duration::from_millis(200)).await;
    assert!(waiting.is_finished());
    assert!(waiting.await.unwrap());
}

#[test]
fn renewing_goes_on_when_the_runtime_that_began_it_has_stopped() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let limiter = Limiter::new(MemoryStore::new()).timeout(Duration::from_millis(20));
    let policy = Policy::parse("jobs", "2/120ms@concurrent").unwrap();
    let (first, second) = (runtime(), runtime());
    let ended = first.block_on(acquire(&limiter, &policy)).unwrap();
    let slot = second.block_on(acquire(&limiter, &policy)).unwrap();
    drop(first);
    second.block_on(async {
        // In real time, since two runtimes cannot share a paused clock.
        for _ in 0..60 {
            sleep(Duration::from_millis(5)).await;
            assert!(slot.is_held());
        }
    });
    drop(ended);
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_key_that_is_reset_is_lost_at_the_next_renewal() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    limiter
        .reset(&one(), &Key::new("user", "alice"))
        .await
        .unwrap();
    cluster.pass(WINDOW / 3 + Duration::from_millis(200)).await;
    assert_eq!(cluster.renewals().len(), 1);
    assert!(!slot.is_held());
    slot.lost().await;
}
