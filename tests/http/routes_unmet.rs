//! Entries in a table of routes that no request meets.

use axum::{Router, body::Body, routing::get};
use http::{Method, Request};
use sluicegate::{
    Key, MemoryStore, Policy, RateLimitLayer,
    middleware::{Route, Routes},
};
use tower::ServiceExt;

use support::trace::traced;

fn entry(name: &str) -> Policy {
    Policy::parse(name, "99999/1m").unwrap()
}

fn layer(routes: Routes) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new()).limit(routes, Key::new("service", "all"))
}

async fn ask(app: &Router, method: &Method, path: &str) -> u16 {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    response.status().as_u16()
}

/// The warnings after an app got this number of requests for these paths in turn.
fn warned(app: &Router, paths: &[&str], requests: usize) -> Vec<String> {
    traced(false, async {
        for path in paths.iter().cycle().take(requests) {
            ask(app, &Method::GET, path).await;
        }
    })
}

fn hello() -> axum::routing::MethodRouter {
    get(async || "hello")
}

#[test]
fn an_entry_with_other_names_of_captures_is_warned_of_at_once() {
    let routes = Routes::new(Route::skip())
        .route("GET /items/{id}", entry("items"))
        .route("/files/{*rest}", entry("files"))
        .route("/", entry("home"));
    let app = Router::new()
        .route("/", hello())
        .route("/items/{item_id}", hello())
        .route("/files/{*path}", hello())
        .layer(layer(routes));
    let lines = warned(&app, &["/", "/items/7", "/files/a/b"], 500);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, said) in lines.iter().zip([
        "`GET /items/{id}` (the router has `/items/{item_id}`)",
        "`/files/{*rest}` (the router has `/files/{*path}`)",
    ]) {
        assert!(line.starts_with("WARN no request has met these entries of `Routes`"));
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn an_entry_without_the_prefix_of_a_nested_router_is_warned_of_after_a_thousand_requests() {
    let routes = || {
        Routes::new(Route::skip())
            .route("/health", entry("health"))
            .route("POST /users/{id}", entry("users"))
    };
    let nested = Router::new()
        .route("/health", hello())
        .route("/users/{user}", hello());
    let app = || {
        Router::new()
            .nest("/api", nested.clone())
            .layer(layer(routes()))
    };
    let paths = ["/api/health", "/api/users/7"];
    assert_eq!(warned(&app(), &paths, 999), [""; 0]);
    let lines = warned(&app(), &paths, 5_000);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for said in [
        "requests=1000",
        "`/health` (the router has `/api/health`)",
        "`POST /users/{id}` (the router has `/api/users/{user}`)",
    ] {
        assert!(lines[0].contains(said), "{lines:?}");
    }
}

#[test]
fn entries_that_are_seldom_asked_for_are_named_once_after_ten_thousand_requests() {
    let routes = Routes::new(entry("general"))
        .route("/", entry("home"))
        .route("/serach", entry("search"))
        .route("POST /", entry("seldom"));
    let app = Router::new()
        .route("/", hello())
        .route("/search", hello())
        .layer(layer(routes));
    let lines = warned(&app, &["/", "/search"], 20_000);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("requests=10000 entries=\"`/serach`, `POST /`\""),
        "{lines:?}"
    );
}

#[test]
fn entries_that_are_met_are_not_warned_of() {
    let routes = Routes::new(Route::skip())
        .route("/items/{id}", entry("items"))
        .route("GET /login", entry("login"))
        .route("/fallback", entry("fallback"));
    let app = Router::new()
        .route("/items/{id}", hello())
        .route("/v1/items/{item}", hello())
        .route("/login", hello())
        .route("/login/", hello())
        .fallback(async || "elsewhere")
        .layer(layer(routes));
    let paths = [
        "/items/7",
        "/login",
        "/fallback",
        "/login/",
        "/v1/items/7",
        "/nowhere",
    ];
    assert_eq!(warned(&app, &paths, 12_000), [""; 0]);
}

#[tokio::test]
async fn a_path_without_a_route_is_limited_however_it_is_written() {
    let routes = Routes::new(Route::skip())
        .route("/login", Policy::parse("login", "1/1d").unwrap())
        .route("GET /health", Route::skip());
    let app = Router::new()
        .fallback(async || "proxied")
        .layer(layer(routes));
    assert_eq!(ask(&app, &Method::POST, "/login").await, 200);
    for path in [
        "/%6Cogin",
        "//login",
        "/login/",
        "/./login",
        "/a/../login",
        "/%2Flogin",
    ] {
        assert_eq!(ask(&app, &Method::POST, path).await, 429, "{path}");
    }
    for path in ["/LOGIN", "/login/x", "/%256Cogin", "/"] {
        assert_eq!(ask(&app, &Method::POST, path).await, 200, "{path}");
    }
}

#[tokio::test]
async fn nothing_is_skipped_because_of_how_its_path_is_written() {
    let routes =
        Routes::new(Policy::parse("general", "1/1d").unwrap()).route("/health", Route::skip());
    let app = Router::new()
        .fallback(async || "proxied")
        .layer(layer(routes));
    assert_eq!(ask(&app, &Method::GET, "//health").await, 200);
    assert_eq!(ask(&app, &Method::GET, "/health/").await, 429);
    for _ in 0..3 {
        assert_eq!(ask(&app, &Method::GET, "/health").await, 200);
    }
}

#[test]
fn a_route_with_an_entry_for_another_method_is_not_taken_for_another_entrys() {
    let routes = Routes::new(Route::skip())
        .route("POST /health", entry("health"))
        .route("/api/health", entry("seldom"));
    let app = Router::new()
        .route("/health", hello())
        .route("/api/health", hello())
        .layer(layer(routes));
    assert_eq!(warned(&app, &["/health"], 5_000), [""; 0]);
}
