//! [`DenialReport`]: the counts that the limiter reports to a store, and the spans that stores add them up in.

use std::fmt;

use super::RequestCounts;
use crate::domain::{key::Key, policy::Policy};

/// This many spans, and the current one, make up the last minute or the last hour.
const SPANS: u64 = 6;

/// The counts of a process in one span of ten seconds since its last report. A store adds them to those of others; see
/// [`Operation::ReportDenials`](crate::store::Operation::ReportDenials).
#[doc(hidden)]
#[derive(Clone)]
pub struct DenialReport {
    pub(crate) start_ms: u64,
    pub(crate) counts: Vec<DenialCount>,
}

/// The counts of one identity, under one policy or for blocks.
#[derive(Clone)]
pub(crate) struct DenialCount {
    pub(crate) policy: Option<Policy>,
    pub(crate) key: Key,
    pub(crate) counts: RequestCounts,
}

impl DenialReport {
    /// Returns when the span begins, in ms since the Unix epoch, by the store's clock.
    #[must_use]
    pub const fn start_ms(&self) -> u64 {
        self.start_ms
    }

    /// Returns the counts to add, for each policy and key; a policy of `None` stands for blocks. At most 512.
    #[must_use]
    pub fn counts(&self) -> impl ExactSizeIterator<Item = (Option<&Policy>, &Key, RequestCounts)> {
        let counts = self.counts.iter();
        counts.map(|count| (count.policy.as_ref(), &count.key, count.counts))
    }
}

/// Leaves out the keys: they are data of clients.
impl fmt::Debug for DenialReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialReport")
            .field("start_ms", &self.start_ms)
            .field("identities", &self.counts.len())
            .finish()
    }
}

/// A sixth of a minute or of an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) length_ms: u64,
    pub(crate) start_ms: u64,
}

impl Span {
    pub(crate) const OF_MINUTE_MS: u64 = 10_000;
    pub(crate) const OF_HOUR_MS: u64 = 600_000;

    /// Returns the spans, of both lengths, that contain this time.
    pub(crate) fn both(at_ms: u64) -> [Self; 2] {
        [Self::OF_MINUTE_MS, Self::OF_HOUR_MS].map(|length_ms| Self {
            length_ms,
            start_ms: at_ms - at_ms % length_ms,
        })
    }

    /// Returns the spans of this length that make up the last minute or hour, the newest first.
    pub(crate) fn last(length_ms: u64, now_ms: u64) -> impl Iterator<Item = Self> {
        let newest_ms = now_ms - now_ms % length_ms;
        let starts = (0..=SPANS).map_while(move |back| newest_ms.checked_sub(back * length_ms));
        starts.map(move |start_ms| Self {
            length_ms,
            start_ms,
        })
    }

    /// Returns whether the span is part of the last minute or hour.
    pub(crate) const fn counts_at(self, now_ms: u64) -> bool {
        self.start_ms <= now_ms && now_ms < self.start_ms.saturating_add(self.lasts_ms())
    }

    /// Returns how long after the start a store needs the span.
    pub(crate) const fn lasts_ms(self) -> u64 {
        (SPANS + 1) * self.length_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_spans_cover_the_last_minute_and_hour_at_every_time() {
        for length_ms in [Span::OF_MINUTE_MS, Span::OF_HOUR_MS] {
            for now_ms in (7_000_000..7_700_000).step_by(777) {
                let spans: Vec<_> = Span::last(length_ms, now_ms).collect();
                assert_eq!(spans.len(), 7);
                for back_ms in [0, 1, length_ms, 6 * length_ms] {
                    let then = Span::both(now_ms - back_ms);
                    assert!(
                        then.iter().any(|span| spans.contains(span)),
                        "{now_ms} {back_ms}"
                    );
                }
                assert!(spans.iter().all(|span| span.counts_at(now_ms)));
                let older = Span::both(now_ms - 7 * length_ms);
                assert!(!older.iter().any(|span| spans.contains(span)));
            }
        }
        assert_eq!(Span::last(Span::OF_HOUR_MS, 5).count(), 1);
    }
}
