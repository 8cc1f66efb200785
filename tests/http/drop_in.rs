//! The layer in axum routers and hyper servers, seen by real clients over real connections.

use std::{
    convert::Infallible,
    future::{pending, ready},
    net::SocketAddr,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{
        MatchedPath, Path,
        ws::{Message as Sent, WebSocket, WebSocketUpgrade},
    },
    response::Response,
    routing::{any, get, post},
};
use futures::{SinkExt, StreamExt, channel::mpsc};
use http::{HeaderMap, Method, Request, StatusCode, request::Parts};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use sluicegate::{
    Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    middleware::{HeaderStyle, MakeRejection, StatusOnly},
    policies::Unit,
};
use tokio::net::TcpListener;
use tokio_tungstenite::{connect_async, tungstenite};
use tower::{ServiceBuilder, service_fn};
use tower_http::timeout::TimeoutLayer;

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;

/// A limit of all requests in a day.
fn limit(name: &str, times: u64) -> RateLimitLayer {
    limit_over(&Limiter::new(MemoryStore::new()), name, times)
}

fn limit_over(limiter: &Limiter, name: &str, times: u64) -> RateLimitLayer {
    let policy = Policy::parse(name, &format!("{times}/1d")).unwrap();
    RateLimitLayer::new(limiter.clone()).limit(policy, Key::new("service", "all"))
}

/// Serves a router until the runtime ends.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn ask(server: SocketAddr, path: &str) -> Response<Incoming> {
    let request = Request::get(format!("http://{server}{path}"));
    let request = request.body(Body::empty()).unwrap();
    client().request(request).await.unwrap()
}

/// The statuses of these requests, sent one after the other.
async fn statuses<const N: usize>(server: SocketAddr, paths: [&str; N]) -> [StatusCode; N] {
    let mut statuses = [OK; N];
    for (path, status) in paths.iter().zip(&mut statuses) {
        *status = ask(server, path).await.status();
    }
    statuses
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_layer_of_an_axum_router_limits_its_routes_and_its_fallback() {
    let app = Router::new()
        .route("/", get(async || "hello"))
        .fallback(async || (NOT_FOUND, "nothing here"))
        .layer(limit("all", 2));
    let server = serve(app).await;
    let response = ask(server, "/").await;
    assert_eq!(
        response.headers()["ratelimit"]
            .to_str()
            .unwrap()
            .split(';')
            .nth(1),
        Some("r=1")
    );
    assert_eq!(text(response).await, "hello");
    let statuses = statuses(server, ["/nowhere", "/", "/nowhere"]).await;
    assert_eq!(statuses, [NOT_FOUND, REJECTED, REJECTED]);
    let rejection = ask(server, "/").await;
    assert_eq!(
        rejection.headers()["content-type"],
        "application/problem+json"
    );
    assert!(
        text(rejection)
            .await
            .contains(r#""violated-policies":["all"]"#)
    );
}

#[tokio::test]
async fn a_route_layer_leaves_the_fallback_alone_and_sees_the_matched_path() {
    let by_path = |head: &Parts| {
        let path = head.extensions.get::<MatchedPath>()?;
        Some(Key::new("path", path.as_str()))
    };
    let policy = Policy::parse("path", "1/1d").unwrap();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route(
            "/users/{id}",
            get(async |Path(id): Path<u32>| id.to_string()),
        )
        .route_layer(RateLimitLayer::new(MemoryStore::new()).limit(policy, by_path));
    let server = serve(app).await;
    let statuses = statuses(
        server,
        ["/users/1", "/users/2", "/", "/", "/nowhere", "/nowhere"],
    );
    let expected = [OK, REJECTED, OK, REJECTED, NOT_FOUND, NOT_FOUND];
    assert_eq!(statuses.await, expected);
}

#[tokio::test]
async fn nested_routers_have_limits_of_their_own_within_those_of_the_whole() {
    let limiter = Limiter::new(MemoryStore::new());
    let api = Router::new()
        .route("/search", get(async || "found"))
        .layer(limit_over(&limiter, "api", 1));
    let app = Router::new()
        .nest("/api", api)
        .route("/", get(async || "hello"))
        .layer(limit_over(&limiter, "all", 4));
    let server = serve(app).await;
    let response = ask(server, "/api/search").await;
    let lines = response.headers().get_all("ratelimit").iter();
    let names: Vec<_> = lines
        .map(|it| it.to_str().unwrap().split('"').nth(1).unwrap())
        .collect();
    assert_eq!(names, ["api", "all"]);
    let statuses = statuses(server, ["/api/search", "/", "/", "/"]).await;
    assert_eq!(statuses, [REJECTED, OK, OK, REJECTED]);
}

#[tokio::test]
async fn a_web_socket_is_charged_once_and_a_rejected_one_is_not_opened() {
    async fn echo(mut socket: WebSocket) {
        while let Some(Ok(Sent::Text(text))) = socket.recv().await {
            socket.send(Sent::Text(text)).await.unwrap();
        }
    }
    let upgrade = any(async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo));
    let app = Router::new().route("/ws", upgrade).layer(limit("all", 1));
    let url = format!("ws://{}/ws", serve(app).await);

    let (mut socket, response) = connect_async(&url).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    for text in ["one", "two", "three"] {
        socket.send(text.into()).await.unwrap();
        let echo = socket.next().await.unwrap().unwrap();
        assert_eq!(echo.to_text().unwrap(), text);
    }
    let tungstenite::Error::Http(rejection) = connect_async(&url).await.unwrap_err() else {
        panic!("not rejected");
    };
    assert_eq!(rejection.status(), REJECTED);
    assert!(rejection.headers().contains_key("retry-after"));
    socket.send("still open".into()).await.unwrap();
    assert!(socket.next().await.unwrap().is_ok());
}

#[tokio::test]
async fn bodies_stream_through_both_ways() {
    let (mut send, receive) = mpsc::channel::<Result<Bytes, Infallible>>(0);
    // Each chunk is echoed, so the response ends with the request.
    let app = Router::new()
        .route(
            "/",
            post(async |body: Body| Body::from_stream(body.into_data_stream())),
        )
        .layer(limit("all", 1));
    let url = format!("http://{}/", serve(app).await);
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

/// Serves connections one after the other with hyper, in the user's body type, until the runtime ends.
async fn serve_with_hyper<B, R>(layer: RateLimitLayer<R>, hello: fn() -> B) -> SocketAddr
where
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    R: MakeRejection<B> + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service =
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(move |_: Request<Incoming>| {
                ready(Ok::<_, Infallible>(Response::new(hello())))
            }));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                server.serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    address
}

#[tokio::test]
async fn a_hyper_server_answers_in_any_body_type() {
    let full = serve_with_hyper(limit("all", 1), || Full::<Bytes>::from("hello")).await;
    let boxed = || BoxBody::new(Full::<Bytes>::from("hello"));
    let boxed = serve_with_hyper(limit("all", 1).rejection(StatusOnly), boxed).await;
    for (server, has_body) in [(full, true), (boxed, false)] {
        assert_eq!(text(ask(server, "/").await).await, "hello");
        let rejection = ask(server, "/").await;
        assert_eq!(rejection.status(), REJECTED);
        assert!(rejection.headers().contains_key("ratelimit"));
        assert_eq!(text(rejection).await.is_empty(), !has_body);
    }
}

#[tokio::test]
async fn a_rejected_head_request_is_told_the_length_that_get_would_have() {
    let hyper = serve_with_hyper(limit("all", 0), || Full::<Bytes>::from("hello")).await;
    let routes = Router::new().route("/", get(async || "hello"));
    let axum = serve(routes.layer(limit("all", 0))).await;
    for server in [hyper, axum] {
        let length = text(ask(server, "/").await).await.len().to_string();
        let request = Request::head(format!("http://{server}/")).body(Body::empty());
        let rejection = client().request(request.unwrap()).await.unwrap();
        assert_eq!(rejection.status(), REJECTED);
        assert_eq!(rejection.headers()["content-length"], length);
        assert_eq!(text(rejection).await, "");
    }
}

#[tokio::test]
async fn http_2_and_a_head_request_are_answered_too() {
    let server = serve_with_hyper(limit("all", 2), || Full::<Bytes>::from("hello")).await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Empty<Bytes>>();
    for (method, status, body) in [
        (Method::GET, OK, "hello"),
        (Method::POST, OK, "hello"),
        (Method::HEAD, REJECTED, ""),
    ] {
        let request = Request::builder().method(method);
        let request = request.uri(format!("http://{server}/")).body(Empty::new());
        let response = client.request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        assert!(response.headers().contains_key("ratelimit"));
        assert_eq!(text(response).await, body);
    }
}

/// The headers that a page of another origin can read; `None` if the browser hides the response.
fn visible(response: &Response<Incoming>, origin: &str) -> Option<HeaderMap> {
    const SAFE: [&str; 7] = [
        "cache-control",
        "content-language",
        "content-length",
        "content-type",
        "expires",
        "last-modified",
        "pragma",
    ];
    let headers = response.headers();
    let allowed = headers.get("access-control-allow-origin")?;
    if allowed != origin && allowed != "*" {
        return None;
    }
    let exposed = headers.get_all("access-control-expose-headers").iter();
    let exposed = exposed.flat_map(|it| it.to_str().unwrap().split(','));
    let exposed: Vec<String> = exposed.map(|it| it.trim().to_ascii_lowercase()).collect();
    let visible = headers.iter().filter(|(name, _)| {
        SAFE.contains(&name.as_str()) || exposed.iter().any(|it| it == name.as_str())
    });
    Some(
        visible
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

/// Sends a preflight like a browser, and then only the request that it allows.
async fn fetch(server: SocketAddr, origin: &str) -> (StatusCode, Option<HeaderMap>) {
    let url = format!("http://{server}/");
    let preflight = Request::options(&url)
        .header("origin", origin)
        .header("access-control-request-method", "GET")
        .header("access-control-request-headers", "x-api-key");
    let preflight = client().request(preflight.body(Body::empty()).unwrap());
    let preflight = preflight.await.unwrap();
    assert_eq!(preflight.status(), OK);
    assert_eq!(
        preflight.headers()["access-control-allow-headers"],
        "x-api-key"
    );
    let request = Request::get(&url)
        .header("origin", origin)
        .header("x-api-key", "alice");
    let response = client().request(request.body(Body::empty()).unwrap());
    let response = response.await.unwrap();
    (response.status(), visible(&response, origin))
}

#[tokio::test]
async fn a_page_of_another_origin_sees_a_rejection_and_its_headers_and_preflights_are_free() {
    use sluicegate::middleware::EXPOSED_HEADERS;
    use tower_http::cors::{AllowOrigin, CorsLayer};

    const ORIGIN: &str = "https://app.example.com";
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::exact(ORIGIN.parse().unwrap()))
        .allow_headers([http::HeaderName::from_static("x-api-key")])
        .expose_headers(EXPOSED_HEADERS);
    let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let style = style.and(HeaderStyle::DRAFT_6);
    let style = style.and(HeaderStyle::X_RATE_LIMIT_BY_UNIT);
    let style = style.and(HeaderStyle::RETRY_AFTER_MS);
    let tokens = Policy::parse("tokens", "1/1d").unwrap().unit(Unit::TOKENS);
    let app = || Router::new().route("/", get(async || "hello"));
    let limited = limit("all", 1)
        .limit(tokens, Key::new("service", "all"))
        .headers(style);
    let server = serve(app().layer(limited.clone()).layer(cors.clone())).await;

    let (status, headers) = fetch(server, ORIGIN).await;
    assert_eq!(status, OK);
    assert!(headers.unwrap().contains_key("ratelimit"));
    let (status, headers) = fetch(server, ORIGIN).await;
    assert_eq!(status, REJECTED);
    let headers = headers.unwrap();
    for name in &EXPOSED_HEADERS {
        assert!(headers.contains_key(name), "{name}");
    }

    // In the other order, the page sees no rejection, and the layer counts the preflight.
    let server = serve(app().layer(cors).layer(limited)).await;
    let response = ask(server, "/").await;
    assert_eq!(response.status(), REJECTED);
    assert!(visible(&response, ORIGIN).is_none());
}

#[tokio::test]
async fn a_response_of_a_timeout_inside_tells_the_quota_and_one_of_a_timeout_outside_does_not() {
    const LATE: StatusCode = StatusCode::REQUEST_TIMEOUT;
    let timeout = TimeoutLayer::with_status_code(LATE, Duration::from_millis(10));
    let app = || Router::new().route("/", get(pending::<()>));
    let inside = serve(app().layer(timeout).layer(limit("all", 2))).await;
    let outside = serve(app().layer(limit("all", 2)).layer(timeout)).await;
    for (server, told) in [
        (inside, [Some("r=1"), Some("r=0"), Some("r=0")]),
        (outside, [None, None, Some("r=0")]),
    ] {
        for (status, told) in [LATE, LATE, REJECTED].into_iter().zip(told) {
            let response = ask(server, "/").await;
            assert_eq!(response.status(), status);
            let left = response.headers().get("ratelimit");
            let left = left.map(|it| it.to_str().unwrap().split(';').nth(1).unwrap());
            assert_eq!(left, told);
        }
    }
}
