//! Tests of how answers of other services are read.

use std::time::UNIX_EPOCH;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;

/// Thursday, 26 November 2026, 10:00 UTC.
const NOW: u64 = 1_795_687_200;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::try_from(*name).unwrap();
        headers.append(name, HeaderValue::try_from(*value).unwrap());
    }
    headers
}

fn answer(status: u16, fields: &[(&str, &str)]) -> Answer {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    Answer::read(StatusCode::from_u16(status).unwrap(), &headers(fields), now)
}

/// The kind of the answer, and the time to wait in ms.
fn read(status: u16, fields: &[(&str, &str)]) -> (&'static str, Option<u128>) {
    match answer(status, fields) {
        Answer::Served => ("served", None),
        Answer::Failed => ("failed", None),
        Answer::Refused(notice) => ("refused", notice.wait.map(|it| it.as_millis())),
        Answer::LastOne(notice) => ("last", notice.wait.map(|it| it.as_millis())),
    }
}

#[test]
fn a_refusal_names_its_time_in_seconds_as_a_date_or_in_milliseconds() {
    for (value, ms) in [
        ("30", Some(30_000)),
        ("2.5", Some(2_500)),
        (" 7 ", Some(7_000)),
        ("Thu, 26 Nov 2026 10:01:00 GMT", Some(60_000)),
        ("Thursday, 26-Nov-26 10:01:00 GMT", Some(60_000)),
        ("Thu Nov 26 10:01:00 2026", Some(60_000)),
        ("0", None),
        ("-5", None),
        ("1e3", None),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Thu, 32 Nov 2026 10:01:00 GMT", None),
    ] {
        let fields = [("retry-after", value)];
        assert_eq!(read(429, &fields), ("refused", ms), "{value}");
        let unavailable = if ms.is_some() { "refused" } else { "failed" };
        assert_eq!(read(503, &fields), (unavailable, ms), "{value}");
    }
    assert_eq!(read(429, &[]), ("refused", None));
    assert_eq!(read(503, &[]), ("failed", None));
    assert_eq!(read(500, &[("retry-after", "9")]), ("failed", None));
    assert_eq!(read(301, &[("retry-after", "9")]), ("served", None));
    let of_azure = [("retry-after", "2"), ("retry-after-ms", "1250")];
    assert_eq!(read(429, &of_azure), ("refused", Some(1_250)));
}

#[test]
fn dates_are_read_by_the_clock_of_the_other_service() {
    let fields = [
        ("date", "Thu, 26 Nov 2026 12:00:00 GMT"),
        ("retry-after", "Thu, 26 Nov 2026 12:00:20 GMT"),
    ];
    assert_eq!(read(429, &fields), ("refused", Some(20_000)));
    let epoch = (NOW + 7_200 + 15).to_string();
    let fields = [fields[0], ("x-ratelimit-reset", &*epoch)];
    assert_eq!(read(429, &fields), ("refused", Some(15_000)));
}

#[test]
fn a_used_up_quota_is_noticed_before_the_first_refusal() {
    let (seconds, ms) = ((NOW + 12).to_string(), ((NOW + 12) * 1_000).to_string());
    for (remaining, reset, value, expected) in [
        ("ratelimit-remaining", "ratelimit-reset", "12", 12_000),
        ("ratelimit-remaining", "ratelimit-reset", &*seconds, 12_000),
        (
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            &*seconds,
            12_000,
        ),
        ("x-ratelimit-remaining", "x-ratelimit-reset", &*ms, 12_000),
        (
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "2026-11-26T10:00:12Z",
            12_000,
        ),
        (
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "Thu, 26 Nov 2026 10:00:12 GMT",
            12_000,
        ),
        (
            "x-ratelimit-remaining",
            "x-ratelimit-reset-after",
            "1.25",
            1_250,
        ),
        (
            "x-rate-limit-remaining",
            "x-rate-limit-reset",
            &*seconds,
            12_000,
        ),
        (
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
            "6m0s",
            360_000,
        ),
        (
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
            "1h2m3.5s",
            3_723_500,
        ),
        (
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
            "20ms",
            20,
        ),
        (
            "x-ratelimit-requests-remaining",
            "x-ratelimit-requests-reset",
            &*ms,
            12_000,
        ),
        (
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-reset",
            "2026-11-26T10:00:12+00:00",
            12_000,
        ),
    ] {
        let of = |left| [(remaining, left), (reset, value)];
        let name = format!("{remaining}, {reset}: {value}");
        assert_eq!(read(200, &of("0")), ("last", Some(expected)), "{name}");
        assert_eq!(read(404, &of("0.0")), ("last", Some(expected)), "{name}");
        assert_eq!(read(403, &of("0")), ("last", Some(expected)), "{name}");
        assert_eq!(read(429, &of("0")), ("refused", Some(expected)), "{name}");
        assert_eq!(read(200, &of("1")), ("served", None), "{name}");
        assert_eq!(read(429, &of("1")), ("refused", None), "{name}");
        assert_eq!(read(200, &of("-1")), ("served", None), "{name}");
        assert_eq!(
            read(429, &[(reset, value)]),
            ("refused", Some(expected)),
            "{name}"
        );
        assert_eq!(read(200, &[(reset, value)]), ("served", None), "{name}");
        let cached = [&of("0")[..], &[("age", "3")]].concat();
        assert_eq!(read(200, &cached), ("served", None), "{name}");
    }
}

#[test]
fn both_forms_of_ratelimit_are_read_and_strings_may_hold_anything() {
    for (value, expected) in [
        (r#""default";r=0;t=30"#, Some(30_000)),
        (r#""burst";r=3;t=5, "daily";r=0;t=99"#, Some(99_000)),
        (r#""a,b;r=0;t=7\"";r=1;t=9"#, None),
        (r#""a";pk=:cGs=:;t=4;r=0"#, Some(4_000)),
        (r#""open;r=0;t=3"#, None),
        (r#""default";r=0"#, None),
        ("limit=100, remaining=0, reset=5", Some(5_000)),
        ("limit=100, remaining=1, reset=5", None),
        ("limit=100", None),
        (",,;;==", None),
    ] {
        let kind = if expected.is_some() { "last" } else { "served" };
        assert_eq!(
            read(200, &[("ratelimit", value)]),
            (kind, expected),
            "{value}"
        );
    }
}

#[test]
fn retry_after_wins_over_quotas_and_of_two_lines_the_longer() {
    let fields = [
        ("retry-after", "3"),
        ("retry-after", "8"),
        ("retry-after", "garbage"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "60"),
    ];
    assert_eq!(read(429, &fields), ("refused", Some(8_000)));
    assert_eq!(read(200, &fields), ("last", Some(60_000)));
    let Answer::Refused(notice) = answer(429, &fields) else {
        panic!("it is a refusal");
    };
    assert_eq!(notice.reason(), "429, retry-after");
}

#[test]
fn a_call_is_refused_by_its_status_and_its_pushback() {
    let refused = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "1500")];
    assert_eq!(read(200, &refused), ("refused", Some(1_500)));
    assert_eq!(read(200, &refused[..1]), ("refused", None));
    let never = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")];
    assert_eq!(read(200, &never), ("refused", None));
    let unavailable = [("grpc-status", "14"), refused[1]];
    assert_eq!(read(200, &unavailable), ("refused", Some(1_500)));
    assert_eq!(read(200, &unavailable[..1]), ("failed", None));
    assert_eq!(read(200, &[("grpc-status", "0")]), ("served", None));
}

#[cfg(feature = "tonic")]
#[test]
fn retry_info_is_read_from_the_details_of_a_status() {
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    for (delay, expected) in [(1_250, Some(1_250)), (0, None)] {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(delay)));
        let status = Status::with_error_details(Code::ResourceExhausted, "wait", details);
        let response = status.into_http::<()>();
        let answer = Answer::read(response.status(), response.headers(), UNIX_EPOCH);
        let Answer::Refused(notice) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(notice.wait.map(|it| it.as_millis()), expected);
    }
}

/// Values that look like times, and bytes that look like nothing.
fn value() -> impl Strategy<Value = HeaderValue> {
    let text = prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "[0-9]{0,40}(\\.[0-9]{0,40})?(ns|us|ms|s|m|h|d|)([0-9]{1,9}[smh])?",
        "(Mon|Thu|Sunday)?,? ?[0-9]{1,5}[ -](Jan|Nov|Foo)[ -][0-9]{1,6} [0-9]{1,3}:[0-9]{2}:[0-9]{2}( GMT| [+-][0-9]{4})?",
        "[+-]?[0-9]{1,7}-[0-9]{1,3}-[0-9]{1,3}T[0-9]{1,3}:[0-9]{1,3}:[0-9]{1,3}(\\.[0-9]{0,12})?(Z|[+-][0-9]{1,2}:[0-9]{2})",
        "(\"[a-z,;\\\\]{0,4}\"|limit=1)?[,; ]{0,2}(r|t|remaining|reset)=[0-9]{1,25}[,;] ?(r|t|remaining|reset)=[0-9]{1,25}",
        "[ -~]{0,40}",
    ];
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![text.prop_map(String::into_bytes), bytes]
        .prop_filter_map("no header", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

const NAMES: &[&str] = &[
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "grpc-retry-pushback-ms",
    "grpc-status",
    "grpc-status-details-bin",
    "date",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-reset-requests",
    "anthropic-ratelimit-tokens-reset",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn no_answer_makes_the_reader_panic(
        status in prop_oneof![Just(200), Just(403), Just(429), Just(503), 100_u16..1_000],
        fields in proptest::collection::vec((proptest::sample::select(NAMES), value()), 0..6),
        now in any::<u32>(),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        let now = UNIX_EPOCH + Duration::from_secs(now.into());
        let status = StatusCode::from_u16(status).unwrap();
        if let Answer::Refused(notice) | Answer::LastOne(notice) = Answer::read(status, &headers, now) {
            prop_assert!(notice.wait.is_none_or(|wait| !wait.is_zero()));
        }
    }
}
