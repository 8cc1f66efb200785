//! Entries in a table of routes that no request meets.

use crate::prelude::*;

fn entry(name: &str) -> Policy {
    policy(name, "99999/1m")
}

/// An app with these routes behind this table.
fn app(routes: &[&str], table: Routes) -> Router {
    let add = |app: Router, route: &&str| app.route(route, get(async || "hello"));
    let app = routes.iter().fold(Router::new(), add);
    app.layer(empty().limit(table, everybody()))
}

/// The warnings after an app got this number of requests for these paths in turn.
fn warned(app: &Router, paths: &[&str], requests: usize) -> Vec<String> {
    let mut service = app.clone().into_service::<Body>();
    traced(false, async move {
        for path in paths.iter().cycle().take(requests) {
            let request = Request::get(*path).body(Body::empty());
            let _ = Service::call(&mut service, request.unwrap()).await;
        }
    })
}

#[test]
fn an_entry_with_other_names_of_captures_is_warned_of_at_once() {
    let table = Routes::new(Route::skip())
        .route("GET /items/{id}", entry("items"))
        .route("/files/{*rest}", entry("files"))
        .route("/", entry("home"));
    let app = app(&["/", "/items/{item_id}", "/files/{*path}"], table);
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
    let app = || {
        let table = Routes::new(Route::skip())
            .route("/health", entry("health"))
            .route("POST /users/{id}", entry("users"));
        app(&["/api/health", "/api/users/{user}"], table)
    };
    let paths = ["/api/health", "/api/users/7"];
    assert_eq!(warned(&app(), &paths, 999), [""; 0]);
    let lines = warned(&app(), &paths, 5_000);
    let health = "`/health` (the router has `/api/health`)";
    let users = "`POST /users/{id}` (the router has `/api/users/{user}`)";
    assert_one(&lines, &["requests=1000", health, users]);
}

#[test]
fn entries_that_are_seldom_asked_for_are_named_once_after_ten_thousand_requests() {
    let table = Routes::new(entry("general"))
        .route("/", entry("home"))
        .route("/serach", entry("search"))
        .route("POST /", entry("seldom"));
    let lines = warned(&app(&["/", "/search"], table), &["/", "/search"], 20_000);
    let said = "requests=10000 entries=\"`/serach`, `POST /`\"";
    assert_one(&lines, &[said]);
}

#[test]
fn entries_that_are_met_or_have_another_method_are_not_warned_of() {
    let table = Routes::new(Route::skip())
        .route("/items/{id}", entry("items"))
        .route("GET /login", entry("login"))
        .route("/fallback", entry("fallback"));
    let routes = ["/items/{id}", "/v1/items/{item}", "/login", "/login/"];
    let met = app(&routes, table).fallback(async || "elsewhere");
    let paths = "/items/7 /login /fallback /login/ /v1/items/7 /nowhere";
    let paths: Vec<&str> = paths.split(' ').collect();
    assert_eq!(warned(&met, &paths, 12_000), [""; 0]);

    let table = Routes::new(Route::skip())
        .route("POST /health", entry("health"))
        .route("/api/health", entry("seldom"));
    let other = app(&["/health", "/api/health"], table);
    assert_eq!(warned(&other, &["/health"], 5_000), [""; 0]);
}

#[tokio::test]
async fn a_path_without_a_route_is_limited_and_skipped_however_it_is_written() {
    let proxied = |table| {
        let app = Router::new().fallback(async || "proxied");
        app.layer(empty().limit(table, everybody()))
    };
    let table = Routes::new(Route::skip())
        .route("/login", policy("login", "1/1d"))
        .route("GET /health", Route::skip());
    let script = "
        POST /login -> 200
        POST /%6Cogin -> 429
        POST //login -> 429
        POST /login/ -> 429
        POST /./login -> 429
        POST /a/../login -> 429
        POST /%2Flogin -> 429
        POST /LOGIN -> 200
        POST /login/x -> 200
        POST /%256Cogin -> 200
        POST / -> 200
    ";
    walk(&proxied(table), script).await;
    // Nothing is skipped because of how its path is written.
    let table = Routes::new(policy("general", "1/1d")).route("/health", Route::skip());
    let script = "
        GET //health -> 200
        GET /health/ -> 429
        GET /health -> 200
        GET /health -> 200
        GET /health -> 200
    ";
    walk(&proxied(table), script).await;
}
