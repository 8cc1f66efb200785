//! Proves that periods begin and end when a second implementation of the calendar and of the time zones says so.

use chrono::{DateTime, Datelike, Days, LocalResult, NaiveDate, TimeDelta, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use sluicegate::{Rule, calendar::Period};

const FIRST_MS: u64 = 1_577_836_800_000; // 2020
const LAST_MS: u64 = 2_208_988_800_000; // 2040

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

fn rule(zone: Tz, period: Period, from_day: u8) -> Option<Rule> {
    let rule = Rule::calendar(1, period).from_day(from_day);
    rule.in_zone(zone.name()).ok()
}

#[test]
fn ten_thousand_random_periods_end_when_another_implementation_says() {
    let mut random = fastrand::Rng::with_seed(36);
    let (mut compared, mut differing) = (0, Vec::new());
    while compared < 10_000 {
        let zone = TZ_VARIANTS[random.usize(..TZ_VARIANTS.len())];
        let period = PERIODS[random.usize(..PERIODS.len())];
        let from_day = if period == Period::Month {
            random.u8(1..=31)
        } else {
            1
        };
        let mut at_ms = random.u64(FIRST_MS..LAST_MS);
        let Some(rule) = rule(zone, period, from_day) else {
            continue;
        };
        if random.bool() {
            // Half of them near an end.
            let end_ms = end_ms(zone, period, from_day, at_ms);
            at_ms = random.u64(end_ms - 7_200_000..end_ms + 7_200_000);
        }
        compared += 1;
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
