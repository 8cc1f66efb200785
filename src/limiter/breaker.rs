//! [`Breaker`]: whether to call a store that has failed.
//!
//! ```text
//!             5 counted failures in a row
//!   ┌────────┐ ─────────────────▶ ┌──────┐
//!   │ closed │                    │ open │ one call each interval goes through: the probe
//!   └────────┘ ◀───────────────── └──────┘
//!             a probe is answered
//! ```
//!
//! The breaker counts waits that were lost: at most one in each half of the timeout, so that a thousand callers of one dead
//! call are one failure. Each answer sets the count to zero, also an error that the server has answered. So a breaker opens
//! only after two timeouts without any answer.
//!
//! The breaker is part of the limiter and no wrapper around a store: most failures of a hanging store are timeouts, and
//! the limiter owns the timeout. A store only sees dropped futures, which also come from clients that disconnect.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU32, AtomicU64,
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
    limiter::{FOR_EVER, jitter},
    lock::lock,
    observe::{Event, Observer},
};

/// The average time between probes, by default: short enough to use a recovered store again within half a second.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_millis(250);

/// More than one slow answer or lost connection, but few enough to notice an outage soon.
const FAILURES: u32 = 5;

/// Permits one store call, and records the state of the breaker at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permit {
    switches: u32,
}

/// The observer to notify of a switch; `None` if the clone that opened the breaker has none.
type SwitchObserver = Option<Arc<dyn Observer>>;

/// Shared by all clones of a limiter. While closed and without failures, a call costs two loads and no write.
pub(crate) struct Breaker {
    born: Instant,
    /// Average time between probes; zero for a breaker that never opens.
    interval: Duration,
    /// How often the breaker has switched: an odd number means open.
    switches: AtomicU32,
    /// Counted failures in a row while closed.
    failures: AtomicU32,
    /// When the next failure counts, in microseconds since `born`.
    count_at: AtomicU64,
    /// When the next probe may go, in microseconds since `born`.
    probe_at: AtomicU64,
    /// The observer that saw the breaker open. The same observer sees the breaker close, whichever clone closes it,
    /// since observers may keep count.
    observer: Mutex<SwitchObserver>,
}

impl Breaker {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            born: Instant::now(),
            interval,
            switches: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            count_at: AtomicU64::new(0),
            probe_at: AtomicU64::new(0),
            observer: Mutex::default(),
        }
    }

    /// Average time between probes; zero if the breaker never opens.
    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// Permits a store call; while the breaker is open, one each interval.
    ///
    /// A probe may never be answered, since its client may disconnect. The next probe goes out when due.
    pub(crate) fn permit(&self) -> Option<Permit> {
        let switches = self.switches.load(Acquire);
        (!is_open(switches) || self.takes_probe()).then_some(Permit { switches })
    }

    /// Notes how a call has ended, and notifies the observer of a switch. At most one failure counts in each half of
    /// `timeout`, that of the limiter.
    pub(crate) fn note(
        &self,
        permit: Permit,
        error: Option<&StoreError>,
        timeout: Duration,
        observer: &SwitchObserver,
    ) {
        match error.filter(|error| is_failure(error.kind())) {
            None => self.answered(permit),
            Some(error) => self.failed(permit, error, timeout, observer),
        }
    }

    fn answered(&self, Permit { switches }: Permit) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if is_open(switches)
            && let Some(Some(observer)) = self.switch(switches, None)
        {
            observer.on_event(&Event::BreakerClosed);
        }
    }

    #[cold]
    fn failed(
        &self,
        Permit { switches }: Permit,
        error: &StoreError,
        timeout: Duration,
        observer: &SwitchObserver,
    ) {
        // A call from before the last switch says nothing about the present.
        if is_open(switches) || switches != self.switches.load(Relaxed) || self.interval.is_zero() {
            return;
        }
        if !self.is_due(&self.count_at, || timeout / 2)
            || self.failures.fetch_add(1, Relaxed) + 1 < FAILURES
        {
            return;
        }
        self.probe_at.store(self.after(self.retry_pause()), Relaxed);
        if self.switch(switches, observer.clone()).is_some()
            && let Some(observer) = observer
        {
            observer.on_event(&Event::BreakerOpened { error });
        }
    }

    /// Switches, and stores the observer of the next switch. Returns the observer of this one, or `None` if another
    /// caller has switched first.
    fn switch(&self, from: u32, observer: SwitchObserver) -> Option<SwitchObserver> {
        let to = from.wrapping_add(1);
        self.failures.store(0, Relaxed);
        // Lock first: the caller that closes the breaker must find the observer that the opening caller stored.
        let mut last = lock(&self.observer);
        let switched = self.switches.compare_exchange(from, to, Release, Relaxed);
        switched.ok().map(|_| mem::replace(&mut *last, observer))
    }

    #[cold]
    fn takes_probe(&self) -> bool {
        self.is_due(&self.probe_at, || self.retry_pause())
    }

    /// A random time between half and one and a half intervals, so that replicas which lost the store together do not
    /// return together.
    pub(super) fn retry_pause(&self) -> Duration {
        let interval = match self.interval {
            Duration::ZERO => DEFAULT_INTERVAL,
            interval => interval.min(FOR_EVER),
        };
        interval / 2 + jitter::random_up_to(interval)
    }

    /// Whether the time of `at` has come. Only one of the concurrent callers is the first to ask: then the next time is
    /// after `wait`.
    fn is_due(&self, at: &AtomicU64, wait: impl FnOnce() -> Duration) -> bool {
        let due = at.load(Relaxed);
        self.after(Duration::ZERO) >= due
            && at
                .compare_exchange(due, self.after(wait()), Relaxed, Relaxed)
                .is_ok()
    }

    /// The time after `wait` from now, in microseconds since `born`.
    fn after(&self, wait: Duration) -> u64 {
        let age = Instant::now().saturating_duration_since(self.born);
        micros(age.saturating_add(wait))
    }
}

const fn is_open(switches: u32) -> bool {
    switches % 2 == 1
}

/// Whether a wait was lost. An answer is no failure, whatever it says: a store that refuses some operations decides others.
const fn is_failure(kind: StoreErrorKind) -> bool {
    use StoreErrorKind::{Timeout, Unavailable};
    matches!(kind, Timeout | Unavailable)
}
