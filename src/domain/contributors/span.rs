//! [`Span`]: the sixth of a window that contributions are added up in.

use std::time::Duration;

use crate::domain::{
    policy::Policy,
    rule::{MAX_WINDOW, Rule, millis},
};

/// So many make up a window.
const SPANS: u64 = 6;

/// Shorter ones would be over before their contributions are reported, once a second.
const MIN_SPAN_MS: u64 = 2_000;

/// The sixth of a window that a time falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start_ms: u64,
    /// The first millisecond after it.
    end_ms: u64,
    pub(crate) length_ms: u64,
}

impl Span {
    /// Of the longest window of a policy.
    pub(crate) fn at(policy: &Policy, at_ms: u64) -> Self {
        let rule = longest(policy);
        let (length_ms, begin_ms) = (length_ms(rule), begin_ms(rule, at_ms));
        Self::new(rule, at_ms - (at_ms - begin_ms) % length_ms, length_ms)
    }

    fn new(rule: &Rule, start_ms: u64, length_ms: u64) -> Self {
        let mut end_ms = start_ms.saturating_add(length_ms);
        if is_aligned(rule) {
            // The last one of a window that six does not divide is shorter.
            end_ms = end_ms.min(begin_ms(rule, start_ms) + millis(rule.window()));
        }
        Self {
            start_ms,
            end_ms,
            length_ms,
        }
    }

    /// Those that make up the window that this time is in.
    pub(crate) fn window(policy: &Policy, now_ms: u64) -> impl Iterator<Item = Self> {
        let rule = longest(policy);
        let newest = Self::at(policy, now_ms);
        let begin_ms = begin_ms(rule, now_ms);
        (0..=SPANS)
            .map_while(move |back| newest.start_ms.checked_sub(back * newest.length_ms))
            .take_while(move |start_ms| *start_ms >= begin_ms)
            .map(move |start_ms| Self::new(rule, start_ms, newest.length_ms))
    }

    pub(crate) const fn contains(&self, at_ms: u64) -> bool {
        self.start_ms <= at_ms && at_ms < self.end_ms
    }

    /// When it is no longer part of a window.
    pub(crate) const fn release_ms(&self) -> u64 {
        self.start_ms.saturating_add((SPANS + 1) * self.length_ms)
    }
}

/// The first of them, if several are equal.
fn longest(policy: &Policy) -> &Rule {
    let rules = policy.rules();
    let longest = rules.iter().rev().max_by_key(|rule| window(rule));
    longest.unwrap_or(&rules[0])
}

/// For how long what was charged counts: of a bucket, as long as a full refill takes.
fn window(rule: &Rule) -> Duration {
    rule.quota_window().min(MAX_WINDOW)
}

fn length_ms(rule: &Rule) -> u64 {
    millis(window(rule)).div_ceil(SPANS).max(MIN_SPAN_MS)
}

/// From when on spans are counted: the begin of a fixed window, the epoch for any other.
fn begin_ms(rule: &Rule, at_ms: u64) -> u64 {
    if is_aligned(rule) {
        at_ms - at_ms % millis(rule.window())
    } else {
        0
    }
}

/// Whether the window begins at times of its own, and is long enough for that to show in reports.
fn is_aligned(rule: &Rule) -> bool {
    rule.is_fixed() && millis(rule.window()) >= SPANS * MIN_SPAN_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(rules: &str, now_ms: u64) -> Vec<u64> {
        let policy = Policy::parse("p", rules).unwrap();
        Span::window(&policy, now_ms)
            .map(|span| span.start_ms)
            .collect()
    }

    #[test]
    fn the_window_of_a_bucket_is_the_time_of_a_full_refill() {
        for (rules, length_ms) in [
            ("600+1/1s@bucket", 100_000),
            ("600+1/1s@bucket,9/1h", 600_000),
            ("600+1/1s@bucket,9/1m", 100_000),
            ("0+1/1h@bucket", MIN_SPAN_MS),
        ] {
            let policy = Policy::parse("p", rules).unwrap();
            assert_eq!(Span::at(&policy, 1_000_000).length_ms, length_ms, "{rules}");
        }
        let slowest = Rule::new(1, Duration::from_millis(1)).bucket((1 << 53) - 1);
        let policy = Policy::new("p", [slowest]).unwrap();
        for now_ms in [0, 1_700_000_000_000, (1 << 48) - 1] {
            assert!(Span::window(&policy, now_ms).count() > 0);
            assert!(Span::at(&policy, now_ms).release_ms() < 1 << 49);
        }
    }

    #[test]
    fn seven_sixths_cover_a_sliding_window_at_every_millisecond() {
        let policy = Policy::parse("p", "1/1s,9/1m").unwrap();
        for now_ms in 1_000_000..1_020_001 {
            let spans: Vec<Span> = Span::window(&policy, now_ms).collect();
            assert_eq!(spans.len(), 7);
            for back in [0, 1, 9_999, 10_000, 59_999, 60_000] {
                let then = Span::at(&policy, now_ms - back);
                assert!(spans.contains(&then) && then.contains(now_ms - back));
            }
            assert!(!spans.contains(&Span::at(&policy, now_ms - 70_000)));
            let oldest = spans.last().unwrap();
            assert!(oldest.release_ms() > now_ms, "it must not have expired");
        }
    }

    #[test]
    fn a_fixed_window_begins_anew() {
        assert_eq!(starts("9/1m@fixed", 600_000), [600_000]);
        assert_eq!(
            starts("9/1m@fixed", 659_999),
            [650_000, 640_000, 630_000, 620_000, 610_000, 600_000]
        );
        // Seconds that six does not divide.
        assert_eq!(starts("9/13s@fixed", 26_000), [26_000]);
        let last = starts("9/13s@fixed", 38_999);
        assert_eq!(last.first(), Some(&36_835));
        assert_eq!(last.last(), Some(&26_000));
    }

    #[test]
    fn a_short_window_is_twelve_seconds_long() {
        assert_eq!(starts("9/1s", 101_999).last(), Some(&88_000));
        assert_eq!(starts("9/1s@fixed", 101_999).len(), 7);
        assert_eq!(starts("9/1s", 0), [0]);
    }
}
