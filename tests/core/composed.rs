//! Layer × layer × fault: the promises of a store hold around every other store, during a fault of the store below and
//! after it.

use support::prelude::*;

const TIMEOUT: Duration = ms(100);
/// Requests before the fault, one in each millisecond. The fault begins shortly before the end of a step.
const WARM_UP: u64 = 900;

const ONE_WAY: Duration = ms(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The store executes nothing.
    Fails,
    /// The store executes the call, and the caller gets an error.
    LosesAnswers,
    /// The store executes nothing, and does not answer.
    Hangs,
    /// The round trip takes less than the timeout.
    IsSlow,
    /// The same, and callers leave at random.
    CallersLeave,
}

const FAULTS: [Fault; 5] = [
    Fault::Fails,
    Fault::LosesAnswers,
    Fault::Hangs,
    Fault::IsSlow,
    Fault::CallersLeave,
];

/// A limiter over a store with leases or without.
type Layers = fn(Fated, ManualClock) -> (Limiter, Option<Leases>);

const LAYERS: [(&str, Layers); 4] = [
    ("the store", |store, _| (support::limiter(store), None)),
    ("a cache", |store, clock| {
        (cached(support::limiter(store), clock), None)
    }),
    ("leases", |store, clock| {
        let leases = support::leases(store).clock(clock);
        (support::limiter(leases.clone()), Some(leases))
    }),
    ("a cache around leases", |store, clock| {
        let leases = support::leases(store).clock(clock.clone());
        let limiter = cached(support::limiter(leases.clone()), clock);
        (limiter, Some(leases))
    }),
];

fn cached(limiter: Limiter, clock: ManualClock) -> Limiter {
    limiter.cache_denials(true).denial_clock(clock)
}

/// Callers that share one limit, which has room for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// Admitted.
    Alice,
    /// Denied by a separate limit.
    Mallory,
    /// Blocked.
    Eve,
}

const CALLERS: [Caller; 3] = [Caller::Alice, Caller::Mallory, Caller::Eve];

type Answer = Result<Decision, StoreError>;

impl Caller {
    fn charges(self) -> Vec<Charge> {
        let everybody = Charge::new(&shared(), Key::new("tenant", "everybody"), 1);
        let own = policy("own", "1/1h");
        let own = |user| charge(&own, user, 1);
        match self {
            Self::Alice => vec![everybody],
            Self::Mallory => vec![everybody, own("mallory")],
            Self::Eve => vec![everybody, own("eve")],
        }
    }

    /// Whether the decision is right for this caller.
    fn is_due(self, decision: &Decision) -> bool {
        match self {
            Self::Alice => decision.is_allowed(),
            Self::Mallory => is_denied(decision),
            Self::Eve => is_blocked(decision),
        }
    }
}

fn shared() -> Policy {
    policy("all", "1000000/1h@1s")
}

struct Cell {
    clock: ManualClock,
    memory: MemoryStore,
    fault: Fault,
    is_struck: Arc<AtomicBool>,
    leases: Option<Leases>,
    limiter: Limiter,
    /// Units of the shared limit.
    admitted: u64,
    unknown: u64,
    complaints: Vec<String>,
}

impl Cell {
    fn new(layers: Layers, fault: Fault) -> Self {
        let ((memory, clock), is_struck) = (memory(), Arc::<AtomicBool>::default());
        let strikes = Arc::clone(&is_struck);
        let store = Fated::by_call(memory.clone(), move |_| match fault {
            _ if !strikes.load(SeqCst) => Fate::Answered,
            Fault::Fails => Fate::unavailable(),
            Fault::Hangs => Fate::Hangs,
            Fault::LosesAnswers => Fate::LosesAnswer,
            Fault::IsSlow | Fault::CallersLeave => Fate::Travels(ONE_WAY, ONE_WAY),
        });
        let (limiter, leases) = layers(store, clock.clone());
        Self {
            clock,
            memory,
            fault,
            is_struck,
            leases,
            limiter: limiter.enforce_blocks(true).timeout(TIMEOUT),
            admitted: 0,
            unknown: 0,
            complaints: Vec::new(),
        }
    }

    async fn play(mut self) -> Vec<String> {
        self.begin().await;
        self.is_struck.store(true, SeqCst);
        self.strike().await;
        self.is_struck.store(false, SeqCst);
        // Longer than any wait in the background.
        self.pass(1_100, 10).await;
        self.recover().await;
        self.count().await;
        self.complaints
    }

    /// Lets time pass for all, including waiting callers.
    async fn pass(&self, times: u32, millis: u64) {
        for _ in 0..times {
            self.clock.advance(ms(millis));
            sleep(ms(millis)).await;
        }
    }

    /// Makes requests until the shared limit is hot, and has a lease if there are leases.
    async fn begin(&mut self) {
        let eve = user("eve");
        self.limiter.block(&eve, Until::Forever).await.unwrap();
        let first = self.limiter.check(Caller::Mallory.charges()).await.unwrap();
        assert!(first.is_allowed());
        for _ in 0..WARM_UP {
            let decision = self.limiter.check(Caller::Alice.charges()).await.unwrap();
            assert!(decision.is_allowed());
            self.pass(1, 1).await;
        }
        self.admitted = 1 + WARM_UP;
        let is_leased = self.used().await > self.admitted;
        assert_eq!(is_leased, self.leases.is_some());
    }

    /// All callers ask in each millisecond.
    async fn strike(&mut self) {
        let mut tasks = Vec::new();
        for place in 0..300_u64 {
            for caller in CALLERS {
                let limiter = self.limiter.clone();
                let leaves = self.fault == Fault::CallersLeave && place % 3 > 0;
                let patience = ms(if leaves { place * 7 % 70 } else { 10_000 });
                tasks.push(tokio::spawn(async move {
                    let start = Instant::now();
                    let answer = timeout(patience, limiter.check(caller.charges())).await;
                    (caller, start.elapsed(), answer.ok())
                }));
            }
            self.pass(1, 1).await;
        }
        self.pass(200, 1).await;
        for task in tasks {
            let (caller, waited, answer) = task.await.unwrap();
            self.judge(caller, waited, answer);
        }
    }

    fn judge(&mut self, caller: Caller, waited: Duration, answer: Option<Answer>) {
        if waited > TIMEOUT + ms(5) {
            self.complain(format!("{caller:?} waited for {waited:?}"));
        }
        match answer {
            Some(Ok(decision)) => {
                self.admitted += u64::from(decision.is_allowed());
                if !caller.is_due(&decision) {
                    self.complain(format!("{caller:?} got {decision:?}"));
                }
            }
            Some(Err(error)) if self.fault == Fault::IsSlow => {
                self.complain(format!(
                    "{caller:?} got {error:?} from a store that answers"
                ));
            }
            Some(Err(error)) if error.kind() == StoreErrorKind::CircuitOpen => {}
            // A denial charges nothing, even if its answer is lost.
            Some(Err(_)) => {
                let is_done = self.fault == Fault::LosesAnswers;
                self.unknown += u64::from(is_done && caller == Caller::Alice);
            }
            None => self.unknown += u64::from(caller == Caller::Alice),
        }
    }

    /// Within the longest interval between two probes, all decisions are right again.
    async fn recover(&mut self) {
        for _ in 0..400 {
            if self.limiter.peek(Caller::Alice.charges()).await.is_ok() {
                break;
            }
            self.pass(1, 1).await;
        }
        for caller in CALLERS {
            let answer = self.limiter.check(caller.charges()).await;
            self.judge(caller, Duration::ZERO, Some(answer));
        }
        for caller in CALLERS {
            match self.limiter.check(caller.charges()).await {
                Ok(decision) => self.judge(caller, Duration::ZERO, Some(Ok(decision))),
                Err(error) => self.complain(format!("{caller:?} got {error:?} after the fault")),
            }
        }
    }

    /// The admitted units, and no others, are charged once.
    async fn count(&mut self) {
        if let Some(leases) = &self.leases {
            leases.return_unspent().await;
        }
        let used = self.used().await;
        let (least, most) = (self.admitted, self.admitted + self.unknown);
        // A lease stays charged if its answer or its return is lost.
        let answers = matches!(self.fault, Fault::IsSlow | Fault::CallersLeave);
        let is_stranded = self.leases.is_some() && !answers;
        if used < least || (used > most && !is_stranded) {
            self.complain(format!("{used} units count of {least} to {most} admitted"));
        }
    }

    async fn used(&self) -> u64 {
        let [charge] = Caller::Alice.charges().try_into().unwrap();
        let look = Check::new([Charge::new(charge.policy(), charge.key().clone(), 0)]).unwrap();
        let decision = self.memory.check(&look).await.unwrap();
        1_000_000 - remaining(decision.usage())[0]
    }

    fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }
}

#[tokio::test(start_paused = true)]
async fn every_layer_keeps_its_promises_around_every_other_through_every_fault() {
    let mut bad = Vec::new();
    for (name, layers) in LAYERS {
        for fault in FAULTS {
            let complaints = Cell::new(layers, fault).play().await;
            if let Some(first) = complaints.first() {
                let count = complaints.len();
                bad.push(format!("{name}, {fault:?}: {count} complaints: {first}"));
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}
