//! [`ManualClock`]: a clock that tests move, so that no test has to sleep (feature `manual-clock`).
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, manual_clock::ManualClock};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let clock = ManualClock::new(1_700_000_000_000);
//! let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
//! let policy = Policy::parse("api", "1/1s@exact")?;
//! let charge = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
//!
//! assert!(limiter.check(charge()).await?.is_allowed());
//! clock.advance(Duration::from_millis(1_000));
//! assert!(!limiter.check(charge()).await?.is_allowed());
//! clock.advance(Duration::from_millis(1));
//! assert!(limiter.check(charge()).await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::domain::rule::micros;

/// In the year 6429. The script stores times of up to 2^48 ms, and windows end later than now.
const LATEST_MS: u64 = 1 << 47;

/// A clock that stands still until you move it; clones show the same time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now_us: Arc<AtomicU64>,
}

impl ManualClock {
    /// Creates a clock that shows `ms` milliseconds since the Unix epoch, at most 2^47.
    #[must_use]
    pub fn new(ms: u64) -> Self {
        let clock = Self {
            now_us: Arc::default(),
        };
        clock.set(ms);
        clock
    }

    /// Sets the time, forward or back; at most 2^47 ms since the Unix epoch.
    pub fn set(&self, ms: u64) {
        self.now_us
            .store(ms.min(LATEST_MS) * 1_000, Ordering::SeqCst);
    }

    /// Moves the time forward, to the microsecond; at most to 2^47 ms since the Unix epoch.
    pub fn advance(&self, by: Duration) {
        let now_us = self.now_us.load(Ordering::SeqCst);
        let now_us = now_us.saturating_add(micros(by));
        self.now_us
            .store(now_us.min(LATEST_MS * 1_000), Ordering::SeqCst);
    }

    /// Returns the time in whole ms since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_us.load(Ordering::SeqCst) / 1_000
    }

    /// Returns the time in microseconds, the precision of clocks of processes.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_micros(self.now_us.load(Ordering::SeqCst))
    }
}
