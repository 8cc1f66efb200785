//! [`Slots`]: the slots that an admitted check holds under concurrency policies.

#[cfg(feature = "redis")]
use std::hash::{DefaultHasher, Hash, Hasher};

#[cfg(feature = "redis")]
use crate::domain::decision::RuleUsage;
use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{Count, Usage},
    error::StoreError,
    settlement::Settlement,
};

/// The slots that an admitted check holds under its [concurrency policies](crate::Rule::concurrent).
///
/// There is one such value for a check, and it cannot be cloned: so at most one message about a slot is under way, no
/// renewal follows a return, and after a renewal of unknown outcome you neither renew nor return: the slots are lost,
/// and are released when they expire.
///
/// ```
/// use sluicegate::{Charge, Key, MemoryStore, Policy, Store, store::{Check, Operation, Reply, Slots}};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::new();
/// let exports = Policy::parse("exports", "1/30s@concurrent")?;
/// let export = Check::new([Charge::new(&exports, Key::new("user", "alice"), 1)])?;
///
/// let admitted = store.check(&export).await?;
/// let slots = Slots::take(admitted.usage()).expect("one slot is held");
/// assert!(!store.check(&export).await?.is_allowed());
///
/// // At least every ten seconds, while the export runs:
/// let Reply::Renew(renewed) = store.execute(Operation::Renew(slots.renew())).await? else { unreachable!() };
/// assert!(renewed.is_renewed(), "the slot has not expired");
/// let slots = renewed.slots().expect("they are taken once");
///
/// store.execute(Operation::Settle(slots.give_back())).await?;
/// assert!(store.check(&export).await?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "slots that are dropped stay taken until they expire"]
pub struct Slots {
    /// About the charges that hold slots, and the step that each slot was last moved to.
    usage: Usage,
}

impl Slots {
    /// Takes the slots of an admitted check, once: `None` if it holds none, or if they have been taken.
    #[must_use]
    pub fn take(usage: &Usage) -> Option<Self> {
        let charges = usage.check().charges();
        let holds_slots = |charge: &Charge| charge.policy().is_concurrency() && charge.cost() > 0;
        if !charges.iter().any(holds_slots) || !usage.take_slots() {
            return None;
        }
        let places = (0..charges.len()).filter(|place| holds_slots(&charges[*place]));
        let picked = usage.pick(&places.collect::<Vec<_>>());
        Some(Self {
            usage: picked.local_like(usage),
        })
    }

    /// Returns the usage of the charges that hold slots, as the store answered last.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The slots of each charge apart, to be renewed and returned on their own.
    pub(crate) fn apart(self) -> impl Iterator<Item = Self> {
        let places = 0..self.usage.check().charges().len();
        places.map(move |place| match self.usage.check().charges() {
            [_] => Self {
                usage: self.usage.clone(),
            },
            _ => Self {
                usage: self.usage.pick(&[place]).local_like(&self.usage),
            },
        })
    }

    /// Makes the request to hold the slots for longer. The reply returns them, unless they are lost.
    pub fn renew(self) -> Renewal {
        Renewal { usage: self.usage }
    }

    /// Makes the request to return all slots.
    #[must_use]
    pub fn give_back(self) -> Settlement {
        self.settle(|_| 0)
    }

    /// Makes the request to leave each charge this many slots, which cannot be renewed or returned any more, and are
    /// released when they expire.
    #[must_use]
    pub fn settle(self, cost: impl Fn(&Charge) -> u64) -> Settlement {
        Settlement::of_slots(self.usage, cost)
    }
}

/// The request to hold [slots](Slots) for longer: to move them from their steps to the step of now.
#[derive(Clone, Debug)]
#[must_use = "the slots are held for longer only if a store renews them"]
pub struct Renewal {
    usage: Usage,
}

impl Renewal {
    /// Returns the usage of the slots: the charges, all under concurrency policies, and the steps that they are in.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns a check of the charges that hold the slots, all under concurrency policies.
    pub(crate) fn check(&self) -> &Check {
        self.usage.check()
    }

    /// Returns whether both renew equal slots, of the same keys in the same steps.
    #[cfg(feature = "redis")]
    pub(crate) fn is_equal(&self, other: &Self) -> bool {
        self.check().is_identical(other.check()) && self.steps().eq(other.steps())
    }

    /// Returns a number that is the same for [equal](Self::is_equal) renewals.
    #[cfg(feature = "redis")]
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for charge in self.check().charges() {
            (charge.policy().name(), charge.key()).hash(&mut hasher);
        }
        self.steps().for_each(|end_ms| end_ms.hash(&mut hasher));
        hasher.finish()
    }

    /// The ends of the steps that the slots are in.
    #[cfg(feature = "redis")]
    fn steps(&self) -> impl Iterator<Item = u64> {
        let rules = self.usage.policies().flat_map(|usage| usage.rules());
        rules.map(RuleUsage::step_end_ms)
    }

    /// Returns the slots of a renewal that was not sent.
    pub(crate) fn not_sent(self) -> Slots {
        Slots { usage: self.usage }
    }

    /// Makes the reply from the counts, one for each charge. For stores.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the counts do not match the slots.
    pub fn reply(
        &self,
        is_renewed: bool,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Renewed, StoreError> {
        let usage = Usage::of_slots(self.check(), now_ms, counts)?;
        Ok(self.answered(is_renewed, usage))
    }

    /// Slots that were not renewed stay in their steps, which only the former usage names.
    fn answered(&self, is_renewed: bool, usage: Usage) -> Renewed {
        let held = if is_renewed { &usage } else { &self.usage };
        held.return_slots();
        Renewed {
            is_renewed,
            held: held.clone().local_like(&self.usage),
            usage,
        }
    }

    /// Returns the renewal of the slots at these indexes.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, places: &[usize]) -> Self {
        Self {
            usage: self.usage.pick(places),
        }
    }
}

/// The reply to a [`Renewal`].
#[derive(Clone, Debug)]
pub struct Renewed {
    is_renewed: bool,
    usage: Usage,
    /// The charges that hold the slots, and the steps that these are in now.
    held: Usage,
}

impl Renewed {
    /// Returns whether the slots were renewed, all of them; otherwise at least one was lost, and nothing has changed.
    /// Lost slots are taken again by others, so that more than the limit may be held in all.
    #[must_use]
    pub const fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    /// Makes one reply from those to parts of a renewal, from the usage after it and from the slots held now.
    #[cfg(feature = "cluster")]
    pub(crate) fn joined(parts: &[Self], usage: Usage, held: Usage) -> Self {
        held.return_slots();
        Self {
            is_renewed: parts.iter().all(Self::is_renewed),
            usage,
            held,
        }
    }

    /// Returns the charges that hold the slots, and the steps that these are in now.
    #[cfg(feature = "cluster")]
    pub(crate) const fn held(&self) -> &Usage {
        &self.held
    }

    /// Returns the usage after the renewal.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Takes the slots, once, in the steps that they are in now.
    ///
    /// If they were not renewed, at least one is lost. [Give back](Slots::give_back) the others only if their steps are
    /// over: in a step that is not, others may have taken slots since, and a return would take one of theirs.
    #[must_use]
    pub fn slots(&self) -> Option<Slots> {
        Slots::take(&self.held)
    }
}
