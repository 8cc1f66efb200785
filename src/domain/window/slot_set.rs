//! Concurrency rules: the ids of slots, each with its expiry.

use std::collections::{BTreeMap, VecDeque, vec_deque::Iter};

use super::Count;
use crate::domain::slot_id::SlotId;

/// In so few slots an id is searched.
const FEW: usize = 64;

/// The slots of one key.
///
/// A slot is held while its expiry is ahead, by no more than the window: an expiry further ahead was set while the
/// clock was wrong.
#[derive(Clone, Debug)]
pub(crate) struct SlotSet {
    window_ms: u64,
    /// In the order in which they expire. Most come in at the end, and most leave near the front.
    slots: VecDeque<(u64, SlotId)>,
    /// When each expires, if they are or were many. In a box, so that the sections of other rules are no larger.
    expiries: Option<Box<Expiries>>,
}

#[derive(Clone, Debug)]
struct Expiries(BTreeMap<SlotId, u64>);

impl SlotSet {
    pub(super) const fn new(window_ms: u64) -> Self {
        Self {
            window_ms,
            slots: VecDeque::new(),
            expiries: None,
        }
    }

    /// A set with these expiries and ids.
    pub(crate) fn of(window_ms: u64, mut slots: Vec<(u64, SlotId)>) -> Self {
        slots.sort_unstable();
        let mut set = Self::new(window_ms);
        set.slots = slots.into();
        set.note_expiries();
        set
    }

    pub(super) const fn window_ms(&self) -> u64 {
        self.window_ms
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The expiries and ids that are kept, held or not.
    pub(crate) const fn slots(&self) -> &VecDeque<(u64, SlotId)> {
        &self.slots
    }

    /// The slots that are held, in the order in which they expire.
    pub(crate) fn held(&self, now_ms: u64) -> Iter<'_, (u64, SlotId)> {
        let last_ms = now_ms.saturating_add(self.window_ms);
        // Mostly all are.
        if self.release_ms() <= last_ms && self.slots.front().is_none_or(|slot| slot.0 > now_ms) {
            return self.slots.iter();
        }
        let first = self.slots.partition_point(|slot| slot.0 <= now_ms);
        let behind = self.slots.partition_point(|slot| slot.0 <= last_ms);
        self.slots.range(first..behind)
    }

    pub(crate) fn holds(&self, now_ms: u64, id: SlotId) -> bool {
        let expiry_ms = self.expiry_ms(id).unwrap_or(0);
        now_ms < expiry_ms && expiry_ms <= now_ms.saturating_add(self.window_ms)
    }

    pub(super) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        let mut held = self.held(now_ms);
        let used = held.len() as u64;
        let over = (used + cost).saturating_sub(limit);
        let newest_end_ms = held.clone().next_back().map_or(0, |slot| slot.0);
        let makes_room = usize::try_from(over).unwrap_or(usize::MAX).checked_sub(1);
        let makes_room = makes_room.and_then(|last| held.nth(last));
        Count {
            used,
            newest_end_ms,
            fits_at_ms: makes_room
                .filter(|_| cost <= limit)
                .map_or(0, |slot| slot.0),
        }
    }

    /// The count of all that is kept, which is held after a write.
    pub(super) fn kept(&self) -> Count {
        Count::of(self.slots.len() as u64, self.release_ms())
    }

    /// When nothing that is kept can be held any more; 0 if nothing is.
    pub(super) fn release_ms(&self) -> u64 {
        self.slots.back().map_or(0, |slot| slot.0)
    }

    /// Takes slots with these ids. Those that are held keep their expiry.
    ///
    /// Drops what has expired, as the script does: with a write in one ms of 8, which saves a command in the others.
    /// Until then a clock that steps back finds it again.
    pub(crate) fn take(&mut self, now_ms: u64, ids: impl Iterator<Item = SlotId>) {
        let mut is_written = false;
        for id in ids {
            if !self.holds(now_ms, id) {
                self.hold(now_ms, id);
                is_written = true;
            }
        }
        if is_written && now_ms.is_multiple_of(8) {
            let expired = self.slots.partition_point(|slot| slot.0 <= now_ms);
            for (_, id) in self.slots.drain(..expired) {
                self.expiries.as_mut().map(|known| known.0.remove(&id));
            }
        }
    }

    /// Holds this slot for a window from now, if it is held.
    pub(crate) fn renew(&mut self, now_ms: u64, id: SlotId) {
        if self.holds(now_ms, id) {
            self.hold(now_ms, id);
        }
    }

    fn expiry_ms(&self, id: SlotId) -> Option<u64> {
        match &self.expiries {
            Some(known) => known.0.get(&id).copied(),
            None => self.slots.iter().find(|it| it.1 == id).map(|it| it.0),
        }
    }

    fn note_expiries(&mut self) {
        if self.slots.len() > FEW {
            let all = self.slots.iter().map(|(expiry_ms, id)| (*id, *expiry_ms));
            self.expiries = Some(Box::new(Expiries(all.collect())));
        }
    }

    /// Forgets this slot, if it is held.
    pub(crate) fn forget(&mut self, id: SlotId) {
        if let Some(expiry_ms) = self.expiry_ms(id)
            && let Ok(place) = self.slots.binary_search(&(expiry_ms, id))
        {
            self.slots.remove(place);
            self.expiries.as_mut().map(|known| known.0.remove(&id));
        }
    }

    fn hold(&mut self, now_ms: u64, id: SlotId) {
        self.forget(id);
        let slot = (now_ms + self.window_ms, id);
        let place = self.slots.partition_point(|other| *other < slot);
        self.slots.insert(place, slot);
        match &mut self.expiries {
            Some(known) => drop(known.0.insert(id, slot.0)),
            None => self.note_expiries(),
        }
    }
}
