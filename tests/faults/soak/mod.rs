//! An hour of mixed traffic over one store: three limits, slots, meters and settlements, with leases and a deny cache in
//! turn, while clients leave, rules are reloaded, passwords are rotated, a runtime ends in the middle of its requests,
//! and the server is killed and started again every five minutes. Nothing is admitted above a limit, and each stage
//! leaves no job, slot, connection, task, file or memory behind.
//!
//! ```console
//! SOAK_MINUTES=10 cargo test --test faults -- --ignored --nocapture mixed_traffic    # an hour without the variable
//! ```

mod judge;
mod place;
mod traffic;

use std::{env, fs, time::Instant};

use support::prelude::*;
use tokio::runtime::{Handle, Runtime};

use super::{
    job::Job,
    run::{panics, resident, runtime},
};
use judge::{Counts, Tally};
use place::Place;
use traffic::Traffic;

/// Leases, and a deny cache.
const SETTINGS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];
/// Four of them are five minutes. In one of the four, the server is killed.
const STAGE_SECONDS: u32 = 75;
const MINUTES: u32 = 60;

/// Without the server.
const DOWN: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_secs(12);
/// Until the server decides again, at most: each row shows the time, which is long where the machine is busy.
const RECOVERY: Duration = Duration::from_secs(10);
/// Of an idle store: the connections of this runtime and of the back room, and the tasks of the first.
const CONNECTIONS: u64 = 2;
const TASKS: usize = 3;
/// The growth since the first four stages.
const MEMORY: u64 = 32 << 20;

#[test]
#[ignore = "an hour"]
fn an_hour_of_mixed_traffic_exceeds_no_limit_and_leaves_nothing_behind() {
    let _turn = super::my_turn();
    let minutes = env::var("SOAK_MINUTES").map_or(MINUTES, |it| it.parse().unwrap());
    let stages = (minutes * 60 / STAGE_SECONDS).max(1) as usize;
    let before = panics();
    let runtime = runtime();
    let mut place = Place::start();
    let store = runtime.block_on(place.store());
    let tally = Arc::new(Mutex::new(Tally::default()));
    let (mut first, mut complaints) = (None, Vec::new());
    for number in 0..stages {
        let stage = Stage {
            is_leased: SETTINGS[number % 4].0,
            with_cache: SETTINGS[number % 4].1,
            kills_server: number % 4 == number / 4 % 4,
        };
        let row = stage.run(&runtime, &mut place, &store, &tally);
        eprintln!("{} of {stages}: {row:?}", number + 1);
        let stage = format!("stage {}, {}: ", number + 1, row.setting);
        complaints.extend(row.complaints(first.as_ref()).map(|it| stage.clone() + it));
        // The process grows to its size while it meets each setting.
        if number == 3 {
            first = Some(row.left);
        }
    }
    assert_eq!(panics(), before, "panics");
    assert!(complaints.is_empty(), "{complaints:#?}");
}

struct Stage {
    is_leased: bool,
    with_cache: bool,
    kills_server: bool,
}

impl Stage {
    fn run(
        &self,
        runtime: &Runtime,
        place: &mut Place,
        store: &RedisStore,
        tally: &Arc<Mutex<Tally>>,
    ) -> Row {
        let _entered = runtime.enter();
        let leases = self.is_leased.then(|| Leases::new(store.clone()));
        let limiter = match &leases {
            Some(leases) => Limiter::new(leases.clone()),
            None => Limiter::new(store.clone()),
        };
        let limiter = limiter.cache_denials(self.with_cache).replicas(2);
        let traffic = Traffic::new(limiter.clone(), Arc::clone(tally));
        let beside = traffic.clone();
        let job = Job::start(move |runtime| drop(beside.start(runtime, [0, 20, 24, 36])));
        let tasks = traffic.start(runtime.handle(), 0..40);
        let mut recovery = None;
        for second in 0..STAGE_SECONDS {
            std::thread::sleep(Duration::from_secs(1));
            if second % 5 == 0 {
                traffic.reload(second / 5);
            }
            if second % 20 == 10 {
                place.rotate();
            }
            if second % 10 == 5 {
                job.renew();
            }
            if second == 35 && self.kills_server {
                place.restart_after(DOWN);
                traffic.tally().is_decided_by_server();
                recovery = Some(time_to(|| traffic.tally().is_decided_by_server()));
            }
        }
        drop(job);
        traffic.stop();
        let jobs = runtime.block_on(async {
            for ended in join_all(tasks).await {
                ended.unwrap();
            }
            if let Some(leases) = leases {
                leases.return_unspent().await;
            }
            limiter.finish(PATIENCE).await
        });
        drop((limiter, traffic));
        let slots_free_after = time_to(|| place.held_slots() == 0);
        let mut left = Left::of(runtime.handle(), place);
        let is_idle = time_to(|| {
            left = Left::of(runtime.handle(), place);
            left.connections <= CONNECTIONS && left.tasks <= TASKS
        });
        let mut tally = tally.lock().unwrap();
        Row {
            setting: format!(
                "{}{}{}",
                if self.is_leased { "leases, " } else { "" },
                if self.with_cache { "deny cache, " } else { "" },
                if self.kills_server { "killed" } else { "alive" },
            ),
            recovery,
            jobs,
            slots_free_after,
            is_idle: is_idle.is_some(),
            keys_without_ttl: place.keys_without_ttl(),
            over: tally.judge(),
            counts: tally.take_counts(),
            left,
        }
    }
}

/// The time until the condition holds; `None` after a long time.
fn time_to(mut holds: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(start.elapsed())
}

/// The traces of a stage in this process and in the server, when nothing is under way.
#[derive(Debug)]
struct Left {
    connections: u64,
    tasks: usize,
    threads: usize,
    files: usize,
    memory: u64,
}

impl Left {
    fn of(runtime: &Handle, place: &Place) -> Self {
        let count = |folder| fs::read_dir(folder).map_or(0, Iterator::count);
        Self {
            connections: place.connections(),
            tasks: runtime.metrics().num_alive_tasks(),
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
            memory: resident(),
        }
    }
}

#[derive(Debug)]
struct Row {
    setting: String,
    counts: Counts,
    over: Vec<String>,
    /// `None` without a kill; in it, `None` when the server did not decide again.
    recovery: Option<Option<Duration>>,
    jobs: usize,
    slots_free_after: Option<Duration>,
    is_idle: bool,
    keys_without_ttl: u64,
    left: Left,
}

impl Row {
    fn complaints(&self, first: Option<&Left>) -> impl Iterator<Item = &'static str> {
        let more =
            |is_more: fn(&Left, &Left) -> bool| first.is_some_and(|it| is_more(&self.left, it));
        let is_late = self
            .recovery
            .is_some_and(|it| it.is_none_or(|it| it > RECOVERY));
        [
            (!self.over.is_empty(), "more than a limit"),
            (self.counts.lacks_a_kind(), "a kind of traffic did not flow"),
            (is_late, "the server decides again too late"),
            (self.jobs > 0, "jobs are left"),
            (self.slots_free_after.is_none(), "slots are left"),
            (!self.is_idle, "connections or tasks are left"),
            (self.keys_without_ttl > 0, "keys without TTL"),
            (
                more(|it, first| it.threads > first.threads),
                "threads are left",
            ),
            (more(|it, first| it.files > first.files), "files are left"),
            (
                more(|it, first| it.memory > first.memory + MEMORY),
                "memory is left",
            ),
        ]
        .into_iter()
        .filter_map(|(holds, what)| holds.then_some(what))
    }
}
