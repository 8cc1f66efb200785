//! The layer in stacks of tower and tower-http layers, inside and outside of the others.

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Body;
use std::fmt::Debug;
use tower::{
    BoxError,
    buffer::BufferLayer,
    limit::ConcurrencyLimitLayer,
    load_shed::{LoadShedLayer, error::Overloaded},
    timeout::{TimeoutLayer, error::Elapsed},
};
use tower_http::{compression::CompressionLayer, cors::CorsLayer, trace::TraceLayer};

use crate::prelude::*;

/// Two requests a day, in a body type that can be made from a `String`.
fn twice() -> RateLimitLayer {
    limit("all", "2/1d")
}

fn waiting(store: Arc<Scripted>) -> RateLimitLayer {
    let limiter = support::limiter(store).timeout(60 * SECOND);
    let limiter = limiter.on_failure(FailurePolicy::Closed);
    support::layer(limiter).limit(policy("all", "2/1d"), everybody())
}

async fn hello(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello ".repeat(100))))
}

fn request() -> Request<String> {
    let origin = ("origin", "https://app.example.com");
    with(&[("accept-encoding", "gzip"), origin])
}

const SECOND: Duration = Duration::from_secs(1);

/// Sends three requests: two are served and the third is rejected. Returns the headers of the first and of the
/// rejection.
async fn limits<S, B>(service: S) -> [HeaderMap; 2]
where
    S: Service<Request<String>, Response = Response<B>, Error: Debug> + Clone,
    B: Body<Error: Debug>,
{
    let mut answers = Vec::new();
    for expected in [200, 200, 429] {
        let response = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.status(), expected);
        let (head, body) = response.into_parts();
        assert!(!body.collect().await.unwrap().to_bytes().is_empty());
        assert!(head.headers.contains_key("ratelimit"));
        answers.push(head.headers);
    }
    assert!(answers[2].contains_key("retry-after"));
    let rejected = answers.remove(2);
    [answers.remove(0), rejected]
}

/// Limits with a layer outside and with the layer inside. Returns the headers of a served and a rejected request of
/// each.
macro_rules! on_either_side {
    ($layer:expr, $inner:expr) => {{
        [
            limits(($layer, twice()).layer($inner)).await,
            limits((twice(), $layer).layer($inner)).await,
        ]
    }};
}

#[tokio::test]
async fn layers_of_tower_stand_outside_or_inside() {
    on_either_side!(TimeoutLayer::new(SECOND), service_fn(hello));
    on_either_side!(ConcurrencyLimitLayer::new(1), service_fn(hello));
    on_either_side!(LoadShedLayer::new(), service_fn(hello));
    on_either_side!(BufferLayer::new(4), service_fn(hello));
}

#[tokio::test]
async fn layers_of_tower_http_stand_outside_or_inside() {
    let cors = "access-control-allow-origin";
    let [outside, inside] = on_either_side!(CorsLayer::permissive(), service_fn(hello));
    let sees = |answers: [HeaderMap; 2]| answers.map(|it| it.contains_key(cors));
    assert_eq!((sees(outside), sees(inside)), ([true, true], [true, false]));

    let gzip = (CompressionLayer::new(), twice());
    for headers in limits(gzip.layer(service_fn(hello))).await {
        assert_eq!(headers["content-encoding"], "gzip");
    }
    let trace = (TraceLayer::new_for_http(), twice());
    limits(trace.layer(service_fn(hello))).await;
}

fn boxed<B>(response: Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

#[tokio::test]
async fn within_it_a_body_must_be_one_that_can_be_made() {
    // The bodies of compression and tracing can be made from nothing, or from a closure's body that is mapped like
    // theirs.
    let make = |rejection: &Rejection, _: &Parts| {
        let mut response = Response::new(Full::from("too many").map_err(Into::into).boxed_unsync());
        *response.status_mut() = rejection.status();
        response
    };
    let compressed = ServiceBuilder::new()
        .layer(twice().rejection(make))
        .map_response(boxed)
        .layer(CompressionLayer::new())
        .service_fn(hello);
    let [served, rejected] = limits(compressed).await;
    assert_eq!(served["content-encoding"], "gzip");
    assert!(!rejected.contains_key("content-encoding"));

    let traced = ServiceBuilder::new()
        .layer(twice().rejection(make))
        .map_response(boxed)
        .layer(TraceLayer::new_for_http())
        .service_fn(hello);
    limits(traced).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_covers_the_decision_and_one_inside_does_not() {
    let silent = || waiting(Scripted::silent());
    let outside = (TimeoutLayer::new(SECOND), silent()).layer(service_fn(hello));
    let start = Instant::now();
    let error = outside.oneshot(request()).await.unwrap_err();
    assert!(error.is::<Elapsed>());
    assert_eq!(start.elapsed(), SECOND);

    let inside = (silent(), TimeoutLayer::new(SECOND)).layer(service_fn(hello));
    let start = Instant::now();
    let response = inside.oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(start.elapsed(), 60 * SECOND);
}

#[tokio::test]
async fn a_request_that_waits_for_the_store_counts_in_a_limit_of_concurrency_on_either_side() {
    let (shed, one) = (LoadShedLayer::new, || ConcurrencyLimitLayer::new(1));
    let silent = || waiting(Scripted::silent());
    sheds((shed(), one(), silent()).layer(service_fn(hello))).await;
    sheds((shed(), silent(), one()).layer(service_fn(hello))).await;
}

async fn sheds<S>(mut service: S)
where
    S: Service<Request<String>, Response = Response<Full<Bytes>>, Error = BoxError> + Clone,
{
    let waiting = service.ready().await.unwrap().call(request());
    let mut waiting = Box::pin(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    let error = service.clone().oneshot(request()).await.unwrap_err();
    assert!(error.is::<Overloaded>());
}
