use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// More than identities can be leased, so that few share a place.
const PLACES: usize = 16_384;

/// Who is asked for often, in fixed room: the identities that share a place fight for it, and who is asked for most
/// often wins. An estimate: two threads may lose a count.
#[derive(Debug)]
pub(super) struct HotCounts {
    /// From the highest bit on: 24 bits of the identity's hash, 24 of the span of time, 16 of the count.
    places: Box<[AtomicU64]>,
}

impl HotCounts {
    pub(super) fn new() -> Self {
        Self {
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts one more in a span of time, which has a number; answers how many these are, at least.
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
