//! [`HotCounts`]: finds the identities that are checked often, in fixed memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// More places than leases, so that few identities share one.
const PLACES: usize = 16_384;

/// Counts the identities that are checked most often. Identities that share a place compete for it, and the most
/// frequent one wins. The counts are estimates: two threads may lose one.
#[derive(Debug)]
pub(super) struct HotCounts {
    /// The bits from high to low: 24 of the identity's hash, 24 of the span's number, 16 of the count.
    places: Box<[AtomicU64]>,
}

impl HotCounts {
    pub(super) fn new() -> Self {
        Self {
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a check in the span with this number. Returns a lower limit of the identity's checks in that span.
    pub(super) fn count(&self, hash: u64, span: u64) -> u64 {
        let index = usize::try_from(hash % (PLACES as u64)).unwrap_or(0);
        let place = &self.places[index];
        let known = place.load(Relaxed);
        let (owner, count) = (known >> 16, known & 0xFFFF);
        let mine = (hash >> 40) << 24 | (span & 0xFF_FFFF);
        let (owner, count) = if owner == mine {
            (owner, (count + 1).min(0xFFFF))
        } else if owner & 0xFF_FFFF != mine & 0xFF_FFFF || count <= 1 {
            (mine, 1)
        } else {
            (owner, count - 1)
        };
        place.store(owner << 16 | count, Relaxed);
        if owner == mine { count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_is_counted_anew() {
        let counts = HotCounts::new();
        let counted = [1, 1, 1, 2, 2].map(|span| counts.count(7, span));
        assert_eq!(counted, [1, 2, 3, 1, 2]);
    }

    #[test]
    fn of_those_who_share_a_place_the_one_that_is_asked_for_most_often_is_found() {
        let counts = HotCounts::new();
        let (hot, cold) = (1 << 40, 2 << 40);
        let mut most = 0;
        for index in 0..100 {
            let hash = if index % 4 == 0 { cold } else { hot };
            most = most.max(counts.count(hash, 1));
            assert!(counts.count(if index % 4 == 0 { hot } else { cold }, 2 + index) <= 1);
        }
        for _ in 0..20 {
            counts.count(cold, 500);
            for _ in 0..3 {
                most = most.max(counts.count(hot, 500));
            }
        }
        assert!(most > 8, "{most}");
    }
}
