//! A tonic server with limited calls, and a tonic client that waits as its answer demands.

use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use sluicegate::middleware::ObeyLayer;
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

use crate::prelude::*;

const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A service like those of a code generator, which says hello, once, or as many times as the request asks for. Those
/// cost a unit each.
#[derive(Clone, Default)]
struct Greeter {
    sent: Arc<AtomicU64>,
}

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
        let sent = Arc::clone(&self.sent);
        let hello = service_fn(async |request: tonic::Request<String>| {
            let greeting = format!("hello {}", request.into_inner());
            Ok::<_, Status>(tonic::Response::new(greeting))
        });
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
            Ok(match request.uri().path() {
                "/test.Greeter/Hello" => grpc.unary(hello, request).await,
                _ => grpc.server_streaming(chat, request).await,
            })
        })
    }
}

/// A request for a path of that service.
fn call(method: &'static str, text: &str) -> (tonic::Request<String>, PathAndQuery) {
    let request = tonic::Request::new(text.to_owned());
    (request, PathAndQuery::from_static(method))
}

#[tokio::test]
async fn a_stream_of_messages_costs_those_that_were_sent_also_if_the_client_leaves() {
    let limiter = support::limiter(MemoryStore::new());
    let messages = policy("messages", "1000000/1h");
    let slots = policy("calls", "1/30s@concurrent");
    let layer = support::layer(limiter.clone())
        .limit_concurrent(slots, everybody())
        .limit(messages.clone(), everybody())
        .meter_costs()
        .rejection(Grpc::new());
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", incoming.local_addr().unwrap());
    let greeter = Greeter::default();
    let server = Server::builder().layer(layer).add_service(greeter.clone());
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
        let again = tokio::time::timeout(Duration::from_secs(20), again);
        again.await.unwrap();
        let sent = greeter.sent.load(SeqCst);
        let is_expected = sent - total >= reads as u64 && sent - total <= times && sent < 900_000;
        assert!(is_expected, "{sent}");
        total = sent;
        let settled = async {
            while 1_000_000 - left_of(&limiter, &messages, &everybody()).await != total {
                tokio::task::yield_now().await;
            }
        };
        let settled = tokio::time::timeout(Duration::from_secs(20), settled);
        settled.await.expect("each message costs a unit");
    }
}

async fn chat(client: &mut Caller<Channel>, times: u64) -> Result<Streaming<String>, Status> {
    client.ready().await.unwrap();
    let (request, path) = call("/test.Greeter/Chat", &times.to_string());
    let response = client.server_streaming(request, path, ProstCodec::default());
    Ok(response.await?.into_inner())
}

/// Serves the greeter behind this layer until the runtime ends. Returns its address.
fn serve<R>(layer: RateLimitLayer<R>) -> String
where
    R: MakeRejection<Body> + Send + Sync + 'static,
{
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", incoming.local_addr().unwrap());
    let mut server = Server::builder().accept_http1(true).layer(layer);
    let server = server.add_service(Greeter::default());
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

/// The pushback and the retry delay of a call that another service refuses become a pause.
#[tokio::test]
async fn a_refused_call_pauses_the_account() {
    let layer = limited(Scripted::denying_for(7_250), everybody()).headers(HeaderStyle::NONE);
    let channel = Channel::from_shared(serve(layer.rejection(Grpc::new()))).unwrap();
    let limiter = support::limiter(MemoryStore::new());
    let obey = ObeyLayer::new(limiter.clone(), everybody());
    let mut client = Caller::new(obey.layer(channel.connect().await.unwrap()));
    client.ready().await.unwrap();
    let (request, path) = call("/test.Greeter/Hello", "world");
    let answer = client.unary::<String, String, _>(request, path, ProstCodec::default());
    assert_eq!(answer.await.unwrap_err().code(), Code::ResourceExhausted);
    let calls = policy("calls", "10/1m");
    let decision = limiter.check([Charge::new(&calls, everybody(), 1)]).await;
    let Ok(Decision::Blocked(blocked)) = decision else {
        panic!("{decision:?}");
    };
    let rest = blocked.retry_after().unwrap();
    let is_expected = rest > Duration::from_secs(5) && rest <= Duration::from_millis(7_250);
    assert!(is_expected, "{rest:?}");
}

async fn client(address: String) -> Caller<Channel> {
    let channel = Channel::from_shared(address).unwrap();
    Caller::new(channel.connect().await.unwrap())
}

async fn hello(client: &mut Caller<Channel>) -> Result<tonic::Response<String>, Status> {
    client.ready().await.unwrap();
    let (request, path) = call("/test.Greeter/Hello", "world");
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
    support::layer(limiter).limit(policy("calls", "10/1m"), extractor)
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
    let server = server.add_service(Greeter::default());
    tokio::spawn(server.serve_with_incoming(incoming));

    let trusted = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(cert.pem()))
        .domain_name("localhost");
    let channel = Channel::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
    let channel = channel.tls_config(trusted).unwrap().connect().await;
    hello(&mut Caller::new(channel.unwrap())).await.unwrap();
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
    let layer = empty()
        .limit(policy("hidden", "0/1m").hidden(), everybody())
        .limit(policy("free", "9/1m"), everybody())
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

/// A layer with an extractor that fails in this way.
fn failing(error: fn() -> ExtractError) -> RateLimitLayer {
    let fails = move |_: &Parts| Err::<Key, _>(error());
    limited(Scripted::allowing(), fails)
}

fn by_header() -> Header {
    Header::new("x-api-key")
}

fn too_many(_: &Parts) -> Keys {
    (0..65).map(|n| Key::new("user", n.to_string())).collect()
}

/// A test for each row: a layer, and the code and the message of a call that it rejects.
macro_rules! ends {
    ($($name:ident: $layer:expr => $code:ident, $message:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let status = ends($layer).await;
            assert_eq!((status.code(), status.message()), (Code::$code, $message));
            assert!(!status.metadata().contains_key("www-authenticate"));
            assert!(!status.metadata().contains_key(PUSHBACK));
        }
    )*};
}

ends! {
    a_call_without_a_key_is_told_its_name: limited(Scripted::allowing(), by_header()) =>
        Unauthenticated, "the header that identifies the client is absent or empty: `x-api-key`";
    a_call_that_has_to_authenticate_is_told_so: limited(Scripted::allowing(), by_header().or_unauthorized(HeaderValue::from_static("Bearer"))) =>
        Unauthenticated, "the client has to authenticate";
    a_call_is_told_the_message_of_an_own_extractor: failing(|| ExtractError::missing("send 100 % of the name")) =>
        Unauthenticated, "send 100 % of the name";
    a_call_is_told_no_message_with_other_characters: failing(|| ExtractError::missing("n\u{e4}me")) =>
        Unauthenticated, "the request does not identify its client";
    a_call_with_a_malformed_key_is_invalid: failing(|| ExtractError::malformed("told to")) => InvalidArgument, "told to";
    // A mistake of the service is no business of the client.
    a_call_is_told_no_mistake_of_the_service: failing(|| ExtractError::misconfigured("secret")) => Internal, "the request could not be limited";
    a_call_with_too_many_keys_is_a_mistake_of_the_service: limited(Scripted::allowing(), too_many) => Internal, "the request could not be limited";
    a_call_on_a_deny_list_is_not_permitted: limited(Scripted::allowing(), everybody()).deny(|_| true) => PermissionDenied, "not allowed";
    a_call_that_cannot_be_decided_is_unavailable: limited(closed(Scripted::failing()), everybody()) => Unavailable, "try again later";
}

#[tokio::test]
async fn a_table_of_routes_limits_each_method() {
    let routes = Routes::new(policy("others", "0/1h"));
    let routes = routes.route("/test.Greeter/Hello", policy("hello", "1/1h"));
    let layer = empty().limit(routes, everybody());
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
