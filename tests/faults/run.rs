//! One run: traffic, faults one inside the other, healing, and what is checked and recorded of it.

use std::{
    fs,
    sync::{
        Once,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use sluicegate::{Charge, Key, Limiter, Policy, Rule};
use tokio::runtime::{Builder, Runtime};

use super::{
    fault::{Fault, Heal},
    setup::Setup,
    site::Site,
    table::Row,
    traffic::{DEADLINE, Traffic},
};

/// Longer than a connection may owe an answer before it is given up.
const HOLD: Duration = Duration::from_millis(700);

/// Between two faults, and before the first and after the last.
const PAUSE: Duration = Duration::from_millis(200);

/// What the process may grow by in a run, and in those beside it.
const MEMORY: u64 = 256 << 20;

const RECOVERY: Duration = Duration::from_secs(1);

/// What is judged by is not what the store says of itself: see `Tally`.
pub(crate) fn run(setup: Setup, faults: &[Fault]) -> Row {
    let memory = resident();
    let before = panics();
    let runtime = runtime();
    let with_replica = faults.contains(&Fault::FailedOver);
    let with_clock = faults.iter().any(|fault| fault.needs_clock());
    let mut site = Site::new(runtime.handle().clone(), with_replica, with_clock);
    let (limiter, pool) = runtime.block_on(setup.limiter(&site.proxy.url()));
    let traffic = Traffic::new(limiter.clone());
    (site.pool, site.traffic) = (pool, Some(traffic.clone()));

    let tasks = traffic.start(runtime.handle());
    traffic.flows_again();
    traffic.runs_on(PAUSE);
    let mut heals: Vec<Heal> = Vec::new();
    for fault in faults {
        heals.push(fault.inflict(&mut site));
        traffic.runs_on(HOLD);
    }
    while let Some(heal) = heals.pop() {
        heal(&mut site);
        if !heals.is_empty() {
            traffic.runs_on(PAUSE);
        }
    }
    let recovery = runtime.block_on(recovery(&limiter));
    traffic.runs_on(PAUSE);
    traffic.flows_again();
    let keys_without_ttl = site.keys_without_ttl();
    let grown = resident().saturating_sub(memory);
    traffic.stop();
    let crashed = runtime.block_on(async {
        let mut crashed = 0;
        for task in tasks {
            crashed += u64::from(task.await.is_err());
        }
        crashed
    });

    let tally = traffic.tally();
    let losses = |rule: &Rule| {
        faults
            .iter()
            .try_fold(0, |sum, fault| Some(sum + fault.losses(rule)?))
    };
    // A task is late when its timer fires late, and again when it is then polled late.
    let allowance = 2 * tally.worst_lateness + Duration::from_millis(50);
    let (over, _) = tally.over_admission(|_| 1);
    let (too_much, whose) =
        tally.over_admission(|rule| 1 + losses(rule).unwrap_or(u64::from(u32::MAX)));
    let too_much_of = format!("{too_much} too many of {whose}");
    let complaints = [
        (crashed > 0 || panics() > before, "panicked"),
        (tally.worst_wait > DEADLINE + allowance, "waited too long"),
        (too_much > 0, too_much_of.as_str()),
        (
            recovery.is_none_or(|recovery| recovery > RECOVERY + DEADLINE + allowance),
            "came back late",
        ),
        (keys_without_ttl > 0, "keys without TTL"),
        (grown > MEMORY, "grew"),
    ];
    Row {
        setup: setup.to_string(),
        faults: faults
            .iter()
            .map(|fault| fault.name())
            .collect::<Vec<_>>()
            .join(" + "),
        requests: tally.requests,
        admitted: tally.admitted,
        refused: tally.refused,
        errors: tally.errors.clone(),
        worst_wait: tally.worst_wait,
        worst_lateness: tally.worst_lateness,
        recovery,
        over,
        keys_without_ttl,
        grown,
        complaints: complaints
            .into_iter()
            .filter_map(|(holds, what)| holds.then(|| what.to_owned()))
            .collect(),
    }
}

/// From now until the first of ten decisions in a row; `None` when that takes ten seconds.
///
/// Of keys that are new each time, so that all are admissions.
async fn recovery(limiter: &Limiter) -> Option<Duration> {
    let policy = Policy::parse("probe", "1/1m").unwrap();
    let healed = Instant::now();
    let (mut asked, mut first, mut in_a_row) = (0, Duration::ZERO, 0);
    while healed.elapsed() < Duration::from_secs(10) {
        asked += 1;
        let charge = Charge::new(&policy, Key::new("probe", &asked.to_string()), 1);
        if limiter
            .check([charge])
            .await
            .is_ok_and(|decision| decision.is_allowed())
        {
            if in_a_row == 0 {
                first = healed.elapsed();
            }
            in_a_row += 1;
        } else {
            in_a_row = 0;
        }
        if in_a_row == 10 {
            return Some(first);
        }
    }
    None
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(WORKER)
        .enable_all()
        .build()
        .unwrap()
}

/// Of the threads in which a limiter works.
const WORKER: &str = "limiting";

/// How often such a thread has panicked, in any task, also those that nobody waits for.
fn panics() -> u64 {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(
                u64::from(std::thread::current().name() == Some(WORKER)),
                Relaxed,
            );
            report(info);
        }));
    });
    PANICS.load(Relaxed)
}

/// The memory of this process, in bytes; 0 where it cannot be told.
pub(crate) fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}
