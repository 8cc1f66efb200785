//! Concurrency rules: the ids of slots, each with its expiry.

use super::Count;
use crate::domain::slot_id::SlotId;

/// The slots of one key, in the order in which they expire.
///
/// A slot is held while its expiry is ahead, by no more than the window: an expiry further ahead was set while the
/// clock was wrong.
#[derive(Clone, Debug)]
pub(crate) struct SlotSet {
    window_ms: u64,
    slots: Vec<(u64, SlotId)>,
}

impl SlotSet {
    pub(super) const fn new(window_ms: u64) -> Self {
        Self {
            window_ms,
            slots: Vec::new(),
        }
    }

    /// A set with these expiries and ids.
    #[cfg(feature = "redis")]
    pub(crate) fn of(window_ms: u64, mut slots: Vec<(u64, SlotId)>) -> Self {
        slots.sort_unstable();
        Self { window_ms, slots }
    }

    pub(super) const fn window_ms(&self) -> u64 {
        self.window_ms
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The expiries and ids that are kept, held or not.
    #[cfg(feature = "bb8")]
    pub(crate) fn slots(&self) -> &[(u64, SlotId)] {
        &self.slots
    }

    /// The slots that are held, in the order in which they expire.
    pub(crate) fn held(&self, now_ms: u64) -> &[(u64, SlotId)] {
        let last_ms = now_ms.saturating_add(self.window_ms);
        let first = self.slots.partition_point(|slot| slot.0 <= now_ms);
        let behind = self.slots.partition_point(|slot| slot.0 <= last_ms);
        &self.slots[first..behind]
    }

    pub(crate) fn holds(&self, now_ms: u64, id: SlotId) -> bool {
        self.held(now_ms).iter().any(|slot| slot.1 == id)
    }

    pub(super) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        let held = self.held(now_ms);
        let used = held.len() as u64;
        let over = (used + cost).saturating_sub(limit);
        let makes_room = usize::try_from(over).unwrap_or(usize::MAX).checked_sub(1);
        let makes_room = makes_room.and_then(|last| held.get(last));
        Count {
            used,
            newest_end_ms: held.last().map_or(0, |slot| slot.0),
            fits_at_ms: makes_room
                .filter(|_| cost <= limit)
                .map_or(0, |slot| slot.0),
        }
    }

    /// The count of all that is kept, which is held after a write.
    pub(super) fn kept(&self) -> Count {
        Count {
            used: self.slots.len() as u64,
            newest_end_ms: self.release_ms(),
            fits_at_ms: 0,
        }
    }

    /// When nothing that is kept can be held any more; 0 if nothing is.
    pub(super) fn release_ms(&self) -> u64 {
        self.slots.last().map_or(0, |slot| slot.0)
    }

    /// Takes slots with these ids. Those that are held keep their expiry.
    ///
    /// Drops what has expired, as the script does: with a write in one ms of 8, which saves a command in the others.
    /// Until then a clock that steps back finds it again.
    pub(crate) fn take(&mut self, now_ms: u64, ids: impl Iterator<Item = SlotId>) {
        let mut is_written = false;
        for id in ids {
            if !self.holds(now_ms, id) {
                self.give_back(&[id]); // if its expiry is not believed
                self.insert(now_ms + self.window_ms, id);
                is_written = true;
            }
        }
        if is_written && now_ms.is_multiple_of(8) {
            self.slots.retain(|slot| slot.0 > now_ms);
        }
    }

    /// Holds this slot for a window from now, if it is held.
    pub(crate) fn renew(&mut self, now_ms: u64, id: SlotId) -> bool {
        let is_held = self.holds(now_ms, id);
        if is_held {
            self.give_back(&[id]);
            self.insert(now_ms + self.window_ms, id);
        }
        is_held
    }

    /// Forgets these slots.
    pub(crate) fn give_back(&mut self, ids: &[SlotId]) {
        self.slots.retain(|slot| !ids.contains(&slot.1));
    }

    fn insert(&mut self, expiry_ms: u64, id: SlotId) {
        let place = self.slots.partition_point(|slot| *slot < (expiry_ms, id));
        self.slots.insert(place, (expiry_ms, id));
    }
}
