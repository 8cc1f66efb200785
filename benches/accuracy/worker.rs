//! A process that makes requests, and reports the result of each at the end.

use std::{
    io::{Read, stdin, stdout},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::UNIX_EPOCH,
};

use futures::future::join_all;
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, Policy, RedisStore,
    store::{Leases, redis::transactions::TransactionStore},
};

use crate::{
    job::{Job, Where},
    judge::{Answer, Record},
};
use support::sentinel::NAME;

/// A rule beside the rule under test. It denies nothing, and the end of its step is the millisecond of each decision by
/// the store's clock.
const CLOCK: &str = "1000000000/1ms";

/// Prints the time when it is ready, and works from the first byte of standard input to its end.
pub(crate) fn work(job: &str) {
    let job: Job = serde_json::from_str(job).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let records = runtime.block_on(async {
        let load = Load::new(job).await;
        let now = UNIX_EPOCH.elapsed().unwrap();
        println!("{}", now.as_secs());
        stdin().read_exact(&mut [0]).unwrap();
        let is_over = Arc::clone(&load.is_over);
        std::thread::spawn(move || {
            let _ = stdin().read_to_end(&mut Vec::new());
            is_over.store(true, Relaxed);
        });
        join_all((0..load.job.tasks).map(|_| load.task())).await;
        load.records.into_inner().unwrap()
    });
    serde_json::to_writer(stdout(), &records).unwrap();
}

struct Load {
    limiter: Limiter,
    policies: Vec<Policy>,
    is_over: Arc<AtomicBool>,
    records: Mutex<Vec<Record>>,
    job: Job,
}

impl Load {
    async fn new(job: Job) -> Self {
        let policies = job.rules.iter().enumerate().map(|(index, rule)| {
            if job.with_leases_and_cache {
                untimed(index, rule)
            } else {
                timed(index, rule)
            }
        });
        Self {
            limiter: limiter(&job).await,
            policies: policies.collect(),
            is_over: Arc::default(),
            records: Mutex::default(),
            job,
        }
    }

    async fn task(&self) {
        let mut random = fastrand::Rng::new();
        while !self.is_over.load(Relaxed) {
            if !self.job.pause.is_zero() {
                // Random pauses, as between independent requests.
                tokio::time::sleep(self.job.pause.mul_f64(-(1.0 - random.f64()).ln())).await;
            }
            let (rule, key) = (
                random.usize(..self.policies.len()),
                random.u64(..self.job.keys),
            );
            join_all((0..self.job.burst).map(|_| self.ask(rule, key))).await;
        }
    }

    async fn ask(&self, rule: usize, key: u64) {
        let who = Key::new("user", format!("{}{key}", self.job.load));
        let (at, answer) = ask(&self.limiter, &self.policies[rule], who).await;
        self.records.lock().unwrap().push(Record {
            rule,
            key,
            at,
            answer,
        });
    }
}

async fn limiter(job: &Job) -> Limiter {
    let store = match &job.at {
        Where::Server(url) => RedisStore::connect(url.as_str()).await,
        Where::Sentinels(urls) => RedisStore::sentinel(urls.clone(), NAME).await,
        Where::Cluster(urls) => RedisStore::cluster(urls.clone()).await,
        Where::Transactions(url) => {
            return Limiter::new(by_transactions(url).await).timeout(job.timeout);
        }
    };
    let store = store.unwrap();
    let limiter = if job.with_leases_and_cache {
        Limiter::new(Leases::new(store)).cache_denials(true)
    } else {
        Limiter::new(store)
    };
    let limiter = limiter.timeout(job.timeout);
    match job.replicas {
        None => limiter,
        Some(replicas) => limiter.on_failure(FailurePolicy::Local).replicas(replicas),
    }
}

async fn by_transactions(url: &str) -> TransactionStore {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder().max_size(8).test_on_check_out(false);
    RedisStore::transactions(pool.build(manager).await.unwrap())
}

/// A policy of this rule and the clock rule.
pub(crate) fn timed(index: usize, rule: &str) -> Policy {
    Policy::parse(format!("rule-{index}"), &format!("{rule},{CLOCK}")).unwrap()
}

fn untimed(index: usize, rule: &str) -> Policy {
    Policy::parse(format!("rule-{index}"), rule).unwrap()
}

/// Makes one request. Returns the time of the decision, in ms of the store's clock, and the answer.
pub(crate) async fn ask(limiter: &Limiter, policy: &Policy, who: Key) -> (u64, Answer) {
    let Ok(decision) = limiter.check([Charge::new(policy, who, 1)]).await else {
        return (0, Answer::Nothing);
    };
    let at = match decision.usage().rules().nth(1) {
        Some(clock) => clock.step_end_ms() - 1,
        // For a unit of a lease, this is up to a round trip late, but within the charged step.
        None => decision.usage().decided_at_ms(),
    };
    let answer = match &decision {
        Decision::Allowed(usage) if usage.is_local() => Answer::AdmittedHere,
        Decision::Allowed(_) => Answer::Admitted,
        Decision::Denied(denial) if denial.usage().is_local() => Answer::DeniedHere,
        Decision::Denied(denial) => Answer::Denied(denial.retry_after().unwrap()),
        other => panic!("no such answer is expected: {other:?}"),
    };
    (at, answer)
}
