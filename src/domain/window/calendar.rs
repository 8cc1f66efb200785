//! Calendar rules: the count of one period, and when that period ends.
//!
//! ```text
//!      charged here                             released here
//!           ▼                                        ▼
//! ──┬───────x────────────────────────────────────────┬──────────▶ t
//!   │                  this period                   │   next
//! ```
//!
//! Replicas can disagree about when a period ends, if their zone data differ. The count is kept until the later of
//! their ends, so that no limit is lifted.

use std::iter::once;

use super::Count;
use crate::domain::calendar::Calendar;

/// Two ends that are nearer than this are ends of the same period, by zone data that differ: a day lasts longer.
const SAME_END_MS: u64 = 12 * 3_600_000;

/// A period that begins later than this after the clock was charged while the clock was wrong.
const AHEAD_MS: u64 = 48 * 3_600_000;

/// The units of one period. If there are none, the end means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeriodCount {
    calendar: Calendar,
    used: u64,
    end_ms: u64,
}

/// The units that count at some time.
struct View {
    used: u64,
    /// When the count ends: when this period does, or, by other zone data, the period of the count if that is later.
    end_ms: u64,
    /// When this period ends if a unit is charged now.
    charged_end_ms: u64,
}

impl PeriodCount {
    pub(crate) const fn new(calendar: Calendar) -> Self {
        Self::from_parts(calendar, 0, 0)
    }

    /// Creates the count of a period that ends at this time.
    pub(crate) const fn from_parts(calendar: Calendar, used: u64, end_ms: u64) -> Self {
        Self {
            calendar,
            used,
            end_ms,
        }
    }

    pub(crate) const fn calendar(&self) -> Calendar {
        self.calendar
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns when the units are released; 0 when there are none.
    pub(crate) const fn release_ms(&self) -> u64 {
        if self.is_empty() { 0 } else { self.end_ms }
    }

    /// Returns the units that count now, and when `cost` fits under `limit` if it does not fit yet.
    pub(crate) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        let View { used, end_ms, .. } = self.view(now_ms);
        let has_room = limit.checked_sub(cost).is_none_or(|room| used <= room);
        Count {
            used,
            newest_end_ms: if used > 0 { end_ms } else { 0 },
            fits_at_ms: if has_room { 0 } else { end_ms },
        }
    }

    /// Adds `units`, above 0, to this period.
    pub(crate) fn charge(&mut self, now_ms: u64, units: u64) {
        let view = self.view(now_ms);
        self.used = view.used + units;
        self.end_ms = view.charged_end_ms;
    }

    /// Returns how many units of the period that was charged count now.
    pub(crate) fn counting_units(&self, now_ms: u64, charged_end_ms: u64) -> u64 {
        let view = self.view(now_ms);
        if charged_end_ms.abs_diff(view.end_ms) < SAME_END_MS {
            view.used
        } else {
            0
        }
    }

    /// Takes units that [count](Self::counting_units).
    pub(crate) fn take(&mut self, now_ms: u64, units: u64) {
        let view = self.view(now_ms);
        self.used = view.used.saturating_sub(units);
        self.end_ms = view.end_ms;
    }

    /// Returns all that is kept: after a write, the units that counted at the time of the write, and the change.
    pub(crate) const fn kept(&self) -> Count {
        Count::of(self.used, self.release_ms())
    }

    fn view(&self, now_ms: u64) -> View {
        let periods = self.calendar.periods(now_ms);
        let mut ends = once(periods.end_ms).chain(periods.later_ends_ms);
        let last_ms = ends.find(|end_ms| *end_ms > now_ms.saturating_add(AHEAD_MS));
        // Later ends were written while the clock was wrong.
        let believed_ms = last_ms.map_or(u64::MAX, |end_ms| end_ms.saturating_add(SAME_END_MS - 1));
        // An end within this period, and not near its end, is a later end of the period before: the count is kept until
        // then.
        let is_same = self.end_ms.saturating_add(SAME_END_MS) > periods.end_ms;
        let is_believed = periods.start_ms < self.end_ms && self.end_ms <= believed_ms;
        let counts = is_believed && (is_same || now_ms < self.end_ms) && self.used > 0;
        let (used, end_ms) = match counts {
            true if is_same => (self.used, self.end_ms.max(periods.end_ms)),
            true => (self.used, self.end_ms),
            false => (0, periods.end_ms),
        };
        View {
            used,
            end_ms,
            charged_end_ms: end_ms.max(periods.end_ms),
        }
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests {
    use super::*;
    use crate::domain::rule::Rule;

    const HOUR_MS: u64 = 3_600_000;

    /// 2027-03-01T00:00:00Z
    const END_MS: u64 = 1_803_859_200_000;

    /// The count of a month that another process ends this much later, or earlier.
    fn count(used: u64, end_ms: u64) -> PeriodCount {
        let rule: Rule = "9/month@UTC".parse().unwrap();
        PeriodCount::from_parts(rule.in_calendar().unwrap(), used, end_ms)
    }

    #[test]
    fn a_count_is_kept_until_the_later_end_by_another_process_and_no_longer() {
        let later = count(9, END_MS + HOUR_MS);
        for now_ms in [END_MS - 1, END_MS, END_MS + HOUR_MS - 1] {
            let look = later.look(now_ms, 9, 1);
            assert_eq!((look.used, look.fits_at_ms), (9, END_MS + HOUR_MS));
        }
        assert_eq!(later.look(END_MS + HOUR_MS, 9, 1).used, 0);
    }

    #[test]
    fn a_count_is_kept_until_the_own_end_if_that_is_later() {
        let earlier = count(9, END_MS - HOUR_MS);
        for now_ms in [END_MS - HOUR_MS - 1, END_MS - HOUR_MS, END_MS - 1] {
            let look = earlier.look(now_ms, 9, 1);
            assert_eq!((look.used, look.fits_at_ms), (9, END_MS));
        }
        assert_eq!(earlier.look(END_MS, 9, 1).used, 0);
    }

    #[test]
    fn a_count_that_another_process_ends_later_is_believed_all_the_time() {
        let later = count(9, END_MS + HOUR_MS);
        for hours in [24 * 27, 49, 48, 47, 1] {
            assert_eq!(later.look(END_MS - hours * HOUR_MS, 9, 1).used, 9);
        }
    }

    #[test]
    fn a_charge_between_the_two_ends_takes_the_count_along() {
        let mut count = count(5, END_MS + HOUR_MS);
        count.charge(END_MS + 1, 2);
        let april_ms = END_MS + 31 * 24 * HOUR_MS;
        assert_eq!((count.used, count.end_ms), (7, april_ms));
        assert_eq!(count.look(april_ms - 1, 9, 1).used, 7);
        assert_eq!(count.look(april_ms, 9, 1).used, 0);
    }
}
