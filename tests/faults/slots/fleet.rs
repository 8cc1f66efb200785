//! The processes, and the signals that they get.

use std::{
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{judge::Record, worker};
use crate::clock::Clock;
use support::redis::{Server, signal};

const PROCESSES: usize = 8;
/// Some stay awake, so that there is always someone to take the slots of the others.
const MOST_STOPPED: usize = 4;
const HOUR: Duration = Duration::from_secs(3_600);
/// From one signal to a process to the next, so that the process notices each.
const CALM: Duration = Duration::from_millis(300);

pub(super) struct Fleet {
    url: String,
    expiries: Vec<u64>,
    folder: TempDir,
    clocks: Vec<Option<Clock>>,
    processes: Vec<Process>,
    started: usize,
    /// One of so many calls of `disturb` kills, and three stop.
    rarity: u32,
    random: fastrand::Rng,
    pub(super) kills: usize,
    pub(super) stops: usize,
    pub(super) stops_beyond_expiry: usize,
}

struct Process {
    child: Child,
    /// Stopped until then.
    stopped: Option<Instant>,
    calm_until: Instant,
}

impl Fleet {
    pub(super) fn start(server: &Server, expiries: &[u64], rarity: u32) -> Self {
        let has_clocks = Clock::is_available();
        let clocks = (0..PROCESSES).map(|process| {
            has_clocks.then(|| {
                let clock = Clock::new();
                if process % 3 > 0 {
                    clock.jump(HOUR, process % 3 == 1);
                }
                clock
            })
        });
        let mut fleet = Self {
            url: server.url(),
            expiries: expiries.to_vec(),
            folder: tempfile::tempdir().unwrap(),
            clocks: clocks.collect(),
            processes: Vec::new(),
            started: 0,
            rarity,
            random: fastrand::Rng::new(),
            kills: 0,
            stops: 0,
            stops_beyond_expiry: 0,
        };
        for place in 0..PROCESSES {
            let process = fleet.process(place);
            fleet.processes.push(process);
        }
        fleet
    }

    fn log(&self, number: usize) -> PathBuf {
        self.folder.path().join(number.to_string())
    }

    /// Runs this test program again with one test.
    fn process(&mut self, place: usize) -> Process {
        let log = self.log(self.started);
        self.started += 1;
        let clock = self.clocks[place].iter().flat_map(Clock::env);
        let expiries: Vec<_> = self.expiries.iter().map(u64::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([worker::TEST, "--exact", "--nocapture"])
            .env(worker::SERVER, &self.url)
            .env(worker::LOG, log)
            .env(worker::EXPIRIES, expiries.join(","))
            .envs(clock)
            .stdin(Stdio::piped()) // the process ends with this one
            .stdout(Stdio::null())
            .spawn();
        Process {
            child: child.unwrap(),
            stopped: None,
            calm_until: Instant::now() + CALM,
        }
    }

    /// The number of slots that were taken so far.
    pub(super) fn taken(&self) -> usize {
        let logs = (0..self.started).filter_map(|number| self.log(number).metadata().ok());
        let bytes: u64 = logs.map(|it| it.len()).sum();
        usize::try_from(bytes).unwrap() / Record::SIZE
    }

    pub(super) fn records(&self) -> Vec<Record> {
        let logs = (0..self.started).filter_map(|number| std::fs::read(self.log(number)).ok());
        let records = logs.flat_map(|log| Record::all(&log).collect::<Vec<_>>());
        records.collect()
    }

    /// Lets processes go on whose time has come, and sometimes kills one or stops one.
    pub(super) fn disturb(&mut self) {
        let now = Instant::now();
        for process in &mut self.processes {
            let ended = process.child.try_wait().unwrap();
            assert!(ended.is_none(), "a process has failed: {ended:?}");
            if process.stopped.is_some_and(|until| until <= now) {
                signal(&process.child, "-CONT");
                process.stopped = None;
                process.calm_until = now + CALM;
            }
        }
        let place = self.random.usize(..PROCESSES);
        if self.processes[place].calm_until > now {
            return;
        }
        match self.random.u32(..self.rarity) {
            0 => self.kill(place),
            1..4 => self.stop(place),
            _ => {}
        }
    }

    fn kill(&mut self, place: usize) {
        end(&mut self.processes[place].child);
        self.processes[place] = self.process(place);
        self.kills += 1;
    }

    fn stop(&mut self, place: usize) {
        let stopped = self.processes.iter().filter(|it| it.stopped.is_some());
        if self.processes[place].stopped.is_some() || stopped.count() >= MOST_STOPPED {
            return;
        }
        let shortest = Duration::from_secs(self.expiries[0]);
        let longest = Duration::from_secs(self.expiries[self.expiries.len() - 1]);
        let time = match self.random.u32(..50) {
            0 => longest.mul_f64(1.05 + self.random.f64() / 4.0),
            1..25 => shortest.mul_f64(1.05 + self.random.f64() / 2.0),
            _ => shortest.mul_f64(self.random.f64()),
        };
        let process = &mut self.processes[place];
        signal(&process.child, "-STOP");
        process.stopped = Some(Instant::now() + time);
        self.stops += 1;
        self.stops_beyond_expiry += usize::from(time > shortest);
    }

    pub(super) fn kill_all(&mut self) {
        for process in &mut self.processes {
            end(&mut process.child);
        }
        self.kills += PROCESSES;
        self.processes.clear();
    }
}

/// Kills a process like `kill -9`: also one that is stopped.
fn end(child: &mut Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "a process has failed: {status}");
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
