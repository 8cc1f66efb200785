//! [`Slots`]: slots of one key under a concurrency policy, each with an id, which are renewed or returned together.

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

use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{Count, Usage},
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::millis,
};

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

/// Slots of one key under one [concurrency policy](crate::Rule::concurrent), to be renewed or returned together.
///
/// Messages about slots may come twice, late or never. To take an id that is held needs no room and changes nothing, to
/// renew one that is not held revives nothing, and to return one that is gone does nothing.
///
/// ```
/// use sluicegate::{Charge, Key, MemoryStore, Policy, Store, store::{Check, Operation, Reply, Slots}};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::new();
/// let exports = Policy::parse("exports", "1/30s@concurrent")?;
/// let export = || Check::new([Charge::new(&exports, Key::new("user", "alice"), 1)]);
///
/// let admitted = store.check(&export()?).await?;
/// let slots = Slots::of(admitted.usage()).remove(0);
/// assert!(!store.check(&export()?).await?.is_allowed());
///
/// // At least every ten seconds, while the export runs:
/// let Reply::Renew(renewed) = store.execute(Operation::Renew(slots.clone())).await? else { unreachable!() };
/// assert!(renewed.are_held(), "the slot has not expired");
///
/// store.execute(Operation::Return(slots)).await?;
/// assert!(store.check(&export()?).await?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Slots {
    /// Has one charge, which takes nothing.
    check: Check,
    ids: Vec<SlotId>,
}

impl Slots {
    /// The most ids of one message.
    pub const MOST: usize = 256;

    /// Returns the slots of an admitted check, [`MOST`](Self::MOST) at a time. Those of shadows are in
    /// [`Usage::shadow`].
    #[must_use]
    pub fn of(usage: &Usage) -> Vec<Self> {
        Self::of_charges(usage.check().charges())
    }

    /// Returns the slots that these charges take.
    pub(crate) fn of_charges<'a>(charges: impl IntoIterator<Item = &'a Charge>) -> Vec<Self> {
        let taking = charges.into_iter().filter(|charge| charge.takes_slots());
        let mut all = Vec::new();
        for charge in taking {
            let ids: Vec<_> = charge.slots().collect();
            let parts = ids.chunks(Self::MOST);
            all.extend(parts.map(|ids| Self::new(charge.policy(), charge.key(), ids.to_vec())));
        }
        all
    }

    /// `ids` are at most [`MOST`](Self::MOST).
    pub(crate) fn new(policy: &Policy, key: &Key, ids: Vec<SlotId>) -> Self {
        debug_assert!(ids.len() <= Self::MOST);
        let check = Check::of_one(Charge::new(policy, key.clone(), 0));
        Self { check, ids }
    }

    /// Returns a charge of the policy and the key, without units.
    #[must_use]
    pub fn charge(&self) -> &Charge {
        &self.check.charges()[0]
    }

    /// Returns the ids.
    #[must_use]
    pub fn ids(&self) -> &[SlotId] {
        &self.ids
    }

    /// Returns a check that only looks at the policy and the key.
    pub(crate) const fn check(&self) -> &Check {
        &self.check
    }

    /// Makes the reply from the count of the rule after it, and from whether each id was held. For stores.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the numbers of counts or ids do not match.
    pub fn reply(
        &self,
        held: Vec<bool>,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<HeldSlots, StoreError> {
        if held.len() != self.ids.len() {
            return Err(StoreError::protocol("the store answered about other slots"));
        }
        let usage = Usage::settled(&self.check, now_ms, counts)?;
        Ok(HeldSlots { held, usage })
    }
}

/// The reply to a message about [`Slots`].
#[derive(Clone, Debug)]
pub struct HeldSlots {
    held: Vec<bool>,
    usage: Usage,
}

impl HeldSlots {
    /// Returns for each id whether it was held.
    #[must_use]
    pub fn held(&self) -> &[bool] {
        &self.held
    }

    /// Returns whether all ids were held.
    #[must_use]
    pub fn are_held(&self) -> bool {
        self.held.iter().all(|is_held| *is_held)
    }

    /// Returns the usage of the key after the renewal or the return.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }
}
