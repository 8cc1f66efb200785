//! Handlers that check, because the cost of a request is in its body; and conventions for services.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    response::Response as AxumResponse,
    routing::{get, post},
};
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer, StoreError,
    error::{ExtractError, StoreErrorKind},
    middleware::{Decisions, EXPOSED_HEADERS, HeaderStyle, RateLimit, Rejection, StatusOnly},
    policies::{Policies, ReloadablePolicies},
};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use support::scripted::Scripted;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn alice() -> Key {
    Key::new("user", "alice")
}

async fn limited(layer: RateLimitLayer, request: Request<String>) -> Response<String> {
    let hello = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new("hello".to_owned()))
    });
    layer.layer(hello).oneshot(request).await.unwrap()
}

fn seen(response: Response<String>) -> (StatusCode, HeaderMap, String) {
    let (head, body) = response.into_parts();
    (head.status, head.headers, body)
}

// A cost for each limit

#[tokio::test]
async fn each_limit_costs_what_the_closure_says_of_its_policy() {
    let store = Scripted::allowing();
    let layer = RateLimitLayer::new(store.clone())
        .limit(policy("requests", "60/1m"), alice())
        .limit(policy("tokens", "10000/1m"), alice())
        .limit(|_: &Parts| policy("chosen", "9/1m"), alice())
        .cost(|head, policy| match policy.name() {
            "tokens" => 500,
            "chosen" => head.uri.path().len() as u64,
            _ => 1,
        });
    limited(layer, Request::new(String::new())).await;
    assert_eq!(
        store.only_check(),
        ["requests user 1", "tokens user 500", "chosen user 1"]
    );
}

// Checks in handlers

const STYLES: [HeaderStyle; 4] = [
    HeaderStyle::DRAFT_11,
    HeaderStyle::X_RATE_LIMIT,
    HeaderStyle::DRAFT_6.and(HeaderStyle::RETRY_AFTER_MS),
    HeaderStyle::NONE,
];

fn requests() -> [Request<String>; 3] {
    let call = Request::post("/").header("content-type", "application/grpc");
    [Request::get("/"), Request::head("/"), call]
        .map(|request| request.body(String::new()).unwrap())
}

/// The headers of a decision on a response of one's own.
fn written(style: HeaderStyle, decision: &Decision) -> HeaderMap {
    let mut headers = HeaderMap::new();
    style.write(decision, &mut headers);
    headers
}

/// Those that a style can write.
fn quota(headers: &HeaderMap) -> HeaderMap {
    let quota = headers
        .iter()
        .filter(|(name, _)| EXPOSED_HEADERS.contains(name));
    quota
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Compares the answers of a layer and of a handler to the same requests with the same decision.
async fn assert_same_answers(limiter: Limiter, charge: Charge) {
    for style in STYLES {
        for request in requests() {
            let head = request.clone().into_parts().0;
            let (policy, cost) = (charge.policy().clone(), charge.cost());
            let closed = limiter.clone().on_failure(FailurePolicy::Closed);
            let layer = RateLimitLayer::new(closed)
                .limit(policy, charge.key().clone())
                .cost(move |_, _| cost)
                .headers(style);
            let expected = limited(layer, request).await;

            let rejection = match limiter.check([charge.clone()]).await {
                Ok(decision) => {
                    assert_eq!(written(style, &decision), quota(expected.headers()));
                    Rejection::of(&decision).unwrap()
                }
                Err(error) => Rejection::Undecided(error),
            };
            let answer = rejection.response(&head, style);
            assert!(answer.extensions().get::<Rejection>().is_some());
            assert_eq!(
                answer.extensions().get::<Decisions>().is_some(),
                expected.extensions().get::<Decisions>().is_some()
            );
            assert_eq!(seen(answer), seen(expected));
        }
    }
}

#[tokio::test]
async fn a_handler_answers_a_denial_as_a_layer_does() {
    let limiter = Limiter::new(Scripted::denying_for(5_000));
    let api = policy("api", "10/1s,100/1h");
    assert_same_answers(limiter.clone(), Charge::new(&api, alice(), 3)).await;
    assert_same_answers(limiter, Charge::new(&api, alice(), 11)).await;
}

#[tokio::test]
async fn a_handler_answers_a_block_as_a_layer_does() {
    let limiter = Limiter::new(MemoryStore::new());
    let hour = Duration::from_secs(3_600);
    limiter.block(&alice(), hour).await.unwrap();
    assert_same_answers(limiter, Charge::new(&policy("api", "10/1s"), alice(), 1)).await;
}

#[tokio::test]
async fn a_handler_answers_that_the_store_cannot_decide_as_a_layer_does() {
    let limiter = Limiter::new(Scripted::failing());
    assert_same_answers(limiter, Charge::new(&policy("api", "10/1s"), alice(), 1)).await;
}

#[tokio::test]
async fn a_handler_writes_the_quota_of_an_admission_as_a_layer_does() {
    let api = policy("api", "10/1s,100/1h");
    for style in STYLES {
        let layer = RateLimitLayer::new(Scripted::allowing()).limit(api.clone(), alice());
        let expected = limited(layer.headers(style), Request::new(String::new())).await;
        let limiter = Limiter::new(Scripted::allowing());
        let decision = limiter.check([Charge::new(&api, alice(), 1)]).await;
        assert_eq!(
            written(style, &decision.unwrap()),
            quota(expected.headers())
        );
    }
}

#[tokio::test]
async fn a_handler_without_a_slot_writes_a_short_wait() {
    let limiter = Limiter::new(MemoryStore::new());
    let one = policy("exports", "1/30s@concurrent");
    let export = || limiter.check([Charge::new(&one, alice(), 1)]);
    assert!(export().await.unwrap().is_allowed());
    let headers = written(HeaderStyle::RETRY_AFTER_MS, &export().await.unwrap());
    assert_eq!(
        (&headers["retry-after"], &headers["retry-after-ms"]),
        (&"1".parse().unwrap(), &"1000".parse().unwrap())
    );
}

#[tokio::test]
async fn an_allowed_request_has_no_rejection() {
    let limiter = Limiter::new(MemoryStore::new());
    let charge = Charge::new(&policy("api", "10/1s"), alice(), 1);
    let decision = limiter.check([charge]).await.unwrap();
    assert!(Rejection::of(&decision).is_none());
}

#[tokio::test]
async fn a_handler_can_answer_with_a_body_of_its_own() {
    let error = StoreError::new(StoreErrorKind::Unavailable, "told to fail");
    let head = Request::new(()).into_parts().0;
    let style = HeaderStyle::default();
    let response: Response<Vec<u8>> =
        Rejection::Undecided(error).response_by(&StatusOnly, &head, style);
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.headers()["cache-control"], "no-store");
}

type Chat = (Limiter, Policy);

async fn chat(
    State((limiter, tokens)): State<Chat>,
    head: Parts,
    Json(cost): Json<u64>,
) -> Result<&'static str, AxumResponse> {
    let decision = limiter.check([Charge::new(&tokens, alice(), cost)]).await;
    match Rejection::of(&decision.unwrap()) {
        Some(rejection) => Err(rejection.response(&head, HeaderStyle::default())),
        None => Ok("hello"),
    }
}

/// Serves on a free port, and sends one request after another over a connection.
async fn answers(app: Router, bodies: &[&'static str]) -> Vec<(StatusCode, HeaderMap, Bytes)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async { axum::serve(listener, app).await });
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut answers = Vec::new();
    for body in bodies {
        let request = Request::post(format!("http://{address}/chat"))
            .header("content-type", "application/json")
            .body(Full::<Bytes>::from(*body));
        let (head, body) = client.request(request.unwrap()).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        answers.push((head.status, head.headers, body));
    }
    server.abort();
    answers
}

#[tokio::test]
async fn a_cost_in_the_body_is_denied_over_a_connection_and_not_mixed_with_the_layer_around() {
    let limiter = Limiter::new(MemoryStore::new());
    let tokens = policy("tokens", "1000/1h");
    let requests = RateLimitLayer::new(limiter.clone()).limit(policy("requests", "9/1h"), alice());
    let app = Router::new()
        .route("/chat", post(chat))
        .layer(requests)
        .with_state((limiter, tokens));

    let answers = answers(app, &["900", "200"]).await;
    let (served, denied) = (&answers[0], &answers[1]);
    assert_eq!((served.0, &served.2[..]), (StatusCode::OK, &b"hello"[..]));
    assert!(
        served.1["ratelimit"]
            .to_str()
            .unwrap()
            .starts_with("\"requests\";r=8;")
    );
    assert_eq!(denied.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.1["ratelimit-policy"], "\"tokens\";q=1000;w=3600");
    assert_eq!(denied.1.get_all("ratelimit").iter().count(), 1);
    assert!(
        denied.1["ratelimit"]
            .to_str()
            .unwrap()
            .starts_with("\"tokens\";r=100;")
    );
    assert!(denied.1.contains_key("retry-after"));
    assert!(denied.2.ends_with(b"\"violated-policies\":[\"tokens\"]}"));
}

// Conventions

#[tokio::test]
async fn a_limited_service_is_made_of_a_service_and_a_layer_and_gives_the_service_back() {
    let denying = RateLimitLayer::new(MemoryStore::new()).limit(policy("all", "0/1h"), alice());
    let number = |number: u8| {
        service_fn(move |_: Request<String>| async move {
            Ok::<_, Infallible>(Response::new(number.to_string()))
        })
    };
    let ask = |service: RateLimit<_, _>| service.oneshot(Request::new(String::new()));
    let mut limited = RateLimit::new(number(1), denying);
    assert!(!ask(limited.clone()).await.unwrap().status().is_success());

    let within = *limited.get_ref();
    let response = within.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(response.body(), "1");
    *limited.get_mut() = number(2);
    let within = limited.into_inner();
    let response = within.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(response.body(), "2");
}

#[tokio::test]
async fn a_decision_of_a_handler_joins_those_of_the_layers_around_it() {
    let limiter = Limiter::new(Scripted::denying_for(1_000));
    let outer = RateLimitLayer::new(MemoryStore::new()).limit(policy("outer", "9/1h"), alice());
    let handler = async move |head: Parts| {
        let charge = Charge::new(&policy("inner", "9/1h"), alice(), 1);
        let Decision::Denied(denial) = limiter.check([charge]).await.unwrap() else {
            unreachable!()
        };
        let response: AxumResponse =
            Rejection::Denied(denial).response(&head, HeaderStyle::default());
        response
    };
    let app: Router = Router::new().route("/", get(handler)).layer(outer);
    let request = Request::get("/").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let decisions = response.extensions().get::<Decisions>().unwrap();
    let names = decisions.iter().flat_map(|it| it.usage().policies());
    let names: Vec<_> = names.map(|it| it.policy().name().to_owned()).collect();
    assert_eq!(names, ["inner", "outer"]);
}

#[tokio::test]
async fn a_handle_is_charged_as_its_policy_is_now() {
    let live = ReloadablePolicies::new(Policies::new([policy("api", "1/1h")]).unwrap());
    let handle = live.policy("api").unwrap();
    let limiter = Limiter::new(MemoryStore::new());
    let check = async || {
        let decision = limiter.check([Charge::new(&handle, alice(), 1)]).await;
        decision.unwrap().is_allowed()
    };
    assert_eq!((check().await, check().await), (true, false));
    live.replace(Policies::new([policy("api", "2/1h")]).unwrap())
        .unwrap();
    assert_eq!((check().await, check().await), (true, false));
}

// Lessons of the examples

#[tokio::test]
async fn plans_that_fail_locally_are_served_without_the_store_while_a_failed_look_up_is_a_503() {
    let charge = |known: bool| {
        move |_: &Parts| {
            let plan = policy("free", "2/1h").on_failure(FailurePolicy::Local);
            let charge = known.then(|| Charge::new(&plan, alice(), 1));
            let charge = charge.ok_or(ExtractError::unavailable("the database has failed"));
            async { charge }
        }
    };
    for (known, expected) in [(true, [200, 200, 429]), (false, [503; 3])] {
        let closed = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Closed);
        let layer = RateLimitLayer::new(closed).charge_async(charge(known));
        for expected in expected {
            let response = limited(layer.clone(), Request::new(String::new())).await;
            assert_eq!(response.status(), expected, "{known}");
        }
    }
}
