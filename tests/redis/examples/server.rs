//! The server example: options, routes, and one limit shared by two processes.

use axum::{
    body::Body,
    http::{HeaderMap, Request, Response, StatusCode},
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
async fn the_limits_say_which_process_holds_the_slots_of_the_caller() {
    let redis = Server::start();
    let limit = "header:x-user=2/1h@concurrent";
    let server = Example::start(&["--limit", limit, "--redis", &redis.url()]);
    let browser = Browser::new();
    let held = browser.open(&server, "/wait/3600000").await;
    assert_eq!(held.status(), OK);
    let user = [("x-user", "alice")];
    let (_, _, body) = browser.ask(&server, "/limits", &user).await;
    let said: Value = serde_json::from_str(&body).unwrap();
    let holders = said["limits"][0]["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 1, "{said}");
    assert_eq!(holders[0]["slots"], 1);
    assert!(holders[0]["held_ms"].as_u64().unwrap() < 600_000);
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
