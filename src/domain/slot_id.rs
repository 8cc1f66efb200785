//! [`SlotId`]: the id of a slot.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::domain::rule::millis;

/// The most slots that a charge takes, and the most ids of a message.
pub(crate) const MOST_SLOTS: usize = 256;

/// The id of a slot, which its holder chooses before it asks a store: 16 bytes.
///
/// The first 8 are the same for all slots of a process. Then come 6 bytes of the time when the holder asked, in ms of
/// its clock since the Unix epoch, and 2 bytes of a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    process: u64,
    /// The time in ms, times 2^16, plus the counter.
    number: u64,
}

#[doc(hidden)] // holders and stores of this crate alone read them
impl SlotId {
    /// Reads an id. For stores.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            process: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            number: u64::from_be_bytes([i, j, k, l, m, n, o, p]),
        }
    }

    /// Returns the 16 bytes. For stores.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.process) << 64 | u128::from(self.number)).to_be_bytes()
    }

    /// Returns the number of the process that holds the slot.
    #[must_use]
    pub const fn process(self) -> u64 {
        self.process
    }

    /// Returns when the holder asked for the slot, by its own clock, in ms since the Unix epoch.
    #[must_use]
    pub const fn asked_at_ms(self) -> u64 {
        self.number >> 16
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.process, self.number)
    }
}

/// The number of this process in the ids of its slots: random, so that no two processes share it.
pub(crate) fn this_process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(SystemTime::now()))
}

/// The first of some ids with consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstSlot(NonZeroU64);

impl FirstSlot {
    /// Chooses `count` ids that this process has not chosen before.
    pub(super) fn next(count: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = millis(since_epoch.unwrap_or(Duration::ZERO)) << 16;
        // More than 2^16 in a ms take numbers of the next one.
        let next = |next: u64| Some(next.max(now) + count);
        let last = NEXT.fetch_update(Relaxed, Relaxed, next).unwrap_or(0);
        Self(NonZeroU64::new(last.max(now)).unwrap_or(NonZeroU64::MIN))
    }

    pub(super) fn id(self, place: u64) -> SlotId {
        SlotId {
            process: this_process(),
            number: self.0.get() + place,
        }
    }
}
