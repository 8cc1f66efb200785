//! Slots that a process holds: renewed while they are held, returned when dropped, and known to be lost.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use futures::future::join_all;
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, StoreError,
    error::StoreErrorKind,
    limiter::Slot,
    manual_clock::ManualClock,
    observe::{CallKind, Event, Observer},
    store::{Check, Operation, Reply, Slots, StoreFuture},
};
use tokio::time::{Instant, advance, sleep};

const WINDOW: Duration = Duration::from_secs(30);

/// A memory store on the runtime's clock. Its answers can be lost.
#[derive(Clone, Debug)]
struct Cluster {
    store: MemoryStore,
    clock: ManualClock,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug, Default)]
struct Script {
    /// When renewals arrived, and how many did at that time.
    renewals: Vec<(u64, usize)>,
    fails: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The store acts, and the answer is lost.
    AnswerLost,
    /// The store is not even asked.
    Unsent,
    /// The store does not know renewals.
    Unsupported,
    /// The store takes a while to answer a check.
    Slow,
    /// The store answers a check after the timeout.
    Late,
    /// A check arrives after what is sent later.
    Overtaken,
    /// The store takes a while to answer a renewal.
    SlowRenewal,
    /// The store answers a renewal or a return long after the timeout.
    Stalls,
    /// A message with fewer ids than one can have is lost.
    RestLost,
}

impl Cluster {
    fn new() -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
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
        let script = self.script.lock().unwrap();
        script.renewals.iter().map(|(_, count)| *count).collect()
    }

    fn note_renewal(&self) {
        let (mut script, now_ms) = (self.script.lock().unwrap(), self.clock.now_ms());
        match script.renewals.last_mut() {
            Some((at_ms, count)) if *at_ms == now_ms => *count += 1,
            _ => script.renewals.push((now_ms, 1)),
        }
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
        let fails = self.script.lock().unwrap().fails;
        if let Some(Failure::Overtaken) = fails {
            let (store, check) = (self.store.clone(), check.clone());
            let arrives = tokio::spawn(async move {
                sleep(Duration::from_millis(50)).await;
                store.check(&check).await
            });
            return StoreFuture::pending(async { arrives.await.unwrap() });
        }
        let decision = self.store.check(check);
        let latency = match fails {
            Some(Failure::Slow) => Duration::from_millis(50),
            Some(Failure::Late) => Duration::from_millis(150),
            _ => return decision,
        };
        StoreFuture::pending(async move {
            sleep(latency).await;
            decision.await
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let is_message = matches!(operation, Operation::Renew(_) | Operation::Return(_));
        if let Operation::Renew(_) = operation {
            self.note_renewal();
        }
        let failure = self.script.lock().unwrap().fails.filter(|_| is_message);
        if let Some(Failure::Unsent) = failure {
            let error = StoreError::new(StoreErrorKind::Unavailable, "no connection").unsent();
            return StoreFuture::ready(Err(error));
        }
        if let (Some(Failure::RestLost), Operation::Renew(slots)) = (failure, &operation)
            && slots.ids().len() < Slots::MOST
        {
            return StoreFuture::pending(std::future::pending());
        }
        if let (Some(Failure::Unsupported), Operation::Renew(_)) = (failure, &operation) {
            return StoreFuture::ready(Err(operation.unsupported()));
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
            Some(Failure::Stalls) => StoreFuture::pending(async {
                sleep(WINDOW / 3).await;
                reply.await
            }),
            _ => reply,
        }
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
async fn slots_without_a_holder_are_not_renewed() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    drop(acquire(&limiter, &one()).await);
    cluster.pass(WINDOW * 3).await;
    assert!(cluster.renewals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn slots_that_were_taken_at_different_times_come_to_be_renewed_together() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let mut slots = Vec::new();
    for user in 0..100 {
        let job = Charge::new(&one(), Key::new("user", user.to_string()), 1);
        let slot = limiter.acquire_slot([job], Duration::ZERO).await.unwrap();
        slots.push(slot.unwrap().unwrap());
        cluster.pass(Duration::from_millis(100)).await;
    }
    cluster.pass(WINDOW * 5).await;
    let before = cluster.renewals().len();
    cluster.pass(WINDOW * 2).await;
    let renewals = &cluster.renewals()[before..];
    let renewed: usize = renewals.iter().sum();
    assert!(renewed >= 600, "before each third has passed: {renewed}");
    assert!(renewals.len() * 20 <= renewed, "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn one_message_renews_all_slots_of_a_key() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let many = Policy::parse("jobs", "256/30s@concurrent").unwrap();
    let mut slots = Vec::new();
    for _ in 0..256 {
        slots.push(acquire(&limiter, &many).await.unwrap());
    }
    cluster.pass(WINDOW * 4).await;
    assert!(slots.iter().all(Slot::is_held));
    assert!(acquire(&limiter, &many).await.is_none());
    let renewals = cluster.renewals().len();
    assert!((12..=18).contains(&renewals), "{renewals}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_loses_no_slot_of_another_identity() {
    /// Answers no renewal of Alice's slots.
    #[derive(Debug)]
    struct SilentToAlice(Cluster);

    impl Store for SilentToAlice {
        fn check(&self, check: &Check) -> StoreFuture<Decision> {
            self.0.check(check)
        }

        fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
            let alice = Key::new("user", "alice");
            match &operation {
                Operation::Renew(slots) if *slots.charge().key() == alice => {
                    StoreFuture::pending(std::future::pending())
                }
                _ => self.0.execute(operation),
            }
        }
    }

    let cluster = Cluster::new();
    let limiter = Limiter::new(SilentToAlice(cluster.clone())).publish_policies(false);
    let mut slots = Vec::new();
    for user in ["alice", "bob", "carol"] {
        let job = Charge::new(&one(), Key::new("user", user), 1);
        let slot = limiter.acquire_slot([job], Duration::ZERO).await.unwrap();
        slots.push(slot.unwrap().unwrap());
    }
    cluster.stop(WINDOW / 2).await; // all are due together
    cluster.pass(2 * WINDOW).await;
    let held: Vec<_> = slots.iter().map(Slot::is_held).collect();
    assert_eq!(held, [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn slots_that_two_messages_renew_are_lost_if_one_has_no_answer() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let many = Policy::parse("jobs", "300/30s@concurrent").unwrap();
    let job = Charge::new(&many, Key::new("user", "alice"), 300);
    let slot = limiter.acquire_slot([job], Duration::ZERO).await.unwrap();
    let slot = slot.unwrap().unwrap();
    sleep(WINDOW * 2).await;
    assert!(slot.is_held());
    cluster.fail(Some(Failure::RestLost));
    sleep(WINDOW).await;
    assert!(!slot.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_sent_again() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::AnswerLost));
    cluster.pass(WINDOW / 2).await;
    cluster.fail(None);
    assert!(cluster.renewals().len() > 1);
    cluster.pass(WINDOW).await;
    assert!(slot.is_held());
    drop(slot);
    cluster.pass(Duration::from_secs(1)).await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_return_without_an_answer_is_sent_again_and_takes_no_slot_of_another() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::AnswerLost));
    drop(slot);
    cluster.pass(Duration::from_millis(200)).await; // the store has acted
    let other = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(None);
    cluster.pass(WINDOW * 2).await;
    assert!(other.is_held());
    assert!(acquire(&limiter, &one()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_return_that_overtakes_the_check_is_sent_again() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let jobs = one();
    cluster.fail(Some(Failure::Overtaken));
    let asked = tokio::time::timeout(Duration::from_millis(10), acquire(&limiter, &jobs));
    assert!(asked.await.is_err(), "the caller has left");
    sleep(Duration::from_secs(1)).await;
    cluster.fail(None);
    assert!(acquire(&limiter, &jobs).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_return_that_is_to_be_sent_again_outlasts_the_renewal_of_a_slot_that_has_ended() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone()).timeout(WINDOW / 6);
    let jobs = Policy::parse("jobs", "2/30s@concurrent").unwrap();
    let ended = acquire(&limiter, &jobs).await;
    sleep(WINDOW / 5).await; // its renewal is near
    cluster.fail(Some(Failure::Overtaken));
    let asked = tokio::time::timeout(Duration::from_millis(10), acquire(&limiter, &jobs));
    assert!(asked.await.is_err(), "the caller has left");
    drop(ended);
    cluster.fail(None);
    sleep(WINDOW / 4).await; // longer than the timeout
    let returned = tokio::time::timeout(Duration::from_secs(1), limiter.return_slots());
    assert!(returned.await.is_ok());
    let slots = [
        acquire(&limiter, &jobs).await,
        acquire(&limiter, &jobs).await,
    ];
    assert!(slots.iter().all(Option::is_some));
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
async fn a_store_that_does_not_know_renewals_keeps_no_slot_that_is_returned() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    cluster.fail(Some(Failure::Unsupported));
    for held in [WINDOW / 12, WINDOW / 2] {
        let slot = acquire(&limiter, &one()).await.unwrap();
        cluster.pass(held).await;
        assert!(slot.is_held());
        drop(slot);
        cluster.pass(Duration::from_secs(1)).await;
    }
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.pass(WINDOW).await;
    assert!(!slot.is_held(), "it has expired");
    assert!(cluster.renewals().len() < 150, "{:?}", cluster.renewals());
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
async fn a_check_that_is_answered_after_its_timeout_leaves_no_slot_taken() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    cluster.fail(Some(Failure::Late));
    let job = Charge::new(&one(), Key::new("user", "alice"), 1);
    let asking = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire_slot([job], Duration::ZERO).await }
    });
    cluster.pass(Duration::from_millis(500)).await;
    let error = asking.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    cluster.fail(None);
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn slots_of_a_shadow_are_renewed_and_returned() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let (one, alice) = (one().shadow(), Key::new("user", "alice"));
    let slot = acquire(&limiter, &one).await.unwrap();
    cluster.pass(WINDOW * 2).await;
    assert!(slot.is_held());
    let shadow = async || {
        let job = Charge::new(&one, alice.clone(), 0);
        let decision = limiter.check([job]).await.unwrap();
        let shadow = decision.usage().shadow().unwrap().usage().clone();
        shadow.rules().next().unwrap().remaining()
    };
    assert_eq!(shadow().await, 0);
    drop(slot);
    cluster.pass(Duration::from_secs(1)).await;
    assert_eq!(shadow().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_return_that_was_not_sent_is_tried_again_however_long_the_breaker_waits() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone()).probe_interval(Duration::from_secs(3_600));
    let slot = acquire(&limiter, &one()).await.unwrap();
    cluster.fail(Some(Failure::Unsent));
    drop(slot);
    cluster.pass(Duration::from_secs(1)).await;
    cluster.fail(None);
    cluster.pass(WINDOW / 6).await;
    assert!(acquire(&limiter, &one()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn slots_beside_a_lost_one_are_held_until_the_work_ends() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let all = Policy::parse("all", "1/12s@concurrent").unwrap();
    let everyone = || Charge::new(&all, Key::new("service", "it"), 1);
    let job = Charge::new(&one(), Key::new("user", "alice"), 1);
    let slot = limiter
        .acquire_slot([job, everyone()], Duration::ZERO)
        .await;
    let slot = slot.unwrap().unwrap().unwrap();
    let alice = Key::new("user", "alice");
    limiter.reset(&one(), &alice).await.unwrap();
    cluster.pass(WINDOW / 3 + Duration::from_millis(200)).await;
    assert!(!slot.is_held());
    let other = async || {
        let other = limiter.acquire_slot([everyone()], Duration::ZERO).await;
        other.unwrap().is_ok()
    };
    for _ in 0..3 {
        cluster.pass(WINDOW).await;
        assert!(!other().await, "the work goes on");
    }
    drop(slot);
    cluster.pass(Duration::from_millis(100)).await;
    assert!(other().await);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_an_operator_has_freed_takes_no_slot_of_another() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let lost = acquire(&limiter, &one()).await.unwrap();
    let alice = Key::new("user", "alice");
    limiter.reset(&one(), &alice).await.unwrap();
    let other = acquire(&limiter, &one()).await.unwrap();
    cluster.pass(WINDOW / 3 + Duration::from_millis(200)).await;
    assert!(!lost.is_held());
    drop(lost);
    cluster.pass(WINDOW).await;
    assert!(other.is_held());
    assert!(acquire(&limiter, &one()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reload_to_a_shorter_expiry_leaves_the_slots_until_the_work_ends() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let policies = [one(), Policy::parse("jobs", "1/5s@concurrent").unwrap()];
    let mut slots = Vec::new();
    for policy in &policies {
        slots.push(acquire(&limiter, policy).await.unwrap());
    }
    cluster.pass(WINDOW * 2).await;
    assert!(slots.iter().all(Slot::is_held));
    for policy in &policies {
        assert!(acquire(&limiter, policy).await.is_none());
    }
    drop(slots);
    cluster.pass(Duration::from_secs(1)).await;
    for policy in &policies {
        assert!(acquire(&limiter, policy).await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_returns_its_slots() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let three = Policy::parse("jobs", "3/30s@concurrent").unwrap();
    let mut slots = Vec::new();
    for _ in 0..3 {
        slots.push(acquire(&limiter, &three).await.unwrap());
    }
    drop(slots.pop());
    // One return is under way, and a renewal may be.
    cluster.fail(Some(Failure::Stalls));
    let ends = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.return_slots().await }
    });
    cluster.pass(Duration::from_secs(1)).await;
    assert!(!ends.is_finished());
    cluster.fail(None);
    cluster.pass(WINDOW).await;
    assert!(ends.is_finished());
    assert!(slots.iter().all(|slot| !slot.is_held()));
    let job = Charge::new(&three, Key::new("user", "alice"), 3);
    let all = limiter.acquire_slot([job], Duration::ZERO).await;
    assert!(all.unwrap().is_ok());
    drop(slots);
}

#[tokio::test(start_paused = true)]
async fn slots_that_expire_too_early_to_be_renewed_are_not() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let job = Charge::new(
        &Policy::parse("jobs", "1/1ms@concurrent").unwrap(),
        Key::new("user", "alice"),
        1,
    );
    let slot = limiter.hold(&limiter.check([job]).await.unwrap()).unwrap();
    cluster.pass(Duration::from_secs(1)).await;
    assert!(!slot.is_held());
    assert!(cluster.renewals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_little_time_waits_for_a_slot() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let slot = acquire(&limiter, &one()).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        let job = Charge::new(&one(), Key::new("user", "alice"), 1);
        let patience = Duration::from_millis(50);
        async move { limiter.acquire_slot([job], patience).await.unwrap().is_ok() }
    });
    cluster.stop(Duration::from_millis(10)).await;
    assert!(!waiting.is_finished());
    drop(slot);
    cluster.pass(Duration::from_millis(50)).await;
    assert!(waiting.await.unwrap());
}

/// An observer that panics at the first renewal.
#[derive(Debug, Default)]
struct Panicking(std::sync::atomic::AtomicBool);

impl Observer for Panicking {
    fn on_event(&self, event: &Event<'_>) {
        let is_renewal =
            matches!(event, Event::Completion { call, .. } if call.kind == CallKind::Renew);
        let is_first = is_renewal && !self.0.swap(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!is_first, "the first renewal");
    }
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_after_an_observer_has_panicked() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone()).observer(Panicking::default());
    let two = Policy::parse("jobs", "2/30s@concurrent").unwrap();
    let first = acquire(&limiter, &two).await.unwrap();
    cluster.pass(WINDOW / 6).await;
    let second = acquire(&limiter, &two).await.unwrap();
    cluster.pass(WINDOW * 2).await;
    assert!(first.is_held() && second.is_held());
}

/// An observer that panics at the first decision.
#[derive(Debug, Default)]
struct PanicsOnce(std::sync::atomic::AtomicBool);

impl Observer for PanicsOnce {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Decision { .. } = event {
            assert!(self.0.swap(true, std::sync::atomic::Ordering::Relaxed));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_returned_if_the_observer_of_its_decision_panics() {
    for fails in [None, Some(Failure::Slow)] {
        let cluster = Cluster::new();
        cluster.script.lock().unwrap().fails = fails;
        let limiter = Limiter::new(cluster.clone()).observer(PanicsOnce::default());
        let job = limiter.clone();
        let panics = tokio::spawn(async move { acquire(&job, &one()).await });
        assert!(panics.await.is_err());
        cluster.pass(Duration::from_millis(50)).await;
        assert!(acquire(&limiter, &one()).await.is_some());
    }
}

/// A waker that panics in any task, such as the keeper's; but not when the timer wakes it.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        assert!(tokio::task::try_id().is_none(), "woken by the keeper");
    }
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_after_the_waker_of_a_holder_has_panicked() {
    let cluster = Cluster::new();
    let limiter = Limiter::new(cluster.clone());
    let lost = acquire(&limiter, &one()).await.unwrap();
    let long = Policy::parse("long", "1/2m@concurrent").unwrap();
    let slot = acquire(&limiter, &long).await.unwrap();
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut waits = Box::pin(lost.lost());
    let poll = waits.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll.is_pending());
    cluster.stop(WINDOW + Duration::from_secs(1)).await;
    cluster.pass(Duration::from_secs(240)).await;
    assert!(!lost.is_held());
    assert!(slot.is_held());
}

/// Notes how often a future is polled.
async fn counted<F: Future>(polls: Arc<AtomicUsize>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, SeqCst);
        future.as_mut().poll(cx)
    })
    .await
}

/// Counts decisions.
#[derive(Clone, Debug, Default)]
struct Decided(Arc<AtomicUsize>);

impl Observer for Decided {
    fn on_event(&self, event: &Event<'_>) {
        let is_decision = matches!(event, Event::Decision { .. });
        self.0.fetch_add(usize::from(is_decision), SeqCst);
    }
}

/// Waits for a slot with these charges, and returns it at once.
async fn take_a_turn(limiter: Limiter, charges: Vec<Charge>) {
    let slot = limiter.acquire_slot(charges, 240 * WINDOW).await;
    drop(slot.unwrap().expect("it waits long enough"));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_callers_that_wait_for_a_slot_wake_one_by_one() {
    let limiter = Limiter::new(MemoryStore::new());
    let held = acquire(&limiter, &one()).await.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let waiting = (0..1_000).map(|_| {
        let job = Charge::new(&one(), Key::new("user", "alice"), 1);
        let turn = take_a_turn(limiter.clone(), vec![job]);
        tokio::spawn(counted(Arc::clone(&polls), turn))
    });
    let waiting: Vec<_> = waiting.collect();
    sleep(Duration::from_millis(50)).await;
    let arrived = polls.swap(0, SeqCst);
    sleep(Duration::from_secs(5)).await;
    let idle = polls.swap(0, SeqCst);
    drop(held);
    join_all(waiting).await;
    let served = polls.load(SeqCst);
    assert!(arrived < 4_000, "{arrived}");
    assert!(idle < 1_000, "{idle} in five seconds");
    assert!(served < 10_000, "{served}");
}

#[tokio::test(start_paused = true)]
async fn callers_with_other_checks_ask_one_by_one_for_the_slots_of_one_key() {
    let decided = Decided::default();
    let limiter = Limiter::new(MemoryStore::new()).observer(decided.clone());
    let held = acquire(&limiter, &one()).await.unwrap();
    let rate = Policy::parse("rate", "9/1h").unwrap();
    let waiting = (0..200).map(|user| {
        let charges = vec![
            Charge::new(&one(), Key::new("user", "alice"), 1),
            Charge::new(&rate, Key::new("user", user.to_string()), 1),
        ];
        tokio::spawn(take_a_turn(limiter.clone(), charges))
    });
    let waiting: Vec<_> = waiting.collect();
    sleep(Duration::from_millis(50)).await;
    decided.0.store(0, SeqCst);
    drop(held);
    join_all(waiting).await;
    let decisions = decided.0.load(SeqCst);
    assert!(decisions < 600, "{decisions}");
}

#[tokio::test(start_paused = true)]
async fn a_returned_slot_goes_past_callers_that_wait_for_a_rate() {
    let limiter = Limiter::new(MemoryStore::new());
    let rate = Policy::parse("rate", "1/1h").unwrap();
    let charges = |user: &'static str| {
        vec![
            Charge::new(&one(), Key::new("user", "alice"), 1),
            Charge::new(&rate, Key::new("user", user), 1),
        ]
    };
    let used_up = Charge::new(&rate, Key::new("user", "bob"), 1);
    assert!(limiter.check([used_up]).await.unwrap().is_allowed());
    let held = acquire(&limiter, &one()).await.unwrap();
    let late = tokio::spawn(take_a_turn(limiter.clone(), charges("bob")));
    sleep(Duration::from_millis(10)).await;
    let soon = tokio::spawn(take_a_turn(limiter.clone(), charges("carol")));
    sleep(Duration::from_millis(10)).await;
    let start = Instant::now();
    drop(held);
    soon.await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(5), "woken at once");
    assert!(!late.is_finished());
    late.abort();
}

#[test]
fn renewing_goes_on_in_the_next_callers_runtime_when_the_first_has_stopped() {
    let limiter = Limiter::new(MemoryStore::new()).timeout(Duration::from_millis(20));
    let policy = Policy::parse("jobs", "2/360ms@concurrent").unwrap();
    let (first, second) = (support::runtime(), support::runtime());
    let ended = first.block_on(acquire(&limiter, &policy)).unwrap();
    let slot = second.block_on(acquire(&limiter, &policy)).unwrap();
    drop(first);
    second.block_on(async {
        // A denial, which is reported, since there is a runtime again.
        let none = Policy::parse("none", "0/1m").unwrap();
        let denied = limiter
            .check([Charge::new(&none, Key::new("user", "bob"), 1)])
            .await;
        assert!(!denied.unwrap().is_allowed());
        // In real time, since two runtimes cannot share a paused clock. A busy machine may delay a renewal by 240 ms.
        for _ in 0..60 {
            sleep(Duration::from_millis(15)).await;
            assert!(slot.is_held());
        }
    });
    drop(ended);
}
