//! Proves that a store with leases keeps the contract, and never admits one unit too many.

use support::prelude::*;

mod adversary;
mod races;
mod spending;

mod contract {
    use sluicegate::{MemoryStore, manual_clock::ManualClock, store::Leases};

    support::contract!(apart new);
    support::contracts!(new: calls contributors denials blocks kinds);

    pub(super) async fn new() -> (Leases, ManualClock) {
        let clock = ManualClock::new(0);
        let store = MemoryStore::new().clock(clock.clone());
        (support::leases(store).clock(clock.clone()), clock)
    }
}

#[tokio::test]
async fn the_store_agrees_with_the_vectors() {
    support::vectors::replay_all(contract::new).await;
}

/// What a store does that executes operations at once and can hold the answers back.
#[derive(Debug, Default)]
struct Holds {
    checks: AtomicBool,
    calls: AtomicBool,
    resets: AtomicBool,
    /// Whether resets are only executed when this is notified.
    delays_resets: AtomicBool,
    delay: Arc<Notify>,
    /// Whether settlements are never answered.
    hangs_settlements: AtomicBool,
    settlements: AtomicUsize,
    fails_checks: AtomicBool,
    answers: Arc<Notify>,
    /// All calls of the store.
    asked: AtomicUsize,
}

impl Holds {
    fn fate(&self, asked: &Asked<'_>) -> Fate {
        // A new limiter asks whether the store accepts publications.
        let counts = !matches!(asked, Asked::Execute(Operation::Publish(_)));
        self.asked.fetch_add(usize::from(counts), SeqCst);
        let held = |is_held: &AtomicBool| match is_held.load(SeqCst) {
            true => Fate::Held(self.answers.clone()),
            false => Fate::Answered,
        };
        match asked {
            Asked::Check(_) if self.fails_checks.load(SeqCst) => Fate::unavailable(),
            // The value of this identity cannot be read.
            Asked::Check(check) if check.keys().any(|it| *it == user("mallory")) => {
                Fate::Fails(StoreError::new(StoreErrorKind::Protocol, "unreadable"))
            }
            Asked::Check(_) => held(&self.checks),
            Asked::Execute(Operation::Settle(_)) => {
                self.settlements.fetch_add(1, SeqCst);
                match self.hangs_settlements.load(SeqCst) {
                    true => Fate::Hangs,
                    false => Fate::Answered,
                }
            }
            Asked::Execute(Operation::Reset { .. }) => match self.delays_resets.load(SeqCst) {
                true => Fate::Delayed(self.delay.clone()),
                false => held(&self.resets),
            },
            Asked::Call(_) => held(&self.calls),
            Asked::Execute(_) => Fate::Answered,
        }
    }
}

/// Several processes over one store.
struct World {
    clock: ManualClock,
    memory: MemoryStore,
    holds: Arc<Holds>,
    processes: Vec<(Leases, Limiter)>,
    /// The first process.
    leases: Leases,
    limiter: Limiter,
}

impl World {
    fn new(processes: usize) -> Self {
        let ((memory, clock), holds) = (memory(), Arc::<Holds>::default());
        let store = Fated::by_call(memory.clone(), {
            let holds = Arc::clone(&holds);
            move |asked| holds.fate(asked)
        });
        let process = |_| {
            let leases = support::leases(store.clone()).clock(clock.clone());
            (leases.clone(), support::limiter(leases).timeout(MINUTE))
        };
        let processes: Vec<_> = (0..processes).map(process).collect();
        let (leases, limiter) = processes[0].clone();
        Self {
            clock,
            memory,
            holds,
            processes,
            leases,
            limiter,
        }
    }

    /// One process with a lease of alice, and how many checks were admitted.
    async fn warm(rules: &str, cost: u64) -> (Self, [Charge; 1], u64) {
        let (world, alice) = (Self::new(1), [charge(&policy("p", rules), "alice", cost)]);
        let admitted = world.warm_up(&alice).await;
        (world, alice, admitted)
    }

    async fn check(&self, charges: &[Charge]) -> Decision {
        let decision = self.limiter.check(charges.to_vec()).await.unwrap();
        others_run().await; // the fetches in the background
        decision
    }

    /// Whether such a check is admitted, a millisecond later.
    async fn admits(&self, charges: &[Charge]) -> bool {
        self.pass(1_000);
        self.check(charges).await.is_allowed()
    }

    /// Checks for two steps of a second, which is long enough for a lease, and then until there is a fresh lease at the
    /// beginning of a step. Returns the number of checks.
    async fn warm_up(&self, charges: &[Charge]) -> u64 {
        for _ in 0..2_000 {
            assert!(self.admits(charges).await);
        }
        self.clock.set(self.next_second());
        for _ in 0..100 {
            assert!(self.admits(charges).await);
        }
        self.calls();
        2_100
    }

    /// The end of the current step of a second.
    fn next_second(&self) -> u64 {
        self.clock.now_ms() / 1_000 * 1_000 + 1_000
    }

    /// The remaining units under each rule in the store.
    async fn left(&self, charge: &Charge) -> Vec<u64> {
        let check = Check::new([Charge::new(charge.policy(), charge.key().clone(), 0)]).unwrap();
        let decision = self.memory.check(&check).await.unwrap();
        remaining(decision.usage())
    }

    async fn return_unspent(&self) {
        for (leases, _) in &self.processes {
            leases.return_unspent().await;
        }
    }

    /// The calls of the store since this was asked last.
    fn calls(&self) -> usize {
        self.holds.asked.swap(0, SeqCst)
    }

    fn pass(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
    }
}
