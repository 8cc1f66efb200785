//! One run: traffic, nested faults, repairs, and the checks and figures of the run.

use std::{
    fs,
    sync::{Once, atomic::Ordering::Relaxed},
    time::Instant,
};

use support::prelude::*;
use tokio::runtime::{Builder, Runtime};

use super::{
    bounds::Bounds,
    fault::{Fault, Heal, names},
    job::Job,
    setup::{Built, Setup},
    site::{Site, keys_without_ttl},
    table::Row,
    tally::Tally,
    traffic::Traffic,
};

/// Longer than the wait for a reply before a connection is dropped.
const HOLD: Duration = Duration::from_millis(700);

/// The pause between two faults, before the first and after the last.
const PAUSE: Duration = Duration::from_millis(200);

/// The growth of the process that a run may cause, including parallel runs.
const MEMORY: u64 = 256 << 20;

/// The kinds of errors that mean that the store could not decide.
const EXPECTED: [&str; 4] = ["CircuitOpen", "Refused", "Timeout", "Unavailable"];

const RECOVERY: Duration = Duration::from_secs(1);

/// The first fault is the outermost, and is repaired last.
pub(crate) fn run(setup: Setup, faults: &[Fault]) -> Row {
    let memory = resident();
    let before = panics();
    let runtime = runtime();
    let with_replica = faults.contains(&Fault::FailedOver);
    let with_clock = faults.iter().any(|fault| fault.needs_clock());
    let handle = runtime.handle().clone();
    let mut site = Site::new(handle, setup.latency(), with_replica, with_clock);
    let bounds = Bounds::new(setup, faults);
    let Built { limiter, leases } = runtime.block_on(setup.build(&site.proxy.url()));
    let traffic = Traffic::new(limiter.clone(), setup, bounds.timeout());
    site.traffic = Some(traffic.clone());

    // Do this first, so that connections are made in the job's runtime.
    let job = setup.with_job.then(|| {
        let traffic = traffic.clone();
        Job::start(move |runtime| traffic.start_in_job(runtime))
    });
    if job.is_some() {
        assert!(traffic.has_begun(), "no traffic: {:?}", traffic.tally());
    }
    let tasks = traffic.start(runtime.handle());
    assert!(traffic.flows_again(), "no traffic: {:?}", traffic.tally());
    traffic.runs_on(PAUSE);
    let mut heals: Vec<Heal> = Vec::new();
    for fault in faults {
        heals.push(fault.inflict(&mut site));
        disturb(job.as_ref(), &traffic);
        if fault.silences() {
            traffic.runs_on_until_undecided();
        }
    }
    while let Some(heal) = heals.pop() {
        heal(&mut site);
        if !heals.is_empty() {
            traffic.runs_on(PAUSE);
        }
    }
    let recovery = runtime.block_on(recovery(&limiter.timeout(bounds.timeout())));
    drop(job);
    traffic.runs_on(PAUSE);
    let flows_again = traffic.flows_again();
    let keys_without_ttl = keys_without_ttl(&site.server);
    let grown = resident().saturating_sub(memory);
    traffic.stop();
    let tasks = runtime.block_on(join_all(tasks));
    let crashed = tasks.iter().filter(|task| task.is_err()).count();
    let used = runtime.block_on(async {
        if let Some(leases) = leases {
            leases.return_unspent().await;
        }
        used(setup, &site, traffic.counted()).await
    });

    let tally = std::mem::take(&mut *traffic.tally());
    let (over, _) = tally.over_admission(|_| 1);
    let times = |rule: &Rule| bounds.times(rule).unwrap_or(u64::from(u32::MAX));
    let (too_many, whose) = tally.over_admission(times);
    // A task is late when its timer fires late, and again when it is polled late. The polling thread may also be held
    // up while the measuring tasks run on another thread.
    let allowed_wait = bounds.timeout() + 3 * tally.worst_lateness + Duration::from_millis(150);
    let undecided = tally.undecided();
    let why_undecided = bounds.why_undecided();
    let is_unexpected = |kind: &String| !EXPECTED.contains(&kind.as_str());
    let miscounted = miscounted(&bounds, &tally, used, &traffic.counted());
    let mut complaints = Vec::from_iter(miscounted);
    let mut complain = |holds: bool, what: &str| complaints.extend(holds.then(|| what.to_owned()));
    let is_unreasonable = undecided > 0 && why_undecided.is_empty();
    complain(is_unreasonable, "undecided without a reason");
    let is_another = tally.errors.keys().any(is_unexpected);
    complain(is_another, "an error of another kind");
    complain(crashed > 0 || panics() > before, "panicked");
    complain(tally.worst_wait > allowed_wait, "waited too long");
    complain(too_many > 0, &format!("{too_many} too many of {whose}"));
    let is_late = recovery.is_none_or(|it| it > RECOVERY + allowed_wait);
    complain(is_late, "came back late");
    complain(!flows_again, "a key admits nothing any more");
    let is_left_open = setup.is_local() && !tally.errors.is_empty();
    complain(is_left_open, "a request was not decided");
    let is_silent = faults.iter().any(|it| it.silences());
    complain(undecided == 0 && is_silent, "the fault did nothing");
    complain(keys_without_ttl > 0, "keys without TTL");
    complain(grown > MEMORY, "grew");
    let mut why = if over > 0 {
        bounds.why_over()
    } else {
        Vec::new()
    };
    why.extend(why_undecided.into_iter().filter(|_| undecided > 0));
    Row {
        setup: setup.to_string(),
        faults: names(faults),
        tally,
        timeout: bounds.timeout(),
        recovery,
        over,
        keys_without_ttl,
        grown,
        complaints,
        why,
    }
}

/// Lets the traffic run for the time of a fault. The runtime of a job is dropped in the middle of its requests.
fn disturb(job: Option<&Job>, traffic: &Traffic) {
    let Some(job) = job else {
        return traffic.runs_on(HOLD);
    };
    traffic.runs_on(HOLD / 2);
    job.renew();
    traffic.runs_on(HOLD / 2);
}

/// The units of this charge in the server's own count.
async fn used(setup: Setup, site: &Site, charge: Charge) -> u64 {
    let apart = Setup::over(setup.kind).build(&site.server.url()).await;
    let limiter = apart.limiter.timeout(Duration::from_secs(10));
    let limit = charge.policy().rules()[0].limit();
    let usage = limiter.peek([charge]).await.unwrap();
    limit - usage.rules().next().unwrap().remaining()
}

/// The mistake in the server's count, if there is one: each admission counts once, and a denial does not. A request
/// with an unknown answer may count or not.
fn miscounted(bounds: &Bounds<'_>, tally: &Tally, used: u64, charge: &Charge) -> Option<String> {
    let rule = &charge.policy().rules()[0];
    let admissions = tally.admissions();
    let known = admissions.get(charge.policy().name()).copied();
    let known = known.unwrap_or(0) as u64;
    let most = known + tally.unknown;
    let is_too_few = used < known && !bounds.may_lose(rule);
    let is_too_many = used > most && !bounds.may_strand_leases();
    (is_too_few || is_too_many)
        .then(|| format!("the server counts {used} units of {known} to {most} admitted"))
}

/// The time until the first of ten consecutive decisions by the server; `None` if that takes ten seconds.
///
/// Each decision has a new key, so that all are admissions.
async fn recovery(limiter: &Limiter) -> Option<Duration> {
    let policy = Policy::parse("probe", "1/1m").unwrap();
    let healed = Instant::now();
    let (mut asked, mut first, mut in_a_row) = (0, Duration::ZERO, 0);
    while healed.elapsed() < Duration::from_secs(10) {
        asked += 1;
        let charge = Charge::new(&policy, Key::new("probe", asked.to_string()), 1);
        let decision = limiter.check([charge]).await;
        if !decision.is_ok_and(|it| it.is_allowed() && !it.usage().is_local()) {
            in_a_row = 0;
            continue;
        }
        if in_a_row == 0 {
            first = healed.elapsed();
        }
        in_a_row += 1;
        if in_a_row == 10 {
            return Some(first);
        }
    }
    None
}

pub(crate) fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(2).thread_name(WORKER);
    builder.enable_all().build().unwrap()
}

/// The name of the threads of a limiter.
pub(crate) const WORKER: &str = "limiting";

/// The number of panics in these threads, in any task, also in tasks without a caller.
pub(crate) fn panics() -> u64 {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_worker = std::thread::current().name() == Some(WORKER);
            PANICS.fetch_add(u64::from(is_worker), Relaxed);
            report(info);
        }));
    });
    PANICS.load(Relaxed)
}

/// The memory of this process in bytes; 0 if unknown.
pub(crate) fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}
