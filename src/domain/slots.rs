//! [`Slots`]: slots of one key under a concurrency policy, each with an id, which are renewed or returned together.

use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{Count, Usage},
    error::StoreError,
    key::Key,
    policy::Policy,
    slot_id::{MOST_SLOTS, SlotId},
};

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
    /// The most ids of one message, and the most slots of a charge.
    #[doc(hidden)]
    pub const MOST: usize = MOST_SLOTS;

    /// Returns the slots of an admitted check, those of each charge together. Those of shadows are in [`Usage::shadow`].
    #[must_use]
    pub fn of(usage: &Usage) -> Vec<Self> {
        Self::of_charges(usage.check().charges())
    }

    /// Returns the slots that these charges take.
    pub(crate) fn of_charges<'a>(charges: impl IntoIterator<Item = &'a Charge>) -> Vec<Self> {
        let taking = charges.into_iter().filter(|charge| charge.takes_slots());
        let slots = |it: &Charge| Self::new(it.policy(), it.key(), it.slots().collect());
        taking.map(slots).collect()
    }

    /// `ids` are at most [`MOST`](Self::MOST).
    pub(crate) fn new(policy: &Policy, key: &Key, ids: Vec<SlotId>) -> Self {
        debug_assert!(ids.len() <= Self::MOST);
        let check = Check::counting([Charge::new(policy, key.clone(), 0)]);
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
    #[doc(hidden)]
    pub fn are_held(&self) -> bool {
        self.held.iter().all(|is_held| *is_held)
    }

    /// Returns the usage of the key after the renewal or the return.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }
}
