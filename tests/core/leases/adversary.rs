//! An adversary: takes all possible leases, stays silent, spends at the last instant, and bursts when the step is
//! released. It finds mistakes that random load does not find.
//!
//! The test controls the clocks of the processes, so it can imitate two mutants of the code. A mutant that measures
//! from the answer, and not from the request, is a clock that stands still until the answer arrives. A mutant without
//! the margin is a clock that stands still for a millisecond after the answer.

use support::{prelude::*, promise::most_within};
use tokio::sync::oneshot;

const RULES: &str = "4000/200ms@50ms";
const LIMIT: u64 = 4_000;
const STEP_MS: u64 = 50;
const WINDOW_MS: u64 = 200;
const COST: u64 = 10;
const PROCESSES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Right,
    /// Measures from the answer.
    FromAnswer,
    /// Spends until the end of the step, by the store's clock in whole milliseconds.
    WithoutMargin,
}

/// A store with delays in both directions.
#[derive(Clone, Debug)]
struct Distant {
    store: MemoryStore,
    time: Arc<Time>,
    /// The times of a message, there and back.
    delays_us: [u64; 2],
    leasing: Arc<Leasing>,
}

/// The leases that this process waits for, and those that have arrived.
#[derive(Debug, Default)]
struct Leasing {
    asked: AtomicU64,
    answered: AtomicU64,
}

impl Distant {
    fn travel<T: Send + 'static>(
        &self,
        act: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let this = self.clone();
        StoreFuture::pending(async move {
            this.time.wait(this.delays_us[0]).await;
            let answer = act(&this.store).await;
            this.time.wait(this.delays_us[1]).await;
            answer
        })
    }
}

/// The time that has passed, and the waiting tasks with their times; in µs.
#[derive(Debug, Default)]
struct Time {
    passed_us: AtomicU64,
    waiting: Mutex<Vec<(u64, oneshot::Sender<()>)>>,
}

impl Time {
    async fn wait(&self, us: u64) {
        if us > 0 {
            let (wake, woken) = oneshot::channel();
            let until_us = self.passed_us.load(SeqCst) + us;
            self.waiting.lock().unwrap().push((until_us, wake));
            woken.await.unwrap();
        }
    }

    /// Wakes the tasks that are due, in order of arrival.
    fn pass(&self, us: u64) {
        let passed_us = self.passed_us.fetch_add(us, SeqCst) + us;
        let mut waiting = self.waiting.lock().unwrap();
        for (_, wake) in waiting.extract_if(.., |it| it.0 <= passed_us) {
            let _ = wake.send(());
        }
    }
}

impl Store for Distant {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let check = check.clone();
        self.travel(move |store| store.check(&check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.travel(move |store| store.execute(operation))
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let leasing = Arc::clone(&self.leasing);
        leasing.asked.fetch_add(1, SeqCst);
        let answer = self.travel(move |store| store.call(operations));
        StoreFuture::pending(async move {
            let answer = answer.await;
            leasing.answered.fetch_add(1, SeqCst);
            answer
        })
    }
}

struct Process {
    leases: Leases,
    clock: ManualClock,
    leasing: Arc<Leasing>,
    /// The number of answers that the clock has stood still for, and the remaining standstill in µs.
    noticed: u64,
    standstill_us: u64,
}

struct World {
    code: Code,
    truth: ManualClock,
    time: Arc<Time>,
    store: MemoryStore,
    processes: Vec<Process>,
    /// The times of admissions by the store's clock, and their units.
    admitted: Arc<Mutex<Vec<(u64, u64)>>>,
    policy: Policy,
    key: Key,
}

impl World {
    fn new(code: Code, rng: &mut fastrand::Rng) -> Self {
        let truth = ManualClock::new(START_MS + rng.u64(0..1_000));
        truth.advance(Duration::from_micros(rng.u64(0..1_000)));
        let store = MemoryStore::new().clock(truth.clone());
        let time: Arc<Time> = Arc::default();
        let process = |_| {
            let leasing = Arc::new(Leasing::default());
            let there_us = rng.choice([0, 200, 8_000]).unwrap_or_default();
            let there_us = rng.u64(0..=there_us);
            let distant = Distant {
                store: store.clone(),
                time: Arc::clone(&time),
                delays_us: [there_us, rng.u64(0..8_000)],
                leasing: Arc::clone(&leasing),
            };
            // Far from the store's clock.
            let clock = ManualClock::new(rng.u64(0..1_000_000));
            Process {
                leases: support::leases(distant).clock(clock.clone()),
                clock,
                leasing,
                noticed: 0,
                standstill_us: 0,
            }
        };
        Self {
            code,
            processes: (0..PROCESSES).map(process).collect(),
            truth,
            time,
            store,
            admitted: Arc::default(),
            policy: policy("p", RULES),
            key: user("0"),
        }
    }

    fn check_of(&self, cost: u64) -> Check {
        Check::new([Charge::new(&self.policy, self.key.clone(), cost)]).unwrap()
    }

    /// Lets time pass for all, and lets waiting tasks continue.
    async fn pass(&mut self, us: u64) {
        let by = Duration::from_micros(us);
        self.truth.advance(by);
        self.time.pass(us);
        for process in &mut self.processes {
            let answered = process.leasing.answered.load(SeqCst);
            let is_waiting = process.leasing.asked.load(SeqCst) > answered;
            if self.code == Code::WithoutMargin && answered > process.noticed {
                process.noticed = answered;
                process.standstill_us = 1_000;
            }
            if self.code == Code::FromAnswer && is_waiting {
                continue;
            }
            let still_us = process.standstill_us.min(us);
            process.standstill_us -= still_us;
            process.clock.advance(Duration::from_micros(us - still_us));
        }
        for _ in 0..4 {
            yield_now().await;
        }
    }

    async fn pass_until(&mut self, store_ms: u64) {
        while self.truth.now_ms() < store_ms {
            let rest_ms = store_ms - self.truth.now_ms();
            self.pass(if rest_ms > 10 { 4_000 } else { 500 }).await;
        }
    }

    /// An answer without a wait was spent from a lease, now.
    fn check(&self, process: usize) {
        let mut answer = self.processes[process].leases.check(&self.check_of(COST));
        let admitted = Arc::clone(&self.admitted);
        match (&mut answer).now_or_never() {
            Some(decision) => {
                if decision.unwrap().is_allowed() {
                    admitted.lock().unwrap().push((self.truth.now_ms(), COST));
                }
            }
            None => {
                tokio::spawn(async move {
                    if let Decision::Allowed(usage) = answer.await.unwrap() {
                        admitted.lock().unwrap().push((usage.decided_at_ms(), COST));
                    }
                });
            }
        }
    }

    fn leases(&self) -> u64 {
        let processes = self.processes.iter();
        processes.map(|it| it.leasing.answered.load(SeqCst)).sum()
    }

    /// A process without leases takes all remaining units.
    async fn take_the_rest(&self) {
        let look = self.store.check(&self.check_of(0)).await.unwrap();
        let left = remaining(look.usage())[0];
        if left > 0 {
            let check = self.check_of(left);
            let decision = self.store.check(&check).await.unwrap();
            assert!(decision.is_allowed());
            let mut admitted = self.admitted.lock().unwrap();
            admitted.push((self.truth.now_ms(), left));
        }
    }

    async fn round(&mut self, rng: &mut fastrand::Rng) {
        // Make the identity hot, and get leases.
        for _ in 0..9 {
            (0..PROCESSES).for_each(|it| self.check(it));
        }
        for _ in 0..20 {
            self.pass(1_000).await;
            if rng.u8(0..2) == 0 {
                self.check(rng.usize(0..PROCESSES));
            }
        }
        let boundary = |ms: u64| ms - ms % STEP_MS + STEP_MS;
        // Ask for leases early in a step, and then be silent.
        let start_ms = boundary(self.truth.now_ms());
        self.pass_until(start_ms).await;
        self.pass(rng.u64(0..20_000)).await;
        (0..PROCESSES).for_each(|it| self.check(it));
        // If messages take no time, the answer arrives now.
        self.pass(0).await;
        let end_ms = boundary(self.truth.now_ms());
        self.pass_until(end_ms - 1).await;
        self.take_the_rest().await;
        // Spend around the end of the step, bit by bit.
        while self.truth.now_ms() < end_ms + 4 {
            self.pass(200).await;
            (0..PROCESSES).for_each(|it| self.check(it));
        }
        self.take_the_rest().await;
        // The next lease returns the rest, and another process takes it.
        if rng.bool() {
            for _ in 0..10 {
                self.pass(2_000).await;
                self.check(rng.usize(0..PROCESSES));
            }
            self.take_the_rest().await;
        }
        // Burst as soon as units are released.
        self.pass_until(end_ms + WINDOW_MS - 2).await;
        for _ in 0..40 {
            self.take_the_rest().await;
            self.pass(100).await;
        }
    }

    /// The most units in any span of the window, in ms of the store's clock.
    fn most(&self) -> u128 {
        let mut admitted = self.admitted.lock().unwrap();
        admitted.sort_unstable();
        most_within(WINDOW_MS, &admitted)
    }
}

/// The number of rounds that admitted more than the limit, and the number of leases.
async fn play(code: Code, rounds: u64) -> (u64, u64) {
    let (mut beyond, mut leases) = (0, 0);
    for seed in 0..rounds / 20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(code, &mut rng);
        for round in 0..20 {
            world.key = Key::new("user", format!("{round}"));
            world.admitted = Arc::default();
            world.round(&mut rng).await;
            beyond += u64::from(world.most() > LIMIT.into());
        }
        leases += world.leases();
    }
    (beyond, leases)
}

#[tokio::test]
async fn no_unit_is_admitted_beyond_the_limit_by_an_adversary() {
    let (beyond, leases) = play(Code::Right, 1_000).await;
    println!("right: {beyond} of 1000, {leases} leases");
    assert_eq!(beyond, 0);
    assert!(leases > 2_000, "{leases}");
}

#[tokio::test]
async fn the_adversary_finds_out_who_measures_from_the_answer() {
    let (beyond, _) = play(Code::FromAnswer, 300).await;
    println!("from the answer: {beyond} of 300");
    assert!(beyond > 30, "{beyond}");
}

#[tokio::test]
async fn the_adversary_finds_out_who_leaves_the_margin_out() {
    let (beyond, _) = play(Code::WithoutMargin, 300).await;
    println!("without the margin: {beyond} of 300");
    assert!(beyond > 3, "{beyond}");
}
