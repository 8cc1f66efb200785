//! Rules by route, by caller, and with changes at runtime; and skipped or blocked requests.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode, request::Parts},
    routing::{any, get},
};
use sluicegate::{
    Charge, ForwardedIp, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy,
    RateLimitLayer,
    error::ExtractError,
    extract::{Cidr, Keys, TrustedProxies},
    middleware::{Route, Routes},
    policies::{Policies, ReloadablePolicies},
};
use support::{scripted::Scripted, site::Site};
use tower::{ServiceBuilder, ServiceExt};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn everybody() -> Key {
    Key::new("service", "all")
}

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new())
}

fn hello() -> axum::routing::MethodRouter {
    any(async || "hello")
}

fn left(headers: &HeaderMap) -> Vec<&str> {
    let lines = headers.get_all("ratelimit").iter();
    let items = lines.flat_map(|line| line.to_str().unwrap().split(", "));
    items.map(|it| it.rsplit_once(";t=").unwrap().0).collect()
}

// By route

/// One layer for a whole application with nested routers.
async fn table() -> Site {
    let general = policy("general", "100/1d");
    let routes = Routes::new(general.clone())
        .route("/health", Route::skip())
        .route("GET /search", Route::new(general).weight(10))
        .route("/api/items/{id}", policy("items", "2/1d"))
        .route("DELETE /api/items/{id}", policy("deletions", "1/1d"));
    let items = Router::new().route("/items/{id}", hello());
    let app = Router::new()
        .route("/health", hello())
        .route("/search", hello())
        .nest("/api", items)
        .fallback(async || "nothing here")
        .layer(layer().limit(routes, PeerIp));
    Site::start(app).await
}

#[tokio::test]
async fn one_layer_limits_routes_by_method_and_template() {
    let site = table().await;
    let paths = ["/api/items/1", "/api/items/2", "/api/items/3"];
    for (path, expected) in paths.into_iter().zip([OK, OK, REJECTED]) {
        assert_eq!(site.status(path).await, expected, "{path}");
    }
    for (path, expected) in paths.into_iter().zip([OK, REJECTED, REJECTED]) {
        let (status, ..) = site.ask(Method::DELETE, path, &[]).await;
        assert_eq!(status, expected, "{path}");
    }
}

#[tokio::test]
async fn routes_of_one_policy_share_its_counts_each_with_its_weight() {
    let site = table().await;
    let (_, headers, _) = site.get("/search", &[]).await;
    assert_eq!(left(&headers), [r#""general";r=90"#]);
    assert_eq!(headers["ratelimit-policy"], r#""general";q=100;w=86400"#);
    let (_, headers, _) = site.get("/nowhere", &[]).await;
    assert_eq!(left(&headers), [r#""general";r=89"#]);
    // The handler of `GET` serves `HEAD`, which costs the same.
    let (_, headers, _) = site.ask(Method::HEAD, "/search", &[]).await;
    assert_eq!(left(&headers), [r#""general";r=79"#]);
    let (_, headers, _) = site.ask(Method::POST, "/search", &[]).await;
    assert_eq!(left(&headers), [r#""general";r=78"#]);
}

#[tokio::test]
async fn no_spelling_of_a_path_avoids_the_limit_of_its_route() {
    let site = table().await;
    for path in [
        "/api/items/{id}",
        "/api/items/%7Bid%7D",
        "/api/items/x?y=/health",
    ] {
        let (_, headers, _) = site.get(path, &[]).await;
        assert!(left(&headers)[0].starts_with(r#""items""#), "{path}");
    }
    assert_eq!(site.status("/api/items/1").await, REJECTED);
    for path in ["//health", "/health/", "/Health", "/./health"] {
        let (_, headers, _) = site.get(path, &[]).await;
        assert_eq!(left(&headers).len(), 1, "{path}");
    }
}

#[tokio::test]
async fn the_fallback_of_a_nested_router_is_taken_for_no_other_route() {
    let routes = Routes::new(policy("general", "2/1d"))
        .route("/health", Route::skip())
        .route("/api/health", policy("proxied", "1/1d"));
    let api = Router::new()
        .route("/items", hello())
        .fallback(async || "proxied")
        .layer(layer().limit(routes, everybody()));
    let site = Site::start(Router::new().nest("/api", api)).await;
    for (path, expected) in [
        ("/api/health", OK),
        ("/api/health", REJECTED),
        ("/api/nowhere", OK),
        ("/api/items", OK),
        ("/api/nowhere", REJECTED),
    ] {
        assert_eq!(site.status(path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn without_a_router_the_path_is_compared_as_it_stands() {
    let routes = Routes::new(policy("general", "1/1d")).route("/health", Route::skip());
    let service = ServiceBuilder::new()
        .layer(layer().limit(routes, everybody()))
        .service(Router::new().route("/health", hello()).route("/", hello()));
    for (path, expected) in [
        ("/", OK),
        ("/", REJECTED),
        ("/health?x", OK),
        ("/health/", REJECTED),
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), expected, "{path}");
    }
}

#[test]
fn the_first_mistake_of_a_table_is_an_error_of_the_limit() {
    let table = || Routes::new(Route::skip());
    let mistake = |routes: Routes| layer().try_limit(routes, PeerIp).unwrap_err().to_string();
    assert_eq!(
        mistake(
            table()
                .route("search", Route::skip())
                .route("get /search", Route::skip())
        ),
        "`search` is not a route: write /items/{id}, or GET /items/{id}"
    );
    assert_eq!(
        mistake(table().route("get /search", Route::skip())),
        "`get /search` is not a route: methods are written in capitals, as in GET /items/{id}"
    );
    let twice = table()
        .route("GET /search", Route::skip())
        .route("/search", Route::skip())
        .route("GET /search", Route::skip());
    assert_eq!(
        mistake(twice),
        "`GET /search` is a route that has an entry already"
    );
    for name in [
        "/items/:id",
        "/files/*rest",
        "/items/{id",
        "/items/id}",
        "/items/{}",
        "/files/{*}",
        "GET /{a{b}}",
    ] {
        assert_eq!(
            mistake(table().route(name, Route::skip())),
            format!("`{name}` is not a route: captures are written {{id}} or {{*rest}}")
        );
    }
    let written = table()
        .route("/items/{id}", Route::skip())
        .route("/files/{*rest}", Route::skip())
        .route("/v1/items:batch", Route::skip())
        .route("/{{id}}/a*", Route::skip());
    assert!(layer().try_limit(written, PeerIp).is_ok());
    let weighted = "`Route::skip()` has no weight: its requests are not counted";
    assert_eq!(
        mistake(table().route("/health", Route::skip().weight(5))),
        weighted
    );
    assert_eq!(mistake(Routes::new(Route::skip().weight(5))), weighted);
    let inner = table().route("search", Route::skip());
    assert!(mistake(table().route("/search", Route::new(inner))).starts_with("`search` is not"));
}

#[test]
#[should_panic(expected = "`search` is not a route")]
fn a_mistake_of_a_table_is_a_panic_where_none_is_expected() {
    let _ = layer().limit(
        Routes::new(Route::skip()).route("search", Route::skip()),
        PeerIp,
    );
}

#[test]
#[should_panic(expected = "same name and differ")]
fn a_policy_of_a_table_must_not_differ_from_its_namesake_in_another_limit() {
    let routes = Routes::new(Route::skip()).route("/search", policy("ip", "2/1d"));
    let _ = layer()
        .limit(policy("ip", "1/1d"), PeerIp)
        .limit(routes, PeerIp);
}

// By caller

/// The tier that the authentication has found.
#[derive(Clone)]
struct Tier(&'static str);

/// A service behind an authentication that finds a tier by API key.
async fn tiers(free: Policy, pro: Policy) -> Site {
    let tiers = [("free", free), ("pro", pro)];
    let by_tier = move |head: &Parts| {
        let Tier(tier) = head.extensions.get()?;
        let tier = tiers.iter().find(|(name, _)| name == tier)?;
        Some(tier.1.clone())
    };
    let who = |head: &Parts| match head.extensions.get() {
        Some(Tier("staff")) => Ok(Keys::skip()),
        _ => Header::new("x-user").extract(head),
    };
    let app = Router::new()
        .route("/", hello())
        .layer(layer().limit(by_tier, who))
        .layer(axum::middleware::map_request(
            async |mut request: Request<Body>| {
                let tier = match request.headers().get("x-plan").map(|it| it.as_bytes()) {
                    Some(b"free") => Some("free"),
                    Some(b"pro") => Some("pro"),
                    Some(b"staff") => Some("staff"),
                    Some(_) => Some("gold"),
                    None => None,
                };
                if let Some(tier) = tier {
                    request.extensions_mut().insert(Tier(tier));
                }
                request
            },
        ));
    Site::start(app).await
}

fn user(plan: &'static str) -> [(&'static str, &'static str); 2] {
    [("x-user", "alice"), ("x-plan", plan)]
}

#[tokio::test]
async fn each_tier_has_its_policy_and_its_headers() {
    let site = tiers(policy("free", "60/1d"), policy("pro", "600/1d")).await;
    for (plan, left_, limit) in [
        ("free", r#""free";r=59"#, r#""free";q=60;w=86400"#),
        ("pro", r#""pro";r=599"#, r#""pro";q=600;w=86400"#),
        ("pro", r#""pro";r=598"#, r#""pro";q=600;w=86400"#),
    ] {
        let (status, headers, _) = site.get("/", &user(plan)).await;
        assert_eq!(status, OK);
        assert_eq!(left(&headers), [left_]);
        assert_eq!(headers["ratelimit-policy"], limit);
    }
}

#[tokio::test]
async fn an_unknown_tier_is_never_unlimited() {
    let site = tiers(policy("free", "60/1d"), policy("pro", "600/1d")).await;
    for headers in [&user("gold")[..], &[("x-user", "alice")]] {
        assert_eq!(site.get("/", headers).await.0, StatusCode::BAD_REQUEST);
    }
    // Only identities that you except pass.
    assert_eq!(site.get("/", &user("staff")).await.0, OK);
}

#[tokio::test]
async fn tiers_of_one_name_share_what_is_used() {
    let site = tiers(policy("user", "2/1d"), policy("user", "5/1d")).await;
    for (plan, expected) in [
        ("free", OK),
        ("free", OK),
        ("free", REJECTED),
        ("pro", OK),
        ("pro", OK),
        ("pro", OK),
        ("pro", REJECTED),
    ] {
        assert_eq!(site.get("/", &user(plan)).await.0, expected, "{plan}");
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_found_out_follows_the_failure_policy() {
    let unavailable = |_: &Parts| Err::<Policy, _>(ExtractError::unavailable("no directory"));
    for (failure_policy, expected) in [
        (sluicegate::FailurePolicy::Open, OK),
        (
            sluicegate::FailurePolicy::Closed,
            StatusCode::SERVICE_UNAVAILABLE,
        ),
    ] {
        let limiter = Limiter::new(MemoryStore::new()).on_failure(failure_policy);
        let limits = RateLimitLayer::new(limiter).limit(unavailable, everybody());
        let site = Site::start(Router::new().route("/", hello()).layer(limits)).await;
        assert_eq!(site.status("/").await, expected);
    }
}

// While running

#[tokio::test]
async fn a_rule_that_changes_holds_at_once_and_counts_stay() {
    let set = |rules| Policies::new([policy("ip", rules)]).unwrap();
    let live = ReloadablePolicies::new(set("2/1d"));
    let limits = layer().limit(live.policy("ip").unwrap(), PeerIp);
    let site = Site::start(Router::new().route("/", hello()).layer(limits)).await;
    for expected in [OK, OK, REJECTED] {
        assert_eq!(site.status("/").await, expected);
    }
    live.replace(set("5/1d")).unwrap();
    let (status, headers, _) = site.get("/", &[]).await;
    assert_eq!(status, OK);
    assert_eq!(left(&headers), [r#""ip";r=2"#]);
    assert_eq!(headers["ratelimit-policy"], r#""ip";q=5;w=86400"#);

    live.replace(set("3/1d")).unwrap();
    assert_eq!(site.status("/").await, REJECTED);

    // A new window starts empty, and the old window keeps its counts.
    live.replace(set("4/1d,7/1h")).unwrap();
    let (status, headers, _) = site.get("/", &[]).await;
    assert_eq!(status, OK);
    assert_eq!(left(&headers), [r#""ip/1d";r=0"#, r#""ip/1h";r=6"#]);
}

// Skipped and blocked

#[tokio::test]
async fn what_is_skipped_passes_and_what_is_blocked_does_not() {
    let limits = layer()
        .limit(policy("ip", "1/1d"), PeerIp)
        .skip(|head| head.uri.path() == "/health")
        .skip(|head| head.uri.path() == "/ready")
        .deny(|head| head.headers.contains_key("x-evil"));
    let site = Site::start(Router::new().fallback(async || "hello").layer(limits)).await;
    let evil = [("x-evil", "1")];
    assert_eq!(site.get("/", &evil).await.0, StatusCode::FORBIDDEN);
    assert_eq!(site.get("/health", &evil).await.0, StatusCode::FORBIDDEN);
    for (path, expected) in [
        ("/", OK),
        ("/", REJECTED),
        ("/health", OK),
        ("/ready", OK),
        ("/healthy", REJECTED),
    ] {
        assert_eq!(site.status(path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn networks_may_stand_on_an_allow_list_and_on_a_deny_list() {
    let client = || ForwardedIp::x_forwarded_for(TrustedProxies::networks([cidr("127.0.0.0/8")]));
    let within = |networks: [Cidr; 1]| {
        let client = client();
        move |head: &Parts| {
            let ip = client.address(head);
            ip.is_ok_and(|ip| networks.iter().any(|network| network.contains(ip)))
        }
    };
    let limits = layer()
        .limit(policy("ip", "1/1d"), client())
        .skip(within([cidr("192.0.2.0/24")]))
        .deny(within([cidr("2001:db8::/32")]));
    let site = Site::start(Router::new().fallback(hello()).layer(limits)).await;
    for (client, expected) in [
        ("192.0.2.1", OK),
        ("192.0.2.1", OK),
        ("2001:db8::1", StatusCode::FORBIDDEN),
        ("203.0.113.7", OK),
        ("203.0.113.7", REJECTED),
        // The client wrote the part before the proxy's entry, so that part is not trusted.
        ("192.0.2.1, 203.0.113.7", REJECTED),
    ] {
        let headers = [("x-forwarded-for", client)];
        assert_eq!(site.get("/", &headers).await.0, expected, "{client}");
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Limits users and, more generously, tenants, with exceptions for some of both.
async fn lists() -> Site {
    let is = |kind: &'static str, value: &'static str| {
        move |key: &Key| key.kind() == kind && key.value() == value.as_bytes()
    };
    let tenant = |head: &Parts| {
        let tenant = head.headers.get("x-tenant")?;
        Some(Key::new("tenant", tenant.as_bytes()))
    };
    let user = |head: &Parts| {
        let user = head.headers.get("x-user").map(|it| it.as_bytes().to_vec());
        async move {
            Some(Charge::new(
                &policy("user", "1/1d"),
                Key::new("user", user?),
                1,
            ))
        }
    };
    let limits = layer()
        .limit(policy("tenant", "3/1d"), tenant)
        .charge_async(user)
        .skip_keys(is("user", "robot"))
        .skip_keys(is("user", "mallory"))
        .deny_keys(is("user", "mallory"))
        .deny_keys(is("tenant", "evil"));
    Site::start(
        Router::new()
            .route("/", get(async || "hello"))
            .layer(limits),
    )
    .await
}

#[tokio::test]
async fn a_key_on_the_allow_list_skips_the_limits_of_that_key_alone() {
    let site = lists().await;
    for (user, expected) in [
        ("robot", OK),
        ("robot", OK),
        ("alice", OK),
        ("robot", REJECTED),
    ] {
        let headers = [("x-tenant", "acme"), ("x-user", user)];
        assert_eq!(site.get("/", &headers).await.0, expected, "{user}");
    }
}

#[tokio::test]
async fn a_key_on_the_deny_list_is_rejected_and_charges_no_key() {
    let site = lists().await;
    for (tenant, user) in [("acme", "mallory"), ("evil", "alice"), ("evil", "robot")] {
        for _ in 0..4 {
            let headers = [("x-tenant", tenant), ("x-user", user)];
            let (status, headers, body) = site.get("/", &headers).await;
            assert_eq!(status, StatusCode::FORBIDDEN);
            assert_eq!(headers["content-type"], "application/problem+json");
            assert_eq!(headers["cache-control"], "no-store");
            assert!(!headers.contains_key("retry-after") && !headers.contains_key("ratelimit"));
            assert!(body.contains(r#""status":403"#), "{body}");
        }
    }
    let headers = [("x-tenant", "acme"), ("x-user", "alice")];
    let (_, headers, _) = site.get("/", &headers).await;
    assert_eq!(left(&headers), [r#""tenant";r=2"#, r#""user";r=0"#]);
}

#[tokio::test]
async fn lists_hold_while_the_store_is_down() {
    let limits = RateLimitLayer::new(Scripted::failing())
        .limit(policy("user", "1/1d"), |head: &Parts| {
            Some(Key::new("user", head.headers.get("x-user")?.as_bytes()))
        })
        .deny_keys(|key| *key == Key::new("user", "mallory"));
    let site = Site::start(Router::new().route("/", hello()).layer(limits)).await;
    for (user, expected) in [("mallory", StatusCode::FORBIDDEN), ("alice", OK)] {
        assert_eq!(site.get("/", &[("x-user", user)]).await.0, expected);
    }
}
