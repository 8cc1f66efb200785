//! A process that takes slots, holds them for a while, and returns them.

use std::{
    cell::{Cell, RefCell},
    env,
    fs::File,
    io::{Read as _, stdin},
    os::unix::fs::FileExt as _,
    process, thread,
};

use rustix::time::{ClockId, clock_gettime};
use support::prelude::*;

use super::{KEYS, charge, judge::Record, policy};

pub(super) const TEST: &str = "slots::worker::a_process_that_takes_and_returns_slots";

/// The variables of such a process: the server's address, the path of its log, and the expiries in seconds.
pub(super) const SERVER: &str = "SLUICEGATE_SLOTS_OF";
pub(super) const LOG: &str = "SLUICEGATE_SLOTS_LOG";
pub(super) const EXPIRIES: &str = "SLUICEGATE_SLOTS_EXPIRE";

const TASKS: usize = 6;

struct Worker {
    limiter: Limiter,
    policies: Vec<(Policy, u64)>,
    log: File,
    written: Cell<u64>,
    random: RefCell<fastrand::Rng>,
}

/// By a clock that all processes of a machine share. It goes on while a process is stopped.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

#[tokio::test]
async fn a_process_that_takes_and_returns_slots() {
    let Ok(url) = env::var(SERVER) else {
        return;
    };
    thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        process::exit(0); // the parent has ended
    });
    let expiries = env::var(EXPIRIES).unwrap();
    let expiries = expiries.split(',').map(|it| it.parse().unwrap());
    let worker = Worker {
        limiter: Limiter::new(RedisStore::connect_lazy(url).unwrap()),
        policies: expiries.map(|expiry| (policy(expiry), expiry)).collect(),
        log: File::create(env::var(LOG).unwrap()).unwrap(),
        written: Cell::new(0),
        random: RefCell::default(),
    };
    join_all((0..TASKS).map(|_| worker.task())).await;
}

impl Worker {
    fn below(&self, most: u64) -> u64 {
        self.random.borrow_mut().u64(..=most)
    }

    async fn task(&self) {
        loop {
            let choice = usize::try_from(self.below(63)).unwrap();
            let place = choice % self.policies.len();
            let (policy, expiry) = &self.policies[place];
            let key = choice / 16 % KEYS;
            let slot = self
                .limiter
                .acquire_slot(charge(policy, key, 1), Duration::ZERO);
            match slot.await {
                Ok(Ok(slot)) => {
                    let key = u64::try_from(place * KEYS + key).unwrap();
                    self.hold(slot.unwrap(), key, expiry * 1_000).await;
                }
                // Denied, or a timeout, after which the slot may be taken for no one.
                _ => sleep(Duration::from_millis(5 + self.below(20))).await,
            }
        }
    }

    /// Holds a slot for a while: mostly for a moment, and sometimes for longer than it takes to expire.
    async fn hold(&self, slot: Slot, key: u64, expiry_ms: u64) {
        if !slot.is_held() {
            return;
        }
        let mut last = now_ns(); // after the reading
        let mut record = Record {
            key,
            from: last,
            until: last,
            lost: false,
        };
        let place = self.write(None, record);
        let hold_ms = match self.below(999) {
            0..600 => 0,
            600..990 => self.below(5),
            990..999 => self.below(expiry_ms / 2),
            _ => self.below(expiry_ms * 2),
        };
        loop {
            let now = now_ns(); // before the reading
            if !slot.is_held() {
                record.lost = true;
                self.write(Some(place), record);
                return;
            }
            let silent_ms = (now - last) / 1_000_000;
            assert!(silent_ms <= expiry_ms, "held after {silent_ms} ms");
            record.until = now;
            self.write(Some(place), record);
            last = now_ns();
            if now - record.from >= hold_ms * 1_000_000 {
                return;
            }
            sleep(Duration::from_millis(1 + self.below(9).min(hold_ms))).await;
        }
    }

    /// Writes a record at its place, or a new one at the end. A process that is killed leaves all of them.
    fn write(&self, place: Option<u64>, record: Record) -> u64 {
        let place = place.unwrap_or_else(|| self.written.replace(self.written.get() + 1));
        let size = u64::try_from(Record::SIZE).unwrap();
        let bytes = record.bytes();
        self.log.write_all_at(&bytes, place * size).unwrap();
        place
    }
}
