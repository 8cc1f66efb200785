//! [`Breaker`]: whether to call a store that has failed.
//!
//! ```text
//!             5 failures in a row
//!   ┌────────┐ ─────────────────▶ ┌──────┐
//!   │ closed │                    │ open │ one call each interval goes through: the probe
//!   └────────┘ ◀───────────────── └──────┘
//!             a probe is answered
//! ```
//!
//! It is a part of the limiter and not a store around a store: most failures of a store that hangs are timeouts, and
//! the timeout is the limiter's. A store sees only that its futures are dropped, as they are when clients go away.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    domain::{
        error::{StoreError, StoreErrorKind},
        rule::micros,
    },
    limiter::jitter,
    observe::{BreakerEvent, Observer},
    warning,
};

/// More than one slow answer or lost connection, and so few that an outage is noticed soon.
const FAILURES: u32 = 5;

/// Allows one call of the store, and tells in which state the breaker was when it gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permit {
    switches: u32,
    /// For a call that has to be waited for: how often answers were noted when it began.
    answers: Option<u32>,
}

/// The observer of a switch: `None` if the clone of the limiter that opened it has none.
type Told = Option<Arc<dyn Observer>>;

/// Shared by all clones of a limiter. While it is closed and nothing fails, a call costs two loads and writes nothing.
pub(crate) struct Breaker {
    born: Instant,
    /// From one probe to the next, on average; zero for a breaker that never opens.
    interval: Duration,
    /// How often it has switched: it is open when that is odd.
    switches: AtomicU32,
    /// In a row, while it is closed.
    failures: AtomicU32,
    /// Whether one of them was of callers who waited in vain to be sent. All of these count as one: the store is
    /// silent, but which of the calls before them it owes is counted with those.
    waited: AtomicBool,
    /// How often a call was answered that had begun after the last that is counted here: once in a round trip.
    answers: AtomicU32,
    /// When the next probe may go, in microseconds since `born`.
    probe_at: AtomicU64,
    /// Who was told that it has opened, and will be told that it has closed, whichever clone does that: some keep
    /// count.
    told: Mutex<Told>,
}

impl Breaker {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            born: Instant::now(),
            interval,
            switches: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            waited: AtomicBool::new(false),
            answers: AtomicU32::new(0),
            probe_at: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// From one probe to the next, on average; zero if it never opens.
    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// Permits a call of the store; while the breaker is open, one each interval.
    ///
    /// A probe need not be answered, since its client may go away. The next one is sent when it is due.
    pub(crate) fn permit(&self) -> Option<Permit> {
        let switches = self.switches.load(Acquire);
        (!is_open(switches) || self.takes_probe()).then_some(Permit {
            switches,
            answers: None,
        })
    }

    /// The permit of a call that is waited for from now on.
    pub(crate) fn begin_wait(&self, permit: Permit) -> Permit {
        Permit {
            answers: Some(self.answers.load(Relaxed)),
            ..permit
        }
    }

    /// Notes how the call of a limiter with this observer has ended, and tells of a switch.
    pub(crate) fn note(&self, permit: Permit, error: Option<&StoreError>, observer: &Told) {
        match error.filter(|it| is_failure(it.kind())) {
            None => self.answered(permit),
            Some(error) if self.is_alive(permit, error) || !error.take_report(&self.waited) => {}
            Some(error) => self.failed(permit, error, observer),
        }
    }

    /// Whether the store has answered others while a caller waited for it in vain: then it is this process that is
    /// late, or the caller's turn has not come.
    fn is_alive(&self, permit: Permit, error: &StoreError) -> bool {
        let answers = self.answers.load(Relaxed);
        error.kind() == StoreErrorKind::Timeout && permit.answers.is_some_and(|it| it != answers)
    }

    fn answered(&self, Permit { switches, answers }: Permit) {
        // Written once for all that wait at the same time, and not by every answer.
        if answers == Some(self.answers.load(Relaxed)) {
            self.answers.fetch_add(1, Relaxed);
        }
        if self.failures.load(Relaxed) != 0 {
            self.forget_failures();
        }
        if is_open(switches)
            && let Some(told) = self.switch(switches, None)
        {
            warning::breaker_closed();
            if let Some(observer) = told {
                observer.on_breaker(&BreakerEvent { error: None });
            }
        }
    }

    fn forget_failures(&self) {
        self.failures.store(0, Relaxed);
        self.waited.store(false, Relaxed);
    }

    #[cold]
    fn failed(&self, Permit { switches, .. }: Permit, error: &StoreError, observer: &Told) {
        // A call from before a switch says nothing about what is now.
        if is_open(switches) || switches != self.switches.load(Relaxed) || self.interval.is_zero() {
            return;
        }
        if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES {
            return;
        }
        self.probe_at.store(self.next_probe(), Relaxed);
        if self.switch(switches, observer.clone()).is_some() {
            warning::breaker_opened(error);
            if let Some(observer) = observer {
                let error = Some(error);
                observer.on_breaker(&BreakerEvent { error });
            }
        }
    }

    /// Switches and stores who is told of the next switch; answers who is told of this one, or `None` when another
    /// caller has switched.
    fn switch(&self, from: u32, told: Told) -> Option<Told> {
        let to = from.wrapping_add(1);
        self.forget_failures();
        // Locked first: who closes it must find what the one who opened it has stored.
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

    /// From half to one and a half of the interval from now, by chance: replicas that lost the store together neither
    /// probe it together nor come back to it together.
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

/// Whether an error means that the store has failed: not where it has answered that it can do nothing with a request.
const fn is_failure(kind: StoreErrorKind) -> bool {
    use StoreErrorKind::{AccessDenied, Timeout, Unavailable};
    matches!(kind, Timeout | Unavailable | AccessDenied)
}
