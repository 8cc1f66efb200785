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
//! It stands in the limiter, and is no store around a store: most failures of a store that hangs are timeouts, and the timeout
//! is the limiter's. A store sees of those only that its futures are dropped, as they also are when clients go away.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{error::StoreErrorKind, jitter, observe::Observer};

/// A single slow answer or lost connection is no outage, and a few are soon together when there is one.
const FAILURES: u32 = 5;

/// Leave to ask, given by the breaker, and with it what the breaker was then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass(u32);

/// Who is told of a switch: nobody, where the clone of the limiter that opened it has no observer.
type Told = Option<Arc<dyn Observer>>;

/// What an answer has changed.
pub(crate) enum Switch {
    Opened(Told),
    Closed(Told),
}

/// Shared by all clones of a limiter. While it is closed and nothing fails, a call costs two loads and writes nothing.
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
    /// Who was told that it has opened, and will be told that it has closed, whichever clone does that: some keep count.
    told: Mutex<Told>,
}

impl Breaker {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            born: Instant::now(),
            interval,
            switches: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            probe_at: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// Leave to ask the store; while it is open, for one caller each interval.
    ///
    /// A probe need not come back: its client may go away. The next one then goes when it is due.
    pub(crate) fn pass(&self) -> Option<Pass> {
        let switches = self.switches.load(Acquire);
        (!is_open(switches) || self.takes_probe()).then_some(Pass(switches))
    }

    /// Takes note of how the store answered a caller with this observer.
    pub(crate) fn note(
        &self,
        pass: Pass,
        error: Option<StoreErrorKind>,
        observer: &Told,
    ) -> Option<Switch> {
        if error.is_some_and(is_failure) {
            self.failed(pass, observer)
        } else {
            self.answered(pass)
        }
    }

    fn answered(&self, Pass(switches): Pass) -> Option<Switch> {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if !is_open(switches) {
            return None;
        }
        self.switch(switches, None).map(Switch::Closed)
    }

    #[cold]
    fn failed(&self, Pass(switches): Pass, observer: &Told) -> Option<Switch> {
        // A call from before a switch says nothing about what is now.
        if is_open(switches) || switches != self.switches.load(Relaxed) || self.interval.is_zero() {
            return None;
        }
        if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES {
            return None;
        }
        self.probe_at.store(self.next_probe(), Relaxed);
        self.switch(switches, observer.clone())?;
        Some(Switch::Opened(observer.clone()))
    }

    /// Leaves word who is to be told of the next switch, and answers who was to be told of this one; `None` when another caller
    /// has switched it.
    fn switch(&self, from: u32, told: Told) -> Option<Told> {
        let to = from.wrapping_add(1);
        self.failures.store(0, Relaxed);
        // Locked first: who closes it finds the word of who has opened it.
        let mut last = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let switched = self.switches.compare_exchange(from, to, Release, Relaxed);
        switched.ok().map(|_| mem::replace(&mut *last, told))
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
        let wait = self.interval / 2 + jitter::up_to(self.interval);
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
    use StoreErrorKind::{AccessDenied, Timeout, Unavailable};
    matches!(kind, Timeout | Unavailable | AccessDenied)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
