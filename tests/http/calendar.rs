//! Headers of calendar rules: the length of the current period, and the time to its end.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime},
};

use chrono::DateTime;
use http::{HeaderMap, Request, Response, StatusCode};
use sluicegate::{
    Key, Limiter, MemoryStore, Policy, RateLimitLayer, Rule,
    calendar::Period,
    manual_clock::ManualClock,
    middleware::{Grpc, HeaderStyle, Routes},
};
use tower::{Layer, ServiceExt, service_fn};

/// 2027-02-28T23:00:00Z: March begins in Berlin.
const MARCH_MS: u64 = 1_803_855_600_000;

const DAY_S: u64 = 86_400;

/// A day of 23 hours is in it.
const OF_MARCH_S: u64 = 31 * DAY_S - 3_600;

fn limiter(at_ms: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new(at_ms);
    let store = MemoryStore::new().clock(clock.clone());
    (Limiter::new(store), clock)
}

fn quota(limit: u64) -> Policy {
    let rule = Rule::per_month(limit).in_zone("Europe/Berlin").unwrap();
    Policy::new("quota", [rule]).unwrap()
}

fn alice() -> Key {
    Key::new("user", "alice")
}

async fn get(layer: &RateLimitLayer) -> (StatusCode, HeaderMap) {
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let response = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    (response.status(), response.headers().clone())
}

#[tokio::test]
async fn w_is_the_length_of_the_current_period_and_t_the_time_to_its_end() {
    let (limiter, clock) = limiter(MARCH_MS - 1);
    let fixed = RateLimitLayer::new(limiter.clone()).limit(quota(9), alice());
    let chosen = RateLimitLayer::new(limiter.clone()).limit(Routes::new(quota(9)), alice());
    // The last millisecond of February, and the first of March.
    for (at_ms, w, t, r) in [
        (MARCH_MS - 1, 28 * DAY_S, 1, [8, 7]),
        (MARCH_MS, OF_MARCH_S, OF_MARCH_S, [8, 7]),
        (MARCH_MS + 1_500, OF_MARCH_S, OF_MARCH_S - 1, [6, 5]),
        (
            MARCH_MS + OF_MARCH_S * 1_000,
            30 * DAY_S,
            30 * DAY_S,
            [8, 7],
        ),
    ] {
        clock.set(at_ms);
        for (layer, r) in [&fixed, &chosen].into_iter().zip(r) {
            let (status, headers) = get(layer).await;
            assert_eq!(status, StatusCode::OK);
            assert_eq!(headers["ratelimit-policy"], format!(r#""quota";q=9;w={w}"#));
            assert_eq!(headers["ratelimit"], format!(r#""quota";r={r};t={t}"#));
        }
    }
}

#[tokio::test]
async fn rules_of_several_periods_and_kinds_are_listed_by_name() {
    let (limiter, _) = limiter(MARCH_MS);
    let rules = "100/1m,9/week@Europe/Berlin,9/month:15@UTC,9/year@UTC";
    let policy = Policy::parse("quota", rules).unwrap();
    let layer = RateLimitLayer::new(limiter).limit(policy, alice());
    let (_, headers) = get(&layer).await;
    assert_eq!(
        headers["ratelimit-policy"],
        r#""quota/1m";q=100;w=60, "quota/week@Europe/Berlin";q=9;w=604800, "quota/month:15@UTC";q=9;w=2419200, "quota/year@UTC";q=9;w=31536000"#
    );
    // Monday begins at the same time as March. The month ends on the 15th, and the year in 306 days and an hour.
    let year_s = 306 * DAY_S + 3_600;
    let month_s = 14 * DAY_S + 3_600;
    assert_eq!(
        headers["ratelimit"],
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
        let layer = RateLimitLayer::new(limiter.clone())
            .headers(style)
            .limit(policy.clone(), alice());
        clock.set(MARCH_MS + 1);
        assert_eq!(get(&layer).await.0, StatusCode::OK);
        let (status, headers) = get(&layer).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        // Rounded up: the last second has begun.
        for name in ["retry-after", "ratelimit-reset", "x-ratelimit-reset"] {
            assert_eq!(headers[name], seconds.to_string(), "{name}");
        }
        let name = policy.name();
        assert_eq!(headers["ratelimit"], format!(r#""{name}";r=0;t={seconds}"#));
        clock.set(MARCH_MS + seconds * 1_000 - 1);
        let (status, headers) = get(&layer).await;
        assert_eq!(
            (status, &headers["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
        );
        clock.set(MARCH_MS + seconds * 1_000);
        assert_eq!(get(&layer).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_denial_of_weeks_has_a_date_where_you_choose_so_and_a_short_one_has_seconds() {
    let (limiter, clock) = limiter(MARCH_MS);
    let style = HeaderStyle::NONE.dates_from(Duration::from_secs(DAY_S));
    let style = HeaderStyle::DRAFT_11.and(style);
    let layer = RateLimitLayer::new(limiter)
        .headers(style)
        .limit(quota(1), alice());
    assert_eq!(get(&layer).await.0, StatusCode::OK);
    let before = SystemTime::now();
    let (_, headers) = get(&layer).await;
    let after = SystemTime::now() + Duration::from_secs(1);
    let date = headers["retry-after"].to_str().unwrap();
    let date = DateTime::parse_from_rfc2822(date).expect(date);
    let wait = Duration::from_secs(OF_MARCH_S);
    let date = Duration::from_secs(date.timestamp().try_into().unwrap());
    let date = SystemTime::UNIX_EPOCH + date;
    assert!((before + wait..=after + wait).contains(&date), "{date:?}");
    assert_eq!(
        headers["ratelimit"],
        format!(r#""quota";r=0;t={OF_MARCH_S}"#)
    );
    clock.set(MARCH_MS + (OF_MARCH_S - DAY_S + 1) * 1_000);
    assert_eq!(get(&layer).await.1["retry-after"], (DAY_S - 1).to_string());
}

#[tokio::test]
async fn a_grpc_client_is_told_the_longest_pushback_that_its_field_has_room_for() {
    let (limiter, _) = limiter(MARCH_MS);
    let layer = RateLimitLayer::new(limiter)
        .limit(quota(0), alice())
        .rejection(Grpc::new());
    let of_one = RateLimitLayer::new(self::limiter(MARCH_MS).0)
        .limit(quota(1), alice())
        .rejection(Grpc::new());
    let call = async |layer: &RateLimitLayer<Grpc>| {
        let inner =
            service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
        let request = Request::post("/")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        layer
            .layer(inner)
            .oneshot(request)
            .await
            .unwrap()
            .headers()
            .clone()
    };
    assert_eq!(call(&layer).await["grpc-retry-pushback-ms"], "-1");
    call(&of_one).await;
    let headers = call(&of_one).await;
    assert_eq!(headers["retry-after"], OF_MARCH_S.to_string());
    assert_eq!(
        headers["grpc-retry-pushback-ms"],
        i32::MAX.to_string(),
        "a month has more ms"
    );
}
