//! The boundaries of periods: the first instants of days, by the clocks of a time zone.

use std::{cell::Cell, time::Duration};

use jiff::{
    Timestamp,
    civil::{Date, Time},
    tz::{AmbiguousOffset, TimeZone},
};
use smallvec::smallvec;

use super::{Boundaries, Calendar, Period, Periods};

/// Later times count as this one, in the year 9000, since dates end with the year 9999.
const LAST_MS: u64 = 221_845_392_000_000;

/// Each thread keeps the periods of this many calendars, so that few checks compute any.
const KEPT: usize = 16;

thread_local! {
    static LATEST: [Cell<Option<(Calendar, Periods)>>; KEPT] = const { [const { Cell::new(None) }; KEPT] };
    static LATEST_BOUNDARIES: [KeptBoundaries; KEPT] = const { [const { Cell::new(None) }; KEPT] };
}

/// Returns the periods around a time: mostly those of the last question.
pub(super) fn cached(calendar: Calendar, place: usize, zone: &TimeZone, at_ms: u64) -> Periods {
    LATEST.with(|latest| {
        let kept = &latest[place % KEPT];
        if let Some((of, periods)) = kept.get()
            && of == calendar
            && periods.start_ms <= at_ms
            && at_ms < periods.end_ms
        {
            return periods;
        }
        let periods = Days { calendar, zone }.periods(at_ms);
        kept.set(Some((calendar, periods)));
        periods
    })
}

/// The boundaries of a calendar that a thread keeps, and how far around a time they reach.
type KeptBoundaries = Cell<Option<(Calendar, u64, Boundaries)>>;

/// Returns the boundaries of the periods that contain a time within `around_ms` of this one, and the ends of two more.
pub(super) fn cached_boundaries(
    calendar: Calendar,
    place: usize,
    zone: &TimeZone,
    at_ms: u64,
    around_ms: u64,
) -> Boundaries {
    let (first_ms, last_ms) = (
        at_ms.saturating_sub(around_ms),
        at_ms.saturating_add(around_ms).min(LAST_MS),
    );
    LATEST_BOUNDARIES.with(|latest| {
        let place = &latest[place % KEPT];
        let kept = place.take().filter(|(of, reach, boundaries)| {
            *of == calendar && *reach == around_ms && are_around(boundaries, first_ms, last_ms)
        });
        let (.., boundaries) = kept.unwrap_or_else(|| {
            let days = Days { calendar, zone };
            (calendar, around_ms, days.boundaries(first_ms, last_ms))
        });
        place.set(Some((calendar, around_ms, boundaries.clone())));
        boundaries
    })
}

/// Whether the first of these periods contains the first time, and the third from last ends after the last.
fn are_around(boundaries: &[u64], first_ms: u64, last_ms: u64) -> bool {
    let holds = |pair: &[u64], at_ms| pair[0] <= at_ms && at_ms < pair[1];
    let last = boundaries.len() - 4;
    holds(boundaries, first_ms) && holds(&boundaries[last..], last_ms)
}

/// The first days of the periods of a calendar.
struct Days<'a> {
    calendar: Calendar,
    zone: &'a TimeZone,
}

impl Days<'_> {
    fn periods(&self, at_ms: u64) -> Periods {
        let first = self.first_day_at(at_ms);
        let (end, end_ms) = self.end_after(first, self.start_ms(first));
        let mut last = (end, end_ms);
        let later_ends_ms = [(); 3].map(|()| {
            last = self.end_after(last.0, last.1);
            last.1
        });
        Periods {
            start_ms: self.start_ms(first),
            end_ms,
            later_ends_ms,
        }
    }

    fn boundaries(&self, first_ms: u64, last_ms: u64) -> Boundaries {
        let mut day = self.first_day_at(first_ms);
        let mut boundaries = smallvec![self.start_ms(day)];
        let mut later = 0;
        while later < 3 {
            let end_ms;
            (day, end_ms) = self.end_after(day, boundaries[boundaries.len() - 1]);
            boundaries.push(end_ms);
            later += usize::from(end_ms > last_ms);
        }
        boundaries
    }

    /// Returns the first day of the next period that is not skipped as a whole, and when it begins.
    fn end_after(&self, first: Date, start_ms: u64) -> (Date, u64) {
        let mut next = self.next(first);
        if self.start_ms(next) <= start_ms {
            next = self.next(next);
        }
        (next, self.start_ms(next))
    }

    /// Returns the first day of the period that contains a time. Near a boundary, clocks that are set back can show a
    /// day of the period before although the later one has begun.
    fn first_day_at(&self, at_ms: u64) -> Date {
        let at_ms = at_ms.min(LAST_MS);
        let at = Timestamp::from_millisecond(at_ms.cast_signed()).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut first = self.first_day(self.zone.to_datetime(at).date());
        while self.start_ms(self.next(first)) <= at_ms {
            first = self.next(first);
        }
        while self.start_ms(first) > at_ms {
            first = self.first_day(first.yesterday().unwrap_or(Date::MIN));
        }
        first
    }

    /// Returns the first day of the period that this day belongs to.
    fn first_day(&self, day: Date) -> Date {
        match self.calendar.period {
            Period::Day => day,
            Period::Week => back(day, day.weekday().to_monday_zero_offset()),
            Period::Year => day.first_of_year(),
            Period::Month => match self.anchored(day) {
                first if first <= day => first,
                _ => self.anchored(back(day.first_of_month(), 1)),
            },
        }
    }

    /// Returns the first day of the next period, from the first day of a period.
    fn next(&self, first: Date) -> Date {
        match self.calendar.period {
            Period::Day => forth(first, 1),
            Period::Week => forth(first, 7),
            Period::Month => self.anchored(forth(first.last_of_month(), 1)),
            Period::Year => forth(first.first_of_year(), 366).first_of_year(),
        }
    }

    /// Returns the day of this month on which a period begins: the last day of a shorter month.
    fn anchored(&self, month: Date) -> Date {
        let day = self
            .calendar
            .from_day
            .min(month.days_in_month().cast_unsigned());
        forth(month.first_of_month(), i64::from(day) - 1)
    }

    /// Returns the first instant of a day, or the next that exists if clocks skip it; 0 if it is before 1970.
    fn start_ms(&self, day: Date) -> u64 {
        let midnight = self
            .zone
            .to_ambiguous_timestamp(day.to_datetime(Time::midnight()));
        let is_skipped = matches!(midnight.offset(), AmbiguousOffset::Gap { .. });
        // If midnight comes twice, this is the first; if clocks skip midnight, this is a time after the change.
        let Ok(start) = midnight.compatible() else {
            return u64::MAX >> 16;
        };
        let ms = if is_skipped {
            self.change_before(start)
        } else {
            start
        }
        .as_millisecond();
        u64::try_from(ms).unwrap_or(0)
    }

    /// Returns the last time up to this one at which clocks were changed.
    fn change_before(&self, at: Timestamp) -> Timestamp {
        let after = at.checked_add(Duration::from_nanos(1)).unwrap_or(at);
        let change = self.zone.preceding(after).next();
        change.map_or(at, |change| change.timestamp())
    }
}

fn forth(day: Date, days: i64) -> Date {
    day.saturating_add(jiff::Span::new().days(days))
}

fn back(day: Date, days: i8) -> Date {
    forth(day, -i64::from(days))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::calendar::Zone;

    const DAY_MS: u64 = 86_400_000;

    fn daily(zone: &TimeZone) -> Days<'_> {
        Days {
            calendar: Calendar::new(Period::Day, 1, Zone::parse("UTC").unwrap()),
            zone,
        }
    }

    /// No zone has had such a change since 1970, but one may.
    #[test]
    fn a_day_whose_midnight_is_skipped_with_time_before_it_begins_at_the_change() {
        let zone = TimeZone::posix("STD0DST-2,J2/23:00,J300/0:00").unwrap(); // from 23:00 of the 2nd to 1:00 of the 3rd
        let change_ms = 2 * DAY_MS - 3_600_000;
        assert_eq!(daily(&zone).periods(change_ms - 1).end_ms, change_ms);
        let third = daily(&zone).periods(change_ms);
        assert_eq!(
            (third.start_ms, third.end_ms),
            (change_ms, 3 * DAY_MS - 7_200_000)
        );
    }

    #[test]
    fn boundaries_are_those_of_the_periods_around_and_of_two_more() {
        for text in [
            "month@Pacific/Kiritimati",
            "day@Pacific/Apia",
            "week@Europe/Berlin",
        ] {
            let rule: crate::domain::rule::Rule = format!("1/{text}").parse().unwrap();
            let calendar = rule.in_calendar().unwrap();
            for at_ms in (0..200).map(|hours| 1_325_030_400_000 + hours * 3_600_000) {
                let around_ms = 48 * 3_600_000;
                let boundaries = calendar.boundaries_ms(at_ms, around_ms);
                let (first_ms, last_ms) = (at_ms - 2 * DAY_MS, at_ms + 2 * DAY_MS);
                assert!(boundaries[0] <= first_ms && boundaries[1] > first_ms);
                let later = boundaries.iter().filter(|end| **end > last_ms);
                assert_eq!(later.count(), 3);
                for pair in boundaries.windows(2) {
                    let periods = calendar.periods(pair[0]);
                    assert_eq!((periods.start_ms, periods.end_ms), (pair[0], pair[1]));
                    assert_eq!(calendar.periods(pair[1] - 1), periods);
                }
            }
        }
    }

    #[test]
    fn what_a_thread_keeps_is_never_an_answer_for_another_calendar_or_time() {
        let mut random = fastrand::Rng::with_seed(7);
        let zones: Vec<Zone> = Zone::all().collect();
        for _ in 0..2_000 {
            let period = Period::ALL[random.usize(..4)];
            let from_day = if period == Period::Month {
                random.u8(1..=31)
            } else {
                1
            };
            // Few of them, so that they meet in the places of the thread.
            let calendar = Calendar::new(period, from_day, zones[random.usize(..3) * KEPT]);
            let at_ms = 1_700_000_000_000 + random.u64(..DAY_MS * 3);
            let fresh = std::thread::spawn(move || calendar.periods(at_ms))
                .join()
                .unwrap();
            assert_eq!(calendar.periods(at_ms), fresh, "{calendar}");
        }
    }
}
