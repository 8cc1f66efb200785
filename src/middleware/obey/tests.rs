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
fn the_status_decides_whether_an_answer_is_a_refusal_with_a_time_and_without() {
    let nine = ("refused", Some(9_000));
    for (statuses, without, with) in [
        (&[420, 429, 529][..], ("refused", None), nine),
        (&[400, 403, 408, 425], ("failed", None), nine),
        (
            &[500, 501, 502, 503, 504, 505, 509, 520, 522, 530, 599, 999],
            ("failed", None),
            nine,
        ),
        (&[413, 418, 430], ("served", None), nine),
        // The time of a resource, or of nothing that was refused.
        (
            &[200, 202, 301, 401, 404, 409, 423],
            ("served", None),
            ("served", None),
        ),
    ] {
        for &status in statuses {
            assert_eq!(read(status, &[]), without, "{status}");
            assert_eq!(read(status, &[("retry-after", "9")]), with, "{status}");
        }
    }
    for (codes, without, with) in [
        (&["8"][..], ("refused", None), nine),
        (&["2", "4", "7", "13", "14", "15"], ("failed", None), nine),
        (&["0", "5", "16"], ("served", None), ("served", None)),
    ] {
        for code in codes {
            let fields = [("grpc-status", *code), ("grpc-retry-pushback-ms", "9000")];
            assert_eq!(read(200, &fields[..1]), without, "{code}");
            assert_eq!(read(200, &fields), with, "{code}");
        }
    }
}

#[test]
fn a_pushback_below_zero_is_about_one_call_and_pauses_nothing_unless_a_time_is_named() {
    for code in ["8", "14", "13"] {
        let never = [("grpc-status", code), ("grpc-retry-pushback-ms", "-1")];
        assert_eq!(read(200, &never), ("failed", None), "{code}");
        let later = [&never[..], &[("retry-after", "9")]].concat();
        assert_eq!(read(200, &later), ("refused", Some(9_000)), "{code}");
    }
}

#[test]
fn an_answer_that_may_refuse_does_so_if_nothing_is_left() {
    let (now, later) = (NOW.to_string(), (NOW + 60).to_string());
    for status in [400, 403, 408, 425, 502, 503, 504] {
        for (left, reset, expected) in [
            ("0", &now, ("refused", None)),
            ("0", &later, ("refused", Some(60_000))),
            ("-1", &later, ("refused", Some(60_000))),
            ("14", &later, ("failed", None)),
            ("unlimited", &later, ("failed", None)),
            ("", &later, ("failed", None)),
        ] {
            let fields = [
                ("x-ratelimit-remaining", left),
                ("x-ratelimit-reset", reset),
            ];
            assert_eq!(read(status, &fields), expected, "{status} {fields:?}");
        }
        let draft = [("ratelimit", "\"a\";r=0")];
        assert_eq!(read(status, &draft), ("refused", None), "{status}");
        let draft = [("ratelimit", "\"a\";t=9")];
        assert_eq!(read(status, &draft), ("failed", None), "{status}");
    }
}

#[test]
fn without_a_time_to_retry_the_quota_of_a_failure_is_no_refusal() {
    let later = (NOW + 60).to_string();
    let fields = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", &*later),
    ];
    for status in [500, 501, 505, 509, 520, 522, 530, 599] {
        assert_eq!(read(status, &fields), ("failed", None), "{status}");
        assert_eq!(read(status, &fields[1..]), ("failed", None), "{status}");
    }
    for (status, kind) in [
        (400, "failed"),
        (503, "failed"),
        (413, "served"),
        (418, "served"),
        (430, "served"),
    ] {
        assert_eq!(read(status, &fields[1..]), (kind, None), "{status}");
    }
}

#[test]
fn every_wait_and_every_reset_may_have_every_form() {
    let epoch = |units: u64, more: u64| (NOW * units + more).to_string();
    for (value, ms) in [
        ("30", Some(30_000)),
        ("2.5", Some(2_500)),
        (" 7 ", Some(7_000)),
        (&*epoch(1, 60), Some(60_000)),
        (&*format!("{}.5", epoch(1, 60)), Some(60_500)),
        (&*epoch(1_000, 60_000), Some(60_000)),
        (&*epoch(1_000_000, 60_000_000), Some(60_000)),
        (&*epoch(1_000_000_000, 60_000_000_000), Some(60_000)),
        ("Thu, 26 Nov 2026 10:01:00 GMT", Some(60_000)),
        ("26 Nov 2026 10:01:00 UTC", Some(60_000)),
        ("Thu, 26 Nov 2026 11:01:00 +0100", Some(60_000)),
        ("Thursday, 26-Nov-26 10:01:00 GMT", Some(60_000)),
        ("Thu, 26-Nov-2026 10:01:00 GMT", Some(60_000)),
        ("Thu Nov 26 10:01:00 2026", Some(60_000)),
        ("2026-11-26T10:01:00Z", Some(60_000)),
        ("2026-11-26T11:01:00.5+01:00", Some(60_500)),
        ("2026-11-26 10:01:00", Some(60_000)),
        ("2026-11-26 10:01:00 UTC", Some(60_000)),
        ("2026-11-26 10:01:00 +0000 UTC", Some(60_000)),
        ("1m30s", Some(90_000)),
        ("30s", Some(30_000)),
        ("500ms", Some(500)),
        ("1h", Some(3_600_000)),
        ("1h 2m 3.5s", Some(3_723_500)),
        ("30 seconds", Some(30_000)),
        ("30;w=60", Some(30_000)),
        ("30, 60", Some(60_000)),
        (
            "Thu, 26 Nov 2026 10:01:00 GMT, Thu, 26 Nov 2026 10:02:00 GMT",
            Some(120_000),
        ),
        ("0", None),
        ("-5", None),
        ("1e3", None),
        ("", None),
        (",", None),
        ("soon", None),
        (&*epoch(1, 0), None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Thu, 32 Nov 2026 10:01:00 GMT", None),
    ] {
        for name in [
            "retry-after",
            "x-ratelimit-retry-after",
            "x-rate-limit-retry-after-seconds",
            "ratelimit-reset",
            "x-ratelimit-reset-after",
        ] {
            let fields = [(name, value)];
            assert_eq!(read(429, &fields), ("refused", ms), "{name}: {value}");
        }
        let unavailable = if ms.is_some() { "refused" } else { "failed" };
        let fields = [("retry-after", value)];
        assert_eq!(read(503, &fields), (unavailable, ms), "{value}");
    }
    for (value, ms) in [
        ("1250", 1_250),
        ("1.5", 1),
        (&*epoch(1_000, 60_000), 60_000),
        ("30s", 30_000),
    ] {
        for name in [
            "retry-after-ms",
            "x-ms-retry-after-ms",
            "x-amz-retry-after",
            "grpc-retry-pushback-ms",
        ] {
            let fields = [(name, value), ("retry-after", "2")];
            assert_eq!(read(429, &fields), ("refused", Some(ms)), "{name}: {value}");
        }
    }
    let draft = format!("\"a\";r=0;t={}", NOW + 60);
    assert_eq!(read(200, &[("ratelimit", &draft)]), ("last", Some(60_000)));
}

#[test]
fn after_a_refusal_a_quota_counts_unless_something_is_left() {
    let resets = [("ratelimit-reset", "30"), ("ratelimit-reset", "60")];
    for (lefts, refused, served) in [
        (&["0"][..], Some(60_000), "last"),
        (&["0;w=21600"], Some(60_000), "last"),
        (&["5", "0"], Some(60_000), "last"),
        (&["0", "5"], Some(60_000), "last"),
        (&["5;w=60, 0;w=3600"], Some(60_000), "last"),
        (&["-1"], Some(60_000), "served"),
        (&["-1;w=60"], Some(60_000), "served"),
        (&["unknown"], Some(60_000), "served"),
        (&[""], Some(60_000), "served"),
        (&[], Some(60_000), "served"),
        (&["5"], None, "served"),
        (&["5;w=60, 7;w=3600"], None, "served"),
    ] {
        let lefts = lefts.iter().map(|left| ("ratelimit-remaining", *left));
        let fields: Vec<_> = lefts.chain(resets).collect();
        assert_eq!(read(429, &fields), ("refused", refused), "{fields:?}");
        assert_eq!(read(200, &fields).0, served, "{fields:?}");
    }
    for (value, ms) in [
        (r#""a";r=-1;t=9"#, Some(9_000)),
        (r#""a";r=1;t=9"#, None),
        ("limit=9, remaining=-1, reset=9", Some(9_000)),
        ("limit=9, remaining=1, reset=9", None),
    ] {
        let fields = [("ratelimit", value)];
        assert_eq!(read(429, &fields), ("refused", ms), "{value}");
        assert_eq!(read(200, &fields), ("served", None), "{value}");
    }
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

/// The fields of what is left and of the reset, the time of the reset, and the wait in ms.
const QUOTAS: &str = "
ratelimit-remaining | ratelimit-reset | 12 | 12000
ratelimit-remaining | ratelimit-reset | SECONDS | 12000
x-ratelimit-remaining | x-ratelimit-reset | SECONDS | 12000
x-ratelimit-remaining | x-ratelimit-reset | MS | 12000
x-ratelimit-remaining | x-ratelimit-reset | 2026-11-26T10:00:12Z | 12000
x-ratelimit-remaining | x-ratelimit-reset | Thu, 26 Nov 2026 10:00:12 GMT | 12000
x-ratelimit-remaining | x-ratelimit-reset-after | 1.25 | 1250
x-rate-limit-remaining | x-rate-limit-reset | SECONDS | 12000
x-ratelimit-remaining-requests | x-ratelimit-reset-requests | 6m0s | 360000
x-ratelimit-remaining-tokens | x-ratelimit-reset-tokens | 1h2m3.5s | 3723500
x-ratelimit-remaining-tokens | x-ratelimit-reset-tokens | 20ms | 20
x-ratelimit-requests-remaining | x-ratelimit-requests-reset | MS | 12000
x-ratelimit-complexity-remaining | x-ratelimit-complexity-reset | MS | 12000
anthropic-ratelimit-input-tokens-remaining | anthropic-ratelimit-input-tokens-reset | 2026-11-26T10:00:12+00:00 | 12000
";

#[test]
fn a_used_up_quota_is_noticed_before_the_first_refusal() {
    let (seconds, ms) = ((NOW + 12).to_string(), ((NOW + 12) * 1_000).to_string());
    for row in QUOTAS.trim().lines() {
        let row = row.replace("SECONDS", &seconds).replace("MS", &ms);
        let [remaining, reset, value, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let expected = expected.parse().unwrap();
        let of = |left| [(remaining, left), (reset, value)];
        assert_eq!(read(200, &of("0")), ("last", Some(expected)), "{row}");
        assert_eq!(read(404, &of("0.0")), ("last", Some(expected)), "{row}");
        assert_eq!(read(403, &of("0")), ("refused", Some(expected)), "{row}");
        assert_eq!(read(429, &of("0")), ("refused", Some(expected)), "{row}");
        assert_eq!(read(200, &of("1")), ("served", None), "{row}");
        assert_eq!(read(429, &of("1")), ("refused", None), "{row}");
        assert_eq!(read(200, &of("-1")), ("served", None), "{row}");
        assert_eq!(
            read(429, &[(reset, value)]),
            ("refused", Some(expected)),
            "{row}"
        );
        assert_eq!(read(200, &[(reset, value)]), ("served", None), "{row}");
        let cached = [&of("0")[..], &[("age", "3")]].concat();
        assert_eq!(read(200, &cached), ("served", None), "{row}");
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
        (r#""burst";a=0;w=45"#, Some(45_000)),
        (r#""burst";a=80;w=45, "daily";w=99;a=0;c=1"#, Some(99_000)),
        (r#""burst";r=0;t=5;w=60"#, Some(5_000)),
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
    let [later, left] = [(NOW + 60).to_string(), "1400".to_owned()];
    let fields_of_complexity = [
        ("x-ratelimit-requests-remaining", &*left),
        ("x-ratelimit-complexity-remaining", "0"),
        ("x-ratelimit-complexity-reset", &*later),
    ];
    assert_eq!(read(400, &fields_of_complexity), ("refused", Some(60_000)));
    let Answer::Refused(notice) = answer(429, &fields) else {
        panic!("it is a refusal");
    };
    assert_eq!(notice.reason(), "429, retry-after");
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
