//! [`Table`]: how often identities were denied and admitted, in bounded memory and almost without locks.
//!
//! ```text
//!  hash of (policy, key) ──▶ set ──▶ marks ──▶ one of 16 slots     read and added to without a lock
//!                             └────▶ a lock: which identities are in the slots, when they were denied,
//!                                    and counts of finished spans
//! ```
//!
//! Denials and admissions are added to the slot of their identity. A denial of an identity without a slot replaces the
//! one in its set with the lowest weight: few denials, or long ago. Only that, and the first request of an identity in
//! each span, takes the lock.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::hash::IdentityHasher;
use crate::domain::{
    denials::{DenialCount, RequestCounts, Span},
    key::Key,
    policy::Policy,
};

const SETS: usize = 256;
const WAYS: usize = 16;

/// How long admissions of an identity count after its latest denial, in spans: an hour.
const REMEMBERED: u64 = 360;

/// How many counts of finished spans can wait in a set for the next report.
const MAX_LATE: usize = 2 * WAYS;

/// Longer values are not counted: otherwise clients could choose how much memory the table takes.
const MAX_VALUE: usize = 2_048;

pub(super) struct Table {
    hasher: IdentityHasher,
    /// The span of the newest denial; 0 if no denial is remembered.
    newest: AtomicU64,
    /// Each created by its first denial, so that no request waits for more than 2 KB of memory.
    sets: [OnceLock<Box<Set>>; SETS],
}

/// Aligned to cache lines: a missing identity costs one line, and a present one two.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    /// One byte of each slot's hash; 0 for a free slot.
    marks: [AtomicU64; WAYS / 8],
    held: Mutex<Held>,
    slots: [Slot; WAYS],
}

/// Read without the lock: the numbers may belong to the identity that has just left the slot.
#[derive(Default)]
#[repr(align(32))]
struct Slot {
    hash: AtomicU64,
    /// The span that the counts belong to.
    span: AtomicU64,
    /// Denials · 2^32 + admissions, since the counts were last taken.
    counts: AtomicU64,
}

#[derive(Default)]
struct Held {
    identities: [Option<Identity>; WAYS],
    late: Vec<Counted>,
}

struct Identity {
    policy: Option<Policy>,
    key: Key,
    /// Covers only the denials that were taken from its slot.
    standing: Standing,
}

/// How often, and how recently, an identity was denied.
#[derive(Clone, Copy)]
struct Standing {
    /// The span of its latest denial.
    denied_in: u64,
    /// The number of denials, halved every minute.
    weight: u64,
}

/// The count of an identity in one span.
pub(super) struct Counted {
    pub(super) span: u64,
    pub(super) count: DenialCount,
}

const DENIED: u64 = 1 << 32;
const ADMITTED: u64 = 1;

/// The number of the ten-second span at a time: never 0.
const fn span_at(at_ms: u64) -> u64 {
    at_ms / Span::OF_MINUTE_MS + 1
}

pub(super) const fn start_ms(span: u64) -> u64 {
    (span - 1) * Span::OF_MINUTE_MS
}

impl Default for Table {
    fn default() -> Self {
        Self {
            hasher: IdentityHasher::default(),
            newest: AtomicU64::new(0),
            sets: [const { OnceLock::new() }; SETS],
        }
    }
}

impl Table {
    /// Whether to count admissions.
    pub(super) fn is_active(&self) -> bool {
        self.newest.load(Relaxed) > 0
    }

    /// Counts a denial under this policy, or by a block.
    pub(super) fn deny(&self, policy: Option<&Policy>, key: &Key, at_ms: u64) {
        if key.value().len() > MAX_VALUE {
            return;
        }
        let span = span_at(at_ms);
        if self.newest.load(Relaxed) != span {
            self.newest.store(span, Relaxed);
        }
        let hash = self.hasher.hash(policy, key);
        let set = self.set_of(hash).get_or_init(Box::default);
        let known = set.find(hash).map(|way| &set.slots[way]);
        match known.filter(|slot| slot.span.load(Relaxed) == span) {
            Some(slot) => drop(slot.counts.fetch_add(DENIED, Relaxed)),
            None => set.deny(hash, policy, key, span),
        }
    }

    /// Counts an admission, if this policy has denied the identity within the hour; otherwise returns `None`. Returns
    /// whether this is the first count since the slot was last taken.
    pub(super) fn admit(&self, policy: &Policy, key: &Key, at_ms: u64) -> Option<bool> {
        let span = span_at(at_ms);
        if span > self.newest.load(Relaxed) + REMEMBERED {
            self.forget_all();
            return None;
        }
        let hash = self.hasher.hash(Some(policy), key);
        let set = self.set_of(hash).get()?;
        let way = set.find(hash)?;
        let slot = &set.slots[way];
        if slot.span.load(Relaxed) != span && !set.remember(way, hash, span) {
            return None;
        }
        Some(slot.counts.fetch_add(ADMITTED, Relaxed) == 0)
    }

    /// Takes all counts since the last time.
    pub(super) fn take(&self) -> Vec<Counted> {
        let mut taken = Vec::new();
        for set in self.made() {
            let mut held = set.lock();
            let held = &mut *held;
            taken.append(&mut held.late);
            for (slot, identity) in set.slots.iter().zip(&mut held.identities) {
                match identity {
                    Some(identity) => taken.extend(slot.take(identity)),
                    // A thread has counted after the identity was forgotten.
                    None => slot.counts.store(0, Relaxed),
                }
            }
        }
        taken
    }

    /// Whether there are counts to take.
    pub(super) fn has_counts(&self) -> bool {
        self.made().any(|set| {
            let mut slots = set.slots.iter();
            slots.any(|slot| slot.counts.load(Relaxed) > 0) || !set.lock().late.is_empty()
        })
    }

    /// Called when the last denial is over an hour old, or the store keeps no denials.
    #[cold]
    pub(super) fn forget_all(&self) {
        self.newest.store(0, Relaxed);
        for set in self.made() {
            let mut held = set.lock();
            for way in 0..WAYS {
                set.forget(&mut held, way);
            }
        }
    }

    fn set_of(&self, hash: u64) -> &OnceLock<Box<Set>> {
        &self.sets[(hash & 0xFFFF) as usize % SETS]
    }

    fn made(&self) -> impl Iterator<Item = &Set> {
        self.sets
            .iter()
            .filter_map(|set| set.get().map(|set| &**set))
    }
}

/// The byte that marks an identity: not 0.
fn mark(hash: u64) -> u64 {
    (hash >> 56).max(1)
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn find(&self, hash: u64) -> Option<usize> {
        const ONES: u64 = u64::MAX / 255;
        for (word, marks) in self.marks.iter().enumerate() {
            // A byte of zero marks a match. The borrow may also report a byte above a match, whose slot has another
            // hash.
            let other = marks.load(Relaxed) ^ (mark(hash) * ONES);
            let mut same = other.wrapping_sub(ONES) & !other & (ONES << 7);
            while same != 0 {
                let way = word * 8 + same.trailing_zeros() as usize / 8;
                if self.slots[way].hash.load(Relaxed) == hash {
                    return Some(way);
                }
                same &= same - 1;
            }
        }
        None
    }

    /// Requires the lock.
    fn set_mark(&self, way: usize, mark: u64) {
        let (marks, shift) = (&self.marks[way / 8], way % 8 * 8);
        let others = marks.load(Relaxed) & !(0xFF << shift);
        marks.store(others | mark << shift, Relaxed);
    }

    /// Counts a denial of an identity that has no slot, or whose slot holds counts of another span.
    #[cold]
    fn deny(&self, hash: u64, policy: Option<&Policy>, key: &Key, span: u64) {
        let mut held = self.lock();
        let way = match self.find(hash) {
            Some(way) => way,
            None => self.enter(&mut held, hash, policy, key, span),
        };
        self.begin(&mut held, way, span);
        self.slots[way].counts.fetch_add(DENIED, Relaxed);
    }

    /// Puts an identity into a free slot, or in place of the one with the lowest weight.
    fn enter(
        &self,
        held: &mut Held,
        hash: u64,
        policy: Option<&Policy>,
        key: &Key,
        span: u64,
    ) -> usize {
        let weights = held.identities.iter().zip(&self.slots);
        let weights = weights.map(|(identity, slot)| {
            let standing = identity.as_ref().map(|identity| slot.standing(identity));
            standing.map(|standing| (standing.weight_at(span), standing.denied_in))
        });
        // `None`, a free slot, is less than any weight.
        let least = weights.enumerate().min_by_key(|(_, weight)| *weight);
        let way = least.map_or(0, |(way, _)| way);
        self.forget(held, way);
        held.identities[way] = Some(Identity {
            policy: policy.cloned(),
            key: key.clone(),
            standing: Standing {
                denied_in: span,
                weight: 0,
            },
        });
        self.slots[way].span.store(span, Relaxed);
        self.slots[way].hash.store(hash, Relaxed);
        self.set_mark(way, mark(hash));
        way
    }

    /// Starts a new span for an admitted identity, or forgets an identity without a denial within the hour. Returns
    /// whether the identity is still known.
    #[cold]
    fn remember(&self, way: usize, hash: u64, span: u64) -> bool {
        let mut held = self.lock();
        let Some(identity) = &held.identities[way] else {
            return false;
        };
        if self.slots[way].hash.load(Relaxed) != hash {
            return false;
        }
        let denied_in = self.slots[way].standing(identity).denied_in;
        if span > denied_in.saturating_add(REMEMBERED) {
            self.end_span(&mut held, way);
            self.forget(&mut held, way);
            return false;
        }
        self.begin(&mut held, way, span);
        true
    }

    /// Counts in this span from now on.
    fn begin(&self, held: &mut Held, way: usize, span: u64) {
        if self.slots[way].span.load(Relaxed) != span {
            self.end_span(held, way);
            self.slots[way].span.store(span, Relaxed);
        }
    }

    /// Keeps the counts of a span for the next report.
    fn end_span(&self, held: &mut Held, way: usize) {
        let Held { identities, late } = held;
        if let Some(identity) = &mut identities[way]
            && late.len() < MAX_LATE
        {
            late.extend(self.slots[way].take(identity));
        }
    }

    fn forget(&self, held: &mut Held, way: usize) {
        self.set_mark(way, 0);
        self.slots[way].counts.store(0, Relaxed);
        drop(mem::take(&mut held.identities[way]));
    }
}

impl Slot {
    /// Takes the counts of the slot's identity.
    fn take(&self, identity: &mut Identity) -> Option<Counted> {
        if self.counts.load(Relaxed) == 0 {
            return None;
        }
        let (counts, span) = (self.counts.swap(0, Relaxed), self.span.load(Relaxed));
        identity.standing = identity.standing.after(counts / DENIED, span);
        Some(Counted {
            span,
            count: DenialCount {
                policy: identity.policy.clone(),
                key: identity.key.clone(),
                counts: RequestCounts::new(counts / DENIED, counts % DENIED),
            },
        })
    }

    /// The standing of its identity, including denials not yet taken.
    fn standing(&self, identity: &Identity) -> Standing {
        let denied = self.counts.load(Relaxed) / DENIED;
        identity.standing.after(denied, self.span.load(Relaxed))
    }
}

impl Standing {
    /// The standing after further denials in this span.
    fn after(self, denied: u64, span: u64) -> Self {
        match denied {
            0 => self,
            _ => Self {
                denied_in: span,
                weight: self.weight_at(span).saturating_add(denied),
            },
        }
    }

    fn weight_at(self, span: u64) -> u64 {
        let minutes = span.saturating_sub(self.denied_in) / 6;
        self.weight >> minutes.min(63)
    }
}

#[cfg(test)]
mod tests;
