//! [`Timeline`]: requests and refusals over time, in at most 512 spans for a log of any length.

use std::collections::BTreeMap;

use serde::Serialize;

const MAX_SPANS: usize = 512;

/// The lengths of a span in s. Each divides the next, so that spans can be joined.
pub(super) const LENGTHS: [u64; 21] = [
    1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 691200,
    1382400, 2764800, 27648000, 276480000, 5529600000,
];

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Span {
    /// The start, in s since the Unix epoch.
    pub(super) from: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The refused requests of banned identities.
    pub(super) banned: u64,
    /// The refused requests by rule, in the order of policies and rules.
    pub(super) by_rule: Vec<u64>,
}

#[derive(Serialize)]
pub(super) struct OverTime {
    /// The length of each span.
    pub(super) seconds: u64,
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, Default)]
pub(super) struct Timeline {
    /// The index of the length in `LENGTHS`.
    length: usize,
    /// The number of rules that are counted.
    rules: usize,
    /// Indexed by the start, in s since the Unix epoch.
    spans: BTreeMap<u64, Span>,
}

impl Timeline {
    pub(super) fn new(rules: usize) -> Self {
        let empty = Self::default();
        Self { rules, ..empty }
    }

    /// The span that contains this time.
    pub(super) fn at(&mut self, ms: u64) -> &mut Span {
        let start = |length: u64| ms / 1_000 / length * length;
        while self.spans.len() >= MAX_SPANS
            && !self.spans.contains_key(&start(LENGTHS[self.length]))
            && self.length + 1 < LENGTHS.len()
        {
            self.lengthen();
        }
        self.span(start(LENGTHS[self.length]))
    }

    fn span(&mut self, from: u64) -> &mut Span {
        let by_rule = || vec![0; self.rules];
        self.spans.entry(from).or_insert_with(|| Span {
            from,
            by_rule: by_rule(),
            ..Span::default()
        })
    }

    fn lengthen(&mut self) {
        self.length += 1;
        let length = LENGTHS[self.length];
        for (start, span) in std::mem::take(&mut self.spans) {
            let joined = self.span(start / length * length);
            joined.requests += span.requests;
            joined.refused += span.refused;
            joined.banned += span.banned;
            let rules = joined.by_rule.iter_mut().zip(span.by_rule);
            rules.for_each(|(all, more)| *all += more);
        }
    }

    /// All spans from the first to the last, including empty ones. There are at most `most`.
    pub(super) fn spans(&self, most: u64) -> OverTime {
        let mut copy = self.clone();
        let ends = |it: &Self| Some((*it.spans.keys().next()?, *it.spans.keys().next_back()?));
        let mut seconds = LENGTHS[copy.length];
        while let Some((first, last)) = ends(&copy) {
            if (last - first) / seconds < most || copy.length + 1 == LENGTHS.len() {
                for at in 0..(last - first) / seconds {
                    copy.span(first + at * seconds);
                }
                break;
            }
            copy.lengthen();
            seconds = LENGTHS[copy.length];
        }
        let spans = copy.spans.into_values().collect();
        OverTime { seconds, spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_spans_become_longer() {
        let mut timeline = Timeline::default();
        for second in 0..100_000 {
            timeline.at(1_700_000_000_000 + second * 1_000).requests += 1;
            assert!(timeline.spans.len() <= MAX_SPANS);
        }
        let OverTime {
            seconds: length,
            spans,
        } = timeline.spans(24);
        assert!(
            spans.len() <= 24 && spans.len() > 8,
            "{length}: {}",
            spans.len()
        );
        assert_eq!(spans.iter().map(|span| span.requests).sum::<u64>(), 100_000);
    }

    #[test]
    fn times_at_which_nothing_came_are_told() {
        let mut timeline = Timeline::default();
        for ms in [10_500, 13_000] {
            timeline.at(ms).requests += 1;
        }
        let OverTime {
            seconds: length,
            spans,
        } = timeline.spans(24);
        let requests: Vec<_> = spans
            .iter()
            .map(|span| (span.from, span.requests))
            .collect();
        assert_eq!(
            (length, requests),
            (1, vec![(10, 1), (11, 0), (12, 0), (13, 1)])
        );
        assert_eq!(Timeline::default().spans(24).spans.len(), 0);
    }
}
