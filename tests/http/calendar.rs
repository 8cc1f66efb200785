//! Headers of calendar rules: the length of the current period, and the time to its end.

use chrono::DateTime;
use sluicegate::calendar::Period;
use std::time::SystemTime;

use crate::prelude::*;

/// 2027-02-28T23:00:00Z: March begins in Berlin.
const MARCH_MS: u64 = 1_803_855_600_000;

const DAY_S: u64 = 86_400;

/// March has a day of 23 hours.
const OF_MARCH_S: u64 = 31 * DAY_S - 3_600;

fn limiter(at_ms: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new(at_ms);
    let store = MemoryStore::new().clock(clock.clone());
    (support::limiter(store), clock)
}

fn quota(limit: u64) -> Policy {
    let rule = Rule::per_month(limit).in_zone("Europe/Berlin").unwrap();
    Policy::new("quota", [rule]).unwrap()
}

#[tokio::test]
async fn w_is_the_length_of_the_current_period_and_t_the_time_to_its_end() {
    let (limiter, clock) = limiter(MARCH_MS - 1);
    let fixed = support::layer(limiter.clone()).limit(quota(9), alice());
    let chosen = support::layer(limiter.clone()).limit(Routes::new(quota(9)), alice());
    let end_ms = MARCH_MS + OF_MARCH_S * 1_000;
    // The last millisecond of February, and the first of March.
    for (at_ms, w, t, r) in [
        (MARCH_MS - 1, 28 * DAY_S, 1, [8, 7]),
        (MARCH_MS, OF_MARCH_S, OF_MARCH_S, [8, 7]),
        (MARCH_MS + 1_500, OF_MARCH_S, OF_MARCH_S - 1, [6, 5]),
        (end_ms, 30 * DAY_S, 30 * DAY_S, [8, 7]),
    ] {
        clock.set(at_ms);
        for (layer, r) in [&fixed, &chosen].into_iter().zip(r) {
            let fields = format!(r#""quota";r={r};t={t} | ratelimit-policy: "quota";q=9;w={w}"#);
            let expected = format!("200 | ratelimit: {fields}");
            assert_eq!(told(&ask(layer).await), expected);
        }
    }
}

#[tokio::test]
async fn rules_of_several_periods_and_kinds_are_listed_by_name() {
    let rules = "100/1m,9/week@Europe/Berlin,9/month:15@UTC,9/year@UTC";
    let layer = support::layer(limiter(MARCH_MS).0).limit(policy("quota", rules), alice());
    let response = ask(&layer).await;
    let expected = r#""quota/1m";q=100;w=60, "quota/week@Europe/Berlin";q=9;w=604800, "quota/month:15@UTC";q=9;w=2419200, "quota/year@UTC";q=9;w=31536000"#;
    assert_eq!(field(response.headers(), "ratelimit-policy"), expected);
    // Monday begins at the same time as March. The month ends on the 15th, and the year in 306 days and an hour.
    let (year_s, month_s) = (306 * DAY_S + 3_600, 14 * DAY_S + 3_600);
    assert_eq!(
        field(response.headers(), "ratelimit"),
        format!(
            r#""quota/1m";r=99;t=61, "quota/week@Europe/Berlin";r=8;t=604800, "quota/month:15@UTC";r=8;t={month_s}, "quota/year@UTC";r=8;t={year_s}"#
        )
    );
}

#[tokio::test]
async fn a_denial_of_weeks_is_told_in_seconds_to_the_last_of_them() {
    let (limiter, clock) = limiter(MARCH_MS + 1);
    for (period, seconds) in [(Period::Month, OF_MARCH_S), (Period::Year, 306 * DAY_S)] {
        let rule = Rule::calendar(1, period).in_zone("Europe/Berlin").unwrap();
        let policy = Policy::new(period.as_str(), [rule]).unwrap();
        let style = HeaderStyle::DRAFT_11
            .and(HeaderStyle::DRAFT_6)
            .and(HeaderStyle::X_RATE_LIMIT);
        let layer = support::layer(limiter.clone());
        let layer = layer.headers(style).limit(policy.clone(), alice());
        clock.set(MARCH_MS + 1);
        assert_eq!(ask(&layer).await.status(), 200);
        let denied = ask(&layer).await;
        assert_eq!(denied.status(), 429);
        // Rounded up: the last second has begun.
        for name in ["retry-after", "ratelimit-reset", "x-ratelimit-reset"] {
            assert_eq!(field(denied.headers(), name), seconds.to_string(), "{name}");
        }
        let item = format!(r#""{}";r=0;t={seconds}"#, policy.name());
        assert_eq!(field(denied.headers(), "ratelimit"), item);
        clock.set(MARCH_MS + seconds * 1_000 - 1);
        let denied = ask(&layer).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(field(denied.headers(), "retry-after"), "1");
        clock.set(MARCH_MS + seconds * 1_000);
        assert_eq!(ask(&layer).await.status(), 200);
    }
}

#[tokio::test]
async fn a_denial_of_weeks_has_a_date_where_you_choose_so_and_a_short_one_has_seconds() {
    let (limiter, clock) = limiter(MARCH_MS);
    let style = HeaderStyle::NONE.dates_from(Duration::from_secs(DAY_S));
    let layer = support::layer(limiter).headers(HeaderStyle::DRAFT_11.and(style));
    let layer = layer.limit(quota(1), alice());
    assert_eq!(ask(&layer).await.status(), 200);
    let before = SystemTime::now();
    let denied = ask(&layer).await;
    let after = SystemTime::now() + Duration::from_secs(1);
    let date = field(denied.headers(), "retry-after");
    let date = DateTime::parse_from_rfc2822(date).expect(date);
    let date = Duration::from_secs(date.timestamp().try_into().unwrap());
    let date = SystemTime::UNIX_EPOCH + date;
    let wait = Duration::from_secs(OF_MARCH_S);
    assert!((before + wait..=after + wait).contains(&date), "{date:?}");
    let item = format!(r#""quota";r=0;t={OF_MARCH_S}"#);
    assert_eq!(field(denied.headers(), "ratelimit"), item);
    clock.set(MARCH_MS + (OF_MARCH_S - DAY_S + 1) * 1_000);
    let denied = ask(&layer).await;
    let expected = (DAY_S - 1).to_string();
    assert_eq!(field(denied.headers(), "retry-after"), expected);
}
