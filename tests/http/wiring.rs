//! A service that is wired wrongly logs one loud warning, and neither lets requests pass nor gives them a shared limit.

use axum::extract::connect_info::MockConnectInfo;
use sluicegate::extract::FromExtension;

use crate::prelude::*;

const SECRET: &str = "sk_live_do_not_show";

#[derive(Clone)]
struct User(&'static str);

fn limit(extractor: impl KeyExtractor) -> RateLimitLayer {
    empty().limit(policy("api", "9999/1m"), extractor)
}

fn by_user() -> FromExtension<User> {
    FromExtension::new(|user: &User| Key::new("user", user.0))
}

fn app(layer: RateLimitLayer) -> Router {
    plain().layer(layer)
}

fn plain() -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/health", get(async || "hello"))
        .route("/orders/{id}", get(async || "hello"))
        .route("/items/{id}", get(async || "hello"))
}

async fn through(app: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).header("x-api-key", SECRET);
    let request = request.header("x-forwarded-for", "203.0.113.7");
    let request = request.body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

async fn status(app: &Router, path: &str) -> u16 {
    through(app, path).await.status().as_u16()
}

/// Calls the service of this layer alone, without a router. Returns the status.
async fn bare(layer: &RateLimitLayer, path: &str) -> u16 {
    send(layer, to(path)).await.status().as_u16()
}

#[test]
fn a_server_that_tells_no_peer_address_gets_a_500_and_one_warning() {
    let trusted = || TrustedProxies::networks(["10.0.0.0/8".parse().unwrap()]);
    let extractors: [Box<dyn KeyExtractor>; 6] = [
        Box::new(PeerIp),
        Box::new(ForwardedIp::x_forwarded_for(trusted())),
        Box::new(PeerIp.or_skip()),
        Box::new(PeerIp.or_shared(everybody())),
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
            let mended = app.layer(MockConnectInfo(PEER));
            assert_eq!(status(&mended, "/").await, 200);
        });
        let mend = "into_make_service_with_connect_info::<SocketAddr>()";
        let begins = ["WARN misconfigured: ", "policy=\"api\"", mend];
        assert_one(&lines, &begins);
        assert_one(&lines, &["MockConnectInfo", "tonic"]);
        assert!(!lines[0].contains(SECRET) && !lines[0].contains("203.0.113"));
    }
}

#[test]
fn each_layer_tells_each_of_its_mistakes_once() {
    let lines = traced(false, async {
        let both = limit(PeerIp).limit(policy("user", "9/1m"), by_user());
        // Shadows reject nothing, so the request meets both mistakes.
        let shadow = both.clone().shadow();
        let other = shadow.clone().jitter(Duration::from_secs(1));
        for layer in [shadow, other] {
            for _ in 0..3 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
        }
        assert_eq!(bare(&both, "/").await, 500);
        assert_eq!(bare(&both, "/").await, 500);
    });
    let told = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(told("no request has a peer address"), 3, "{lines:?}");
    assert_eq!(told("::User`: no request has one"), 2, "{lines:?}");
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn a_users_own_extractor_can_tell_a_mistake() {
    let lines = traced(false, async {
        let mistake = || ExtractError::misconfigured("the session layer is missing");
        let layer = limit(move |_: &Parts| Err::<Key, _>(mistake()));
        for _ in 0..3 {
            assert_eq!(bare(&layer, "/").await, 500);
        }
    });
    let expected = r#"WARN misconfigured: the session layer is missing policy="api""#;
    assert_eq!(lines, [expected]);
}

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
    let challenging = by_user().or_unauthorized(HeaderValue::from_static("Bearer"));
    let choices: [(Box<dyn KeyExtractor>, u16); 5] = [
        (Box::new(by_user()), 400),
        (Box::new(by_user().or_skip()), 200),
        (Box::new(by_user().or_shared(everybody())), 200),
        (Box::new(challenging), 401),
        (Box::new(by_user().or(PeerIp)), 200),
    ];
    for (extractor, expected) in choices {
        let layer = limit(extractor);
        let nobody = authenticated(layer.clone(), false).layer(peer);
        let response = through(&nobody, "/").await;
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
    let absent = Header::new("absent").or_unauthorized(HeaderValue::from_static("Bearer"));
    let layer = limit(absent).rejection(|rejection: &Rejection, _: &Parts| {
        let response = Response::builder().status(rejection.status());
        let response = response.header("www-authenticate", r#"Bearer realm="api""#);
        response.body(String::new()).unwrap()
    });
    let response = ask(&layer).await;
    let expected = r#"401 MissingKey | www-authenticate: Bearer realm="api""#;
    assert_eq!(told(&response), expected);
}

#[test]
fn costs_that_are_all_0_are_warned_about_once_unless_they_are_known_later() {
    let warned = |layer: RateLimitLayer| {
        traced(false, async {
            for _ in 0..1_100 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
        })
    };
    let layer = |cost: fn(&Parts) -> u64| limit(everybody()).cost(move |head, _| cost(head));
    assert_one(
        &warned(layer(|_| 0)),
        &["misconfigured", "`cost`", "`ParsedBody`"],
    );
    assert_eq!(warned(layer(|_| 1)), [""; 0]);
    assert_eq!(warned(layer(|_| 0).settle(|_, _| 1)), [""; 0]);
    assert_eq!(warned(limit(everybody())), [""; 0]);
}

fn table() -> RateLimitLayer {
    let routes = Routes::new(Route::skip())
        .route("/health", policy("health", "9/1m"))
        .route("GET /items/{id}", policy("items", "9/1m"))
        .route("/v1/items/{id}", policy("items", "9/1m"))
        .route("POST /orders/{id}", policy("orders", "9/1m"));
    empty().limit(routes, everybody())
}

/// The warnings while an app is asked for these paths.
fn warned(app: &Router, script: &str) -> Vec<String> {
    traced(false, walk(app, script))
}

#[test]
fn a_table_outside_the_router_rejects_what_it_cannot_decide() {
    let around = table();
    let lines = traced(false, async {
        // The table has an entry for another method of orders only.
        for (path, expected) in [
            ("/items/7", 500),
            ("/items/%37", 500),
            ("/health", 200),
            ("/", 200),
            ("/orders/7", 200),
            ("/items/7", 500),
        ] {
            assert_eq!(bare(&around, path).await, expected, "{path}");
        }
    });
    assert_one(&lines, &["which route was matched"]);

    let nested = Router::new().nest_service("/v1", plain()).layer(table());
    let lines = warned(&nested, "GET /v1/items/7 -> 500\nGET /v1/health -> 200");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_table_inside_the_router_decides_and_warns_of_nothing() {
    let inside = app(table()).fallback(async || "nothing here");
    let script = "
        GET /items/7 -> 200
        GET /health -> 200
        GET / -> 200
        GET /nowhere -> 200
    ";
    assert_eq!(warned(&inside, script), [""; 0]);
    let within = Router::new().nest("/v1", app(table()));
    assert_eq!(warned(&within, "GET /v1/items/7 -> 200"), [""; 0]);
    let around = Router::new().nest("/v1", plain()).layer(table());
    let script = r#"GET /v1/items/7 -> 200 "items";r=8"#;
    assert_eq!(warned(&around, script), [""; 0]);
}

#[test]
fn a_table_of_shadows_rejects_nobody_where_it_cannot_decide() {
    let shadow = |name| policy(name, "9/1m").shadow();
    let routes = Routes::new(shadow("general"))
        .route("/items/{id}", shadow("items"))
        .route("/health", Route::skip());
    let nobody = |_: &Parts| None::<Key>;
    let lines = traced(false, async {
        let keyed = empty()
            .limit(routes, everybody())
            .limit(policy("real", "1/1m"), everybody());
        assert_eq!(bare(&keyed, "/items/7").await, 200);
        assert_eq!(bare(&keyed, "/items/7").await, 429);
        // One of the policies counts, and the request could have chosen any of them.
        let mixed = Routes::new(policy("general", "9/1m")).route("/items/{id}", shadow("items"));
        assert_eq!(bare(&empty().limit(mixed, nobody), "/items/7").await, 500);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[tokio::test]
async fn a_route_that_is_not_known_passes_no_limit_that_fails_open() {
    let unavailable = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("told to"));
    let routes = Routes::new(policy("general", "9/1m")).route("/items/{id}", Route::skip());
    let layer = empty().limit(routes, unavailable);
    assert_eq!(bare(&layer, "/items/7").await, 500);
    assert_eq!(bare(&layer, "/").await, 200);
}

const BEGINS: &str =
    "WARN the store could not decide about a request: failure policies apply as long as it cannot";

#[test]
fn an_outage_is_told_of_when_it_begins_and_when_it_is_over_without_an_observer() {
    let lines = traced(false, async {
        let up = Arc::new(AtomicBool::new(false));
        let is_up = up.clone();
        let store = Scripted::new(move |check| {
            let answer = match is_up.load(SeqCst) {
                true => allowed(check),
                false => Err(unavailable()),
            };
            StoreFuture::ready(answer)
        });
        let secret = |_: &Parts| Key::new("user", SECRET);
        let layer = support::layer(store).limit(policy("api", "9/1m"), secret);
        for is_up in [false, true, false, true] {
            up.store(is_up, SeqCst);
            tokio::time::advance(Duration::from_secs(11)).await;
            for _ in 0..100 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
        }
    });
    let begins = format!(r#"{BEGINS} kind="unavailable" error=told to fail"#);
    let ends = "WARN the store decides about all requests again";
    assert_eq!(lines, [&begins, ends, &begins, ends]);
}

#[test]
fn a_store_that_never_decides_is_warned_about_once_with_and_without_a_breaker() {
    let protocol = StoreError::new(StoreErrorKind::Protocol, "a value of another version");
    let other = r#"kind="protocol" error=a value of another version"#;
    for (error, interval_ms, line) in [
        (unavailable(), 0, r#"kind="unavailable" error=told to fail"#),
        (protocol, 250, other),
    ] {
        let lines = traced(false, async move {
            let store = Scripted::new(move |_| StoreFuture::ready(Err(error.clone())));
            let interval = Duration::from_millis(interval_ms);
            let limiter = support::limiter(store).probe_interval(interval);
            let layer = support::layer(limiter.clone());
            let layer = layer.limit(policy("api", "1/1h"), everybody());
            for _ in 0..200 {
                assert_eq!(bare(&layer, "/").await, 200);
            }
            // A check that needs no store does not end the outage.
            tokio::time::advance(Duration::from_secs(11)).await;
            assert!(limiter.check([]).await.unwrap().is_allowed());
            assert_eq!(bare(&layer, "/").await, 200);
        });
        assert_eq!(lines, [format!("{BEGINS} {line}")]);
    }
}

fn two(name: &str, rules: &str) -> Result<RateLimitLayer, impl std::error::Error> {
    let layer = empty().limit(policy("ip", "1/1s"), PeerIp);
    layer.try_limit(policy(name, rules), PeerIp)
}

refusals! { says;
    policies_of_one_name_that_differ_are_an_error_where_one_is_asked_for: two("ip", "2/1s") =>
        "same name and differ: Policy(ip: 1/1s), Policy(ip: 2/1s)";
    a_limit_and_the_same_of_another_set_could_differ: twice(handle(&live()), handle(&live())) => COULD;
    a_limit_of_a_set_and_a_fixed_one_could_differ: twice(handle(&live()), fixed().into()) => COULD;
    a_fixed_limit_and_one_of_a_set_could_differ: twice(fixed().into(), handle(&live())) => COULD;
    a_limit_of_a_set_and_one_of_a_table_could_differ: twice(handle(&live()), in_table()) => COULD;
}

#[test]
fn policies_of_one_name_that_do_not_differ_are_none() {
    assert!(two("ip", "1/1s").is_ok() && two("ip-48", "1/1s").is_ok());
    // One set is read once for each request.
    let live = live();
    assert!(twice(handle(&live), handle(&live)).is_ok());
}

const COULD: &str =
    "two limits of one layer have a policy of the same name, `api`, and a reload could";

fn fixed() -> Policy {
    policy("api", "9/1m")
}

fn in_table() -> PolicySelector {
    Routes::new(Route::skip()).route("/a", fixed()).into()
}

fn live() -> ReloadablePolicies {
    ReloadablePolicies::new(Policies::new([fixed()]).unwrap())
}

fn handle(of: &ReloadablePolicies) -> PolicySelector {
    of.policy("api").unwrap().into()
}

fn twice(
    first: PolicySelector,
    again: PolicySelector,
) -> Result<RateLimitLayer, impl std::error::Error> {
    empty().limit(first, PeerIp).try_limit(again, PeerIp)
}

#[tokio::test]
async fn a_reload_between_two_limits_gives_one_request_one_set_of_rules() {
    let names = ["api", "all", "named"];
    let of = move |rules| Policies::new(names.map(|name| policy(name, rules))).unwrap();
    let live = ReloadablePolicies::new(of("2/1d"));
    let reload = live.clone();
    let reloading = move |_: &Parts| {
        reload.replace(of("9/1d")).unwrap();
        everybody()
    };
    let handle = |name| live.policy(name).unwrap();
    let layer = empty()
        .limit(handle("api"), everybody())
        .limit(handle("api"), reloading)
        .limit(Routes::new(handle("all")), everybody())
        .limit(
            PolicySelector::by_name(&live, |_| Some("named")),
            everybody(),
        );
    for quota in [2, 9] {
        let response = ask(&layer).await;
        assert_eq!(response.status(), 200);
        let listed = lines(response.headers(), "ratelimit-policy").join(", ");
        for name in names {
            let expected = format!(r#""{name}";q={quota};w=86400"#);
            assert!(listed.contains(&expected), "{expected}: {listed}");
        }
    }
}
