//! Traffic during a run: many tasks, some keys with small limits, and a hot key that half of the tasks share.

use std::{
    sync::{MutexGuard, atomic::Ordering::Relaxed},
    time::Instant,
};

use support::prelude::*;
use tokio::{runtime::Handle, task::JoinHandle};

use super::{setup::Setup, tally::Tally};

const TASKS: usize = 32;
const KEYS: usize = 8;

/// The number of tasks of a job.
const JOB_TASKS: usize = 4;

/// The time from an answer to the task's next request.
const PACE: Duration = Duration::from_millis(5);

/// The windows differ from the jumps of the clock by far, so that the effect of a jump is clear.
const SMALL: &str = "4/200ms@exact,12/1500ms@exact";
/// Admits again and again. Only an admission shows that a server can write.
const BRIEF: &str = "4/200ms@exact";
/// Full again after 300 ms.
const BUCKET: &str = "6+20/1s@bucket";
const HOT: &str = "15/200ms@exact,60/1500ms@exact";

/// With leases, every fourth task charges only this key. So this key is hot, independent of the other limits.
const LEASED: &str = "160/200ms@50ms,600/1500ms@100ms";

/// Used up for the rest of the run, which a test can see without a clock.
const DAILY: &str = "100/1d@1m";

/// Every request is charged to this policy, which denies none. At the end, the server's units are compared with
/// the admissions. The steps are short enough that many end during a run.
const COUNTED: &str = "1000000/10m@100ms";

/// The maximum wait of a caller that leaves: about the delay of a distant server.
const PATIENCE: Duration = Duration::from_millis(15);

#[derive(Clone)]
pub(crate) struct Traffic {
    limiter: Limiter,
    timeout: Duration,
    tally: Arc<Mutex<Tally>>,
    is_over: Arc<AtomicBool>,
    policies: Arc<[Policy]>,
    hot: Policy,
    counted: Policy,
    setup: Setup,
}

struct Asked<'a> {
    traffic: &'a Traffic,
    start: Instant,
    /// Whether the delay of its runtime is measured, so that its time counts.
    is_measured: bool,
    is_answered: bool,
}

impl Asked<'_> {
    fn answered(mut self, result: &Result<Decision, StoreError>) {
        self.is_answered = true;
        let waited = self.is_measured.then(|| self.start.elapsed());
        self.traffic.tally().note(waited, result);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.traffic.tally().leave();
        }
    }
}

impl Traffic {
    pub(crate) fn new(limiter: Limiter, setup: Setup, timeout: Duration) -> Self {
        let policy = |name: String, rules| Policy::parse(&name, rules).unwrap();
        let small = (1..KEYS).map(|key| {
            let rules = match key {
                3 => BUCKET,
                _ if key % 2 == 0 => SMALL,
                _ => BRIEF,
            };
            policy(format!("small-{key}"), rules)
        });
        Self {
            limiter: limiter.timeout(timeout),
            timeout,
            tally: Arc::default(),
            is_over: Arc::default(),
            policies: small.chain([policy("daily".into(), DAILY)]).collect(),
            hot: match setup.with_leases_and_cache {
                true => policy("hot".into(), LEASED),
                false => policy("hot".into(), HOT),
            },
            counted: policy("counted".into(), COUNTED),
            setup,
        }
    }

    /// Starts all tasks, and one that measures the delay of the runtime.
    pub(crate) fn start(&self, runtime: &Handle) -> Vec<JoinHandle<()>> {
        let asking = (0..TASKS).map(|task| {
            let this = self.clone();
            runtime.spawn(async move { this.ask_on(task, true).await })
        });
        let this = self.clone();
        let measuring = runtime.spawn(async move {
            while !this.is_over.load(Relaxed) {
                this.measure(PACE).await;
            }
        });
        self.measure_from_outside(runtime.clone());
        asking.chain([measuring]).collect()
    }

    /// Starts a few tasks of a job. The delay of its runtime is unknown.
    pub(crate) fn start_in_job(&self, runtime: &Handle) {
        for task in 0..JOB_TASKS {
            let this = self.clone();
            drop(runtime.spawn(async move { this.ask_on(task, false).await }));
        }
    }

    async fn ask_on(&self, task: usize, is_measured: bool) {
        while !self.is_over.load(Relaxed) {
            let asked = self.ask(task, is_measured);
            if self.setup.with_leavers && fastrand::u8(..3) == 0 {
                let patience = PATIENCE.mul_f64(fastrand::f64());
                let _ = timeout(patience, asked).await;
            } else {
                asked.await;
            }
            sleep(PACE).await;
        }
    }

    /// Makes this number of requests at once, each in a separate task. Some of them only wait for their timeout.
    pub(crate) fn crowd(&self, runtime: &Handle, tasks: usize) -> Vec<JoinHandle<()>> {
        let spawn = |task: usize| {
            let this = self.clone();
            runtime.spawn(async move {
                match task % 20 {
                    0 => this.measure(this.timeout).await,
                    _ => this.ask(task, true).await,
                }
            })
        };
        (0..tasks * 20 / 19).map(spawn).collect()
    }

    /// Measures the delay of the runtime for a wait of this time.
    async fn measure(&self, span: Duration) {
        let asleep = Instant::now();
        sleep(span).await;
        self.is_late(asleep.elapsed().saturating_sub(span));
    }

    /// Measures the delay for tasks in the runtime's shared queue, and the delay of the machine for a thread.
    fn measure_from_outside(&self, runtime: Handle) {
        let this = self.clone();
        std::thread::spawn(move || {
            while !this.is_over.load(Relaxed) {
                let spawned = Instant::now();
                let task = this.clone();
                runtime.spawn(async move { task.is_late(spawned.elapsed()) });
                let asleep = Instant::now();
                std::thread::sleep(PACE);
                this.is_late(asleep.elapsed().saturating_sub(PACE));
            }
        });
    }

    fn is_late(&self, late: Duration) {
        let mut tally = self.tally();
        tally.worst_lateness = tally.worst_lateness.max(late);
    }

    /// Makes one request. Every other one also charges the hot key: both or neither.
    async fn ask(&self, task: usize, is_measured: bool) {
        let is_alone = self.setup.with_leases_and_cache && task % 4 == 3;
        let own = (!is_alone).then(|| &self.policies[task / 2 % self.policies.len()]);
        let hot = (task % 2 == 1).then_some(&self.hot);
        let policies = own.into_iter().chain(hot).chain([&self.counted]);
        let charges = policies.map(|it| Charge::new(it, Key::new("key", it.name()), 1));
        let asked = Asked {
            traffic: self,
            start: Instant::now(),
            is_measured,
            is_answered: false,
        };
        let result = self.limiter.check(charges).await;
        asked.answered(&result);
    }

    /// The charge that every request makes.
    pub(crate) fn counted(&self) -> Charge {
        Charge::new(&self.counted, Key::new("key", self.counted.name()), 1)
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap()
    }

    /// Returns after `span`, once many requests have been answered.
    pub(crate) fn runs_on(&self, span: Duration) {
        let (start, before) = (Instant::now(), self.tally().requests);
        let enough = before + TASKS as u64;
        let is_done = until(|| start.elapsed() >= span && self.tally().requests >= enough);
        assert!(is_done, "no traffic: {:?}", self.tally());
    }

    /// Returns when a request could not be decided, or after a long time.
    pub(crate) fn runs_on_until_undecided(&self) {
        until(|| self.tally().undecided() > 0);
    }

    pub(crate) fn has_begun(&self) -> bool {
        until(|| self.tally().admitted > 0)
    }

    /// Waits until every key with small limits admits a request again, longer than any window. Returns whether all did.
    pub(crate) fn flows_again(&self) -> bool {
        let before = self.count_small();
        until(|| {
            let now = self.count_small();
            now.iter().zip(&before).all(|(now, before)| now > before)
        })
    }

    fn count_small(&self) -> Vec<usize> {
        let tally = self.tally();
        let admissions = tally.admissions();
        let small = self.policies[..KEYS - 1].iter().chain([&self.hot]);
        let counts = small.map(|policy| admissions.get(policy.name()));
        counts.map(|it| it.copied().unwrap_or(0)).collect()
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Relaxed);
    }
}

/// Waits for the condition. Returns false after a long time.
fn until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
