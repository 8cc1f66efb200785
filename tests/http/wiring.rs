//! A service that is wired wrongly logs one loud warning, and neither lets requests pass nor gives them a shared limit.

use std::{convert::Infallible, net::SocketAddr};

use axum::{
    Router,
    body::Body,
    extract::connect_info::MockConnectInfo,
    middleware::{Next, from_fn},
    routing::get,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use sluicegate::{
    ForwardedIp, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    StoreError,
    error::{ExtractError, StoreErrorKind},
    extract::{FromExtension, TrustedProxies},
    middleware::{PolicySelector, Route, Routes},
    policies::{Policies, ReloadablePolicies},
    store::StoreFuture,
};
use support::{log::Log, scripted::Scripted, trace::traced};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

const SECRET: &str = "sk_live_do_not_show";

#[derive(Clone)]
struct User(&'static str);

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn limit(extractor: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new()).limit(policy("api", "9999/1m"), extractor)
}

fn by_user() -> FromExtension<User> {
    FromExtension::new(|user: &User| Key::new("user", user.0))
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/health", get(async || "hello"))
        .route("/items/{id}", get(async || "hello"))
        .layer(layer)
}

async fn ask(app: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).header("x-api-key", SECRET);
    let request = request.header("x-forwarded-for", "203.0.113.7");
    let request = request.body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

async fn status(app: &Router, path: &str) -> u16 {
    ask(app, path).await.status().as_u16()
}

/// Calls the service of this layer alone, without a router. Returns the status.
async fn bare(layer: &RateLimitLayer, path: &str) -> u16 {
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let request = Request::get(path).body(String::new()).unwrap();
    let response = layer.clone().layer(inner).oneshot(request).await.unwrap();
    response.status().as_u16()
}

// No peer address

#[test]
fn a_server_that_tells_no_peer_address_gets_a_500_and_one_warning() {
    let trusted = || TrustedProxies::networks(["10.0.0.0/8".parse().unwrap()]);
    let extractors: [Box<dyn KeyExtractor>; 6] = [
        Box::new(PeerIp),
        Box::new(ForwardedIp::x_forwarded_for(trusted())),
        Box::new(PeerIp.or_skip()),
        Box::new(PeerIp.or_shared(Key::new("service", "all"))),
        Box::new(PeerIp.or(Header::new("x-api-key"))),
        Box::new(Header::new("x-api-key").and(PeerIp)),
    ];
    for extractor in extractors {
        let lines = traced(true, async {
            let app = app(limit(extractor));
            for _ in 0..50 {
                assert_eq!(status(&app, "/").await, 500);
            }
            // The mended layer knows the address.
            let mended = app.layer(MockConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1))));
            assert_eq!(status(&mended, "/").await, 200);
        });
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(line.starts_with("WARN misconfigured: "), "{line}");
        for said in [
            "policy=\"api\"",
            "into_make_service_with_connect_info::<SocketAddr>()",
            "MockConnectInfo",
            "tonic",
        ] {
            assert!(line.contains(said), "{line}");
        }
        assert!(!line.contains(SECRET) && !line.contains("203.0.113"));
    }
}

#[test]
fn each_layer_tells_each_of_its_mistakes_once() {
    let lines = traced(false, async {
        let both = limit(PeerIp).limit(policy("user", "9/1m"), by_user());
        // Shadows reject nothing, so the request meets both mistakes.
        let shadow = both.clone().shadow();
        let other = shadow.clone().jitter(std::time::Duration::from_secs(1));
        for layer in [shadow, other] {
            for _ in 0..3 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
        }
        assert_eq!(bare(&both, "/").await, 500);
        assert_eq!(bare(&both, "/").await, 500);
    });
    let told = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let counts = (
        told("no request has a peer address"),
        told("::User`: no request has one"),
    );
    assert_eq!(counts, (3, 2), "{lines:?}");
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[tokio::test]
async fn the_observer_and_the_response_tell_a_mistake_from_a_missing_key() {
    let log = Log::default();
    let layer = RateLimitLayer::new(Limiter::new(Scripted::allowing()).observer(log.clone()));
    let of = |name: &str| layer.clone().limit(policy(name, "1/1s"), PeerIp);
    assert_eq!(bare(&of("a"), "/").await, 500);
    assert_eq!(bare(&of("b").shadow(), "/").await, 200);
    let absent = Header::new("absent").or_unauthorized(HeaderValue::from_static("Bearer"));
    let layer = layer.limit(policy("c", "1/1s"), absent);
    assert_eq!(bare(&layer, "/").await, 401);
    let expected = [
        "a misconfigured rejected",
        "b misconfigured passed",
        "c unauthenticated rejected",
    ];
    assert_eq!(log.lines(), expected);
}

#[test]
fn a_users_own_extractor_can_tell_a_mistake() {
    let lines = traced(false, async {
        let layer = limit(|_: &http::request::Parts| {
            Err::<Key, _>(ExtractError::misconfigured("the session layer is missing"))
        });
        for _ in 0..3 {
            assert_eq!(bare(&layer, "/").await, 500);
        }
    });
    assert_eq!(
        lines,
        [r#"WARN misconfigured: the session layer is missing policy="api""#]
    );
}

// No user

/// An app with an authentication that knows the user, or finds none.
fn authenticated(layer: RateLimitLayer, known: bool) -> Router {
    let authenticate = move |mut request: axum::extract::Request, next: Next| {
        let user = known.then_some(User("alice"));
        request.extensions_mut().insert(user);
        next.run(request)
    };
    app(layer).layer(from_fn(authenticate))
}

#[tokio::test]
async fn the_service_chooses_the_answer_to_a_client_without_a_sign_in() {
    let peer = MockConnectInfo(SocketAddr::from(([203, 0, 113, 7], 1)));
    let shared = || Key::new("anonymous", "all");
    let choices: [(Box<dyn KeyExtractor>, u16); 5] = [
        (Box::new(by_user()), 400),
        (Box::new(by_user().or_skip()), 200),
        (Box::new(by_user().or_shared(shared())), 200),
        (
            Box::new(by_user().or_unauthorized(HeaderValue::from_static("Bearer"))),
            401,
        ),
        (Box::new(by_user().or(PeerIp)), 200),
    ];
    for (extractor, expected) in choices {
        let layer = limit(extractor);
        let nobody = authenticated(layer.clone(), false).layer(peer);
        let response = ask(&nobody, "/").await;
        assert_eq!(response.status(), expected);
        let challenge = response.headers().get("www-authenticate");
        assert_eq!(challenge.is_some(), expected == 401);
        let alice = authenticated(layer.clone(), true).layer(peer);
        assert_eq!(status(&alice, "/").await, 200);
        // Authentication inside the limit, or none, is a mistake with every choice for missing users.
        assert_eq!(status(&app(layer).layer(peer), "/").await, 500);
    }
}

#[tokio::test]
async fn a_challenge_of_the_users_own_response_stays() {
    let layer = limit(Header::new("absent").or_unauthorized(HeaderValue::from_static("Bearer")))
        .rejection(
            |rejection: &sluicegate::middleware::Rejection, _: &http::request::Parts| {
                let response = Response::builder().status(rejection.status());
                let response = response.header("www-authenticate", r#"Bearer realm="api""#);
                response.body(Body::empty()).unwrap()
            },
        );
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let response = ask(&app, "/").await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    let challenges = response.headers().get_all("www-authenticate");
    assert_eq!(
        challenges.iter().collect::<Vec<_>>(),
        [r#"Bearer realm="api""#]
    );
}

// Behind a proxy

/// The warnings when a limit gets these requests, of which `direct` in each hundred were not forwarded.
fn forwarded(extractor: impl KeyExtractor, direct: usize, requests: usize) -> Vec<String> {
    forwarded_to(&limit(extractor), direct, requests)
}

fn forwarded_to(layer: &RateLimitLayer, direct: usize, requests: usize) -> Vec<String> {
    traced(false, async {
        let inner = service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let service = layer.layer(inner);
        for number in 0..requests {
            let mut request = Request::get("/");
            if number % 100 >= direct {
                let name = ["x-forwarded-for", "forwarded"][number % 2];
                request = request.header(name, format!("for=198.51.100.{}", number % 250));
            }
            let mut request = request.body(String::new()).unwrap();
            let peer = SocketAddr::from(([10, 0, 0, 1], 1));
            request.extensions_mut().insert(peer);
            let response = service.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200);
        }
    })
}

#[test]
fn limiting_proxies_by_their_address_is_warned_of_once() {
    for direct in [0, 10] {
        let lines = forwarded(PeerIp, direct, 500);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("WARN misconfigured: a layer knows clients by `PeerIp`"));
        assert!(lines[0].contains("use `ForwardedIp`") && !lines[0].contains("198.51.100"));
    }
    let combined: [Box<dyn KeyExtractor>; 4] = [
        Box::new(PeerIp.ipv6_prefix(56).or_skip()),
        Box::new(Header::new("x-api-key").or(PeerIp)),
        Box::new(PeerIp.and(Key::new("service", "all"))),
        Box::new(PeerIp.only_when(|head: &http::request::Parts| head.method == Method::GET)),
    ];
    for extractor in combined {
        assert_eq!(forwarded(extractor, 0, 100).len(), 1);
    }
}

#[test]
fn looking_up_the_blocks_of_proxies_is_warned_of_in_words_that_are_true() {
    let layer = RateLimitLayer::new(MemoryStore::new()).deny_blocked(PeerIp);
    let lines = forwarded_to(&layer, 0, 100);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("use `ForwardedIp`") && !lines[0].contains("limit"));
}

#[test]
fn nobody_is_warned_of_proxies_without_a_reason() {
    assert!(forwarded(PeerIp, 0, 99).is_empty());
    assert!(forwarded(PeerIp, 11, 500).is_empty());
    assert!(forwarded(Key::new("service", "all"), 0, 500).is_empty());
}

// No matched path

fn table() -> RateLimitLayer {
    let routes = Routes::new(Route::skip())
        .route("/health", policy("health", "9/1m"))
        .route("GET /items/{id}", policy("items", "9/1m"))
        .route("/v1/items/{id}", policy("items", "9/1m"))
        .route("POST /orders/{id}", policy("orders", "9/1m"));
    RateLimitLayer::new(MemoryStore::new()).limit(routes, Key::new("service", "all"))
}

#[test]
fn a_table_outside_the_router_rejects_what_it_cannot_decide() {
    let plain = Router::new()
        .route("/", get(async || "hello"))
        .route("/health", get(async || "hello"))
        .route("/orders/{id}", get(async || "hello"))
        .route("/items/{id}", get(async || "hello"));
    let around = ServiceBuilder::new().layer(table()).service(plain.clone());
    let lines = traced(false, async {
        for _ in 0..3 {
            for (path, expected) in [
                ("/items/7", 500),
                ("/items/%37", 500),
                ("/health", 200),
                ("/", 200),
                // The table has an entry for another method only.
                ("/orders/7", 200),
            ] {
                let request = Request::get(path).body(Body::empty()).unwrap();
                let response = around.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), expected, "{path}");
            }
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("which route was matched"), "{lines:?}");

    let lines = traced(false, async {
        let nested = Router::new()
            .nest_service("/v1", plain.clone())
            .layer(table());
        assert_eq!(status(&nested, "/v1/items/7").await, 500);
        assert_eq!(status(&nested, "/v1/health").await, 200);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_table_inside_the_router_decides_and_warns_of_nothing() {
    let lines = traced(false, async {
        let inside = app(table()).fallback(async || "nothing here");
        for path in ["/items/7", "/health", "/", "/nowhere"] {
            assert_eq!(status(&inside, path).await, 200, "{path}");
        }
        let nested = Router::new().nest("/v1", app(table()));
        assert_eq!(status(&nested, "/v1/items/7").await, 200);
        let nested = Router::new()
            .nest(
                "/v1",
                Router::new().route("/items/{id}", get(async || "hello")),
            )
            .layer(table());
        let response = ask(&nested, "/v1/items/7").await;
        assert!(response.headers().contains_key("ratelimit"));
    });
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn a_table_of_shadows_rejects_nobody_where_it_cannot_decide() {
    let shadow = |name| policy(name, "9/1m").shadow();
    let routes = Routes::new(shadow("general"))
        .route("/items/{id}", shadow("items"))
        .route("/health", Route::skip());
    let nobody = |_: &http::request::Parts| None::<Key>;
    let lines = traced(false, async {
        let layer = RateLimitLayer::new(MemoryStore::new());
        let keyed = layer
            .clone()
            .limit(routes, Key::new("service", "all"))
            .limit(policy("real", "1/1m"), Key::new("service", "all"));
        assert_eq!(bare(&keyed, "/items/7").await, 200);
        assert_eq!(bare(&keyed, "/items/7").await, 429);
        // One of the policies counts, and the request could have chosen any of them.
        let mixed = Routes::new(policy("general", "9/1m")).route("/items/{id}", shadow("items"));
        assert_eq!(bare(&layer.limit(mixed, nobody), "/items/7").await, 500);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[tokio::test]
async fn a_route_that_is_not_known_passes_no_limit_that_fails_open() {
    let unavailable =
        |_: &http::request::Parts| Err::<Key, _>(ExtractError::unavailable("told to"));
    let routes = Routes::new(policy("general", "9/1m")).route("/items/{id}", Route::skip());
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(routes, unavailable);
    assert_eq!(bare(&layer, "/items/7").await, 500);
    assert_eq!(bare(&layer, "/").await, 200);
}

// The store

#[test]
fn an_outage_is_told_of_when_it_begins_and_when_it_is_over_without_an_observer() {
    let lines = traced(false, async {
        let up = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_up = up.clone();
        let store = Scripted::new(move |check| {
            if is_up.load(std::sync::atomic::Ordering::SeqCst) {
                StoreFuture::ready(support::scripted::allowed(check))
            } else {
                let error = support::scripted::unavailable();
                StoreFuture::ready(Err(error))
            }
        });
        let layer = RateLimitLayer::new(store)
            .limit(policy("api", "9/1m"), |_: &http::request::Parts| {
                Key::new("user", SECRET)
            });
        for round in 0..2 {
            up.store(false, std::sync::atomic::Ordering::SeqCst);
            for _ in 0..100 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
            up.store(true, std::sync::atomic::Ordering::SeqCst);
            tokio::time::advance(std::time::Duration::from_secs(11)).await;
            for _ in 0..100 {
                assert_eq!(bare(&layer, "/").await, 200, "round {round}");
            }
        }
    });
    let begins = r#"WARN the store could not decide about a request: failure policies apply as long as it cannot kind="unavailable" error=told to fail"#;
    let ends = "WARN the store decides about all requests again";
    assert_eq!(lines, [begins, ends, begins, ends]);
}

#[test]
fn a_store_that_never_decides_is_warned_about_once_with_and_without_a_breaker() {
    let unavailable = StoreError::new(StoreErrorKind::Unavailable, "told to fail");
    let protocol = StoreError::new(StoreErrorKind::Protocol, "a value of another version");
    for (error, interval_ms, line) in [
        (unavailable, 0, r#"kind="unavailable" error=told to fail"#),
        (
            protocol,
            250,
            r#"kind="protocol" error=a value of another version"#,
        ),
    ] {
        let lines = traced(false, async move {
            let store = Scripted::new(move |_| StoreFuture::ready(Err(error.clone())));
            let interval = std::time::Duration::from_millis(interval_ms);
            let limiter = Limiter::new(store).probe_interval(interval);
            let layer = RateLimitLayer::new(limiter.clone())
                .limit(policy("api", "1/1h"), Key::new("service", "all"));
            for _ in 0..200 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
            // A check that needs no store does not end the outage.
            tokio::time::advance(std::time::Duration::from_secs(11)).await;
            assert!(limiter.check([]).await.unwrap().is_allowed());
            assert_eq!(bare(&layer, "/").await, 200);
        });
        let begins = "WARN the store could not decide about a request: failure policies apply as long as it cannot";
        assert_eq!(lines, [format!("{begins} {line}")]);
    }
}

// Errors when a layer is built

#[test]
fn policies_of_one_name_that_differ_are_an_error_where_one_is_asked_for() {
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy("ip", "1/1s"), PeerIp);
    let other = policy("ip", "2/1s");
    let error = layer.clone().try_limit(&other, PeerIp).unwrap_err();
    let expected = "same name and differ: Policy(ip: 1/1s), Policy(ip: 2/1s)";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(
        layer
            .clone()
            .try_limit(policy("ip", "1/1s"), PeerIp)
            .is_ok()
    );
    assert!(layer.try_limit(policy("ip-48", "1/1s"), PeerIp).is_ok());
}

// Changes at runtime

#[tokio::test]
async fn a_reload_between_two_limits_gives_one_request_one_set_of_rules() {
    let of = |rules| Policies::new([policy("api", rules), policy("all", rules)]).unwrap();
    let live = ReloadablePolicies::new(of("2/1d"));
    let reload = live.clone();
    let key = || Key::new("service", "all");
    let reloading = move |_: &http::request::Parts| {
        reload.replace(of("9/1d")).unwrap();
        key()
    };
    let handle = |name| live.policy(name).unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(handle("api"), key())
        .limit(handle("api"), reloading)
        .limit(Routes::new(handle("all")), key());
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
    let quotas = async || {
        let response = service.clone().oneshot(Request::new(String::new())).await;
        let response = response.unwrap();
        assert_eq!(response.status(), 200);
        response.headers()["ratelimit-policy"].clone()
    };
    assert_eq!(quotas().await, r#""api";q=2;w=86400, "all";q=2;w=86400"#);
    assert_eq!(quotas().await, r#""api";q=9;w=86400, "all";q=9;w=86400"#);
}

#[test]
fn a_layer_in_which_a_reload_could_make_two_policies_of_one_name_differ_is_not_built() {
    let set = || ReloadablePolicies::new(Policies::new([policy("api", "9/1m")]).unwrap());
    let (live, other) = (set(), set());
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(live.policy("api").unwrap(), PeerIp);
    let refused = |limit: RateLimitLayer, again: PolicySelector| match limit
        .try_limit(again, PeerIp)
    {
        Err(error) => {
            let begins =
                "two limits of one layer have a policy of the same name, `api`, and a reload could";
            assert!(error.to_string().starts_with(begins), "{error}");
        }
        Ok(_) => panic!("the layer was built"),
    };
    let fixed = || policy("api", "9/1m");
    refused(layer.clone(), fixed().into());
    refused(layer.clone(), other.policy("api").unwrap().into());
    refused(
        layer.clone(),
        Routes::new(Route::skip()).route("/a", fixed()).into(),
    );
    let fixed_first = RateLimitLayer::new(MemoryStore::new()).limit(fixed(), PeerIp);
    refused(fixed_first, live.policy("api").unwrap().into());

    // One set is read once for each request.
    let same = layer.try_limit(live.policy("api").unwrap(), PeerIp);
    assert!(same.is_ok());
}
