//! Real servers on real sockets: axum and plain hyper, with clients that are limited by their own address.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use sluicegate::{Charge, PeerIp, Policy, RateLimitLayer, store::StoreFuture};
use support::scripted::{Scripted, allowed, denied};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, service_fn};

/// Allows one request and denies the others, for a second and a half.
fn once() -> Arc<Scripted> {
    let passed = std::sync::atomic::AtomicBool::new(false);
    Scripted::new(move |check| {
        let decision = match passed.swap(true, std::sync::atomic::Ordering::SeqCst) {
            false => allowed(check),
            true => denied(check, 1_500),
        };
        StoreFuture::ready(decision)
    })
}

fn layer(store: Arc<Scripted>) -> RateLimitLayer {
    RateLimitLayer::new(store).limit(Policy::parse("ip", "1/1s").unwrap(), PeerIp)
}

/// The answers to two requests. Asserts that both were charged to the client's address.
async fn two_requests(server: SocketAddr, store: &Scripted) -> [Response<Bytes>; 2] {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut responses = Vec::new();
    for _ in 0..2 {
        let request = Request::get(format!("http://{server}/"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        responses.push(Response::from_parts(head, body));
    }
    let ip = Policy::parse("ip", "1/1s").unwrap();
    let expected = Charge::new(&ip, sluicegate::Key::new("ip", "127.0.0.1"), 1);
    for check in store.checks() {
        assert_eq!(check.charges(), std::slice::from_ref(&expected));
    }
    responses.try_into().unwrap()
}

fn assert_served_then_rejected([served, rejected]: [Response<Bytes>; 2]) {
    assert_eq!(served.status(), StatusCode::OK);
    assert_eq!(served.headers()["ratelimit"], r#""ip";r=0;t=1"#);
    assert_eq!(served.body(), "hello");
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], HeaderValue::from(2));
    assert!(rejected.body().starts_with(b"{\"type\":"));
}

#[tokio::test]
async fn an_axum_server_limits_its_clients() {
    use axum::{Router, routing::get};

    let (whole, route) = (once(), once());
    let hello = || get(async || "hello");
    for (store, router) in [
        (
            &whole,
            Router::new()
                .route("/", hello())
                .layer(layer(whole.clone())),
        ),
        (
            &route,
            Router::new()
                .route("/", hello())
                .route_layer(layer(route.clone())),
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async { axum::serve(listener, service).await });
        assert_served_then_rejected(two_requests(address, store).await);
        server.abort();
    }
}

#[tokio::test]
async fn an_address_that_the_proxy_protocol_tells_comes_before_the_load_balancers() {
    use axum::{Extension, Router, routing::get};

    // Like an acceptor that reads the PROXY protocol, while axum knows the peer of the connection.
    let client: SocketAddr = "203.0.113.7:50000".parse().unwrap();
    let store = once();
    let router = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer(store.clone()))
        .layer(Extension(client));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    let request = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new());
    let sender = Client::builder(TokioExecutor::new()).build_http();
    let response = sender.request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        store.checks()[0].charges()[0].key(),
        &PeerIp.key(client.ip())
    );
}

#[tokio::test]
async fn a_plain_hyper_server_limits_its_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = once();
    let layer = layer(store.clone());

    let server = tokio::spawn(async move {
        let (stream, peer) = listener.accept().await.unwrap();
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            })
            .service(layer.layer(service_fn(async |_: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
            })));
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .await
    });
    assert_served_then_rejected(two_requests(address, &store).await);
    server.abort();
}
