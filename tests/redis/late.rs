//! A server that is late: checks cost what their requests cost, and whoever left before a check was written pays nothing.

use std::sync::atomic::Ordering::SeqCst;

use axum::{Router, routing::get};
use http_body_util::BodyExt;
use sluicegate::middleware::CostMeter;
use support::site::Site;

use crate::{cluster::apart, prelude::*, transactions::pool};

/// Of the limiters here.
const TIMEOUT: Duration = Duration::from_millis(100);

fn tokens() -> Policy {
    policy("tokens", "1000000/1h")
}

/// The policy of the user at this place.
fn of_place(place: usize) -> Policy {
    policy(["tokens", "others"][place.min(1)], "1000000/1h")
}

fn limiter(store: impl Store, failure: FailurePolicy) -> Limiter {
    let limiter = Limiter::new(store).probe_interval(Duration::ZERO);
    limiter.timeout(TIMEOUT).on_failure(failure)
}

/// A request that is charged 500 for each of these users, and meters 7. Returns the status.
async fn request(limiter: &Limiter, users: &[String]) -> StatusCode {
    let mut layer = RateLimitLayer::new(limiter.clone());
    for (place, name) in users.iter().enumerate() {
        layer = layer.limit(of_place(place), user(name)).cost(|_, _| 500);
    }
    let handler = get(async |meter: CostMeter| {
        meter.add(7);
        "seven"
    });
    let app = Router::new().route("/", handler).layer(layer.meter_costs());
    let request = Request::builder().uri("/").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let status = response.status();
    response.into_body().collect().await.unwrap();
    status
}

/// Under each failure policy, three requests while the servers do not answer for a while: afterwards, what they used is
/// stored. `new` makes a store with this prefix.
async fn what_was_used_is_counted<S: Store + Clone>(
    servers: &[&Server],
    users: &[String],
    new: impl AsyncFn(&str) -> S,
) {
    use FailurePolicy::{Closed, Local, Open};
    for (failure, expected) in [(Open, 21), (Local, 21), (Closed, 0)] {
        let store = new(&format!("late-{failure:?}")).await;
        let (limiter, watch) = (limiter(store.clone(), failure), patient(store));
        for user in users {
            used(&watch, &tokens(), user).await; // the server knows the script
        }
        for _ in 0..3 {
            servers.iter().for_each(|server| server.stop());
            let status = request(&limiter, users).await;
            assert_eq!(status == 503, failure == Closed);
            servers.iter().for_each(|server| server.cont());
            support::finished(&limiter).await;
        }
        for (place, user) in users.iter().enumerate() {
            let stored = used(&watch, &of_place(place), user).await;
            assert_eq!(stored, expected, "{failure:?}: {user}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_late_counts_what_was_used_under_each_failure_policy() {
    let server = Server::start();
    for in_flight in [4, 0] {
        let new = async |prefix: &str| {
            let store = connect(&server).await.in_flight(in_flight);
            store.prefix(format!("{prefix}-{in_flight}"))
        };
        what_was_used_is_counted(&[&server], &["alice".to_owned()], new).await;
    }
}

#[tokio::test]
async fn transactions_that_are_late_count_what_was_used() {
    let server = Server::start();
    let new =
        async |prefix: &str| RedisStore::transactions(pool(server.url()).await).prefix(prefix);
    what_was_used_is_counted(&[&server], &["alice".to_owned()], new).await;
}

#[tokio::test]
async fn two_slots_of_a_cluster_that_are_late_count_what_was_used() {
    let cluster = Cluster::start(Duration::from_secs(60));
    let users = &apart(&cluster)[..2];
    let new = async |prefix: &str| {
        let store = RedisStore::cluster(cluster.urls()).await.unwrap();
        store.prefix(prefix)
    };
    what_was_used_is_counted(&[&cluster.nodes[0], &cluster.nodes[1]], users, new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_reset_at_random_pay_what_was_metered_on_every_key() {
    const KEYS: usize = 16;
    let server = Server::start();
    let store = connect(&server).await;
    let (limiter, watch) = (Limiter::new(store.clone()), patient(store));
    let metered: Arc<[AtomicU64; KEYS]> = Arc::default();
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(tokens(), sluicegate::Header::new("x-user"))
        .cost(|_, _| 500)
        .meter_costs()
        .refund_unanswered();
    let counted = Arc::clone(&metered);
    let handler = async move |meter: CostMeter, head: http::HeaderMap| {
        let user: usize = head["x-user"].to_str().unwrap().parse().unwrap();
        meter.add(7);
        counted[user].fetch_add(7, SeqCst);
        yield_now().await;
        "seven"
    };
    let site = Site::start(Router::new().route("/", get(handler)).layer(layer)).await;
    let mut random = fastrand::Rng::with_seed(5);
    let clients = (0..500).map(|client| {
        let (address, wait) = (site.address(), random.u64(..6_000));
        async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "GET / HTTP/1.1\r\nhost: a\r\nx-user: {}\r\n\r\n",
                client % KEYS
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            sleep(Duration::from_micros(wait)).await;
            socket.set_zero_linger().unwrap(); // a reset
        }
    });
    join_all(clients).await;
    drop(site);
    let settled = async || {
        support::finished(&limiter).await;
        let mut is_exact = true;
        for (user, metered) in metered.iter().enumerate() {
            let key = sluicegate::Header::new("x-user").key(user.to_string());
            let look = [Charge::new(&tokens(), key, 0)];
            let left = remaining(&watch.peek(look).await.unwrap());
            is_exact &= 1_000_000 - left == metered.load(SeqCst);
        }
        is_exact
    };
    until("what is stored is what was metered", settled).await;
}

#[tokio::test]
async fn calls_whose_callers_are_gone_keep_no_later_check_waiting() {
    let server = Server::start();
    let store = connect(&server).await;
    let (limiter, watch) = (limiter(store.clone(), FailurePolicy::Open), patient(store));
    used(&watch, &tokens(), "alice").await;
    server.stop();
    let four = (0..4).map(|_| limiter.check(one(&tokens(), "alice")));
    assert!(join_all(four).await.iter().all(Result::is_err));
    // The fifth is sent at once, beside the four that hang.
    let fifth = limiter.check(one(&tokens(), "bob")).await.unwrap_err();
    assert!(!fifth.is_unsent(), "{fifth}");
    server.cont();
    support::finished(&limiter).await;
}

#[tokio::test]
async fn a_server_that_greets_late_sees_no_check_whose_caller_has_left() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::ZERO).await;
    for in_flight in [4, 0] {
        proxy.set_weather(Weather::Cut);
        let store = RedisStore::connect_lazy(proxy.url()).unwrap();
        let store = store.in_flight(in_flight);
        let limiter = limiter(store, FailurePolicy::Open).publish_policies(false);
        let before = server.calls("evalsha") + server.calls("eval");
        let checks = (0..5_000).map(|user| {
            let limiter = limiter.clone();
            async move { limiter.check(one(&tokens(), user)).await }
        });
        for result in join_all(checks).await {
            assert!(result.unwrap_err().is_unsent());
        }
        proxy.set_weather(Weather::Clear);
        support::finished(&limiter).await;
        let last = patient(RedisStore::connect_lazy(proxy.url()).unwrap());
        take(&last, &tokens(), "last").await;
        let calls = server.calls("evalsha") + server.calls("eval") - before;
        assert!(calls <= 2, "{calls}: that of the last, and its script");
    }
}

#[tokio::test]
async fn a_client_whose_next_request_follows_its_response_finds_what_the_last_has_left() {
    let server = Server::start();
    let limiter = Limiter::new(connect(&server).await).timeout(30 * SOON);
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy("tokens", "600/1h"), Key::new("user", "alice"))
        .cost(|_, _| 500)
        .meter_costs();
    let handler = get(async |meter: CostMeter| meter.add(7));
    let app = Router::new().route("/", handler).layer(layer);
    let mut admitted = 0;
    for _ in 0..20 {
        let request = Request::builder().uri("/").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        admitted += u32::from(response.status() == 200);
        response.into_body().collect().await.unwrap();
    }
    assert_eq!(admitted, 15);
}
