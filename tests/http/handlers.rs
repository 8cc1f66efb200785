//! Handlers that check, because the cost of a request is in its body; and conventions for services.

use axum::{extract::State, response::Response as AxumResponse};

use crate::prelude::*;

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
    let mut quota = headers.clone();
    let is_other =
        |it: &&HeaderName| !EXPOSED_HEADERS.contains(it) || it.as_str().starts_with("grpc");
    for name in headers.keys().filter(is_other) {
        quota.remove(name);
    }
    quota
}

/// Compares the answers of a layer and of a handler to the same requests with the same decision.
async fn assert_same_answers(limiter: &Limiter, charge: Charge) {
    for style in STYLES {
        for request in requests() {
            let head = request.clone().into_parts().0;
            let (policy, cost) = (charge.policy().clone(), charge.cost());
            let closed = limiter.clone().on_failure(FailurePolicy::Closed);
            let layer = support::layer(closed)
                .limit(policy, charge.key().clone())
                .cost(move |_, _| cost)
                .headers(style);
            let expected = send(&layer, request).await;

            let rejection = match limiter.check([charge.clone()]).await {
                Ok(decision) => {
                    assert_eq!(written(style, &decision), quota(expected.headers()));
                    Rejection::of(&decision).unwrap()
                }
                Err(error) => Rejection::Undecided(error),
            };
            let answer = rejection.response(&head, style);
            assert!(answer.extensions().get::<Rejection>().is_some());
            let decided = |it: &Response<_>| it.extensions().get::<Decisions>().is_some();
            assert_eq!(decided(&answer), decided(&expected));
            assert_eq!(whole(&answer), whole(&expected));
        }
    }
}

#[tokio::test]
async fn a_handler_answers_a_denial_a_block_and_a_failure_as_a_layer_does() {
    let denying = support::limiter(Scripted::denying_for(5_000));
    let blocked = support::limiter(MemoryStore::new());
    let hour = Duration::from_secs(3_600);
    blocked.block(&alice(), hour).await.unwrap();
    let failing = support::limiter(Scripted::failing());
    for (limiter, cost) in [(&denying, 3), (&denying, 11), (&blocked, 1), (&failing, 1)] {
        let charge = Charge::new(&policy("api", "10/1s,100/1h"), alice(), cost);
        assert_same_answers(limiter, charge).await;
    }
}

#[tokio::test]
async fn a_handler_writes_the_quota_of_an_admission_as_a_layer_does() {
    let api = policy("api", "10/1s,100/1h");
    for style in STYLES {
        let layer = support::layer(Scripted::allowing()).limit(api.clone(), alice());
        let expected = ask(&layer.headers(style)).await;
        let limiter = support::limiter(Scripted::allowing());
        let decision = limiter.check([Charge::new(&api, alice(), 1)]).await;
        let decision = decision.unwrap();
        assert_eq!(written(style, &decision), quota(expected.headers()));
        assert!(Rejection::of(&decision).is_none());
    }
}

#[tokio::test]
async fn a_handler_without_a_slot_writes_a_short_wait() {
    let limiter = support::limiter(MemoryStore::new());
    let one = policy("exports", "1/30s@concurrent");
    let export = || limiter.check([Charge::new(&one, alice(), 1)]);
    assert!(export().await.unwrap().is_allowed());
    let headers = written(HeaderStyle::RETRY_AFTER_MS, &export().await.unwrap());
    let waits = ["retry-after", "retry-after-ms"].map(|name| field(&headers, name));
    assert_eq!(waits, ["1", "1000"]);
}

#[test]
fn a_handler_can_answer_with_a_body_of_its_own() {
    let head = to("/").into_parts().0;
    let (rejection, style) = (Rejection::Undecided(unavailable()), HeaderStyle::default());
    let response: Response<Vec<u8>> = rejection.response_by(&StatusOnly, &head, style);
    assert_eq!(response.status(), 503);
    assert_eq!(field(response.headers(), "retry-after"), "1");
    assert_eq!(field(response.headers(), "cache-control"), "no-store");
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

#[tokio::test]
async fn a_cost_in_the_body_is_denied_over_a_connection_and_not_mixed_with_the_layer_around() {
    let limiter = support::limiter(MemoryStore::new());
    let tokens = policy("tokens", "1000/1h");
    let requests = support::layer(limiter.clone()).limit(policy("requests", "9/1h"), alice());
    let app = Router::new()
        .route("/chat", post(chat))
        .layer(requests)
        .with_state((limiter, tokens));
    let site = Site::start(app).await;
    let json = [("content-type", "application/json")];
    let ask = async |cost| site.send(Method::POST, "/chat", &json, cost).await;
    let (status, headers, body) = ask("900").await;
    assert_eq!((status.as_u16(), &*body), (200, "hello"));
    assert!(field(&headers, "ratelimit").starts_with("\"requests\";r=8;"));
    let (status, headers, body) = ask("200").await;
    assert_eq!(status, 429);
    let quota = field(&headers, "ratelimit-policy");
    assert_eq!(quota, "\"tokens\";q=1000;w=3600");
    assert_eq!(headers.get_all("ratelimit").iter().count(), 1);
    assert!(field(&headers, "ratelimit").starts_with("\"tokens\";r=100;"));
    assert!(headers.contains_key("retry-after"));
    assert!(body.ends_with("\"violated-policies\":[\"tokens\"]}"));
}

#[tokio::test]
async fn a_limited_service_is_made_of_a_service_and_a_layer_and_gives_the_service_back() {
    let number = |number: u8| answering(move |_| Response::new(number.to_string()));
    let mut limited = RateLimit::new(number(1), limit("all", "0/1h"));
    let denied = limited.clone().oneshot(to("/")).await.unwrap();
    assert_eq!(denied.status(), 429);
    let within = limited.get_ref().clone().oneshot(to("/")).await.unwrap();
    assert_eq!(within.body(), "1");
    *limited.get_mut() = number(2);
    let within = limited.into_inner().oneshot(to("/")).await.unwrap();
    assert_eq!(within.body(), "2");
}

#[tokio::test]
async fn a_decision_of_a_handler_joins_those_of_the_layers_around_it() {
    let limiter = support::limiter(Scripted::denying_for(1_000));
    let outer = limit("outer", "9/1h");
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
