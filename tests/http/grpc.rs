//! A tonic server with limited calls, and a tonic client that waits as its answer demands.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, uri::PathAndQuery};
use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, Limiter, MemoryStore, PeerIp, Policy,
    RateLimitLayer, Rule,
    error::ExtractError,
    extract::{KeyExtractor, Keys},
    middleware::{
        CostMeter, Grpc, HeaderStyle, MakeRejection, ObeyLayer, ProblemJson, Rejection, Routes,
        StatusOnly,
    },
};
use support::scripted::Scripted;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    client::Grpc as Caller,
    server::NamedService,
    transport::{
        Certificate, Channel, ClientTlsConfig, Identity, Server, ServerTlsConfig,
        server::TcpIncoming,
    },
};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::{Layer, Service, service_fn};

const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A service like those of a code generator, which says hello.
#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl Service<Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let hello = service_fn(
            |request: tonic::Request<String>| -> Ready<Result<_, Status>> {
                let greeting = format!("hello {}", request.into_inner());
                ready(Ok(tonic::Response::new(greeting)))
            },
        );
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
            Ok(grpc.unary(hello, request).await)
        })
    }
}

/// Says hello as many times as the request asks for, and charges a unit for each.
#[derive(Clone, Default)]
struct Chatter {
    sent: Arc<AtomicU64>,
}

impl NamedService for Chatter {
    const NAME: &'static str = "test.Chatter";
}

impl Service<Request<Body>> for Chatter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sent = Arc::clone(&self.sent);
        let chat = service_fn(move |request: tonic::Request<String>| {
            let meter = request.extensions().get::<CostMeter>().unwrap().clone();
            let sent = Arc::clone(&sent);
            meter.set(0); // a call without an answer is free
            let times: u64 = request.into_inner().parse().unwrap();
            let hellos = stream::iter(0..times).map(move |_| {
                meter.add(1);
                sent.fetch_add(1, SeqCst);
                Ok::<_, Status>("hello ".repeat(100))
            });
            ready(Ok::<_, Status>(tonic::Response::new(hellos)))
        });
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
            Ok(grpc.server_streaming(chat, request).await)
        })
    }
}

#[tokio::test]
async fn a_stream_of_messages_costs_those_that_were_sent_also_if_the_client_leaves() {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, slots) = (
        Policy::parse("messages", "1000000/1h").unwrap(),
        Policy::parse("calls", "1/30s@concurrent").unwrap(),
    );
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_concurrent(slots, everybody())
        .limit(policy.clone(), everybody())
        .meter_costs()
        .rejection(Grpc::new());
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", incoming.local_addr().unwrap());
    let chatter = Chatter::default();
    let server = Server::builder().layer(layer).add_service(chatter.clone());
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = client(address).await;

    let mut total = 0;
    for (times, reads) in [(3_u64, 3), (900_000, 5), (0, 0)] {
        let stream = chat(&mut client, times).await.unwrap();
        // The stream has the only slot.
        if times == 900_000 {
            let denied = chat(&mut client, 1).await.unwrap_err();
            assert_eq!(denied.code(), Code::ResourceExhausted);
        }
        let read: Vec<_> = stream.take(reads).collect().await;
        assert!(read.into_iter().all(|hello| hello.is_ok()));
        // Dropped here: the client leaves. The slot is free when the stream has ended.
        let again = async {
            while chat(&mut client, 0).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), again)
            .await
            .unwrap();
        let sent = chatter.sent.load(SeqCst);
        assert!(
            sent - total >= reads as u64 && sent - total <= times && sent < 900_000,
            "{sent}"
        );
        total = sent;
        let settled = async {
            loop {
                let look = Charge::new(&policy, everybody(), 0);
                let usage = limiter.peek([look]).await.unwrap();
                if 1_000_000 - usage.rules().next().unwrap().remaining() == total {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), settled)
            .await
            .expect("each message costs a unit");
    }
}

async fn chat(client: &mut Caller<Channel>, times: u64) -> Result<Streaming<String>, Status> {
    let path = PathAndQuery::from_static("/test.Chatter/Chat");
    client.ready().await.unwrap();
    let request = tonic::Request::new(times.to_string());
    let response = client
        .server_streaming(request, path, ProstCodec::default())
        .await?;
    Ok(response.into_inner())
}

/// Serves the greeter behind this layer until the runtime ends. Returns its address.
fn serve<R>(layer: RateLimitLayer<R>) -> String
where
    R: MakeRejection<Body> + Send + Sync + 'static,
{
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", incoming.local_addr().unwrap());
    let mut server = Server::builder().accept_http1(true).layer(layer);
    tokio::spawn(server.add_service(Greeter).serve_with_incoming(incoming));
    address
}

/// The pushback and the retry delay of a call that another service refuses become a pause.
#[tokio::test]
async fn a_refused_call_pauses_the_account() {
    let layer = limited(Scripted::denying_for(7_250), everybody()).headers(HeaderStyle::NONE);
    let channel = Channel::from_shared(serve(layer.rejection(Grpc::new()))).unwrap();
    let limiter = Limiter::new(MemoryStore::new());
    let obey = ObeyLayer::new(limiter.clone(), everybody());
    let mut client = Caller::new(obey.layer(channel.connect().await.unwrap()));
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/test.Greeter/Hello");
    let request = tonic::Request::new("world".to_owned());
    let answer = client.unary::<String, String, _>(request, path, ProstCodec::default());
    assert_eq!(answer.await.unwrap_err().code(), Code::ResourceExhausted);
    let policy = Policy::new("calls", [Rule::per_minute(10)]).unwrap();
    let decision = limiter.check([Charge::new(&policy, everybody(), 1)]).await;
    let Ok(Decision::Blocked(blocked)) = decision else {
        panic!("{decision:?}");
    };
    let rest = blocked.retry_after().unwrap();
    assert!(
        rest > Duration::from_secs(5) && rest <= Duration::from_millis(7_250),
        "{rest:?}"
    );
}

async fn client(address: String) -> Caller<Channel> {
    let channel = Channel::from_shared(address).unwrap();
    Caller::new(channel.connect().await.unwrap())
}

async fn hello(client: &mut Caller<Channel>) -> Result<tonic::Response<String>, Status> {
    let path = PathAndQuery::from_static("/test.Greeter/Hello");
    client.ready().await.unwrap();
    let request = tonic::Request::new("world".to_owned());
    client.unary(request, path, ProstCodec::default()).await
}

/// The status of a single call behind this layer.
async fn ends(layer: RateLimitLayer) -> Status {
    let mut client = client(serve(layer.rejection(Grpc::new()))).await;
    hello(&mut client).await.unwrap_err()
}

/// A value in the metadata of a status.
fn told<'a>(status: &'a Status, name: &str) -> &'a str {
    status.metadata().get(name).unwrap().to_str().unwrap()
}

fn limited(limiter: impl Into<Limiter>, extractor: impl KeyExtractor) -> RateLimitLayer {
    let policy = Policy::new("calls", [Rule::per_minute(10)]).unwrap();
    RateLimitLayer::new(limiter).limit(policy, extractor)
}

fn everybody() -> Key {
    Key::new("service", "all")
}

#[tokio::test]
async fn a_client_that_honours_retry_info_is_served_at_its_second_try() {
    let policy = Policy::parse("calls", "1/300ms").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy, PeerIp);
    let mut client = client(serve(layer.rejection(Grpc::new()))).await;
    let start = Instant::now();
    let mut rejections = 0;
    for _ in 0..3 {
        let response = loop {
            match hello(&mut client).await {
                Ok(response) => break response,
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted);
                    let details = status.get_error_details();
                    let wait = details.retry_info().unwrap().retry_delay.unwrap();
                    assert_eq!(told(&status, PUSHBACK), wait.as_millis().to_string());
                    rejections += 1;
                    tokio::time::sleep(wait).await;
                }
            }
        };
        assert_eq!(response.get_ref(), "hello world");
        assert!(response.metadata().contains_key("ratelimit"));
    }
    assert_eq!(rejections, 2);
    assert!(start.elapsed() >= Duration::from_millis(600));
}

#[tokio::test]
async fn the_peer_of_a_call_within_tls_is_known() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
    let store = Scripted::allowing();
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = incoming.local_addr().unwrap().port();
    let mut server = Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))
        .unwrap()
        .layer(limited(store.clone(), PeerIp).rejection(Grpc::new()));
    tokio::spawn(server.add_service(Greeter).serve_with_incoming(incoming));

    let trusted = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(cert.pem()))
        .domain_name("localhost");
    let channel = Channel::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
    let channel = channel
        .tls_config(trusted)
        .unwrap()
        .connect()
        .await
        .unwrap();
    hello(&mut Caller::new(channel)).await.unwrap();
    let checks = store.checks();
    assert_eq!(checks[0].charges()[0].key(), &Key::new("ip", "127.0.0.1"));
}

#[tokio::test]
async fn a_rejection_is_resource_exhausted_and_carries_the_quota() {
    let status = ends(limited(Scripted::denying_for(1_234), everybody())).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = status.check_error_details().unwrap();
    let wait = details.retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_millis(1_234)));
    assert_eq!(violations(&status), ["calls: the limit is 10/1m"]);
    for (name, value) in [
        (PUSHBACK, "1234"),
        ("retry-after", "2"),
        ("ratelimit", r#""calls";r=0;t=2"#),
    ] {
        assert_eq!(told(&status, name), value, "{name}");
    }
}

/// The violated quotas in the details of a status.
fn violations(status: &Status) -> Vec<String> {
    let details = status.get_error_details();
    let quotas = details.quota_failure().into_iter();
    let quotas = quotas.flat_map(|failure| &failure.violations);
    quotas
        .map(|it| format!("{}: {}", it.subject, it.description))
        .collect()
}

#[tokio::test]
async fn the_details_name_the_violated_quotas_alone_and_at_most_eight() {
    let rules = (1..=10).map(|minutes| Rule::new(0, Duration::from_secs(60 * minutes)));
    let many = Policy::new("many", rules).unwrap();
    let hidden = Policy::parse("hidden", "0/1m").unwrap().hidden();
    let free = Policy::parse("free", "9/1m").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(hidden, everybody())
        .limit(free, everybody())
        .limit(many, everybody());
    let status = ends(layer).await;
    // It can never pass, and is not to be tried again.
    assert_eq!(told(&status, PUSHBACK), "-1");
    assert!(status.get_error_details().retry_info().is_none());
    let named = violations(&status);
    assert_eq!(named.len(), 8);
    assert_eq!(named[0], "many/1m: the limit is 0/1m");
    assert!(named.iter().all(|it| it.starts_with("many/")), "{named:?}");
}

#[tokio::test]
async fn the_message_of_a_call_without_a_key_names_the_metadata_key() {
    let absent = limited(Scripted::allowing(), Header::new("x-api-key"));
    assert_eq!(
        ends(absent).await.message(),
        "the header that identifies the client is absent or empty: `x-api-key`"
    );
    for (message, sent) in [
        ("send 100 % of the name", "send 100 % of the name"),
        ("n\u{e4}me", "the request does not identify its client"),
    ] {
        let own = move |_: &http::request::Parts| Err::<Key, _>(ExtractError::missing(message));
        let status = ends(limited(Scripted::allowing(), own)).await;
        assert_eq!(status.message(), sent);
    }
    // What the service has to mend is no business of the client.
    let wired = |_: &http::request::Parts| Err::<Key, _>(ExtractError::misconfigured("secret"));
    let status = ends(limited(Scripted::allowing(), wired)).await;
    assert_eq!(status.message(), "the request could not be limited");
}

#[tokio::test]
async fn a_table_of_routes_limits_each_method() {
    let policy = |name: &str, rules| Policy::parse(name, rules).unwrap();
    let routes =
        Routes::new(policy("others", "0/1h")).route("/test.Greeter/Hello", policy("hello", "1/1h"));
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(routes, everybody());
    let mut client = client(serve(layer.rejection(Grpc::new()))).await;
    hello(&mut client).await.unwrap();
    let status = hello(&mut client).await.unwrap_err();
    assert_eq!(violations(&status), ["hello: the limit is 1/1h"]);
}

#[tokio::test]
async fn a_pushback_has_the_same_jitter_as_the_rest() {
    let layer = limited(Scripted::denying_for(1_000), everybody());
    let status = ends(layer.jitter(Duration::from_secs(3_600))).await;
    let pushback: u64 = told(&status, PUSHBACK).parse().unwrap();
    assert!((1_000..=3_601_000).contains(&pushback));
    let retry_after = pushback.div_ceil(1_000).to_string();
    assert_eq!(told(&status, "retry-after"), retry_after);
}

#[tokio::test]
async fn every_reason_has_the_status_that_clients_act_upon() {
    let allowing = Scripted::allowing;
    let malformed = |_: &http::request::Parts| Err::<Key, _>(ExtractError::malformed("told to"));
    let not_wired =
        |_: &http::request::Parts| Err::<Key, _>(ExtractError::misconfigured("told to"));
    let too_many = |_: &http::request::Parts| {
        (0..65)
            .map(|n| Key::new("user", n.to_string()))
            .collect::<Keys>()
    };
    let failing = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Closed);
    let failing = limited(failing, everybody());
    for (layer, code) in [
        (
            limited(allowing(), Header::new("x-api-key")),
            Code::Unauthenticated,
        ),
        (
            limited(
                allowing(),
                Header::new("x-api-key").or_unauthorized(HeaderValue::from_static("Bearer")),
            ),
            Code::Unauthenticated,
        ),
        (limited(allowing(), malformed), Code::InvalidArgument),
        (limited(allowing(), not_wired), Code::Internal),
        (
            limited(allowing(), everybody()).deny(|_| true),
            Code::PermissionDenied,
        ),
        (failing, Code::Unavailable),
        (limited(allowing(), too_many), Code::Internal),
    ] {
        let status = ends(layer).await;
        assert_eq!(status.code(), code);
        assert!(!status.metadata().contains_key("www-authenticate"));
        assert!(!status.metadata().contains_key(PUSHBACK));
    }
}

#[test]
fn other_requests_are_answered_as_their_own_kind() {
    let rejection = Rejection::MissingKey(ExtractError::missing("told to"));
    let head = |kind: &str| {
        let request = Request::post("/").header("content-type", kind).body(());
        request.unwrap().into_parts().0
    };
    let both = Grpc::new().or(ProblemJson::default());
    for (kind, status) in [
        ("application/grpc", 200),
        ("application/grpc-web+proto", 200),
        ("application/grpc-web-text", 200),
        ("Application/gRPC; charset=utf-8", 200),
        ("application/json", 400),
        ("application/grpcfoo", 400),
        ("application/grpc-webs", 400),
        ("application/grpc, text/html", 400),
    ] {
        let response: Response<String> = both.make_rejection(&rejection, &head(kind));
        assert_eq!(response.status(), status, "{kind}");
    }
    // No call is a `GET`. A proxy that asks for permission to pass one on must not get it from this answer.
    let mut get = head("application/grpc");
    get.method = Method::GET;
    let response: Response<String> = both.make_rejection(&rejection, &get);
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let response: Response<String> = Grpc::new().make_rejection(&rejection, &head("text/plain"));
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let _: Grpc<StatusOnly> = Grpc::default();
}
