//! Proves when the store receives contributions and denials, which answers count, that no request waits for this, and
//! that memory is bounded.

use std::sync::LazyLock;

use Counted::{Contributor, Denial};
use allocation_counter::measure;
use sluicegate::{contributors::Account, denials::DeniedIdentity, store::Count};
use support::{paused_runtime, prelude::*};
use tokio::runtime::Handle;

/// A memory store that can ignore reports or be down, and counts them.
struct Probe {
    store: Fated,
    told: Arc<AtomicUsize>,
    is_deaf: Arc<AtomicBool>,
    is_down: Arc<AtomicBool>,
}

/// A probe, which perhaps answers reports with an error, and a limiter over this probe.
fn probe(refuses: Option<StoreErrorKind>) -> (Probe, Limiter) {
    let (told, is_deaf) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (count, deaf, is_down) = (told.clone(), is_deaf.clone(), Arc::<AtomicBool>::default());
    let down = is_down.clone();
    let store = Fated::new(MemoryStore::new(), move |asked| match asked {
        Asked::Check(_) if down.load(SeqCst) => Fate::unavailable(),
        Asked::Execute(Operation::Report(_)) => {
            count.fetch_add(1, SeqCst);
            match refuses {
                Some(kind) => Fate::Fails(StoreError::new(kind, "refused")),
                None if deaf.load(SeqCst) => Fate::Hangs,
                None => Fate::Answered,
            }
        }
        _ => Fate::Answered,
    });
    let limiter = support::limiter(store.clone());
    let probe = Probe {
        store,
        told,
        is_deaf,
        is_down,
    };
    (probe, limiter)
}

/// What is counted: a unit of a contributor, or a denial.
#[derive(Clone, Copy, Debug)]
enum Counted {
    Contributor,
    Denial,
}

impl Counted {
    async fn count(self, limiter: &Limiter, user: &str) {
        match self {
            Contributor => check(limiter, user).await,
            Denial => deny(limiter, user).await,
        }
    }

    /// The units in the store. A limiter that is asked sends more.
    async fn known(self, store: &Probe) -> u64 {
        let store = &store.store;
        match self {
            Contributor => {
                let contributors = store.contributors(&policy(), &acme()).await;
                contributors.unwrap().total()
            }
            Denial => sum(&store.denials().await.unwrap()),
        }
    }

    async fn ask(self, limiter: &Limiter) -> Result<u64, StoreError> {
        Ok(match self {
            Contributor => limiter.contributors(&policy(), &acme()).await?.total(),
            Denial => sum(&limiter.denials().await?),
        })
    }
}

fn both() -> [(Counted, Probe, Limiter); 2] {
    [Contributor, Denial].map(|counted| {
        let (probe, limiter) = probe(None);
        (counted, probe, limiter)
    })
}

fn policy() -> Policy {
    static PARSED: LazyLock<Policy> =
        LazyLock::new(|| Policy::parse("api", "1000000000/1h").unwrap());
    PARSED.clone()
}

fn full() -> Policy {
    Policy::parse("api", "0/1h").unwrap()
}

async fn check(limiter: &Limiter, user: &str) {
    let charge = Charge::new(&policy(), acme(), 1).with_contributor(Key::new("user", user));
    assert!(limiter.check([charge]).await.unwrap().is_allowed());
}

async fn deny(limiter: &Limiter, user: &str) {
    let charge = Charge::new(&full(), Key::new("user", user), 1);
    assert!(!limiter.check([charge]).await.unwrap().is_allowed());
}

fn sum(denials: &[DeniedIdentity]) -> u64 {
    denials.iter().map(DeniedIdentity::last_hour).sum()
}

async fn denials(limiter: &Limiter) -> u64 {
    sum(&limiter.denials().await.unwrap())
}

/// Lets time pass, and lets waiting tasks run.
async fn pass(seconds: u64) {
    for _ in 0..seconds * 2 {
        advance(ms(500)).await;
        others_run().await;
    }
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn the_limiter_reports_once_a_second_until_nothing_happens_any_more() {
    for (counted, probe, limiter) in both() {
        counted.count(&limiter, "alice").await;
        yield_now().await;
        assert_eq!((counted.known(&probe).await, tasks()), (0, 1));
        pass(2).await;
        assert_eq!(counted.known(&probe).await, 1);
        for _ in 0..100 {
            counted.count(&limiter, "alice").await;
            counted.count(&limiter, "bob").await;
        }
        let told = probe.told.load(SeqCst);
        pass(2).await;
        assert_eq!((counted.known(&probe).await, tasks()), (201, 1));
        assert_eq!(probe.told.load(SeqCst), told + 1, "in one call");
        pass(15).await;
        assert_eq!(tasks(), 0, "nothing happens");
        counted.count(&limiter, "carol").await;
        pass(2).await;
        assert_eq!(counted.known(&probe).await, 202);
        drop(limiter);
        pass(2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_label_or_a_denial_no_task_is_spawned_and_no_report_sent() {
    let (probe, limiter) = probe(None);
    for _ in 0..10 {
        let charge = [Charge::new(&policy(), acme(), 1)];
        let decision = limiter.check(charge).await.unwrap();
        limiter.settle(decision.usage(), |_| 3).await.unwrap();
    }
    pass(2).await;
    assert_eq!((tasks(), probe.told.load(SeqCst)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_limiter_reports_the_rest_and_leaves_no_task() {
    for (counted, probe, limiter) in both() {
        let clone = limiter.clone().timeout(SECOND);
        counted.count(&limiter, "alice").await;
        counted.count(&clone, "alice").await;
        drop(limiter);
        pass(1).await;
        counted.count(&clone, "alice").await;
        drop(clone);
        yield_now().await;
        assert_eq!(counted.known(&probe).await, 3);
        pass(2).await;
        drop(probe.store);
        assert_eq!((tasks(), Arc::strong_count(&probe.told)), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_delays_no_check_and_loses_its_reports() {
    for (counted, probe, limiter) in both() {
        probe.is_deaf.store(true, SeqCst);
        let start = Instant::now();
        for user in 0..1_000 {
            counted.count(&limiter, &user.to_string()).await;
        }
        assert_eq!(Instant::now(), start, "no check waits");
        pass(4).await;
        assert!(probe.told.load(SeqCst) >= 1);
        probe.is_deaf.store(false, SeqCst);
        pass(2).await;
        counted.count(&limiter, "alice").await;
        pass(2).await;
        assert_eq!(counted.known(&probe).await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_no_longer_than_the_timeout() {
    for (counted, probe, limiter) in both() {
        let limiter = limiter.timeout(ms(70));
        probe.is_deaf.store(true, SeqCst);
        counted.count(&limiter, "alice").await;
        let start = Instant::now();
        let error = counted.ask(&limiter).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        assert!(start.elapsed() < ms(80));
    }
}

/// More accounts than one call has.
#[tokio::test(start_paused = true)]
async fn a_question_about_denials_waits_for_no_other_counts_and_loses_none() {
    let store = Fated::new(MemoryStore::new(), |asked| match asked {
        Asked::Execute(Operation::Report(_)) => Fate::Late(ms(150)),
        _ => Fate::Answered,
    });
    let limiter = support::limiter(store.clone());
    let services: Vec<Key> = (0..100)
        .map(|it| Key::new("service", it.to_string()))
        .collect();
    for service in &services {
        let charge = Charge::new(&policy(), service.clone(), 1).with_contributor(user("alice"));
        limiter.check([charge]).await.unwrap();
    }
    limiter.denials().await.unwrap();
    pass(3).await;
    for service in &services {
        let known = store.contributors(&policy(), service).await.unwrap();
        assert_eq!(known.total(), 1, "{service:?}");
    }
}

/// The store does not answer the current flush, and loses the counts.
#[tokio::test(start_paused = true)]
async fn a_question_is_answered_with_the_counts_since_a_flush_began() {
    for (counted, probe, limiter) in both() {
        let limiter = limiter.timeout(Duration::from_secs(5));
        probe.is_deaf.store(true, SeqCst);
        counted.count(&limiter, "alice").await;
        pass(2).await;
        assert_eq!(probe.told.load(SeqCst), 1);
        probe.is_deaf.store(false, SeqCst);
        counted.count(&limiter, "bob").await;
        assert_eq!(counted.ask(&limiter).await.unwrap(), 1);
    }
}

#[test]
fn a_task_that_was_aborted_with_its_runtime_is_spawned_again() {
    for (counted, probe, limiter) in both() {
        for expected in [1, 2] {
            paused_runtime().block_on(async {
                counted.count(&limiter, "alice").await;
                pass(2).await;
                assert_eq!(counted.known(&probe).await, expected);
            });
        }
    }
}

#[test]
fn outside_of_a_runtime_a_question_makes_the_process_report() {
    for (counted, probe, limiter) in both() {
        block_on(async {
            counted.count(&limiter, "alice").await;
            assert_eq!(counted.known(&probe).await, 0);
            assert_eq!(counted.ask(&limiter).await.unwrap(), 1);
        });
    }
}

#[tokio::test]
async fn a_clock_that_was_ahead_for_a_moment_silences_nobody() {
    for counted in [Contributor, Denial] {
        let (store, clock) = memory();
        let limiter = support::limiter(store);
        for at_ms in [0, 86_400_000, 10_000, 10_000] {
            clock.set(START_MS + at_ms);
            counted.count(&limiter, "alice").await;
        }
        assert_eq!(counted.ask(&limiter).await.unwrap(), 3);
    }
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

#[test]
fn a_store_that_keeps_no_contributors_decides_and_says_so_with_one_warning() {
    let said = "the store keeps no contributors and no denials";
    let lines = traced(false, async {
        let limiter = support::limiter(Admitting(ManualClock::new(1_000_000)));
        for _ in 0..3 {
            check(&limiter, "alice").await;
            pass(2).await;
        }
        check(&limiter, "alice").await;
        let error = limiter.contributors(&policy(), &acme()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
        assert_eq!(error.to_string(), said);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN the store does not keep the contributors to a limit"));
    let error = format!("kind=\"invalid_request\" error={said}");
    assert!(lines[0].ends_with(&error), "{lines:?}");
}

/// Keeps no contributors to one of the accounts.
#[derive(Clone, Debug, Default)]
struct OneBroken(MemoryStore);

impl Store for OneBroken {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let Operation::Report(sent) = &operation else {
            return self.0.execute(operation);
        };
        let is_broken = |account: &Account| match account {
            Account::Contributors { key, .. } => key.value() == b"7",
            Account::Denials => false,
        };
        let is_one_broken = sent.iter().any(|it| is_broken(&it.account));
        let reply = self.0.execute(operation);
        let error = StoreError::new(StoreErrorKind::Protocol, "a value of another type");
        match is_one_broken {
            true => StoreFuture::ready(Err(error)),
            false => reply,
        }
    }
}

#[test]
fn an_account_that_cannot_be_written_silences_no_other_and_gives_one_warning() {
    const ROUNDS: u64 = 3;
    let account = |number: u32| Key::new("account", number.to_string());
    let lines = traced(false, async {
        let store = OneBroken::default();
        let limiter = support::limiter(store.clone());
        for _ in 0..ROUNDS {
            // For several calls.
            for number in 0..300 {
                let user = user("alice");
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
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].ends_with("kind=\"protocol\" error=a value of another type"));
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_counts_no_denials_reports_none() {
    let (probe, limiter) = probe(None);
    let limiter = limiter.count_denials(false);
    deny(&limiter, "alice").await;
    pass(2).await;
    assert_eq!((tasks(), probe.told.load(SeqCst)), (0, 0));
    assert_eq!(denials(&limiter).await, 0);
    let limiter = limiter.count_denials(true);
    deny(&limiter, "alice").await;
    assert_eq!(denials(&limiter).await, 1);
}

#[tokio::test(start_paused = true)]
async fn denials_of_a_deny_cache_and_of_this_process_count() {
    let (probe, limiter) = probe(None);
    let cached = limiter.cache_denials(true);
    for _ in 0..5 {
        deny(&cached, "alice").await;
    }
    assert_eq!(denials(&cached).await, 5);
    let local = support::limiter(probe.store.clone()).on_failure(FailurePolicy::Local);
    probe.is_down.store(true, SeqCst);
    for _ in 0..3 {
        deny(&local, "alice").await;
    }
    check(&local, "alice").await;
    probe.is_down.store(false, SeqCst);
    pass(2).await;
    assert_eq!(Contributor.known(&probe).await, 0, "none is local");
    assert_eq!(Denial.known(&probe).await, 8);
}

#[tokio::test]
async fn of_a_caller_that_waits_only_the_end_counts() {
    let limiter = support::limiter(MemoryStore::new());
    let policy = Policy::parse("api", "1/50ms@exact").unwrap();
    for name in ["alice", "bob", "carol"] {
        let charge = Charge::new(&policy, acme(), 1).with_contributor(user(name));
        let decision = limiter.acquire([charge], Duration::from_secs(9)).await;
        assert!(decision.unwrap().is_allowed());
    }
    let contributors = limiter.contributors(&policy, &acme()).await.unwrap();
    assert_eq!((contributors.iter().len(), contributors.total()), (3, 3));
    assert_eq!(denials(&limiter).await, 0);
    let charge = Charge::new(&full(), user("alice"), 1);
    let decision = limiter.acquire([charge], ms(1)).await;
    assert!(!decision.unwrap().is_allowed());
    assert_eq!(denials(&limiter).await, 1);
}

#[tokio::test]
async fn a_caller_that_leaves_is_not_denied() {
    let limiter = support::limiter(MemoryStore::new());
    let policy = Policy::parse("api", "1/1h").unwrap();
    let charge = || [Charge::new(&policy, user("alice"), 1)];
    limiter.check(charge()).await.unwrap();
    limiter.check(charge()).await.unwrap();
    let waiting = limiter.acquire(charge(), Duration::from_secs(7_200));
    assert!(waiting.now_or_never().is_none());
    assert_eq!(denials(&limiter).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_denials_is_asked_once() {
    let (probe, limiter) = probe(Some(StoreErrorKind::InvalidRequest));
    for _ in 0..5 {
        deny(&limiter, "alice").await;
        pass(2).await;
    }
    assert_eq!(probe.told.load(SeqCst), 1);
    let error = limiter.denials().await;
    assert!(error.is_ok(), "nothing is reported any more");
    pass(15).await;
    assert_eq!(tasks(), 0);
}

#[test]
fn a_missing_right_gives_one_warning_and_other_errors_none() {
    for (refuses, expected) in [
        (None, 0), // the store does not answer
        (Some(StoreErrorKind::InvalidRequest), 0),
        (Some(StoreErrorKind::Unavailable), 0),
        (Some(StoreErrorKind::Refused), 0),
        (Some(StoreErrorKind::AccessDenied), 1),
    ] {
        let lines = traced(false, async {
            let (probe, limiter) = probe(refuses);
            probe.is_deaf.store(true, SeqCst);
            for _ in 0..3 {
                deny(&limiter, "alice").await;
                pass(2).await;
            }
        });
        let is_warning = |line: &String| line.contains("which identities are denied");
        let are_warnings = lines.iter().all(is_warning);
        assert!(are_warnings && lines.len() == expected, "{lines:?}");
    }
}

/// The memory of a process for each of this number of accounts, after 120 labels of 48 bytes and before a report.
fn bytes_for_each(accounts: u32) -> u64 {
    let limiter = support::limiter(Admitting(ManualClock::new(1_000_000_000)));
    let policy = policy();
    // No runtime runs, and so nothing is reported.
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let fill = || {
        for account in 0..accounts {
            for label in 0..120 {
                let key = Key::new("account", format!("account-{account:08}"));
                let charge = Charge::new(&policy, key, 1);
                let charge = charge.with_contributor(user(&format!("{label:048}")));
                block_on(limiter.check([charge])).unwrap();
            }
        }
    };
    let kept = u64::try_from(measure(fill).bytes_current).unwrap();
    kept / u64::from(accounts.min(1_008))
}

#[test]
fn a_process_keeps_at_most_12_kb_for_an_account_and_at_most_1008_accounts() {
    let (few, many) = (bytes_for_each(16), bytes_for_each(1_500));
    assert!(few <= 12_288 && many <= 12_288, "{few}, {many}");
}
