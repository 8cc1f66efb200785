//! The boundaries of periods: the first instants of days, by the clocks of a time zone.

use std::{cell::RefCell, time::Duration};

use jiff::{
    Timestamp,
    civil::{Date, Time},
    tz::{AmbiguousOffset, TimeZone},
};
use smallvec::smallvec;

use super::{Boundaries, Calendar, MOST_AROUND_MS, Period};

/// Later times count as this one, in the year 9000, since dates end with the year 9999.
const LAST_MS: u64 = 221_845_392_000_000;

/// Each thread keeps the boundaries of this many calendars, so that few checks compute any.
const KEPT: usize = 16;

/// How many ends a question needs that are later than its last time.
const LATER: usize = 4;

type Kept = RefCell<Option<(Calendar, Boundaries)>>;

thread_local! {
    static LATEST: [Kept; KEPT] = const { [const { RefCell::new(None) }; KEPT] };
}

/// Reads the boundaries of the periods that contain a time within `reach_ms` of this one, and the ends of three more:
/// mostly they are among those of the last question.
pub(super) fn read<T>(
    calendar: Calendar,
    place: usize,
    zone: &TimeZone,
    (at_ms, reach_ms): (u64, u64),
    read: impl FnOnce(&[u64]) -> T,
) -> T {
    let around = |reach_ms| {
        let last_ms = at_ms.saturating_add(reach_ms).min(LAST_MS);
        (at_ms.saturating_sub(reach_ms).min(LAST_MS), last_ms)
    };
    let (first_ms, last_ms) = around(reach_ms);
    LATEST.with(|latest| {
        let mut kept = latest[place % KEPT].borrow_mut();
        let is_about = |(of, all): &(Calendar, Boundaries)| {
            *of == calendar && all[0] <= first_ms && last_ms < all[all.len() - LATER]
        };
        if !kept.as_ref().is_some_and(is_about) {
            *kept = None;
        }
        let (_, all) = kept.get_or_insert_with(|| {
            let (first_ms, last_ms) = around(MOST_AROUND_MS);
            let days = Days { calendar, zone };
            (calendar, days.boundaries(first_ms, last_ms))
        });
        let begin = all.partition_point(|start_ms| *start_ms <= first_ms);
        let end = all.partition_point(|end_ms| *end_ms <= last_ms);
        read(&all[begin.saturating_sub(1)..end + LATER])
    })
}

/// The first days of the periods of a calendar.
struct Days<'a> {
    calendar: Calendar,
    zone: &'a TimeZone,
}

impl Days<'_> {
    fn boundaries(&self, first_ms: u64, last_ms: u64) -> Boundaries {
        let mut day = self.first_day_at(first_ms);
        let mut end_ms = self.start_ms(day);
        let mut boundaries = smallvec![end_ms];
        let mut later = 0;
        while later < LATER {
            day = self.next(day);
            // A period that is skipped as a whole begins when the next one does.
            if self.start_ms(day) <= end_ms {
                day = self.next(day);
            }
            end_ms = self.start_ms(day);
            boundaries.push(end_ms);
            later += usize::from(end_ms > last_ms);
        }
        boundaries
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
        let period = |at_ms| daily(&zone).boundaries(at_ms, at_ms)[..2].to_vec();
        assert_eq!(period(change_ms - 1)[1], change_ms);
        assert_eq!(period(change_ms), [change_ms, 3 * DAY_MS - 7_200_000]);
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
                let boundaries = calendar.boundaries_ms(at_ms);
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
