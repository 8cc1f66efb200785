//! Rules by route, by caller, and with changes at runtime; and skipped or blocked requests.

use axum::extract::{MatchedPath, Path};
use sluicegate::extract::Cidr;

use crate::prelude::*;

fn hello() -> MethodRouter {
    any(async || "hello")
}

/// Every path behind this layer.
fn all(layer: RateLimitLayer) -> Router {
    Router::new().fallback(hello()).layer(layer)
}

/// One layer for a whole application with nested routers.
fn table() -> Router {
    let general = policy("general", "100/1d");
    let routes = Routes::new(general.clone())
        .route("/health", Route::skip())
        .route("GET /search", Route::new(general).weight(10))
        .route("/api/items/{id}", policy("items", "2/1d"))
        .route("DELETE /api/items/{id}", policy("deletions", "1/1d"));
    let items = Router::new().route("/items/{id}", hello());
    Router::new()
        .route("/health", hello())
        .route("/search", hello())
        .nest("/api", items)
        .fallback(async || "nothing here")
        .layer(empty().limit(routes, PeerIp))
}

/// A test for each row: an app, and a script for `walk`.
macro_rules! walks {
    ($($name:ident: $app:expr => $script:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            walk(&$app, $script).await;
        }
    )*};
}

walks! {
    one_layer_limits_routes_by_method_and_template: table() => r#"
        GET /api/items/1 -> 200 "items";r=1
        GET /api/items/2 -> 200 "items";r=0
        GET /api/items/3 -> 429
        DELETE /api/items/1 -> 200 "deletions";r=0
        DELETE /api/items/2 -> 429
        DELETE /api/items/3 -> 429
    "#;
    routes_of_one_policy_share_its_counts_each_with_its_weight: table() => r#"
        GET /search -> 200 "general";r=90 of "general";q=100;w=86400
        GET /nowhere -> 200 "general";r=89
        # The handler of `GET` serves `HEAD`, which costs the same.
        HEAD /search -> 200 "general";r=79
        POST /search -> 200 "general";r=78
    "#;
    no_spelling_of_a_path_avoids_the_limit_of_its_route: table() => r#"
        GET /api/items/{id} -> 200 "items";r=1
        GET /api/items/%7Bid%7D -> 200 "items";r=0
        GET /api/items/x?y=/health -> 429
        GET //health -> 200 "general";r=99
        GET /health/ -> 200 "general";r=98
        GET /Health -> 200 "general";r=97
        GET /./health -> 200 "general";r=96
    "#;
    a_layer_of_a_router_limits_its_routes_and_its_fallback: small().layer(limit("all", "2/1d")) => r#"
        GET / -> 200 "all";r=1
        GET /nowhere -> 404
        GET / -> 429
        GET /nowhere -> 429
    "#;
    a_route_layer_leaves_the_fallback_alone_and_sees_the_matched_path: small().route_layer(by_matched_path()) => "
        GET /users/1 -> 200
        GET /users/2 -> 429
        GET / -> 200
        GET / -> 429
        GET /nowhere -> 404
        GET /nowhere -> 404
    ";
    nested_routers_have_limits_of_their_own_within_those_of_the_whole: api_within_all() => r#"
        GET /api/search -> 200 "api";r=0, "all";r=3
        GET /api/search -> 429
        GET / -> 200
        GET / -> 200
        GET / -> 429
    "#;
    the_fallback_of_a_nested_router_is_taken_for_no_other_route: nested() => "
        GET /api/health -> 200
        GET /api/health -> 429
        GET /api/nowhere -> 200
        GET /api/items -> 200
        GET /api/nowhere -> 429
    ";
    each_tier_has_its_policy_and_its_headers: tiers(policy("free", "60/1d"), policy("pro", "600/1d")) => r#"
        GET / x-user: alice; x-plan: free -> 200 "free";r=59 of "free";q=60;w=86400
        GET / x-user: alice; x-plan: pro -> 200 "pro";r=599 of "pro";q=600;w=86400
        GET / x-user: alice; x-plan: pro -> 200 "pro";r=598 of "pro";q=600;w=86400
    "#;
    an_unknown_tier_is_never_unlimited: tiers(policy("free", "60/1d"), policy("pro", "600/1d")) => "
        GET / x-user: alice; x-plan: gold -> 400
        GET / x-user: alice -> 400
        # Only identities that you except pass.
        GET / x-user: alice; x-plan: staff -> 200
    ";
    tiers_of_one_name_share_what_is_used: tiers(policy("user", "2/1d"), policy("user", "5/1d")) => r#"
        GET / x-user: alice; x-plan: free -> 200 "user";r=1
        GET / x-user: alice; x-plan: free -> 200 "user";r=0
        GET / x-user: alice; x-plan: free -> 429
        GET / x-user: alice; x-plan: pro -> 200 "user";r=2
        GET / x-user: alice; x-plan: pro -> 200 "user";r=1
        GET / x-user: alice; x-plan: pro -> 200 "user";r=0
        GET / x-user: alice; x-plan: pro -> 429
    "#;
    a_policy_that_cannot_be_found_out_passes_if_open: undecided(FailurePolicy::Open) => "GET / -> 200";
    a_policy_that_cannot_be_found_out_is_unavailable_if_closed: undecided(FailurePolicy::Closed) => "GET / -> 503";
    what_is_skipped_passes_and_what_is_blocked_does_not: skipping_and_denying() => "
        GET / x-evil: 1 -> 403
        GET /health x-evil: 1 -> 403
        GET / -> 200
        GET / -> 429
        GET /health -> 200
        GET /ready -> 200
        GET /healthy -> 429
    ";
    networks_may_stand_on_an_allow_list_and_on_a_deny_list: networks() => "
        GET / x-forwarded-for: 192.0.2.1 -> 200
        GET / x-forwarded-for: 192.0.2.1 -> 200
        GET / x-forwarded-for: 2001:db8::1 -> 403
        GET / x-forwarded-for: 203.0.113.7 -> 200
        GET / x-forwarded-for: 203.0.113.7 -> 429
        # The client wrote the part before the proxy's entry, so that part is not trusted.
        GET / x-forwarded-for: 192.0.2.1, 203.0.113.7 -> 429
    ";
    a_key_on_the_allow_list_skips_the_limits_of_that_key_alone: all(lists()) => "
        GET / x-tenant: acme; x-user: robot -> 200
        GET / x-tenant: acme; x-user: robot -> 200
        GET / x-tenant: acme; x-user: alice -> 200
        GET / x-tenant: acme; x-user: robot -> 429
    ";
    a_key_on_the_deny_list_is_rejected_and_charges_no_key: all(lists()) => r#"
        GET / x-tenant: acme; x-user: mallory -> 403
        GET / x-tenant: acme; x-user: mallory -> 403
        GET / x-tenant: acme; x-user: mallory -> 403
        GET / x-tenant: acme; x-user: mallory -> 403
        GET / x-tenant: evil; x-user: alice -> 403
        GET / x-tenant: evil; x-user: robot -> 403
        GET / x-tenant: acme; x-user: alice -> 200 "tenant";r=2, "user";r=0
    "#;
    lists_hold_while_the_store_is_down: listed_without_a_store() => "
        GET / x-user: mallory -> 403
        GET / x-user: alice -> 200
    ";
}

fn small() -> Router {
    let user = get(async |Path(id): Path<u32>| id.to_string());
    let nothing = async || (StatusCode::NOT_FOUND, "nothing here");
    let app = Router::new().route("/", hello()).route("/users/{id}", user);
    app.fallback(nothing)
}

fn by_matched_path() -> RateLimitLayer {
    let by_path = |head: &Parts| {
        let path = head.extensions.get::<MatchedPath>()?;
        Some(Key::new("path", path.as_str()))
    };
    empty().limit(policy("path", "1/1d"), by_path)
}

fn api_within_all() -> Router {
    let api = Router::new().route("/search", hello());
    let app = Router::new().route("/", hello());
    app.nest("/api", api.layer(limit("api", "1/1d")))
        .layer(limit("all", "4/1d"))
}

/// A fallback in a nested router with a layer within.
fn nested() -> Router {
    let routes = Routes::new(policy("general", "2/1d"))
        .route("/health", Route::skip())
        .route("/api/health", policy("proxied", "1/1d"));
    let api = Router::new()
        .route("/items", hello())
        .fallback(async || "proxied")
        .layer(empty().limit(routes, everybody()));
    Router::new().nest("/api", api)
}

answers! { code;
    without_a_router_a_path_is_limited: by_path() => 200, 429;
    without_a_router_the_path_is_compared_as_it_stands [to("/health?x")]: by_path() => 200, 200;
    without_a_router_no_other_path_is_skipped [to("/health/")]: by_path() => 200, 429;
}

fn by_path() -> RateLimitLayer {
    let routes = Routes::new(policy("general", "1/1d")).route("/health", Route::skip());
    empty().limit(routes, everybody())
}

/// A table with these entries.
fn entries(names: &[&str]) -> Routes {
    let add = |table: Routes, name: &&str| table.route(name, Route::skip());
    names.iter().fold(Routes::new(Route::skip()), add)
}

fn build(table: Routes) -> Result<RateLimitLayer, impl std::error::Error> {
    empty().try_limit(table, PeerIp)
}

fn heavy() -> Route {
    Route::skip().weight(5)
}

refusals! { is;
    the_first_mistake_of_a_table_is_an_error_of_the_limit: build(entries(&["search", "get /search"])) =>
        "`search` is not a route: write /items/{id}, or GET /items/{id}";
    a_method_in_small_letters_is_no_route: build(entries(&["get /search"])) =>
        "`get /search` is not a route: methods are written in capitals, as in GET /items/{id}";
    a_route_has_one_entry: build(entries(&["GET /search", "/search", "GET /search"])) => "`GET /search` is a route that has an entry already";
    a_skipped_route_has_no_weight: build(entries(&[]).route("/health", heavy())) => "`Route::skip()` has no weight: its requests are not counted";
    skipped_requests_have_no_weight: build(Routes::new(heavy())) => "`Route::skip()` has no weight: its requests are not counted";
    a_table_within_a_table_has_its_mistakes: build(entries(&[]).route("/search", Route::new(entries(&["search"])))) =>
        "`search` is not a route: write /items/{id}, or GET /items/{id}";
}

#[test]
fn captures_are_written_as_in_a_router() {
    let spoiled = "/items/:id /files/*rest /items/{id /items/id} /items/{} /files/{*} /{a{b}}";
    for name in spoiled.split(' ') {
        let error = build(entries(&[name])).unwrap_err().to_string();
        let expected = "is not a route: captures are written {id} or {*rest}";
        assert_eq!(error, format!("`{name}` {expected}"));
    }
    let written = "/items/{id} /files/{*rest} /v1/items:batch /{{id}}/a*";
    assert!(build(entries(&written.split(' ').collect::<Vec<_>>())).is_ok());
}

panics! {
    a_mistake_of_a_table_is_a_panic_where_none_is_expected: empty().limit(entries(&["search"]), PeerIp) => "`search` is not a route";
    a_policy_of_a_table_must_not_differ_from_its_namesake_in_another_limit:
        empty().limit(policy("ip", "1/1d"), PeerIp).limit(entries(&[]).route("/search", policy("ip", "2/1d")), PeerIp) => "same name and differ";
}

/// The tier that the authentication has found.
#[derive(Clone)]
struct Tier(&'static str);

/// A service behind an authentication that finds a tier by API key.
fn tiers(free: Policy, pro: Policy) -> Router {
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
    let authenticate = async |mut request: axum::extract::Request, next: Next| {
        let plan = request.headers().get("x-plan").cloned();
        if let Some(plan) = plan {
            let tiers = ["free", "pro", "staff"];
            let tier = tiers.into_iter().find(|it| plan == *it);
            request
                .extensions_mut()
                .insert(Tier(tier.unwrap_or("gold")));
        }
        next.run(request).await
    };
    all(empty().limit(by_tier, who)).layer(from_fn(authenticate))
}

fn undecided(failure: FailurePolicy) -> Router {
    let unavailable = |_: &Parts| Err::<Policy, _>(ExtractError::unavailable("no directory"));
    let limiter = support::limiter(MemoryStore::new()).on_failure(failure);
    all(support::layer(limiter).limit(unavailable, everybody()))
}

#[tokio::test]
async fn a_rule_that_changes_holds_at_once_and_counts_stay() {
    let set = |rules| Policies::new([policy("ip", rules)]).unwrap();
    let live = ReloadablePolicies::new(set("2/1d"));
    let app = all(empty().limit(live.policy("ip").unwrap(), PeerIp));
    // A new window starts empty, and the old window keeps its counts.
    for (rules, script) in [
        ("2/1d", "GET / -> 200\nGET / -> 200\nGET / -> 429"),
        ("5/1d", r#"GET / -> 200 "ip";r=2 of "ip";q=5;w=86400"#),
        ("3/1d", "GET / -> 429"),
        ("4/1d,7/1h", r#"GET / -> 200 "ip/1d";r=0, "ip/1h";r=6"#),
    ] {
        live.replace(set(rules)).unwrap();
        walk(&app, script).await;
    }
}

/// A plan has two limits for each user.
fn plans(all: &[(&str, [&str; 2])]) -> Policies {
    let plans = all.iter().map(|(plan, [requests, exports])| {
        let both = [policy("requests", requests), policy("exports", exports)];
        (plan, Policies::new(both).unwrap())
    });
    Policies::of_plans(plans).unwrap()
}

fn of_plan(live: &ReloadablePolicies, policy: &'static str) -> PolicySelector {
    PolicySelector::by_name(live, move |head| {
        let plan = head.headers.get("x-plan")?.to_str().ok()?;
        Some(format!("{plan}.{policy}"))
    })
}

#[tokio::test]
async fn plans_change_as_a_whole_and_an_upgrade_keeps_the_counts() {
    let (free, pro) = (("free", ["2/1d", "1/1d"]), ("pro", ["4/1d", "9/1d"]));
    let live = ReloadablePolicies::new(plans(&[free, pro]));
    let by = |name| of_plan(&live, name);
    let limits = empty()
        .limit(by("requests"), Header::new("x-user"))
        .limit(by("exports"), Header::new("x-user"));
    let app = all(limits);
    let script = r#"
        GET / x-user: alice; x-plan: free -> 200 "requests";r=1, "exports";r=0
        GET / x-user: alice; x-plan: free -> 429
        GET / x-user: alice; x-plan: pro -> 200 "requests";r=2, "exports";r=7
        GET / x-user: alice; x-plan: gold -> 400
        GET / x-user: alice -> 400
    "#;
    walk(&app, script).await;

    let error = live.replace(plans(&[("fee", ["9/1d", "9/1d"]), pro]));
    let expected = "policy `free.exports` is missing: is `fee.exports` misspelled?";
    assert_eq!(error.unwrap_err().to_string(), expected);
    walk(&app, "GET / x-user: alice; x-plan: free -> 429").await;

    live.replace(plans(&[("free", ["3/1d", "3/1d"]), pro, ("gold", free.1)]))
        .unwrap();
    let script = r#"
        GET / x-user: alice; x-plan: free -> 200 "requests";r=0, "exports";r=0
        GET / x-user: bob; x-plan: gold -> 200 "requests";r=1, "exports";r=0
    "#;
    walk(&app, script).await;
}

#[test]
fn two_plans_of_one_name_are_an_error() {
    let set = || Policies::new([policy("requests", "1/1s")]).unwrap();
    let error = Policies::of_plans([("free", set()), ("free", set())]);
    let expected = "policy `free.requests` is named twice";
    assert_eq!(error.unwrap_err().to_string(), expected);
}

fn skipping_and_denying() -> Router {
    let limits = empty()
        .limit(policy("ip", "1/1d"), PeerIp)
        .skip(|head| head.uri.path() == "/health")
        .skip(|head| head.uri.path() == "/ready")
        .deny(|head| head.headers.contains_key("x-evil"));
    all(limits)
}

fn networks() -> Router {
    let cidr = |text: &str| text.parse::<Cidr>().unwrap();
    let client = || ForwardedIp::x_forwarded_for(TrustedProxies::networks([cidr("10.0.0.0/8")]));
    let within = |network: &str| {
        let (client, network) = (client(), cidr(network));
        move |head: &Parts| client.address(head).is_ok_and(|ip| network.contains(ip))
    };
    let limits = empty()
        .limit(policy("ip", "1/1d"), client())
        .skip(within("192.0.2.0/24"))
        .deny(within("2001:db8::/32"));
    all(limits)
}

/// Limits users and, more generously, tenants, with exceptions for some of both.
fn lists() -> RateLimitLayer {
    let is = |kind: &'static str, value: &'static str| {
        move |key: &Key| key.kind() == kind && key.value() == value.as_bytes()
    };
    let tenant = |head: &Parts| Some(Key::new("tenant", head.headers.get("x-tenant")?));
    let user = |head: &Parts| {
        let user = head.headers.get("x-user").map(|it| Key::new("user", it));
        async move { Some(Charge::new(&policy("user", "1/1d"), user?, 1)) }
    };
    empty()
        .limit(policy("tenant", "3/1d"), tenant)
        .charge_async(user)
        .skip_keys(is("user", "robot"))
        .skip_keys(is("user", "mallory"))
        .deny_keys(is("user", "mallory"))
        .deny_keys(is("tenant", "evil"))
}

answers! { whole;
    a_rejection_by_a_list_has_no_quota_and_no_time [with(&[("x-tenant", "evil"), ("x-user", "alice")])]: lists() =>
        r#"403 OnDenyList | cache-control: no-store | content-type: application/problem+json | {"type":"about:blank","title":"Forbidden","status":403}"#;
}

fn listed_without_a_store() -> Router {
    let user = |head: &Parts| Some(Key::new("user", head.headers.get("x-user")?));
    let limits = support::layer(Scripted::failing())
        .limit(policy("user", "1/1d"), user)
        .deny_keys(|key| *key == Key::new("user", "mallory"));
    all(limits)
}
