//! [`Table`]: how often identities were denied and admitted, in bounded memory and almost without locks.
//!
//! ```text
//!  token of (policy, key) ──▶ set ──▶ one of 16 slots     tag, span, counts     read and added to without a lock
//!                              └────▶ a lock: who is in the slots, when they were denied, spans that are over
//! ```
//!
//! A denial enters its identity, in the place of the one in its set that was denied least lately, and takes the lock;
//! an admission is added where its identity is found, and takes it once in a span.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    block::BLOCKS,
    denials::{DenialCount, RequestCounts, Span},
    key::Key,
    policy::Policy,
    store::Tokens,
};

const SETS: usize = 256;
const WAYS: usize = 16;

/// For how long after its latest denial the admissions of an identity count, in spans: an hour.
const REMEMBERED: u64 = 360;

/// How many counts of spans that are over wait in a set for the next report.
const MAX_LATE: usize = 2 * WAYS;

/// A longer value is not counted: clients choose how much memory they take.
const MAX_VALUE: usize = 2_048;

#[derive(Default)]
pub(super) struct Table {
    tokens: Tokens,
    /// The span of the newest denial; 0 while none is remembered.
    newest: AtomicU64,
    /// Made by the first denial.
    sets: OnceLock<Box<[Set]>>,
}

/// The numbers of a slot are read without the lock, and may be those of the identity that was in it a moment ago.
#[derive(Default)]
struct Set {
    /// 0 where the slot is free.
    tags: [AtomicU64; WAYS],
    /// The span that the counts belong to.
    spans: [AtomicU64; WAYS],
    /// Denied · 2^32 + admitted, since they were reported.
    counts: [AtomicU64; WAYS],
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    identities: [Option<Identity>; WAYS],
    late: Vec<Counted>,
}

struct Identity {
    policy: Option<Policy>,
    key: Key,
    /// The span of its latest denial.
    denied_in: u64,
    /// How often it was denied, of which each minute since then takes half away.
    weight: u64,
}

/// What was counted of an identity in one span.
pub(super) struct Counted {
    pub(super) span: u64,
    pub(super) count: DenialCount,
}

const DENIED: u64 = 1 << 32;
const ADMITTED: u64 = 1;

/// The number of the span of ten seconds that a time is in: never 0.
const fn span_at(at_ms: u64) -> u64 {
    at_ms / Span::OF_MINUTE_MS + 1
}

pub(super) const fn start_ms(span: u64) -> u64 {
    (span - 1) * Span::OF_MINUTE_MS
}

impl Table {
    /// Whether admissions have to be counted.
    pub(super) fn is_active(&self) -> bool {
        self.newest.load(Relaxed) > 0
    }

    /// Counts a denial under this policy, or by a block.
    pub(super) fn deny(&self, policy: Option<&Policy>, key: &Key, at_ms: u64) {
        if key.value().len() > MAX_VALUE {
            return;
        }
        let span = span_at(at_ms);
        self.newest.store(span, Relaxed);
        let sets = self
            .sets
            .get_or_init(|| (0..SETS).map(|_| Set::default()).collect());
        let (set, tag) = self.place(sets, policy, key);
        let mut held = set.lock();
        let way = match set.find(tag) {
            Some(way) => way,
            None => set.enter(&mut held, tag, policy, key, span),
        };
        if let Some(identity) = &mut held.identities[way] {
            identity.weight = identity.weight_at(span).saturating_add(1);
            identity.denied_in = span;
        }
        set.begin(&mut held, way, span);
        set.counts[way].fetch_add(DENIED, Relaxed);
    }

    /// Counts an admission, if this policy has denied the identity within the hour. Answers whether it has.
    pub(super) fn admit(&self, policy: &Policy, key: &Key, at_ms: u64) -> bool {
        let span = span_at(at_ms);
        let Some(sets) = self.sets.get() else {
            return false;
        };
        if span > self.newest.load(Relaxed) + REMEMBERED {
            self.forget_all(sets);
            return false;
        }
        let (set, tag) = self.place(sets, Some(policy), key);
        let Some(way) = set.find(tag) else {
            return false;
        };
        if set.spans[way].load(Relaxed) != span && !set.remember(way, tag, span) {
            return false;
        }
        set.counts[way].fetch_add(ADMITTED, Relaxed);
        true
    }

    /// Takes what was counted since the last time.
    pub(super) fn take(&self) -> Vec<Counted> {
        let mut taken = Vec::new();
        for set in self.sets.get().into_iter().flatten() {
            let mut held = set.lock();
            let held = &mut *held;
            taken.append(&mut held.late);
            for (way, identity) in held.identities.iter().enumerate() {
                if let Some(identity) = identity {
                    taken.extend(set.take(way, identity));
                }
            }
        }
        taken
    }

    /// Whether something was counted since it was taken.
    pub(super) fn has_counts(&self) -> bool {
        let mut sets = self.sets.get().into_iter().flatten();
        sets.any(|set| {
            let mut counts = set.counts.iter();
            counts.any(|it| it.load(Relaxed) > 0) || !set.lock().late.is_empty()
        })
    }

    fn place<'a>(&self, sets: &'a [Set], policy: Option<&Policy>, key: &Key) -> (&'a Set, u64) {
        let (first, second) = self.tokens.token(policy.map_or(BLOCKS, Policy::name), key);
        // An index below the number of sets, whatever the width of a pointer.
        (&sets[(second & 0xFFFF) as usize % SETS], first.max(1))
    }

    /// No denial is younger than an hour.
    #[cold]
    fn forget_all(&self, sets: &[Set]) {
        self.newest.store(0, Relaxed);
        for set in sets {
            let mut held = set.lock();
            for way in 0..WAYS {
                set.forget(&mut held, way);
            }
        }
    }
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, tag: u64) -> Option<usize> {
        self.tags.iter().position(|it| it.load(Relaxed) == tag)
    }

    /// Puts an identity into a free slot, or in the place of the one that was denied least lately.
    fn enter(
        &self,
        held: &mut Held,
        tag: u64,
        policy: Option<&Policy>,
        key: &Key,
        span: u64,
    ) -> usize {
        let weights = held.identities.iter().map(|identity| {
            let known = identity.as_ref();
            known.map(|it| (it.weight_at(span), it.denied_in))
        });
        let least = weights.enumerate().min_by_key(|(_, weight)| *weight);
        let way = least.map_or(0, |(way, _)| way);
        self.forget(held, way);
        held.identities[way] = Some(Identity {
            policy: policy.cloned(),
            key: key.clone(),
            denied_in: span,
            weight: 0,
        });
        self.spans[way].store(span, Relaxed);
        self.tags[way].store(tag, Relaxed);
        way
    }

    /// Begins another span of an admitted identity, or forgets it if it was not denied within the hour. Answers whether
    /// it is still known.
    #[cold]
    fn remember(&self, way: usize, tag: u64, span: u64) -> bool {
        let mut held = self.lock();
        let Some(identity) = &held.identities[way] else {
            return false;
        };
        if self.tags[way].load(Relaxed) != tag {
            return false;
        }
        if span > identity.denied_in.saturating_add(REMEMBERED) {
            self.end_span(&mut held, way);
            self.forget(&mut held, way);
            return false;
        }
        self.begin(&mut held, way, span);
        true
    }

    /// Counts in this span from now on.
    fn begin(&self, held: &mut Held, way: usize, span: u64) {
        if self.spans[way].load(Relaxed) != span {
            self.end_span(held, way);
            self.spans[way].store(span, Relaxed);
        }
    }

    /// Keeps the counts of a span for the next report.
    fn end_span(&self, held: &mut Held, way: usize) {
        let Held { identities, late } = held;
        if let Some(identity) = &identities[way]
            && late.len() < MAX_LATE
        {
            late.extend(self.take(way, identity));
        }
    }

    fn take(&self, way: usize, identity: &Identity) -> Option<Counted> {
        if self.counts[way].load(Relaxed) == 0 {
            return None;
        }
        let counts = self.counts[way].swap(0, Relaxed);
        Some(Counted {
            span: self.spans[way].load(Relaxed),
            count: DenialCount {
                policy: identity.policy.clone(),
                key: identity.key.clone(),
                counts: RequestCounts::new(counts / DENIED, counts % DENIED),
            },
        })
    }

    fn forget(&self, held: &mut Held, way: usize) {
        self.tags[way].store(0, Relaxed);
        self.counts[way].store(0, Relaxed);
        drop(mem::take(&mut held.identities[way]));
    }
}

impl Identity {
    fn weight_at(&self, span: u64) -> u64 {
        let minutes = span.saturating_sub(self.denied_in) / 6;
        self.weight >> minutes.min(63)
    }
}

#[cfg(test)]
mod tests;
