//! Services, requests, and the parts of answers that the tests of this program compare.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr},
};

use axum::extract::connect_info::MockConnectInfo;
use hyper_util::server::conn::auto;
pub(crate) use support::prelude::{Inner, answering, hello, to};

use crate::prelude::*;

/// The middle of a month, and of a step of any rule here.
pub(crate) const NOW_MS: u64 = 1_804_500_000_000;

/// The peer of requests to an app.
pub(crate) const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1);

pub(crate) fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

pub(crate) fn everybody() -> Key {
    Key::new("service", "all")
}

pub(crate) fn alice() -> Key {
    Key::new("user", "alice")
}

/// A limiter in memory, with a clock that stands still.
pub(crate) fn still() -> Limiter {
    support::limiter(MemoryStore::new().clock(ManualClock::new(NOW_MS)))
}

/// A layer without limits, over such a limiter.
pub(crate) fn empty() -> RateLimitLayer {
    support::layer(still())
}

/// A layer with a limit of all requests.
pub(crate) fn limit(name: &str, rules: &str) -> RateLimitLayer {
    empty().limit(policy(name, rules), everybody())
}

/// A limiter that rejects what it cannot decide.
pub(crate) fn closed(store: impl Store) -> Limiter {
    support::limiter(store).on_failure(FailurePolicy::Closed)
}

/// A header that is not sent, and whose absence is a challenge.
pub(crate) fn challenging() -> impl KeyExtractor {
    Header::new("absent").or_unauthorized(HeaderValue::from_static("Bearer"))
}

/// Each style, with all its fields.
pub(crate) fn all_styles() -> HeaderStyle {
    HeaderStyle::DRAFT_11
        .and(HeaderStyle::DRAFT_6)
        .and(HeaderStyle::X_RATE_LIMIT)
        .and(HeaderStyle::X_RATE_LIMIT_BY_UNIT)
        .and(HeaderStyle::RETRY_AFTER_MS)
}

/// A response of this status.
pub(crate) fn answer(status: u16) -> Response<String> {
    let response = Response::builder().status(status);
    response.body(String::new()).unwrap()
}

pub(crate) fn head() -> Parts {
    to("/").into_parts().0
}

/// A `GET` of `/` with these fields.
pub(crate) fn with(fields: &[(&'static str, &str)]) -> Request<String> {
    let mut request = to("/");
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

/// A layer around a service, for requests and answers as these tests have them.
pub(crate) trait Limits<B>:
    Layer<Inner, Service: Service<Request<String>, Response = Response<B>, Error = Infallible>>
{
}

impl<B, L> Limits<B> for L where
    L: Layer<Inner, Service: Service<Request<String>, Response = Response<B>, Error = Infallible>>
{
}

/// Sends a request through this layer to a service that says hello.
pub(crate) async fn send<B>(layer: &impl Limits<B>, request: Request<String>) -> Response<B> {
    layer.layer(hello()).oneshot(request).await.unwrap()
}

pub(crate) async fn ask<B>(layer: &impl Limits<B>) -> Response<B> {
    send(layer, to("/")).await
}

/// Serves HTTP/1.1 and HTTP/2 with hyper, by a service for each peer, until the runtime ends.
pub(crate) async fn serve<S, B>(make: impl Fn(SocketAddr) -> S + Send + 'static) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = TowerToHyperService::new(make(peer));
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                server.serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    address
}

/// The keys that an extractor finds, as `kind=value`; or `skip`, or the kind of the error.
pub(crate) fn found(extractor: &dyn KeyExtractor, head: &Parts) -> String {
    match extractor.extract(head) {
        Ok(keys) if keys == Keys::skip() => "skip".to_owned(),
        Ok(keys) => {
            let text = |key: &Key| String::from_utf8_lossy(key.value()).into_owned();
            let keys = keys.iter().map(|it| format!("{}={}", it.kind(), text(it)));
            keys.collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.kind().as_str().to_owned(),
    }
}

pub(crate) fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

/// The field of this name, or `-`.
pub(crate) fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("-", |it| it.to_str().unwrap())
}

pub(crate) fn code<B>(response: &Response<B>) -> u16 {
    response.status().as_u16()
}

/// The status, the reason of a rejection, and all fields but the two that each rejection has:
/// `429 Denied | ratelimit: "all";r=0;t=2 | retry-after: 2`.
pub(crate) fn told<B>(response: &Response<B>) -> String {
    shown(response, &["cache-control", "content-type"])
}

/// The same with all fields, and the body.
pub(crate) fn whole(response: &Response<String>) -> String {
    let body = response.body();
    let separator = if body.is_empty() { "" } else { " | " };
    shown(response, &[]) + separator + body
}

fn shown<B>(response: &Response<B>, hidden: &[&str]) -> String {
    let mut text = response.status().as_u16().to_string();
    if let Some(rejection) = response.extensions().get::<Rejection>() {
        let reason = format!("{rejection:?}");
        write!(text, " {}", reason.split('(').next().unwrap()).unwrap();
    }
    let fields = response.headers().iter();
    let mut fields: Vec<_> = fields
        .filter(|it| !hidden.contains(&it.0.as_str()))
        .collect();
    fields.sort_by_key(|it| it.0.as_str());
    for (name, value) in fields {
        write!(text, " | {name}: {}", value.to_str().unwrap()).unwrap();
    }
    text
}

/// Sends these requests to an app, one a line, and compares the answers: a status, and perhaps the items of the
/// rest, without their times, and of the quotas: `DELETE /items/7 x-user: alice; x-plan: free -> 200 "items";r=1 of …`.
pub(crate) async fn walk(app: &Router, script: &str) {
    let app = app.clone().layer(MockConnectInfo(PEER));
    let is_step = |line: &&str| !line.is_empty() && !line.starts_with('#');
    for line in script.lines().map(str::trim).filter(is_step) {
        let (asked, expected) = line.split_once(" -> ").unwrap();
        let (method, asked) = asked.split_once(' ').unwrap();
        let (path, fields) = asked.split_once(' ').unwrap_or((asked, ""));
        let mut request = Request::builder().method(method).uri(path);
        for field in fields.split("; ").filter(|it| !it.is_empty()) {
            let (name, value) = field.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let mut seen = response.status().as_u16().to_string();
        if expected.contains(' ') {
            let items = lines(response.headers(), "ratelimit").join(", ");
            let items = items.split(", ").map(|it| it.split(";t=").next().unwrap());
            seen += &format!(" {}", items.collect::<Vec<_>>().join(", "));
        }
        if expected.contains(" of ") {
            seen += &format!(
                " of {}",
                lines(response.headers(), "ratelimit-policy").join(", ")
            );
        }
        assert_eq!(seen, expected, "{line}");
    }
}

pub(crate) fn decisions<B>(response: &Response<B>) -> &Decisions {
    response.extensions().get().unwrap()
}

/// The remaining units under the first rule of a decision.
pub(crate) fn left(decision: &Decision) -> u64 {
    decision.usage().rules().next().unwrap().remaining()
}

/// The remaining units of a key under the first rule of a policy.
pub(crate) async fn left_of(limiter: &Limiter, policy: &Policy, key: &Key) -> u64 {
    let usage = limiter.peek([Charge::new(policy, key.clone(), 0)]).await;
    usage.unwrap().rules().next().unwrap().remaining()
}

/// Waits until the tasks of dropped requests have done their work.
pub(crate) async fn settled() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Calls the closure when dropped.
pub(crate) struct OnDrop(pub(crate) Box<dyn Fn() + Send>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0();
    }
}

/// The lines of a text, without their indentation.
pub(crate) fn block(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

/// Asserts that there is one line, with all of these words.
pub(crate) fn assert_one(lines: &[String], words: &[&str]) {
    let [line] = lines else {
        panic!("not one line of {words:?}: {lines:?}");
    };
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// A test for each row: a layer, perhaps a request, and the answers to this request, one after the other, as a
/// function shows them.
macro_rules! answers {
    ($shown:expr; $($name:ident $([$request:expr])?: $layer:expr => $($expected:expr),+;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let layer = $layer;
            let mut seen = Vec::new();
            for _ in [$($expected),+] {
                let request = Vec::from([$($request)?]).pop();
                let request = request.unwrap_or_else(|| crate::asking::to("/"));
                let response = crate::asking::send(&layer, request).await;
                seen.push($shown(&response));
            }
            assert_eq!(seen, [$($expected),+]);
        }
    )*};
}

/// A test for each row: a value that cannot be built, and the error, or a part of the error.
macro_rules! refusals {
    (@check is $error:ident $said:expr) => { assert_eq!($error, $said) };
    (@check says $error:ident $said:expr) => { assert!($error.contains($said), "{}", $error) };
    ($check:ident; $($name:ident: $built:expr => $said:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let error = $built.unwrap_err().to_string();
            refusals!(@check $check error $said);
        }
    )*};
}

/// A test for each row: a value that panics when built, and a part of the message.
macro_rules! panics {
    ($($name:ident: $built:expr => $said:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $said)]
        fn $name() {
            let _ = $built;
        }
    )*};
}
