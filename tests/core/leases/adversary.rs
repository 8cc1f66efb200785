//! An adversary: takes all possible leases, stays silent, spends at the last instant, and bursts when the step is
//! released. It finds mistakes that random load does not find, such as a lease that is measured from the answer, or one
//! without a margin.

use support::{prelude::*, promise::most_within};

const RULES: &str = "4000/200ms@50ms";
const LIMIT: u64 = 4_000;
const STEP_MS: u64 = 50;
const WINDOW_MS: u64 = 200;
const COST: u64 = 10;
const PROCESSES: usize = 3;

struct World {
    truth: ManualClock,
    store: MemoryStore,
    processes: Vec<(Leases, ManualClock)>,
    /// How many leases were asked for.
    fetched: Arc<AtomicU64>,
    /// The times of admissions by the store's clock, and their units.
    admitted: Arc<Mutex<Vec<(u64, u64)>>>,
    policy: Policy,
    key: Key,
}

impl World {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let truth = ManualClock::new(START_MS + rng.u64(0..1_000));
        truth.advance(Duration::from_micros(rng.u64(0..1_000)));
        let store = MemoryStore::new().clock(truth.clone());
        let fetched = Arc::<AtomicU64>::default();
        let process = |_| {
            let there_us = rng.choice([0, 200, 8_000]).unwrap_or_default();
            let delays_us = [rng.u64(0..=there_us), rng.u64(0..8_000)];
            let [there, back] = delays_us.map(Duration::from_micros);
            let count = Arc::clone(&fetched);
            let distant = Fated::by_call(store.clone(), move |asked| {
                count.fetch_add(u64::from(matches!(asked, Asked::Call(_))), SeqCst);
                Fate::Travels(there, back)
            });
            // Far from the store's clock.
            let clock = ManualClock::new(rng.u64(0..1_000_000));
            (support::leases(distant).clock(clock.clone()), clock)
        };
        Self {
            processes: (0..PROCESSES).map(process).collect(),
            truth,
            store,
            fetched,
            admitted: Arc::default(),
            policy: policy("p", RULES),
            key: user("0"),
        }
    }

    fn check_of(&self, cost: u64) -> Check {
        Check::new([Charge::new(&self.policy, self.key.clone(), cost)]).unwrap()
    }

    /// Lets time pass for all, and lets waiting tasks continue.
    async fn pass(&self, us: u64) {
        let by = Duration::from_micros(us);
        self.truth.advance(by);
        for (_, clock) in &self.processes {
            clock.advance(by);
        }
        advance(by).await;
        others_run().await;
    }

    async fn pass_until(&self, store_ms: u64) {
        while self.truth.now_ms() < store_ms {
            let rest_ms = store_ms - self.truth.now_ms();
            self.pass(if rest_ms > 10 { 4_000 } else { 500 }).await;
        }
    }

    /// An answer without a wait was spent from a lease, now.
    fn check(&self, process: usize) {
        let mut answer = self.processes[process].0.check(&self.check_of(COST));
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

    async fn round(&self, rng: &mut fastrand::Rng) {
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

#[tokio::test(start_paused = true)]
async fn no_unit_is_admitted_beyond_the_limit_by_an_adversary() {
    let mut leases = 0;
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(&mut rng);
        for round in 0..20 {
            world.key = Key::new("user", format!("{round}"));
            world.admitted = Arc::default();
            world.round(&mut rng).await;
            let most = world.most();
            assert!(most <= LIMIT.into(), "seed {seed}, round {round}: {most}");
        }
        leases += world.fetched.load(SeqCst);
    }
    assert!(leases > 2_000, "{leases}");
}
