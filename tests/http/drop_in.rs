//! The layer in axum routers and hyper servers, seen by real clients over real connections.

use axum::{
    extract::ws::{Message as Sent, WebSocket, WebSocketUpgrade},
    response::Response,
};
use futures::{SinkExt, channel::mpsc};
use http_body_util::combinators::BoxBody;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio_tungstenite::{connect_async, tungstenite};
use tower_http::{
    cors::{AllowOrigin, CorsLayer},
    timeout::TimeoutLayer,
};

use crate::prelude::*;

/// A limit of all requests.
fn of_all(rules: &str) -> RateLimitLayer {
    limit("all", rules)
}

fn hello() -> MethodRouter {
    get(async || "hello")
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn send(server: SocketAddr, request: http::request::Builder) -> Response<Incoming> {
    let head = request.body(()).unwrap().into_parts().0;
    let mut request = Request::from_parts(head, Body::empty());
    *request.uri_mut() = format!("http://{server}/").parse().unwrap();
    client().request(request).await.unwrap()
}

async fn ask(server: SocketAddr) -> Response<Incoming> {
    send(server, Request::get("/")).await
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Allows one request and denies the others, for a second and a half.
fn once() -> Arc<Scripted> {
    let passed = AtomicBool::new(false);
    Scripted::new(move |check| {
        let decision = match passed.swap(true, SeqCst) {
            false => allowed(check),
            true => denied(check, 1_500),
        };
        StoreFuture::ready(decision)
    })
}

fn by_peer(store: &Arc<Scripted>) -> RateLimitLayer {
    support::layer(store.clone()).limit(policy("ip", "1/1s"), PeerIp)
}

/// Asserts that one request is served, and another one is not, and that both were charged to this address.
async fn assert_limited(server: SocketAddr, store: &Scripted, ip: &str) {
    let served = ask(server).await;
    assert_eq!(served.status(), 200);
    assert_eq!(field(served.headers(), "ratelimit"), r#""ip";r=0;t=1"#);
    assert_eq!(text(served).await, "hello");
    let rejected = ask(server).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(field(rejected.headers(), "retry-after"), "2");
    assert!(text(rejected).await.starts_with("{\"type\":"));
    for check in store.checks() {
        let [charge] = check.charges() else {
            panic!("{check:?}");
        };
        assert_eq!(charge.policy().name(), "ip");
        assert_eq!(*charge.key(), Key::new("ip", ip));
        assert_eq!(charge.cost(), 1);
    }
}

#[tokio::test]
async fn an_axum_server_limits_its_clients() {
    let (whole, route, proxied) = (once(), once(), once());
    let app = || Router::new().route("/", hello());
    // Like an acceptor that reads the PROXY protocol, while axum knows the peer of the connection.
    let client: SocketAddr = "203.0.113.7:50000".parse().unwrap();
    let behind = app().layer(by_peer(&proxied)).layer(Extension(client));
    for (app, store, ip) in [
        (app().layer(by_peer(&whole)), whole, "127.0.0.1"),
        (app().route_layer(by_peer(&route)), route, "127.0.0.1"),
        (behind, proxied, "203.0.113.7"),
    ] {
        let site = Site::start(app).await;
        assert_limited(site.address(), &store, ip).await;
    }
}

#[tokio::test]
async fn a_plain_hyper_server_limits_its_clients() {
    let store = once();
    let layer = by_peer(&store);
    let address = serve(move |peer| {
        let hello =
            service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(full())));
        Extension(peer).layer(layer.layer(hello))
    });
    assert_limited(address.await, &store, "127.0.0.1").await;
}

#[tokio::test]
async fn a_web_socket_is_charged_once_and_a_rejected_one_is_not_opened() {
    async fn echo(mut socket: WebSocket) {
        while let Some(Ok(Sent::Text(text))) = socket.recv().await {
            socket.send(Sent::Text(text)).await.unwrap();
        }
    }
    let upgrade = any(async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo));
    let app = Router::new().route("/ws", upgrade).layer(of_all("1/1d"));
    let site = Site::start(app).await;
    let url = format!("ws://{}/ws", site.address());

    let (mut socket, response) = connect_async(&url).await.unwrap();
    assert_eq!(response.status(), 101);
    for text in ["one", "two", "three"] {
        socket.send(text.into()).await.unwrap();
        let echo = socket.next().await.unwrap().unwrap();
        assert_eq!(echo.to_text().unwrap(), text);
    }
    let tungstenite::Error::Http(rejection) = connect_async(&url).await.unwrap_err() else {
        panic!("not rejected");
    };
    assert_eq!(rejection.status(), 429);
    assert!(rejection.headers().contains_key("retry-after"));
    socket.send("still open".into()).await.unwrap();
    assert!(socket.next().await.unwrap().is_ok());
}

#[tokio::test]
async fn bodies_stream_through_both_ways() {
    let (mut send, receive) = mpsc::channel::<Result<Bytes, Infallible>>(0);
    // Each chunk is echoed, so the response ends with the request.
    let echo = post(async |body: Body| Body::from_stream(body.into_data_stream()));
    let app = Router::new().route("/", echo).layer(of_all("1/1d"));
    let site = Site::start(app).await;
    let url = format!("http://{}/", site.address());
    let request = Request::post(url).body(Body::from_stream(receive)).unwrap();
    let asked = tokio::spawn(client().request(request));
    send.send(Ok("one".into())).await.unwrap();
    let response = asked.await.unwrap().unwrap();
    assert!(response.headers().contains_key("ratelimit"));
    let mut body = response.into_body().into_data_stream();
    assert_eq!(body.next().await.unwrap().unwrap(), "one");
    for chunk in ["two", "three"] {
        send.send(Ok(chunk.into())).await.unwrap();
        assert_eq!(body.next().await.unwrap().unwrap(), chunk);
    }
    drop(send);
    assert!(body.next().await.is_none());
}

/// Serves with hyper, in the user's body type.
async fn serve_with_hyper<B, R>(layer: RateLimitLayer<R>, hello: fn() -> B) -> SocketAddr
where
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    R: MakeRejection<B> + Send + Sync + 'static,
{
    let hello = move |_: Request<Incoming>| ready(Ok::<_, Infallible>(Response::new(hello())));
    let service = layer.layer(service_fn(hello));
    serve(move |_| service.clone()).await
}

fn full() -> Full<Bytes> {
    Full::from("hello")
}

#[tokio::test]
async fn a_hyper_server_answers_in_any_body_type() {
    let whole = serve_with_hyper(of_all("1/1d"), full).await;
    let boxed = of_all("1/1d").rejection(StatusOnly);
    let boxed = serve_with_hyper(boxed, || BoxBody::new(full())).await;
    for (server, has_body) in [(whole, true), (boxed, false)] {
        assert_eq!(text(ask(server).await).await, "hello");
        let rejection = ask(server).await;
        assert_eq!(rejection.status(), 429);
        assert!(rejection.headers().contains_key("ratelimit"));
        assert_eq!(text(rejection).await.is_empty(), !has_body);
    }
}

#[tokio::test]
async fn a_rejected_head_request_is_told_the_length_that_get_would_have() {
    let hyper = serve_with_hyper(of_all("0/1d"), full).await;
    let site = Site::start(Router::new().route("/", hello()).layer(of_all("0/1d"))).await;
    for server in [hyper, site.address()] {
        let length = text(ask(server).await).await.len().to_string();
        let rejection = send(server, Request::head("/")).await;
        assert_eq!(rejection.status(), 429);
        assert_eq!(field(rejection.headers(), "content-length"), length);
        assert_eq!(text(rejection).await, "");
    }
}

#[tokio::test]
async fn http_2_and_a_head_request_are_answered_too() {
    let server = serve_with_hyper(of_all("2/1d"), full).await;
    let mut client = Client::builder(TokioExecutor::new());
    let client = client.http2_only(true).build_http::<Body>();
    for (method, status, body) in [
        (Method::GET, 200, "hello"),
        (Method::POST, 200, "hello"),
        (Method::HEAD, 429, ""),
    ] {
        let request = Request::builder().method(method);
        let request = request.uri(format!("http://{server}/")).body(Body::empty());
        let response = client.request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        assert!(response.headers().contains_key("ratelimit"));
        assert_eq!(text(response).await, body);
    }
}

const ORIGIN: &str = "https://app.example.com";

/// The headers that a page of another origin can read; `None` if the browser hides the response.
fn visible(response: &Response<Incoming>) -> Option<HeaderMap> {
    const SAFE: &str =
        "cache-control content-language content-length content-type expires last-modified pragma";
    let headers = response.headers();
    let allowed = headers.get("access-control-allow-origin")?;
    if allowed != ORIGIN && allowed != "*" {
        return None;
    }
    let exposed = lines(headers, "access-control-expose-headers").join(",");
    let exposed = exposed.to_ascii_lowercase().replace(' ', "");
    let is_visible = |name: &HeaderName| {
        let mut all = SAFE.split(' ').chain(exposed.split(','));
        all.any(|it| it == name.as_str())
    };
    let visible = headers.iter().filter(|(name, _)| is_visible(name));
    let visible = visible.map(|(name, value)| (name.clone(), value.clone()));
    Some(visible.collect())
}

/// Sends a preflight like a browser, and then only the request that it allows.
async fn fetch(site: &Site) -> (u16, Option<HeaderMap>) {
    let preflight = Request::options("/")
        .header("origin", ORIGIN)
        .header("access-control-request-method", "GET")
        .header("access-control-request-headers", "x-api-key");
    let preflight = send(site.address(), preflight).await;
    assert_eq!(preflight.status(), 200);
    let allowed = field(preflight.headers(), "access-control-allow-headers");
    assert_eq!(allowed, "x-api-key");
    let request = Request::get("/").header("origin", ORIGIN);
    let response = send(site.address(), request.header("x-api-key", "alice")).await;
    (response.status().as_u16(), visible(&response))
}

#[tokio::test]
async fn a_page_of_another_origin_sees_a_rejection_and_its_headers_and_preflights_are_free() {
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::exact(ORIGIN.parse().unwrap()))
        .allow_headers([HeaderName::from_static("x-api-key")])
        .expose_headers(EXPOSED_HEADERS);
    let tokens = policy("tokens", "1/1d").unit(Unit::TOKENS);
    let limited = of_all("1/1d").limit(tokens, everybody());
    let limited = limited.headers(all_styles());
    let app = || Router::new().route("/", hello());
    let site = Site::start(app().layer(limited.clone()).layer(cors.clone())).await;

    let (status, headers) = fetch(&site).await;
    assert_eq!(status, 200);
    assert!(headers.unwrap().contains_key("ratelimit"));
    let (status, headers) = fetch(&site).await;
    assert_eq!(status, 429);
    let headers = headers.unwrap();
    // The others are those of a gRPC call, a 401 and a 415.
    let is_of_others = |it: &HeaderName| {
        it.as_str().starts_with("grpc") || *it == "www-authenticate" || *it == "accept-encoding"
    };
    for name in EXPOSED_HEADERS.iter().filter(|it| !is_of_others(it)) {
        assert!(headers.contains_key(name), "{name}");
    }
    // In the other order, the page sees no rejection, and the layer counts the preflight.
    let site = Site::start(app().layer(cors).layer(limited)).await;
    let response = ask(site.address()).await;
    assert_eq!(response.status(), 429);
    assert!(visible(&response).is_none());
}

#[tokio::test]
async fn a_response_of_a_timeout_inside_tells_the_quota_and_one_of_a_timeout_outside_does_not() {
    const LATE: StatusCode = StatusCode::REQUEST_TIMEOUT;
    let timeout = TimeoutLayer::with_status_code(LATE, Duration::from_millis(10));
    let app = || Router::new().route("/", get(pending::<()>));
    let inside = app().layer(timeout).layer(of_all("2/1d"));
    let outside = app().layer(of_all("2/1d")).layer(timeout);
    for (app, told) in [
        (inside, [r#""all";r=1"#, r#""all";r=0"#, r#""all";r=0"#]),
        (outside, ["-", "-", r#""all";r=0"#]),
    ] {
        let site = Site::start(app).await;
        for (expected, told) in [408, 408, 429].into_iter().zip(told) {
            let (status, headers, _) = site.get("/", &[]).await;
            assert_eq!(status, expected);
            let left = field(&headers, "ratelimit").split(";t=").next();
            assert_eq!(left, Some(told));
        }
    }
}
