//! Proves when the store receives contributions, that no request waits for this, and that memory is bounded.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use allocation_counter::measure;
use futures::{executor::block_on, future::pending};
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store, StoreError,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, Count, Operation, Reply, StoreExt, StoreFuture},
};
use support::trace::traced;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::yield_now,
    time::{Instant, advance},
};

/// A memory store that can ignore contributions, and counts the calls with contributions.
#[derive(Clone, Debug, Default)]
struct Probe {
    store: MemoryStore,
    told: Arc<AtomicUsize>,
    is_deaf: Arc<AtomicBool>,
}

impl Store for Probe {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if let Operation::Contribute(_) = operation {
            self.told.fetch_add(1, SeqCst);
            if self.is_deaf.load(SeqCst) {
                return StoreFuture::pending(pending());
            }
        }
        self.store.execute(operation)
    }
}

fn policy() -> Policy {
    static PARSED: LazyLock<Policy> =
        LazyLock::new(|| Policy::parse("api", "1000000000/1h").unwrap());
    PARSED.clone()
}

fn acme() -> Key {
    Key::new("account", "acme")
}

async fn check(limiter: &Limiter, user: &str) {
    let charge = Charge::new(&policy(), acme(), 1).with_contributor(Key::new("user", user));
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
}

/// The units in the store. Asking the limiter would make it send more.
async fn known(store: &impl Store) -> u64 {
    let contributors = store.contributors(&policy(), &acme()).await.unwrap();
    contributors.total()
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
    check(&limiter, "alice").await;
    yield_now().await;
    assert_eq!((known(&probe).await, tasks()), (0, 1));
    pass(2).await;
    assert_eq!(known(&probe).await, 1);
    for _ in 0..100 {
        check(&limiter, "bob").await;
    }
    let told = probe.told.load(SeqCst);
    pass(2).await;
    assert_eq!((known(&probe).await, tasks()), (101, 1));
    assert_eq!(probe.told.load(SeqCst), told + 1, "in one call");
    pass(15).await;
    assert_eq!(tasks(), 0, "nothing happens");
    check(&limiter, "carol").await;
    pass(2).await;
    assert_eq!(known(&probe).await, 102);
}

#[tokio::test(start_paused = true)]
async fn units_of_a_small_contributor_that_the_store_dropped_are_reported_again_once_it_has_grown()
{
    let store = MemoryStore::new();
    let (others, own) = (Limiter::new(store.clone()), Limiter::new(store.clone()));
    let charge = async |limiter: &Limiter, user: u32, units| {
        let charge = Charge::new(&policy(), acme(), units)
            .with_contributor(Key::new("user", user.to_string()));
        limiter.check([charge]).await.unwrap();
    };
    for user in 1..=40 {
        charge(&others, user, 100).await;
    }
    pass(2).await;
    charge(&own, 0, 1).await;
    pass(2).await;
    let units = async || {
        let contributors = store.contributors(&policy(), &acme()).await.unwrap();
        let own = contributors.iter().find(|it| it.label() == "user=0");
        own.map(|it| it.units())
    };
    assert_eq!(units().await, None);
    charge(&own, 0, 500).await;
    pass(2).await;
    assert_eq!(units().await, Some(501));
}

#[tokio::test(start_paused = true)]
async fn without_a_label_no_task_is_spawned_and_no_report_sent() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    for _ in 0..10 {
        let charge = [Charge::new(&policy(), acme(), 1)];
        let decision = limiter.check(charge).await.unwrap();
        limiter.settle(decision.usage(), |_| 3).await.unwrap();
    }
    pass(2).await;
    assert_eq!((tasks(), probe.told.load(SeqCst)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_contributes_the_difference() {
    let limiter = Limiter::new(Probe::default());
    let charge = Charge::new(&policy(), acme(), 2).with_contributor(Key::new("user", "alice"));
    for cost in [7, 0] {
        let decision = limiter.check([charge.clone()]).await.unwrap();
        limiter.settle(decision.usage(), |_| cost).await.unwrap();
    }
    let known = limiter.contributors(&policy(), &acme()).await.unwrap();
    assert_eq!(known.total(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_limiter_reports_the_rest_and_leaves_no_task() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    let clone = limiter.clone().timeout(Duration::from_secs(1));
    check(&limiter, "alice").await;
    check(&clone, "alice").await;
    drop(limiter);
    pass(1).await;
    check(&clone, "alice").await;
    drop(clone);
    yield_now().await;
    assert_eq!(known(&probe).await, 3);
    pass(2).await;
    assert_eq!((tasks(), Arc::strong_count(&probe.told)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_delays_no_check_and_loses_its_reports() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    probe.is_deaf.store(true, SeqCst);
    let start = Instant::now();
    for round in 0..50 {
        for user in 0..100 {
            check(&limiter, &format!("{round}-{user}")).await;
        }
    }
    assert_eq!(Instant::now(), start, "no check waits");
    pass(4).await;
    assert!(probe.told.load(SeqCst) >= 1);
    probe.is_deaf.store(false, SeqCst);
    pass(2).await;
    check(&limiter, "alice").await;
    pass(2).await;
    assert_eq!(known(&probe).await, 1);
}

/// The store does not answer the current flush, and loses the contributions.
#[tokio::test(start_paused = true)]
async fn a_question_is_answered_with_what_was_charged_since_a_flush_began() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone()).timeout(Duration::from_secs(5));
    probe.is_deaf.store(true, SeqCst);
    check(&limiter, "alice").await;
    pass(2).await;
    assert_eq!(probe.told.load(SeqCst), 1);
    probe.is_deaf.store(false, SeqCst);
    check(&limiter, "bob").await;
    let told = limiter.contributors(&policy(), &acme()).await.unwrap();
    assert_eq!(told.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_no_longer_than_the_timeout() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone()).timeout(Duration::from_millis(70));
    probe.is_deaf.store(true, SeqCst);
    check(&limiter, "alice").await;
    let start = Instant::now();
    let error = limiter.contributors(&policy(), &acme()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(start.elapsed() < Duration::from_millis(80));
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_task_that_was_aborted_with_its_runtime_is_spawned_again() {
    let probe = Probe::default();
    let limiter = Limiter::new(probe.clone());
    for expected in [1, 2] {
        runtime().block_on(async {
            check(&limiter, "alice").await;
            pass(2).await;
            assert_eq!(known(&probe).await, expected);
        });
    }
    drop(limiter);
}

#[test]
fn outside_of_a_runtime_what_is_asked_for_is_told() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store.clone());
    block_on(async {
        check(&limiter, "alice").await;
        assert_eq!(known(&store).await, 0);
        let contributors = limiter.contributors(&policy(), &acme()).await.unwrap();
        assert_eq!(contributors.iter().next().unwrap().label(), "user=alice");
    });
}

#[tokio::test]
async fn a_waiting_caller_contributes_when_admitted() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("api", "1/50ms@exact").unwrap();
    for user in ["alice", "bob", "carol"] {
        let charge = Charge::new(&policy, acme(), 1).with_contributor(Key::new("user", user));
        let decision = limiter.acquire([charge], Duration::from_secs(9)).await;
        assert!(decision.unwrap().is_allowed());
    }
    let contributors = limiter.contributors(&policy, &acme()).await.unwrap();
    assert_eq!((contributors.iter().len(), contributors.total()), (3, 3));
}

/// Admits everything and keeps nothing. Like a user's own store, it does not know contributors.
#[derive(Debug)]
struct Admitting(ManualClock);

impl Store for Admitting {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let decision = Decision::new(check, true, self.0.now_ms(), &[Count::default()]);
        StoreFuture::ready(decision)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        StoreFuture::ready(Err(operation.unsupported()))
    }
}

#[tokio::test]
async fn a_store_that_keeps_no_contributors_decides_and_says_so() {
    let limiter = Limiter::new(Admitting(ManualClock::new(1_000_000)));
    check(&limiter, "alice").await;
    let error: StoreError = limiter.contributors(&policy(), &acme()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
    assert_eq!(error.to_string(), "the store keeps no contributors");
}

#[test]
fn one_warning_says_that_a_store_keeps_no_contributors() {
    let lines = traced(false, async {
        let limiter = Limiter::new(Admitting(ManualClock::new(1_000_000)));
        for _ in 0..3 {
            check(&limiter, "alice").await;
            pass(2).await;
        }
    });
    let warning = "WARN the store does not keep the contributors to a limit; checks are not affected \
                   kind=\"invalid_request\" error=the store keeps no contributors";
    assert_eq!(lines, [warning]);
}

#[test]
fn an_outage_gives_no_warning_of_contributors() {
    let lines = traced(true, async {
        let probe = Probe::default();
        probe.is_deaf.store(true, SeqCst);
        let limiter = Limiter::new(probe.clone());
        check(&limiter, "alice").await;
        pass(4).await;
        assert_eq!(probe.told.load(SeqCst), 1);
    });
    assert_eq!(lines, [""; 0]);
}

/// Keeps no contributors to one of the accounts.
#[derive(Clone, Debug, Default)]
struct OneBroken(MemoryStore);

impl Store for OneBroken {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let Operation::Contribute(sent) = &operation else {
            return self.0.execute(operation);
        };
        let are_broken: Vec<_> = sent.iter().map(|it| it.key().value() == b"7").collect();
        self.0.execute(operation).map(|reply| {
            let Reply::Contribute(mut answers) = reply else {
                return reply;
            };
            for (answer, _) in answers.iter_mut().zip(are_broken).filter(|it| it.1) {
                let error = StoreError::new(StoreErrorKind::Protocol, "a value of another type");
                *answer = Err(error);
            }
            Reply::Contribute(answers)
        })
    }
}

#[test]
fn an_account_that_cannot_be_written_silences_no_other_and_gives_one_warning() {
    const ROUNDS: u64 = 3;
    let account = |number: u32| Key::new("account", number.to_string());
    let lines = traced(false, async {
        let store = OneBroken::default();
        let limiter = Limiter::new(store.clone());
        for _ in 0..ROUNDS {
            // For several calls.
            for number in 0..300 {
                let user = Key::new("user", "alice");
                let charge = Charge::new(&policy(), account(number), 1).with_contributor(user);
                assert!(limiter.check([charge]).await.unwrap().is_allowed());
            }
            pass(2).await;
        }
        for number in 0..300 {
            let told = store.contributors(&policy(), &account(number)).await;
            assert_eq!(told.unwrap().total(), ROUNDS, "{number}");
        }
    });
    let warning = "WARN the store does not keep the contributors to a limit; checks are not affected \
                   kind=\"protocol\" error=a value of another type";
    assert_eq!(lines, [warning]);
}

/// The memory of a process for each of this number of accounts, after 120 labels of 48 bytes and a new span.
fn bytes_for_each(accounts: u32) -> u64 {
    let clock = ManualClock::new(1_000_000_000);
    let limiter = Limiter::new(Admitting(clock.clone()));
    let policy = policy();
    let fill = || {
        for account in 0..accounts {
            for label in 0..120 {
                if label % 60 == 59 {
                    clock.advance(Duration::from_secs(601));
                }
                let key = Key::new("account", format!("account-{account:08}"));
                let label = Key::new("user", format!("{label:048}"));
                let charge = Charge::new(&policy, key, 1).with_contributor(label);
                block_on(limiter.check([charge])).unwrap();
            }
        }
    };
    let kept = u64::try_from(measure(fill).bytes_current).unwrap();
    kept / u64::from(accounts.min(1_024))
}

#[test]
fn a_process_keeps_at_most_8_kb_for_an_account_and_at_most_1024_accounts() {
    let (few, many) = (bytes_for_each(16), bytes_for_each(1_500));
    eprintln!("{few} bytes for each of 16 accounts, {many} for each of 1024 of 1500");
    assert!(few <= 8_192 && many <= 8_192, "{few}, {many}");
}

/// Random numbers from 0 on, the first most often: the nth 1/n^exponent as often as the first.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(labels: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=labels).map(|n| {
            sum += f64::from(n).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    fn next(&self, random: &mut fastrand::Rng) -> usize {
        let at = random.f64() * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum < at)
    }
}

/// The number of the true top five among the first five of the list, with four processes that each report after every
/// hundred checks.
async fn recall(labels: u32, exponent: f64, seed: u64) -> usize {
    let clock = ManualClock::new(1_700_000_000_000);
    let store = MemoryStore::new().clock(clock.clone());
    let processes = [(); 4].map(|()| Limiter::new(store.clone()));
    let (zipf, mut random) = (Zipf::new(labels, exponent), fastrand::Rng::with_seed(seed));
    let mut truth = vec![0_u64; labels as usize];
    for step in 1..=40_000 {
        let (label, process) = (zipf.next(&mut random), &processes[random.usize(..4)]);
        truth[label] += 1;
        check(process, &label.to_string()).await;
        if step % 400 == 0 {
            clock.advance(Duration::from_secs(30));
            for process in &processes {
                process.contributors(&policy(), &acme()).await.unwrap();
            }
        }
    }
    let told = processes[0].contributors(&policy(), &acme()).await.unwrap();
    assert_eq!(told.total(), 40_000);
    let mut sorted = truth.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut right = 0;
    for contributor in told.iter().take(5) {
        let label: usize = contributor.label()[5..].parse().unwrap();
        let (units, most) = (contributor.units(), contributor.units() + told.error());
        assert!(
            (units..=most).contains(&truth[label]),
            "{units} {}",
            truth[label]
        );
        right += usize::from(truth[label] >= sorted[4]);
    }
    right
}

#[tokio::test]
async fn of_the_true_top_five_at_least_95_percent_are_found_over_four_processes() {
    let mut right = 0;
    for (labels, exponent) in [(1_000, 1.0), (10_000, 1.0), (1_000, 1.2), (10_000, 0.9)] {
        right += recall(labels, exponent, 1).await + recall(labels, exponent, 2).await;
    }
    assert!(right >= 38, "{right} of 40");
}

#[tokio::test]
async fn labels_of_one_value_and_two_kinds_are_two() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::parse("api", "100/1h").unwrap();
    let account = || Key::new("account", "acme");
    for (kind, cost) in [("ip", 2), ("user", 5)] {
        let charge =
            Charge::new(&policy, account(), cost).with_contributor(Key::new(kind, "203.0.113.7"));
        limiter.check([charge]).await.unwrap();
    }
    let told = limiter.contributors(&policy, &account()).await.unwrap();
    let told: Vec<_> = told.iter().map(|it| (it.label(), it.units())).collect();
    assert_eq!(told, [("user=203.0.113.7", 5), ("ip=203.0.113.7", 2)]);
}

#[tokio::test]
async fn a_clock_that_was_ahead_for_a_moment_silences_no_account() {
    const START_MS: u64 = 1_790_000_000_000;
    let clock = ManualClock::new(START_MS);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    let api = Policy::parse("api", "1000/1h").unwrap();
    let acme = || Key::new("account", "acme");
    let request = async || {
        let charge = Charge::new(&api, acme(), 1).with_contributor(Key::new("user", "alice"));
        assert!(limiter.check([charge]).await.unwrap().is_allowed());
    };
    request().await;
    clock.set(START_MS + 86_400_000);
    request().await;
    clock.set(START_MS + 10_000);
    for _ in 0..100 {
        request().await;
    }
    let told = limiter.contributors(&api, &acme()).await.unwrap();
    assert_eq!(told.total(), 101);
}
