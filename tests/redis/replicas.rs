//! Proves that replicas share one limit over separate connections when they wait, and share hashed identities.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, Policy, RateLimitLayer, RedisStore, middleware::StatusOnly,
};
use support::{redis::Server, site::Site};
use tower::{Service, ServiceBuilder, ServiceExt};

/// The arrival times of eleven requests that two clients make at once, by the clock of their server.
async fn arrivals<S, B>(clients: [S; 2]) -> Vec<Instant>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error: Debug> + Clone,
{
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let noted = arrivals.clone();
    let note = async move || noted.lock().unwrap().push(Instant::now());
    let site = Site::start(Router::new().route("/", get(note))).await;
    let url = format!("http://{}/", site.address());
    let requests = (0..11).map(|number| {
        let request = Request::get(&url).body(Empty::new()).unwrap();
        clients[number % 2].clone().oneshot(request)
    });
    for response in join_all(requests).await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    let arrivals = arrivals.lock().unwrap().clone();
    assert_eq!(arrivals.len(), 11);
    arrivals
}

fn client() -> Client<HttpConnector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Counts the cases of six requests within 300 ms, for a server that accepts five.
fn too_early(arrivals: &[Instant]) -> usize {
    let sixths = arrivals.windows(6);
    sixths
        .filter(|six| six[5] - six[0] < Duration::from_millis(300))
        .count()
}

#[tokio::test]
async fn no_request_of_clients_that_share_a_limit_reaches_a_server_too_early() {
    let redis = Server::start();
    // The window is longer than the server's, because requests take different times to arrive.
    let theirs = Policy::parse("their-api", "5/600ms").unwrap();
    let replica = async || {
        let limiter = Limiter::new(RedisStore::connect(redis.url()).await.unwrap())
            .timeout(Duration::from_secs(30))
            .on_failure(FailurePolicy::Closed);
        let layer = RateLimitLayer::new(limiter)
            .limit(theirs.clone(), Key::new("account", "ours"))
            .max_wait(Duration::from_secs(30))
            .rejection(StatusOnly);
        ServiceBuilder::new()
            .layer(layer)
            .map_response(|response: Response<Incoming>| response.map(BodyExt::boxed))
            .service(client())
    };
    let limited = [replica().await, replica().await];
    assert_eq!(too_early(&arrivals(limited).await), 0);
    // Without the layer, requests do arrive too early, and this server notices.
    assert_ne!(too_early(&arrivals([client(), client()]).await), 0);
}

#[tokio::test]
async fn replicas_share_hashed_identities_only_if_they_share_a_secret() {
    let server = Server::start();
    let replica = async |secret: &str| {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let limiter = Limiter::new(store.secret(secret)).timeout(Duration::from_secs(30));
        limiter.publish_policies(false) // keys are counted
    };
    let [blue, also_blue, green] = [
        replica("blue").await,
        replica("blue").await,
        replica("green").await,
    ];
    let policy = Policy::parse("api", "1/1d").unwrap();
    let long = "alice".repeat(20);
    for (key, hashed) in [
        (Key::secret("api-key", "alice"), true),
        (Key::new("session", &long), true),
        (Key::new("name", "alice liddell"), true),
        (Key::new("user", "alice"), false),
    ] {
        let kind = key.kind().to_owned();
        for (replica, admitted) in [(&blue, true), (&also_blue, false), (&green, hashed)] {
            let charge = [Charge::new(&policy, key.clone(), 1)];
            let decision = replica.check(charge).await.unwrap();
            assert_eq!(decision.is_allowed(), admitted, "{kind}");
        }
        let names: Vec<String> = server.run(&format!("KEYS sluicegate:{{{kind}=*}}:api"));
        assert_eq!(names.len(), if hashed { 2 } else { 1 }, "{names:?}");
        for name in &names {
            assert_eq!(name.contains("alice"), !hashed, "{name}");
        }
    }
    assert_eq!(server.run::<u64>("DBSIZE"), 7);
}
