//! The server example: options, routes, and one limit shared by two processes.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Request, Response, StatusCode},
};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use support::{example::Example, redis::Server};
use tokio::task::JoinSet;

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// A client that keeps the connections to the servers.
#[derive(Clone)]
struct Browser(Client<HttpConnector, Body>);

impl Browser {
    fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    async fn ask(
        &self,
        server: &Example,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::get(format!("http://{}{path}", server.address()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response: Response<_> = self.0.request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        (head.status, head.headers, String::from_utf8(body).unwrap())
    }

    async fn delete(&self, server: &Example, path: &str) -> StatusCode {
        let request = Request::delete(format!("http://{}{path}", server.address()));
        let request = request.body(Body::empty()).unwrap();
        self.0.request(request).await.unwrap().status()
    }

    async fn status(&self, server: &Example, path: &str) -> StatusCode {
        self.ask(server, path, &[]).await.0
    }
}

#[tokio::test]
async fn three_rules_limit_everybody_by_address_unless_told_otherwise() {
    let (server, browser) = (Example::start(&[]), Browser::new());
    let (status, headers, body) = browser.ask(&server, "/", &[]).await;
    assert_eq!((status, body.as_str()), (OK, "ok\n"));
    assert_eq!(
        headers["ratelimit-policy"],
        r#""ip/1s";q=10;w=1, "ip/10s";q=40;w=10, "ip/1m";q=120;w=60"#
    );
    let left = headers["ratelimit"].to_str().unwrap();
    assert!(left.contains(r#""ip/1m";r=119;t=61"#), "{left}");
}

#[tokio::test]
async fn a_request_costs_what_its_path_says_and_a_rejected_one_nothing() {
    let (server, browser) = (Example::start(&["--limit", "ip=10/1d"]), Browser::new());
    for (path, expected) in [
        ("/cost/7", OK),
        ("/cost/4", REJECTED),
        ("/cost/11", StatusCode::PAYLOAD_TOO_LARGE),
        ("/cost/0", OK),
        ("/cost/many", StatusCode::BAD_REQUEST),
        // A path in another spelling cannot reduce the cost either.
        ("/cost/%39%39", StatusCode::BAD_REQUEST),
        ("/", OK),
        ("/status/204", StatusCode::NO_CONTENT),
        ("/cost/2", REJECTED),
        ("/cost/1", OK),
        ("/", REJECTED),
        ("/status/200", REJECTED),
        ("/cost/0", OK),
    ] {
        assert_eq!(browser.status(&server, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn any_status_that_can_end_an_exchange_is_answered() {
    let (server, browser) = (Example::start(&["--limit", "ip=100/1d"]), Browser::new());
    for (code, expected) in [
        ("200", 200),
        ("304", 304),
        ("418", 418),
        ("503", 503),
        ("999", 999),
        ("100", 400),
        ("99", 400),
        ("1000", 400),
        ("ok", 400),
    ] {
        let status = browser.status(&server, &format!("/status/{code}")).await;
        assert_eq!(status, expected, "{code}");
    }
}

const HTML: [(&str, &str); 1] = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
const JSON: [(&str, &str); 1] = [("accept", "application/json")];

#[tokio::test]
async fn a_browser_is_limited_as_everybody_and_gets_the_page_all_the_same() {
    let (server, browser) = (Example::start(&["--limit", "ip=1/1d"]), Browser::new());
    for expected in [OK, REJECTED] {
        let (status, headers, body) = browser.ask(&server, "/", &HTML).await;
        assert_eq!(status, expected);
        assert_eq!(headers["content-type"], "text/html; charset=utf-8");
        assert_eq!(headers.contains_key("retry-after"), expected == REJECTED);
        assert!(body.starts_with("<!doctype html>"));
    }
    let (status, _, body) = browser.ask(&server, "/", &[("accept", "text/plain")]).await;
    assert_eq!(status, REJECTED);
    assert!(body.starts_with('{'), "{body}");
    let (status, _, body) = browser.ask(&server, "/cost/1", &HTML).await;
    assert_eq!(status, REJECTED);
    assert!(body.starts_with('{'), "{body}");
    assert_eq!(browser.status(&server, "/health").await, OK);
}

async fn json(browser: &Browser, server: &Example, path: &str) -> Value {
    let (_, headers, body) = browser.ask(server, path, &JSON).await;
    assert_eq!(headers["content-type"], "application/json", "{body}");
    assert_eq!(headers["cache-control"], "no-store");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn a_decision_is_told_as_json_whatever_the_headers_are() {
    let limits = ["--headers", "none", "--limit", "ip=5/1d,9/2d"];
    let (server, browser) = (Example::start(&limits), Browser::new());
    let allowed = json(&browser, &server, "/").await;
    assert_eq!(allowed["allowed"], true);
    assert_eq!(allowed["rules"][0]["id"], "ip.0");
    assert_eq!(allowed["rules"][0]["remaining"], 4);
    assert_eq!(allowed["rules"][1]["remaining"], 8);
    let denied = json(&browser, &server, "/cost/5").await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["rules"][0]["exceeded"], true);
    assert!(denied["rules"][0]["retry_after_ms"].as_u64() > Some(80_000_000));
    assert_eq!(denied["rules"][1]["exceeded"], false);
    let never = json(&browser, &server, "/cost/6").await;
    assert_eq!(never["rules"][0]["retry_after_ms"], Value::Null);
}

#[tokio::test]
async fn the_limits_of_the_caller_are_told_at_no_cost_and_to_the_denied_too() {
    let limits = ["--limit", "ip=2/1d", "--limit", "header:X-Api-Key=9/1h"];
    let (server, browser) = (Example::start(&limits), Browser::new());
    for (expected, remaining) in [(OK, 1), (OK, 0), (REJECTED, 0), (REJECTED, 0)] {
        assert_eq!(browser.status(&server, "/").await, expected);
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(said["rules"].as_array().unwrap().len(), 1);
        assert_eq!(said["rules"][0]["remaining"], remaining);
        assert_eq!(said["store"], "memory");
        assert_eq!(said["answers"], true);
        assert_eq!(said["limits"][0]["rules"][0]["window_ms"], 86_400_000);
        assert_eq!(said["limits"][1]["key"], "header:x-api-key");
        assert_eq!(said["limits"][1]["applies"], false);
    }
}

#[tokio::test]
async fn who_has_used_a_limit_up_is_told_where_it_is_counted_and_to_nobody_else() {
    let limits = ["--limit", "ip=5/1d", "--contributors", "header:X-User"];
    let (server, browser) = (Example::start(&limits), Browser::new());
    for user in ["bob", "alice", "alice", "carol", "alice", "bob"] {
        let (_, headers, body) = browser.ask(&server, "/", &[("x-user", user)]).await;
        let told = format!("{headers:?}{body}");
        assert!(!told.contains("alice") && !told.contains("bob"), "{told}");
    }
    let said = json(&browser, &server, "/limits").await;
    let contributors = &said["limits"][0]["contributors"];
    assert_eq!(contributors.as_array().unwrap().len(), 3);
    for (place, label, units) in [(0, "alice", 3), (1, "bob", 1), (2, "carol", 1)] {
        assert_eq!(contributors[place]["label"], label);
        assert_eq!(contributors[place]["units"], units);
    }

    let beside_a_proxy = [&limits[..], &["--trusted-proxy", "10.0.0.0/8"]].concat();
    for limits in [&["--limit", "ip=5/1d"][..], &beside_a_proxy] {
        let server = Example::start(limits);
        browser.ask(&server, "/", &[("x-user", "alice")]).await;
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(
            said["limits"][0]["contributors"].as_array().unwrap().len(),
            0
        );
    }
}

#[tokio::test]
async fn the_limits_of_shadows_are_told_too() {
    let (server, browser) = (
        Example::start(&["--limit", "ip=1/1d", "--shadow"]),
        Browser::new(),
    );
    for exceeded in [false, true] {
        let said = json(&browser, &server, "/").await;
        assert_eq!(said["allowed"], true);
        assert_eq!(said["rules"][0]["exceeded"], exceeded);
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(said["limits"][0]["shadow"], true);
        assert_eq!(said["rules"][0]["remaining"], 0);
    }
}

#[tokio::test]
async fn whether_redis_answers_is_told_by_asking_it() {
    let mut redis = Server::start();
    let url = redis.url();
    for (more, of_share) in [
        (&["--on-failure", "open"][..], None),
        (&["--on-failure", "closed"], None),
        (&["--on-failure", "local", "--replicas", "2"], Some(4)),
        // Without a decision about shadows, Redis has not failed.
        (&["--shadow"], None),
    ] {
        let args = ["--redis", &url, "--limit", "ip=8/1d", "--timeout", "5s"];
        let (server, browser) = (Example::start(&[&args[..], more].concat()), Browser::new());
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(
            (&said["store"], &said["answers"]),
            (&"redis".into(), &true.into())
        );
        assert_eq!(said["rules"][0]["remaining"], 8);
        redis.kill();
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(said["answers"], false, "{more:?}");
        assert_eq!(said["rules"][0]["remaining"].as_u64(), of_share, "{more:?}");
        redis.restart();
    }
}

#[tokio::test]
async fn whoever_is_at_the_machine_may_reset_what_was_used() {
    let (server, browser) = (Example::start(&["--limit", "ip=1/1d"]), Browser::new());
    for expected in [OK, REJECTED] {
        assert_eq!(browser.status(&server, "/").await, expected);
    }
    assert_eq!(
        browser.delete(&server, "/limits").await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(browser.status(&server, "/").await, OK);

    for more in [["--listen", "0.0.0.0:0"], ["--trusted-proxy", "10.0.0.0/8"]] {
        let server = Example::start(&[&["--limit", "ip=1/1d"], &more[..]].concat());
        assert_eq!(
            browser.delete(&server, "/limits").await,
            StatusCode::FORBIDDEN
        );
        let said = json(&browser, &server, "/limits").await;
        assert_eq!(said["may_reset"], false);
    }
}

#[tokio::test]
async fn a_cache_keeps_the_page_and_the_ok_apart() {
    let (server, browser) = (Example::start(&[]), Browser::new());
    for accept in ["text/html", "text/plain", "application/json"] {
        let (status, headers, _) = browser.ask(&server, "/", &[("accept", accept)]).await;
        assert_eq!(status, OK);
        assert_eq!(headers["vary"], "accept", "{accept}");
    }
}

#[tokio::test]
async fn a_request_without_the_header_skips_its_limit() {
    let limits = ["--limit", "header:X-Api-Key=2/1d", "--limit", "ip=7/1d"];
    let (server, browser) = (Example::start(&limits), Browser::new());
    for (key, expected) in [
        (Some("alice"), OK),
        (Some("alice"), OK),
        (Some("alice"), REJECTED),
        (Some("bob"), OK),
        (None, OK),
        (None, OK),
        (None, OK),
        (Some("bob"), OK),
        (Some("carol"), REJECTED),
        (None, REJECTED),
    ] {
        let header = key.map(|key| ("x-api-key", key));
        let (status, ..) = browser.ask(&server, "/", header.as_slice()).await;
        assert_eq!(status, expected, "{key:?}");
    }
}

#[tokio::test]
async fn the_address_is_what_trusted_proxies_say() {
    let limit = ["--limit", "ip=1/1d"];
    let proxies = [
        "--trusted-proxy",
        "127.0.0.0/8",
        "--trusted-proxy",
        "10.0.0.0/8",
    ];
    let behind = Example::start(&[&limit[..], &proxies].concat());
    let elsewhere = Example::start(&[&limit[..], &proxies[2..]].concat());
    let browser = Browser::new();
    for (server, forwarded_for, expected) in [
        (&behind, Some("6.6.6.6, 203.0.113.7"), OK),
        (&behind, Some("6.6.6.7, 203.0.113.7, 10.0.0.2"), REJECTED),
        (&behind, Some("203.0.113.8"), OK),
        (
            &behind,
            Some("203.0.113.9, unknown"),
            StatusCode::BAD_REQUEST,
        ),
        (&behind, None, StatusCode::BAD_REQUEST),
        (&elsewhere, Some("203.0.113.7"), OK),
        (&elsewhere, Some("203.0.113.8"), REJECTED),
        (&elsewhere, None, REJECTED),
    ] {
        let header = forwarded_for.map(|it| ("x-forwarded-for", it));
        let (status, ..) = browser.ask(server, "/", header.as_slice()).await;
        assert_eq!(status, expected, "{forwarded_for:?}");
    }
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_of_thousands_of_concurrent_requests() {
    let redis = Server::start();
    for (more, limit) in [
        (&[][..], 701),
        (&["--pool", "2"], 702),
        (&["--in-flight", "0"], 703),
        (&["--in-flight", "1"], 704),
        (&["--transactions"], 705),
        (&["--transactions", "--pool", "2"], 706),
    ] {
        let rules = format!("header:x-api-key={limit}/1d,1000000/1h,1000000/1m");
        let url = redis.url();
        let args = ["--redis", &url, "--limit", &rules, "--timeout", "30s"];
        let args = [&args[..], &["--on-failure", "closed"], more].concat();
        let servers = [Example::start(&args), Example::start(&args)];
        let (admitted, rejected) = burst(servers, 2_000, &limit.to_string()).await;
        assert_eq!((admitted, rejected), (limit, 4_000 - limit), "{more:?}");
    }
}

/// Sends this number of requests of one user to each server, 64 at a time. Returns the numbers of admitted and denied
/// ones.
async fn burst(servers: [Example; 2], requests: usize, user: &str) -> (usize, usize) {
    let servers = std::sync::Arc::new(servers);
    let browser = Browser::new();
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (servers, browser) = (servers.clone(), browser.clone());
        let user = user.to_owned();
        tasks.spawn(async move {
            let mut counts = (0, 0);
            for _ in (task..2 * requests).step_by(64) {
                let header = [("x-api-key", user.as_str())];
                match browser.ask(&servers[task % 2], "/", &header).await.0 {
                    OK => counts.0 += 1,
                    REJECTED => counts.1 += 1,
                    other => panic!("{other}"),
                }
            }
            counts
        });
    }
    let counts = tasks.join_all().await.into_iter();
    counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
}

#[tokio::test]
async fn without_its_redis_a_server_starts_says_so_once_and_follows_the_failure_policy() {
    let mut redis = Server::start();
    let url = redis.url().replace("redis://", "redis://user:sesame@");
    redis.kill();
    for (more, expected) in [
        (
            &["--on-failure", "closed"][..],
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (
            &["--on-failure", "closed", "--pool", "3"],
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (&["--on-failure", "open"], OK),
        (&[], OK),
    ] {
        let server = Example::start(&[&["--redis", &url, "--limit", "ip=1/1d"][..], more].concat());
        let browser = Browser::new();
        for _ in 0..3 {
            assert_eq!(browser.status(&server, "/").await, expected, "{more:?}");
        }
        assert_eq!(browser.status(&server, "/health").await, OK);
        drop(browser);
        let (ended_well, stderr) = server.stop();
        assert!(ended_well);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("Redis at 127.0.0.1:"), "{stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
}

#[tokio::test]
async fn while_redis_is_away_each_server_admits_its_share() {
    let mut redis = Server::start();
    redis.kill();
    let url = redis.url();
    let local = ["--on-failure", "local", "--replicas", "2"];
    let args = [&["--redis", &url, "--limit", "ip=10/1d"][..], &local].concat();
    let browser = Browser::new();
    for server in [Example::start(&args), Example::start(&args)] {
        for expected in [[OK; 5], [REJECTED; 5]].concat() {
            assert_eq!(browser.status(&server, "/").await, expected);
        }
        let (_, stderr) = server.stop();
        assert!(stderr.ends_with("failure policy: local\n"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[tokio::test]
async fn limits_hold_as_soon_as_redis_is_there() {
    let mut redis = Server::start();
    redis.kill();
    let url = redis.url();
    let (server, browser) = (
        Example::start(&["--redis", &url, "--limit", "ip=1/1d", "--timeout", "2s"]),
        Browser::new(),
    );
    assert_eq!(browser.status(&server, "/").await, OK);
    redis.restart();
    assert_eq!(browser.status(&server, "/").await, OK);
    assert_eq!(browser.status(&server, "/").await, REJECTED);
}

#[tokio::test]
async fn failures_alone_are_counted_if_so_told() {
    let server = Example::start(&["--limit", "ip=2/1d", "--count", "failures"]);
    let browser = Browser::new();
    for (path, expected) in [
        ("/", 200),
        ("/cost/2", 200),
        ("/status/304", 304),
        ("/status/404", 404),
        ("/", 200),
        ("/cost/2", 429),
        ("/status/500", 500),
        ("/", 429),
    ] {
        assert_eq!(browser.status(&server, path).await, expected, "{path}");
    }
}

/// The units that the caller `alice` has left under the only rule of this policy.
async fn left_of_alice(browser: &Browser, server: &Example, policy: &str) -> u64 {
    let (_, _, body) = browser.ask(server, "/limits", &[("x-user", "alice")]).await;
    let said: Value = serde_json::from_str(&body).unwrap();
    let rules = said["rules"].as_array().unwrap();
    let id = format!("{policy}.0");
    let rule = rules.iter().find(|rule| rule["id"] == id.as_str()).unwrap();
    rule["remaining"].as_u64().unwrap()
}

/// Waits until `alice` has this much left.
async fn until_left(browser: &Browser, server: &Example, policy: &str, expected: u64) {
    let mut left = None;
    let came = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while left != Some(expected) {
            left = Some(left_of_alice(browser, server, policy).await);
        }
    });
    assert!(came.await.is_ok(), "{left:?} left, not {expected}");
}

impl Browser {
    /// The response to `alice`, whose body is not read yet.
    async fn open(&self, server: &Example, path: &str) -> Response<hyper::body::Incoming> {
        let request = Request::get(format!("http://{}{path}", server.address()));
        let request = request.header("x-user", "alice").body(Body::empty());
        self.0.request(request.unwrap()).await.unwrap()
    }
}

#[tokio::test]
async fn a_key_may_have_slots_beside_its_rates_and_a_response_holds_one_until_its_body_ends() {
    let redis = Server::start();
    let limits = [
        "--limit",
        "header:x-user=2/10s@concurrent",
        "--limit",
        "header:x-user=1000/month@UTC",
    ];
    let shared = ["--redis", &redis.url(), "--timeout", "1500ms"];
    for more in [&[][..], &shared] {
        let args = [&limits[..], more].concat();
        let (server, browser) = (Example::start(&args), Browser::new());
        let held = [
            browser.open(&server, "/wait/3600000").await,
            browser.open(&server, "/wait/3600000").await,
        ];
        assert_eq!(held[0].status(), OK);
        let quotas = held[0].headers()["ratelimit-policy"].to_str().unwrap();
        assert!(
            quotas.starts_with(
                r#""header-x-user-slots";q=2;qu="concurrent-requests", "header-x-user";q=1000"#
            ),
            "{quotas}"
        );
        // A request without a slot is charged nowhere.
        let denied = browser.open(&server, "/cost/7").await;
        assert_eq!(denied.status(), REJECTED);
        assert_eq!(denied.headers()["retry-after"], "1");
        assert_eq!(left_of_alice(&browser, &server, "header-x-user").await, 998);
        assert_eq!(
            left_of_alice(&browser, &server, "header-x-user-slots").await,
            0
        );

        drop(held);
        until_left(&browser, &server, "header-x-user-slots", 2).await;
        assert_eq!(browser.open(&server, "/cost/7").await.status(), OK);
        assert_eq!(left_of_alice(&browser, &server, "header-x-user").await, 991);
        let waited = browser
            .ask(&server, "/wait/1", &[("x-user", "alice")])
            .await;
        assert_eq!((waited.0, waited.2.as_str()), (OK, "1\n"));
        until_left(&browser, &server, "header-x-user-slots", 2).await;
        assert_eq!(
            browser.status(&server, "/wait/3600001").await,
            StatusCode::BAD_REQUEST
        );
    }
}

#[tokio::test]
async fn a_server_that_is_asked_to_stop_ends_its_responses_and_returns_their_slots() {
    let redis = Server::start();
    let url = redis.url();
    let limit = "header:x-user=1/1h@concurrent";
    let args = ["--limit", limit, "--redis", &url, "--timeout", "1500ms"];
    for _ in 0..5 {
        let (server, browser) = (Example::start(&args), Browser::new());
        let response = browser.open(&server, "/wait/100").await;
        assert_eq!(response.status(), OK);
        server.signal("TERM");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "100\n");
        assert!(server.stop().0);
    }
}

#[tokio::test]
async fn a_stream_costs_its_frames_or_those_that_were_sent_before_the_client_left() {
    let limit = ["--limit", "header:x-user=100000000/1d"];
    let (server, browser) = (Example::start(&limit), Browser::new());
    let (_, _, body) = browser
        .ask(&server, "/stream/25", &[("x-user", "alice")])
        .await;
    assert_eq!(body.lines().count(), 25);
    until_left(&browser, &server, "header-x-user", 100_000_000 - 25).await;
    browser
        .ask(&server, "/stream/0", &[("x-user", "alice")])
        .await;
    until_left(&browser, &server, "header-x-user", 100_000_000 - 25).await;

    // Far longer than the buffers of the connection.
    let mut body = browser.open(&server, "/stream/90000000").await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    drop(browser);
    let browser = Browser::new();
    let sent = async {
        loop {
            let left = left_of_alice(&browser, &server, "header-x-user").await;
            // A unit until the stream is settled.
            if left < 100_000_000 - 26 {
                return 100_000_000 - 25 - left;
            }
        }
    };
    let sent = tokio::time::timeout(std::time::Duration::from_secs(20), sent).await;
    assert!((2..90_000_000).contains(&sent.unwrap()));
}

/// A file of limits in a separate folder.
struct Config {
    _folder: tempfile::TempDir,
    path: String,
}

impl Config {
    fn new(limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.toml");
        let config = Self {
            path: path.to_str().unwrap().to_owned(),
            _folder: folder,
        };
        config.write(limits);
        config
    }

    fn write(&self, limits: &str) {
        std::fs::write(&self.path, format!("[limits]\n{limits}")).unwrap();
    }
}

#[tokio::test]
async fn limits_change_with_their_file_and_what_is_used_stays() {
    let user = [("x-api-key", "alice")];
    let config = Config::new("ip = '2/1d'\n'header:X-Api-Key' = ['9/1d', '99/1h']");
    let mut server = Example::start(&["--config", &config.path]);
    let browser = Browser::new();
    for expected in [OK, OK, REJECTED] {
        assert_eq!(browser.status(&server, "/").await, expected);
    }
    for (limits, complaint, item, expected) in [
        (
            "ip = '3/1d'\n'header:x-api-key' = '9/1d'",
            "server: limits read again",
            "q=3;w=86400",
            OK,
        ),
        (
            "ip = '99/1d'",
            "policy `header-x-api-key` is missing",
            "q=3;w=86400",
            REJECTED,
        ),
        (
            "ip = 'many'\n'header:x-api-key' = '9/1d'",
            "policy `ip`: rule `many`",
            "q=3;w=86400",
            REJECTED,
        ),
        ("ip = ", "line 2", "q=3;w=86400", REJECTED),
        (
            "ip = '4/1d'\n'header:x-api-key' = '9/1d'\n'header:a' = '9/1d'",
            "policy `header-a` is new",
            "q=3;w=86400",
            REJECTED,
        ),
        (
            "ip = '5/1d'\n'header:x-api-key' = '9/1d'",
            "server: limits read again",
            "q=5;w=86400",
            OK,
        ),
        (
            "ip = { rules = '1/1d', shadow = true }\n'header:x-api-key' = '9/1d'",
            "server: limits read again",
            "q=1;w=86400;sluicegate-shadow",
            OK,
        ),
    ] {
        config.write(limits);
        server.signal("HUP");
        let mut said = server.complaint();
        while !said.contains(complaint) {
            said = server.complaint();
        }
        let (status, headers, _) = browser.ask(&server, "/", &user).await;
        assert_eq!(status, expected, "{limits}");
        let told = headers.get_all("ratelimit-policy").iter();
        let told: Vec<&str> = told
            .flat_map(|it| it.to_str().unwrap().split(", "))
            .collect();
        let item = format!(r#""ip";{item}"#);
        assert!(told.contains(&item.as_str()), "{limits}: {told:?}");
        let left = headers.get_all("ratelimit").iter();
        let mut left = left.flat_map(|it| it.to_str().unwrap().split(", "));
        let left = left.find(|it| it.starts_with(r#""ip";r="#)).unwrap();
        let mark = ";sluicegate-shadow";
        assert_eq!(left.ends_with(mark), item.ends_with(mark), "{left}");
    }
}

#[test]
fn a_wrong_file_is_named_and_ends_the_server_with_2() {
    for (limits, expected) in [
        ("", "there are no limits"),
        ("user = '10/1s'", "write KEY=RULES"),
        ("ip = '10/1s,10'", "policy `ip`: rule `10`: write it as"),
        ("ip = 10", "write rules as"),
        ("ip = { rules = '1/1s', shadwo = true }", "write rules as"),
        (
            "ip = { rules = '1/1s', strikes = '5/10m' }",
            "ip: a ban needs both `strikes` and `ban`",
        ),
        (
            "ip = { rules = '1/1s', strikes = '5/10m', ban = '0s' }",
            "ip: the time of a ban is a number",
        ),
        (
            "'header:a' = '1/1s'\n'header:A' = '1/1s'",
            "policy `header-a` is named twice",
        ),
        ("ip = '1/1s'\n[limit]", "unknown field `limit`"),
    ] {
        let config = Config::new(limits);
        let output = Example::output(&["--config", &config.path]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{limits}: {stderr}");
        assert!(stderr.starts_with("server: --config: /"), "{stderr}");
        assert!(
            stderr.contains("limits.toml: ") && stderr.contains(expected),
            "{limits}: {stderr}"
        );
    }
}

/// Asks until the answer has this status, because strikes are counted after the response.
async fn until(browser: &Browser, server: &Example, status: StatusCode) -> (HeaderMap, String) {
    for _ in 0..1_000 {
        let (answered, headers, body) = browser.ask(server, "/", &JSON).await;
        if answered == status && !body.contains("exceeded") {
            return (headers, body);
        }
    }
    panic!("never {status}");
}

#[tokio::test]
async fn who_is_denied_too_often_is_banned_by_all_servers() {
    let redis = Server::start();
    let args = [
        "--limit",
        "ip=1/1d",
        "--redis",
        &redis.url(),
        "--timeout",
        "9s",
    ];
    let ban = [&args[..], &["--ban", "3/10m=1h"]].concat();
    let (first, second, browser) = (Example::start(&ban), Example::start(&ban), Browser::new());
    assert_eq!(browser.status(&first, "/").await, OK);
    for server in [&first, &second] {
        let (headers, body) = until(&browser, server, REJECTED).await;
        let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        assert!(!headers.contains_key("ratelimit"));
        assert!(
            body.contains(r#""blocked":{"by":"ban","retry_after_ms":3"#),
            "{body}"
        );
    }
    // A server without bans enforces it as a block, unless blocks are off. Then the server denies by its limit.
    let plain = Example::start(&[&args[..], &["--no-blocks"]].concat());
    let (_, headers, _) = browser.ask(&plain, "/", &[]).await;
    assert!(headers.contains_key("ratelimit"));
    let enforcing = Example::start(&args);
    let (status, headers, body) = browser.ask(&enforcing, "/", &[]).await;
    assert_eq!(status, REJECTED);
    assert!(!headers.contains_key("ratelimit"));
    assert!(body.contains("Blocked for a time"), "{body}");
    let (status, _, body) = browser.ask(&enforcing, "/", &HTML).await;
    assert_eq!(status, REJECTED);
    assert!(body.starts_with("<!doctype html>"));
}

#[tokio::test]
async fn a_server_enforces_a_block_of_an_operator() {
    let redis = Server::start();
    let store = sluicegate::RedisStore::connect(redis.url()).await.unwrap();
    let limiter = sluicegate::Limiter::new(store).timeout(std::time::Duration::from_secs(30));
    let local = sluicegate::Key::new("ip", "127.0.0.1");
    let args = ["--redis", &redis.url(), "--timeout", "9s"];
    let (server, browser) = (Example::start(&args), Browser::new());
    assert_eq!(browser.status(&server, "/").await, OK);
    limiter
        .block(&local, std::time::Duration::from_secs(3_600))
        .await
        .unwrap();
    let (status, headers, body) = browser.ask(&server, "/", &JSON).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(!headers.contains_key("retry-after"));
    assert!(
        body.contains(r#""blocked":{"by":"operator","retry_after_ms":null}"#),
        "{body}"
    );
    limiter.unblock(&local).await.unwrap();
    assert_eq!(browser.status(&server, "/").await, OK);
}

#[tokio::test]
async fn a_deny_cache_refuses_without_its_redis_and_hears_of_a_reset() {
    let redis = Server::start();
    let limit = ["--limit", "ip=1/1d", "--timeout", "9s", "--deny-cache"];
    let url = redis.url();
    let server = Example::start(&[&limit[..], &["--redis", &url]].concat());
    let browser = Browser::new();
    assert_eq!(browser.status(&server, "/").await, OK);
    let began = std::time::Instant::now();
    let calls = || redis.calls("evalsha") + redis.calls("eval");
    let before = calls();
    for _ in 0..200 {
        assert_eq!(browser.status(&server, "/").await, REJECTED);
    }
    // At most one in each second.
    assert!(calls() - before <= 1 + began.elapsed().as_secs());
    assert!(browser.delete(&server, "/limits").await.is_success());
    assert_eq!(browser.status(&server, "/").await, OK);
}

#[test]
fn a_ban_that_is_none_is_told_of() {
    for (args, expected) in [
        (
            &["--ban", "5/10m"][..],
            "--ban: write a ban as STRIKES/WINDOW=TIME",
        ),
        (&["--ban", "5=1h"], "--ban: strikes: rule `5`"),
        (
            &["--ban", "0/1m=1h"],
            "--ban: a ban needs at least one strike",
        ),
        (&["--ban", "5/1m=never"], "--ban: the time of a ban"),
    ] {
        let output = Example::output(args);
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(expected), "{stderr}");
    }
    let config = Config::new("ip = '1/1s'");
    let output = Example::output(&["--config", &config.path, "--ban", "5/10m=1h"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("--config: leave out --ban"), "{stderr}");
}

#[tokio::test]
async fn a_shadow_counts_and_tells_and_denies_nobody() {
    let mut redis = Server::start();
    let url = redis.url();
    let limit = ["--limit", "ip=2/1d", "--redis", &url];
    let closed = ["--shadow", "--on-failure", "closed"];
    let browser = Browser::new();
    let server = Example::start(&[&limit[..], &closed].concat());
    for (path, expected) in [
        ("/", r#""ip";r=1;t="#),
        ("/cost/2", r#""ip";r=1;t="#),
        ("/", r#""ip";r=0;t="#),
        ("/", r#""ip";r=0;t="#),
    ] {
        let (status, headers, _) = browser.ask(&server, path, &[]).await;
        assert_eq!(status, OK, "{path}");
        let left = headers["ratelimit"].to_str().unwrap();
        assert!(left.starts_with(expected), "{path}: {left}");
        assert!(left.ends_with(";sluicegate-shadow"), "{path}: {left}");
        assert!(!headers.contains_key("retry-after"));
        assert_eq!(
            headers["ratelimit-policy"],
            r#""ip";q=2;w=86400;sluicegate-shadow"#
        );
    }

    // Units that the shadow counted also count for a server without shadows.
    let strict = Example::start(&limit);
    assert_eq!(browser.status(&strict, "/").await, REJECTED);
    redis.kill();
    assert_eq!(browser.status(&server, "/").await, OK);
}

/// The text of a header before the number at the end, and that number.
fn number(value: &HeaderValue) -> (&str, u64) {
    let value = value.to_str().unwrap();
    let text = value.trim_end_matches(|it: char| it.is_ascii_digit());
    (text, value[text.len()..].parse().unwrap())
}

#[tokio::test]
async fn what_is_left_is_told_as_asked() {
    // Charges count for a day and a sixtieth. Some of that time has passed at the answer.
    let day = || 86_300..=87_840;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let tomorrow = now.as_secs() + 86_300..=now.as_secs() + 88_000;
    let browser = Browser::new();
    for (style, told) in [
        (
            "draft11",
            &[
                ("ratelimit", r#""ip";r=0;t="#, day()),
                ("ratelimit-policy", r#""ip";q=1;w="#, 86_400..=86_400),
            ][..],
        ),
        (
            "draft6",
            &[
                ("ratelimit-limit", "", 1..=1),
                ("ratelimit-remaining", "", 0..=0),
                ("ratelimit-reset", "", day()),
            ],
        ),
        (
            "legacy",
            &[
                ("x-ratelimit-limit", "", 1..=1),
                ("x-ratelimit-remaining", "", 0..=0),
                ("x-ratelimit-reset", "", tomorrow),
            ],
        ),
        ("none", &[]),
    ] {
        let server = Example::start(&["--limit", "ip=1/1d", "--headers", style]);
        for expected in [OK, REJECTED] {
            let (status, headers, _) = browser.ask(&server, "/", &[]).await;
            assert_eq!(status, expected);
            let names = headers.keys().map(|name| name.as_str());
            let mut names: Vec<_> = names.filter(|it| it.contains("ratelimit")).collect();
            names.sort_unstable();
            let expected: Vec<_> = told.iter().map(|(name, ..)| *name).collect();
            assert_eq!(names, expected, "{style}");
            for (name, text, range) in told {
                let (said, number) = number(&headers[*name]);
                assert_eq!(said, *text, "{name}");
                assert!(range.contains(&number), "{name}: {number}");
            }
            let retry_after = headers.get("retry-after").map(number);
            assert_eq!(retry_after.is_some(), status == REJECTED);
            assert!(retry_after.is_none_or(|(_, wait)| day().contains(&wait)));
        }
    }
}

#[test]
fn a_wrong_option_is_named_and_ends_the_server_with_2() {
    for (args, expected) in [
        (
            &["--frobnicate", "1"][..],
            "--frobnicate: there is no such option",
        ),
        (&["--listen"], "'--listen'"),
        (&["--listen", "here"], "--listen: `here` is not"),
        (&["--limit", "10/1s"], "--limit: write KEY=RULES"),
        (&["--limit", "user=10/1s"], "--limit: write KEY=RULES"),
        (&["--limit", "header:=10/1s"], "--limit: write KEY=RULES"),
        (&["--limit", "header:a b=10/1s"], "--limit: write KEY=RULES"),
        (
            &["--limit", "ip=ten/1s"],
            "--limit: policy `ip`: rule `ten/1s`",
        ),
        (
            &["--limit", "ip=1/1s", "--limit", "ip=2/1m"],
            "--limit: `ip` has a limit",
        ),
        (
            &["--limit", "header:A=1/1s", "--limit", "header:a=2/1m"],
            "--limit: `header-a` has",
        ),
        (
            &[
                "--limit",
                "ip=1/9s@concurrent",
                "--limit",
                "ip=2/9s@concurrent",
            ],
            "--limit: `ip-slots` has a limit",
        ),
        (
            &["--limit", "ip=1/1s,2/9s@concurrent"],
            "must be the only rule of its policy",
        ),
        (
            &["--trusted-proxy", "10.0.0.1/8"],
            "--trusted-proxy: `10.0.0.1/8` has address bits beyond its width: write `10.0.0.0/8`",
        ),
        (
            &["--trusted-proxy", "nginx"],
            "--trusted-proxy: `nginx` is no network",
        ),
        (
            &["--redis", "http://:sesame@host"],
            "; write a URL: redis://HOST:PORT",
        ),
        (&["--pool", "2"], "--pool: needs --redis"),
        (&["--in-flight", "2"], "--in-flight: needs --redis"),
        (
            &["--redis", "redis://host", "--in-flight", "-1"],
            "--in-flight: `-1` is not",
        ),
        (&["--transactions"], "--transactions: needs --redis"),
        (
            &["--redis", "redis://a", "--transactions", "--cluster"],
            "--transactions: needs one server",
        ),
        (&["--cluster"], "--cluster: needs --redis"),
        (
            &[
                "--redis",
                "redis://a",
                "--redis",
                "redis://b",
                "--pool",
                "2",
            ],
            "--pool: not for a cluster",
        ),
        (&["--sentinel", "mymaster"], "--sentinel: needs"),
        (
            &["--redis", "redis://host", "--pool", "0"],
            "--pool: needs at least one",
        ),
        (
            &["--redis", "redis://host", "--pool", "-1"],
            "--pool: `-1` is not",
        ),
        (&["--timeout", "0s"], "--timeout: `0s` is not"),
        (&["--timeout", "100"], "--timeout: `100` is not"),
        (&["--count", "some"], "--count: `some` is neither"),
        (
            &["--config", "/nowhere/a.toml"],
            "--config: /nowhere/a.toml: No such",
        ),
        (
            &["--config", "/nowhere/a.toml", "--limit", "ip=1/1s"],
            "--config: leave out --limit",
        ),
        (&["--on-failure", "ajar"], "--on-failure: `ajar` is none of"),
        (&["--replicas", "0"], "--replicas: needs at least one"),
        (&["--replicas", "few"], "--replicas: `few` is not"),
        (&["--headers", "all"], "--headers: `all` is none of"),
        (
            &["--contributors", "user"],
            "--contributors: `user` is not header:NAME",
        ),
        (&["127.0.0.1:80"], "\"127.0.0.1:80\""),
    ] {
        let output = Example::output(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
}

#[test]
fn help_names_every_option() {
    let output = Example::output(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    let options = [
        "listen",
        "limit",
        "config",
        "count",
        "trusted-proxy",
        "redis",
        "cluster",
        "sentinel",
        "pool",
        "in-flight",
        "timeout",
        "on-failure",
        "replicas",
        "headers",
        "contributors",
        "deny-cache",
        "shadow",
    ];
    for option in options {
        assert!(help.contains(&format!("--{option} ")), "{option}");
    }
}

#[tokio::test]
async fn everybody_together_can_be_limited_and_two_servers_with_leases_admit_exactly_the_limit() {
    let redis = Server::start();
    let args = ["--redis", &redis.url(), "--timeout", "9s", "--leases"];
    let limits = ["--limit", "all=500/1d", "--limit", "header:x-user=100/1d"];
    let args = [&args[..], &limits].concat();
    let servers = [Example::start(&args), Example::start(&args)];
    let browser = Browser::new();
    let mut admitted = 0;
    for request in 0..1_200 {
        let user = format!("{}", request % 7);
        let server = &servers[request % 2];
        let (status, ..) = browser.ask(server, "/", &[("x-user", &user)]).await;
        assert!(status == OK || status == REJECTED, "{status}");
        admitted += usize::from(status == OK);
    }
    assert_eq!(admitted, 500);
    let calls = redis.calls("evalsha");
    println!("{calls} calls");
}
