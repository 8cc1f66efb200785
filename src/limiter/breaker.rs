//! [`Breaker`]: whether to ask a store that has failed.
//!
//! ```text
//!             5 failures in a row
//!   ┌────────┐ ─────────────────▶ ┌──────┐
//!   │ closed │                    │ open │ one call each interval goes through: the probe
//!   └────────┘ ◀───────────────── └──────┘
//!             a probe is answered
//! ```
//!
//! It stands in the limiter, and is no store around a store: most failures of a store that hangs are timeouts, and the deadline
//! is the limiter's. A store sees of those only that its futures are dropped, as they also are when clients go away.

use std::{
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{chance, error::StoreErrorKind};

/// A single slow answer or lost connection is no outage, and a few are soon together when there is one.
const FAILURES: u32 = 5;

/// Leave to ask, given by the breaker, and with it what the breaker was then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass(u32);

/// What an answer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    Opened,
    Closed,
}

/// Shared by all clones of a limiter. While it is closed and nothing fails, a call costs two loads and writes nothing.
#[derive(Debug)]
pub(crate) struct Breaker {
    born: Instant,
    /// From one probe to the next, on average; zero for a breaker that never opens.
    interval: Duration,
    /// How often it has switched: it is open when that is odd.
    switches: AtomicU32,
    /// In a row, while it is closed.
    failures: AtomicU32,
    /// When the next probe may go, in microseconds since `born`.
    probe_at: AtomicU64,
}

impl Breaker {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            born: Instant::now(),
            interval,
            switches: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            probe_at: AtomicU64::new(0),
        }
    }

    /// Leave to ask the store; while it is open, for one caller each interval.
    ///
    /// A probe need not come back: its client may go away. The next one then goes when it is due.
    pub(crate) fn pass(&self) -> Option<Pass> {
        let switches = self.switches.load(Acquire);
        (!is_open(switches) || self.takes_probe()).then_some(Pass(switches))
    }

    /// Takes note of how the store answered.
    pub(crate) fn note(&self, pass: Pass, error: Option<StoreErrorKind>) -> Option<Switch> {
        if error.is_some_and(is_failure) {
            self.failed(pass)
        } else {
            self.answered(pass)
        }
    }

    fn answered(&self, Pass(switches): Pass) -> Option<Switch> {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        (is_open(switches) && self.switch(switches)).then_some(Switch::Closed)
    }

    #[cold]
    fn failed(&self, Pass(switches): Pass) -> Option<Switch> {
        // A call from before a switch says nothing about what is now.
        if is_open(switches) || switches != self.switches.load(Relaxed) || self.interval.is_zero() {
            return None;
        }
        if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES {
            return None;
        }
        self.probe_at.store(self.next_probe(), Relaxed);
        self.switch(switches).then_some(Switch::Opened)
    }

    fn switch(&self, from: u32) -> bool {
        let to = from.wrapping_add(1);
        self.failures.store(0, Relaxed);
        self.switches
            .compare_exchange(from, to, Release, Relaxed)
            .is_ok()
    }

    #[cold]
    fn takes_probe(&self) -> bool {
        let due = self.probe_at.load(Relaxed);
        if self.now() < due {
            return false;
        }
        // Of those who come at the same time, one.
        self.probe_at
            .compare_exchange(due, self.next_probe(), Relaxed, Relaxed)
            .is_ok()
    }

    /// From half to one and a half of the interval from now, by chance: replicas that lost the store together neither probe it
    /// together nor come back to it together.
    fn next_probe(&self) -> u64 {
        let wait = self.interval / 2 + chance::up_to(self.interval);
        self.now().saturating_add(micros(wait))
    }

    fn now(&self) -> u64 {
        micros(Instant::now().saturating_duration_since(self.born))
    }
}

const fn is_open(switches: u32) -> bool {
    switches % 2 == 1
}

/// Whether an error speaks against the store. One that makes no sense of a request has answered, and others may fare better.
const fn is_failure(kind: StoreErrorKind) -> bool {
    use StoreErrorKind::{Refused, Timeout, Unavailable};
    matches!(kind, Timeout | Unavailable | Refused)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
