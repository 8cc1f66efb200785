//! The rows: each runs the same request or check a number of times, in a process of its own and after a warm-up.

use std::{
    convert::Infallible,
    env,
    future::{Ready, ready},
    hint::black_box,
    net::SocketAddr,
    pin::pin,
    process,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{ConnectInfo, FromRequest},
};
use futures::future::join_all;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use serde::Deserialize;
use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, Limiter, MemoryStore, PeerIp, Policy,
    RateLimitLayer, RedisStore, Store,
    limiter::Background,
    middleware::{BodyError, CostMeter, FollowedBody, HeaderStyle, ParsedBody, ReadBodyLayer},
    store::Check,
};
use tokio::task::{JoinSet, LocalSet};
use tower::{Layer, Service, service_fn};
use tower_governor::{
    GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor,
};

use super::REQUESTS;

const ONE: &str = "1000000000/1m";
const THREE: &str = "1000000000/1s,1000000000/1m,1000000000/1h";
const FULL: &str = "0/1m";
/// So long an expiry that no slot is renewed.
const SLOTS: &str = "1000000000/1h@concurrent";

/// More than a layer watches for signs that it is wired wrongly.
const WARM_UP: usize = 12_000;
const CLIENTS: usize = 1_000;
/// The cost before the answer, and the final one.
const ESTIMATE: u64 = 500;
const METERED: u64 = 7;
/// How many checks or settlements over Redis wait at a time.
const CALLERS: usize = 64;
/// As many calls as a store has in flight by default: with no more callers, each check is a call of its own.
pub(crate) const IN_FLIGHT: usize = 2;
/// A warm-up that calls each function as often in each run.
const FEW: usize = 32;

/// The names of the rows, as in the file of budgets.
pub(crate) const NAMES: [&str; 18] = [
    "bare service",
    BODIES[0],
    BODIES[1],
    BODIES[2],
    YARDSTICK,
    "layer, one rule",
    "layer, three rules",
    "layer, three rules, no headers",
    "layer, a denial",
    "layer, two keys",
    "layer, metered",
    "layer, a slot",
    "store, one rule",
    "store, three rules",
    "limiter, one rule",
    "limiter, three rules",
    "over redis, three rules",
    "over redis, a settlement",
];

/// A body of 1 KiB, parsed by axum's `Json`, by the layer that reads bodies, and by both.
const BODIES: [&str; 3] = ["body, axum", "body, read_body", "body, read_body and axum"];

/// Its clock reads the processor's counter, so that its figures vary.
pub(crate) const YARDSTICK: &str = "tower_governor";
/// The beginning of the names of the rows over Redis.
pub(crate) const OVER_REDIS: &str = "over redis";
/// Not in the table: each check is a separate call, and the bench counts the functions. Redis does not answer the second row.
pub(crate) const ANSWERED: &str = "answered";
pub(crate) const UNANSWERED: &str = "unanswered";

/// The address of the server for the rows over Redis.
pub(crate) const REDIS: &str = "SLUICEGATE_BUDGET_REDIS";

pub(crate) fn run(name: &str, requests: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let number = WARM_UP + requests;
    match name {
        "layer, metered" => runtime.block_on(meter_all(number)),
        "layer, a slot" => runtime.block_on(hold_all(number)),
        "over redis, three rules" => runtime.block_on(over_redis(number)),
        "over redis, a settlement" => runtime.block_on(settle_over_redis(requests)),
        ANSWERED => runtime.block_on(alone(requests)),
        UNANSWERED => runtime.block_on(unanswered(requests)),
        _ => {
            let _entered = runtime.enter();
            answer_all(name, number);
        }
    }
}

/// The rows that wait for nothing.
fn answer_all(name: &str, number: usize) {
    match name {
        "bare service" => serve_all(number, Bare),
        "body, axum" => post_all(number, service_fn(chat)),
        "body, read_body" => post_all(number, read_chats().layer(service_fn(parsed))),
        "body, read_body and axum" => post_all(number, read_chats().layer(service_fn(chat))),
        YARDSTICK => {
            let mut config = GovernorConfigBuilder::default();
            config.per_nanosecond(1).burst_size(u32::MAX);
            let config = config.use_headers().finish().unwrap();
            let layer: GovernorLayer<PeerIpKeyExtractor, _, Body> = GovernorLayer::new(config);
            serve_all(number, layer.layer(Bare));
        }
        "layer, one rule" => serve_all(number, layer(ONE).layer(Bare)),
        "layer, three rules" => serve_all(number, layer(THREE).layer(Bare)),
        "layer, three rules, no headers" => {
            serve_all(number, layer(THREE).headers(HeaderStyle::NONE).layer(Bare));
        }
        "layer, a denial" => serve_all(number, layer(FULL).layer(Bare)),
        "layer, two keys" => {
            let user = Policy::parse("user", ONE).unwrap();
            serve_all(
                number,
                layer(ONE).limit(user, Header::new("x-api-key")).layer(Bare),
            );
        }
        "store, one rule" => check_all_by_store(number, ONE),
        "store, three rules" => check_all_by_store(number, THREE),
        "limiter, one rule" => check_all_by_limiter(number, ONE),
        "limiter, three rules" => check_all_by_limiter(number, THREE),
        _ => panic!("no row has the name {name:?}"),
    }
}

/// Answers at once with an empty body.
#[derive(Clone)]
struct Bare;

impl Service<Request<()>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Body::empty())))
    }
}

/// The limiter of each row.
fn limiter(store: impl Store) -> Limiter {
    Limiter::new(store).background(Background::Here)
}

fn layer(rules: &str) -> RateLimitLayer {
    let limiter = limiter(MemoryStore::new());
    RateLimitLayer::new(limiter).limit(Policy::parse("ip", rules).unwrap(), PeerIp)
}

/// A client: an address and an API key.
type Client = (SocketAddr, HeaderValue);

fn clients() -> Vec<Client> {
    let client = |n: usize| {
        let address = format!("203.0.{}.{}:50000", n / 250, n % 250 + 1);
        let api_key = format!("sk_live_0123456789abcdef{n:08}");
        (address.parse().unwrap(), api_key.parse().unwrap())
    };
    (0..CLIENTS).map(client).collect()
}

#[inline(always)] // no row counts how a request is moved
fn request((address, api_key): &Client) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-api-key", api_key.clone());
    request.extensions_mut().insert(ConnectInfo(*address));
    request
}

/// Makes requests one after another, which are answered at once, since there is no store to wait for.
fn serve_all<S, B>(requests: usize, mut service: S)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let clients = clients();
    let mut cx = Context::from_waker(Waker::noop());
    for client in clients.iter().cycle().take(requests) {
        assert!(service.poll_ready(&mut cx).is_ready());
        let mut response = pin!(service.call(request(client)));
        assert!(black_box(response.as_mut().poll(&mut cx)).is_ready());
    }
}

/// Answers with a text, and meters if the layer does.
#[expect(clippy::needless_pass_by_value, reason = "services own requests")]
fn text(request: Request<()>) -> Ready<Result<Response<Body>, Infallible>> {
    if let Some(meter) = request.extensions().get::<CostMeter>() {
        meter.set(METERED);
    }
    ready(Ok(Response::new(Body::from("hello"))))
}

async fn meter_all(requests: usize) {
    let limiter = limiter(MemoryStore::new());
    let policy = Policy::parse("ip", ONE).unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).limit(policy.clone(), PeerIp);
    let layer = layer.cost(|_, _| ESTIMATE).meter_costs();
    read_all(requests, &limiter, layer.layer(service_fn(text))).await;
    let each = (requests / CLIENTS) as u64;
    assert_eq!(taken(&limiter, &policy).await, METERED * each);
}

async fn hold_all(requests: usize) {
    let limiter = limiter(MemoryStore::new());
    let policy = Policy::parse("ip", SLOTS).unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).limit_concurrent(policy.clone(), PeerIp);
    read_all(requests, &limiter, layer.layer(service_fn(text))).await;
    assert_eq!(taken(&limiter, &policy).await, 0);
}

/// Makes requests one after another, and reads each body to its end. The work in the background that follows is done
/// before the next request, so that it counts.
async fn read_all<S>(requests: usize, limiter: &Limiter, mut service: S)
where
    S: Service<Request<()>, Response = Response<FollowedBody<Body>>, Error = Infallible>,
{
    let clients = clients();
    let mut cx = Context::from_waker(Waker::noop());
    for client in clients.iter().cycle().take(requests) {
        assert!(service.poll_ready(&mut cx).is_ready());
        let mut body = answered(service.call(request(client))).unwrap().into_body();
        while let Some(frame) = body.frame().await {
            black_box(frame.unwrap());
        }
        drop(body);
        limiter.finish(Duration::from_secs(60)).await;
    }
}

/// The units that still count of the first client.
async fn taken(limiter: &Limiter, policy: &Policy) -> u64 {
    let key = PeerIp.key(clients()[0].0.ip());
    let left = limiter.peek([Charge::new(policy, key, 0)]).await.unwrap();
    let rule = left.rules().next().unwrap();
    rule.rule().limit() - rule.remaining()
}

#[derive(Deserialize)]
struct Chat {
    max_tokens: u64,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    content: String,
}

fn read_chats() -> ReadBodyLayer<Chat> {
    // As `ReadBodyLayer::json` does, which is no default feature.
    ReadBodyLayer::new(1 << 20, |_, body| {
        serde_json::from_slice(body).map_err(|_| BodyError::new("not JSON"))
    })
}

async fn chat(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let Json(chat) = Json::<Chat>::from_request(request, &()).await.unwrap();
    Ok(answer(&chat))
}

async fn parsed(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(answer(
        request.extensions().get::<ParsedBody<Chat>>().unwrap(),
    ))
}

fn answer(chat: &Chat) -> Response<Body> {
    black_box((chat.max_tokens, &chat.messages[0].content));
    Response::new(Body::empty())
}

/// Posts bodies of 1 KiB one after another. They are there with the head.
fn post_all<S>(requests: usize, mut service: S)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let (begin, end) = (r#"{"max_tokens":500,"messages":[{"content":""#, r#""}]}"#);
    let content = "x".repeat(1_024 - begin.len() - end.len());
    let body = Bytes::from([begin, &content, end].concat());
    let json = HeaderValue::from_static("application/json");
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..requests {
        let mut request = Request::new(Body::from(body.clone()));
        request.headers_mut().insert(CONTENT_TYPE, json.clone());
        assert!(service.poll_ready(&mut cx).is_ready());
        let mut response = pin!(service.call(request));
        assert!(black_box(response.as_mut().poll(&mut cx)).is_ready());
    }
}

fn users(number: usize) -> Vec<String> {
    (0..number).map(|n| format!("user-{n:08}")).collect()
}

fn charge(policy: &Policy, user: &str) -> Charge {
    Charge::new(policy, Key::new("user", user), 1)
}

fn answered<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

fn check_all_by_store(checks: usize, rules: &str) {
    let (store, policy) = (MemoryStore::new(), Policy::parse("api", rules).unwrap());
    for user in users(CLIENTS).iter().cycle().take(checks) {
        let check = Check::new([charge(&policy, user)]).unwrap();
        assert!(answered(store.check(&check)).unwrap().is_allowed());
    }
}

fn check_all_by_limiter(checks: usize, rules: &str) {
    let limiter = limiter(MemoryStore::new());
    let policy = Policy::parse("api", rules).unwrap();
    for user in users(CLIENTS).iter().cycle().take(checks) {
        let decision = answered(limiter.check([charge(&policy, user)]));
        assert!(decision.unwrap().is_allowed());
    }
}

/// Callers in closed loops, so that several checks share a call.
async fn over_redis(checks: usize) {
    let limiter = limiter_over_redis().await;
    check_over_redis(&limiter, &three(), CALLERS, checks).await;
}

/// Makes the same number of checks in each run, so that only the settlements count.
async fn settle_over_redis(settlements: usize) {
    let (limiter, policy) = (limiter_over_redis().await, three());
    let (users, mut usages) = (users(CLIENTS), Vec::new());
    while usages.len() < 2 * REQUESTS {
        let key = |user: &String| Key::new("user", user.clone());
        let checks = users
            .iter()
            .map(|user| limiter.check([Charge::new(&policy, key(user), ESTIMATE)]));
        for decision in join_all(checks).await {
            let Ok(Decision::Allowed(usage)) = decision else {
                panic!("not admitted: {decision:?}");
            };
            usages.push(usage);
        }
    }
    let usages = Rc::new(usages);
    let settle = async move |n: usize| {
        let settled = limiter.settle(&usages[n], |_| METERED);
        settled.await.unwrap();
    };
    in_closed_loops(CALLERS, settlements, settle).await;
}

async fn alone(checks: usize) {
    let limiter = limiter_over_redis().await;
    let policy = three();
    check_over_redis(&limiter, &policy, 1, FEW).await;
    check_over_redis(&limiter, &policy, IN_FLIGHT, checks).await;
}

async fn limiter_over_redis() -> Limiter {
    let store = RedisStore::connect(env::var(REDIS).unwrap()).await;
    limiter(store.unwrap())
        .timeout(Duration::from_secs(20))
        .on_failure(FailurePolicy::Closed)
}

/// Ends the process while the checks wait.
async fn unanswered(checks: usize) {
    let limiter = limiter_over_redis().await;
    let policy = three();
    check_over_redis(&limiter, &policy, 1, FEW).await;
    if checks > 0 {
        pause_redis().await;
        let answered = check_over_redis(&limiter, &policy, IN_FLIGHT, checks);
        let answered = tokio::time::timeout(Duration::from_millis(500), answered);
        answered.await.expect_err("Redis pauses");
    }
    process::exit(0);
}

async fn pause_redis() {
    let client = redis::Client::open(env::var(REDIS).unwrap()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(2_000).arg("ALL");
    let () = pause.query_async(&mut connection).await.unwrap();
}

fn three() -> Policy {
    Policy::parse("api", THREE).unwrap()
}

async fn check_over_redis(limiter: &Limiter, policy: &Policy, callers: usize, checks: usize) {
    let (limiter, policy) = (limiter.clone(), policy.clone());
    let users = Rc::new(users(CLIENTS));
    let check = async move |n: usize| {
        let decision = limiter.check([charge(&policy, &users[n % CLIENTS])]);
        assert!(decision.await.unwrap().is_allowed());
    };
    in_closed_loops(callers, checks, check).await;
}

async fn in_closed_loops<C>(callers: usize, calls: usize, call: C)
where
    C: AsyncFn(usize) + Clone + 'static,
{
    let work = async {
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let call = call.clone();
            tasks.spawn_local(async move {
                for n in (caller..calls).step_by(callers) {
                    call(n).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    LocalSet::new().run_until(work).await;
}
