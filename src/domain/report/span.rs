//! [`Span`]: the sixth of a window in which units are added up.

use std::time::Duration;

use crate::domain::{
    policy::Policy,
    rule::{MAX_WINDOW, Rule, millis},
};

/// This many spans make up a window.
const SPANS: u64 = 6;

/// A shorter span would end before its units are reported, once a second.
const MIN_SPAN_MS: u64 = 2_000;

/// The sixth of a window that contains a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start_ms: u64,
    /// The first millisecond after the span.
    end_ms: u64,
    pub(crate) length_ms: u64,
}

impl Span {
    pub(crate) fn at(rule: &Rule, at_ms: u64) -> Self {
        let (length_ms, begin_ms) = (length_ms(rule), begin_ms(rule, at_ms));
        Self::new(rule, at_ms - (at_ms - begin_ms) % length_ms, length_ms)
    }

    fn new(rule: &Rule, start_ms: u64, length_ms: u64) -> Self {
        let mut end_ms = start_ms.saturating_add(length_ms);
        if is_aligned(rule) {
            // If six does not divide the window, the last span is shorter.
            end_ms = end_ms.min(rule.step_end_ms(start_ms));
        }
        Self {
            start_ms,
            end_ms,
            length_ms,
        }
    }

    /// Returns the spans of the window that contains this time.
    pub(crate) fn window(rule: &Rule, now_ms: u64) -> impl Iterator<Item = Self> {
        let newest = Self::at(rule, now_ms);
        let begin_ms = begin_ms(rule, now_ms);
        (0..=SPANS)
            .map_while(move |back| newest.start_ms.checked_sub(back * newest.length_ms))
            .take_while(move |start_ms| *start_ms >= begin_ms)
            .map(move |start_ms| Self::new(rule, start_ms, newest.length_ms))
    }

    /// Returns when the span is no longer part of a window.
    pub(crate) const fn release_ms(&self) -> u64 {
        self.start_ms.saturating_add((SPANS + 1) * self.length_ms)
    }
}

/// Returns the rule whose window counts: the longest, or the first of equal ones.
pub(crate) fn longest(policy: &Policy) -> &Rule {
    let rules = policy.rules();
    let longest = rules.iter().rev().max_by_key(|rule| window(rule));
    longest.unwrap_or(&rules[0])
}

/// Returns how long charges count: for a bucket, as long as a full refill takes.
fn window(rule: &Rule) -> Duration {
    rule.quota_window().min(MAX_WINDOW)
}

fn length_ms(rule: &Rule) -> u64 {
    millis(window(rule)).div_ceil(SPANS).max(MIN_SPAN_MS)
}

/// Returns the start of the first span: of a fixed window the start, else the epoch.
fn begin_ms(rule: &Rule, at_ms: u64) -> u64 {
    match rule.in_calendar() {
        Some(calendar) => calendar.periods(at_ms).start_ms,
        None if is_aligned(rule) => at_ms - at_ms % rule.window_ms(),
        None => 0,
    }
}

/// Returns whether windows start at fixed times, and are long enough for reports to show that.
fn is_aligned(rule: &Rule) -> bool {
    let is_long = rule.window_ms() >= SPANS * MIN_SPAN_MS;
    rule.in_calendar().is_some() || (rule.is_fixed() && is_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(rules: &str, now_ms: u64) -> Vec<u64> {
        let policy = Policy::parse("p", rules).unwrap();
        Span::window(longest(&policy), now_ms)
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
            let span = Span::at(longest(&policy), 1_000_000);
            assert_eq!(span.length_ms, length_ms, "{rules}");
        }
        let slowest = Rule::new(1, Duration::from_millis(1)).bucket((1 << 53) - 1);
        for now_ms in [0, 1_700_000_000_000, (1 << 48) - 1] {
            assert!(Span::window(&slowest, now_ms).count() > 0);
            assert!(Span::at(&slowest, now_ms).release_ms() < 1 << 49);
        }
    }

    #[test]
    fn seven_sixths_cover_a_sliding_window_at_every_millisecond() {
        let policy = Policy::parse("p", "1/1s,9/1m").unwrap();
        let rule = longest(&policy);
        for now_ms in 1_000_000..1_020_001 {
            let spans: Vec<Span> = Span::window(rule, now_ms).collect();
            assert_eq!(spans.len(), 7);
            for back in [0, 1, 9_999, 10_000, 59_999, 60_000] {
                let then = Span::at(rule, now_ms - back);
                let span = then.start_ms..then.end_ms;
                assert!(spans.contains(&then) && span.contains(&(now_ms - back)));
            }
            assert!(!spans.contains(&Span::at(rule, now_ms - 70_000)));
            let oldest = spans.last().unwrap();
            assert!(oldest.release_ms() > now_ms, "it must not have expired");
        }
    }

    #[test]
    fn a_fixed_window_begins_again() {
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
