//! The final costs of admitted requests: by their responses, or none without a response.

use std::{
    convert::Infallible,
    future::pending,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    http::{HeaderMap, Method, StatusCode, request::Parts, response},
    routing::{get, post},
};
use futures::FutureExt;
use http::{Request, Response};
use sluicegate::{
    Charge, Decision, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    Store, StoreError,
    error::{ExtractError, StoreErrorKind},
    middleware::{ActualCost, Decisions, HeaderStyle},
    observe::{CallInfo, CallKind, Event, Observer},
    store::{Check, Operation, Reply, StoreFuture},
};
use support::scripted::Scripted;
use support::{site::Site, trace::traced};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tower::{Layer, Service, ServiceExt, service_fn};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const WRONG: StatusCode = StatusCode::UNAUTHORIZED;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn everybody() -> Key {
    Key::new("service", "all")
}

/// A memory store that counts its settlements, and changes their results as the test wants.
struct Watched {
    store: MemoryStore,
    begun: AtomicUsize,
    settle: Box<dyn Fn(StoreFuture<Reply>) -> StoreFuture<Reply> + Send + Sync>,
}

impl Watched {
    fn new(
        settle: impl Fn(StoreFuture<Reply>) -> StoreFuture<Reply> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            begun: AtomicUsize::new(0),
            settle: Box::new(settle),
        })
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// The units left under the policy that all share.
    async fn left(self: &Arc<Self>, policy: &Policy) -> u64 {
        let charge = Charge::new(policy, everybody(), 0);
        let usage = Limiter::new(self.clone()).peek([charge]).await.unwrap();
        usage.rules().next().unwrap().remaining()
    }
}

impl Store for Watched {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if !matches!(operation, Operation::Settle(_)) {
            return self.store.execute(operation);
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let store = self.store.clone();
        // A settlement that is not polled is not executed.
        (self.settle)(StoreFuture::pending(async move {
            store.execute(operation).await
        }))
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

fn left(headers: &HeaderMap) -> &str {
    let field = headers["ratelimit"].to_str().unwrap();
    field.split_once(";t=").map_or(field, |(left, _)| left)
}

// By the response

/// Only failures count, and only under one of two policies.
fn failures(response: &response::Parts, charge: &Charge) -> u64 {
    match charge.policy().name() {
        "failures" if response.status.is_success() => 0,
        _ => charge.cost(),
    }
}

async fn login(body: String) -> StatusCode {
    if body == "sesame" { OK } else { WRONG }
}

#[tokio::test]
async fn a_login_limit_counts_failures_and_is_never_used_up_by_good_logins() {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(policy("failures", "2/1d"), PeerIp)
        .settle(failures);
    let app = Router::new().route("/", post(login)).layer(limits);
    let site = Site::start(app).await;
    for (password, expected, left_) in [
        ("sesame", OK, r#""failures";r=2"#),
        ("sesame", OK, r#""failures";r=2"#),
        ("sesame", OK, r#""failures";r=2"#),
        ("guess", WRONG, r#""failures";r=1"#),
        ("sesame", OK, r#""failures";r=1"#),
        ("guess", WRONG, r#""failures";r=0"#),
        ("sesame", REJECTED, r#""failures";r=0"#),
        ("guess", REJECTED, r#""failures";r=0"#),
    ] {
        let (status, headers, _) = site.send(Method::POST, "/", &[], password).await;
        assert_eq!((status, left(&headers)), (expected, left_), "{password}");
    }
}

#[tokio::test]
async fn a_handler_says_what_its_answer_has_cost() {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(policy("bytes", "100/1d"), PeerIp)
        .settle(ActualCost::or_charged);
    let report = async |head: Parts| {
        let body = "x".repeat(head.uri.query().unwrap().parse().unwrap());
        (Extension(ActualCost::new(body.len() as u64)), body)
    };
    let app = Router::new()
        .route("/report", get(report))
        .route("/", get(async || "ok"))
        .layer(limits);
    let site = Site::start(app).await;
    for (path, expected, left_) in [
        ("/", OK, r#""bytes";r=99"#),
        ("/report?60", OK, r#""bytes";r=39"#),
        ("/report?0", OK, r#""bytes";r=39"#),
        // Served bytes are charged, even above the limit.
        ("/report?70", OK, r#""bytes";r=0"#),
        ("/", REJECTED, r#""bytes";r=0"#),
    ] {
        let (status, headers, _) = site.get(path, &[]).await;
        assert_eq!((status, left(&headers)), (expected, left_), "{path}");
    }
}

#[tokio::test]
async fn a_handler_may_settle_by_itself() {
    let limiter = Limiter::new(MemoryStore::new());
    let limits = RateLimitLayer::new(limiter.clone())
        .limit(policy("all", "9/1d"), everybody())
        .settle(|_, _| 9);
    let handler = async move |Extension(decisions): Extension<Decisions>| {
        let decision = decisions.by_policy("all").unwrap();
        limiter.settle(decision.usage(), |_| 2).await.unwrap();
    };
    let app = Router::new().route("/", get(handler)).layer(limits);
    let site = Site::start(app).await;
    // The second request's charge is not settled yet when its headers are made.
    site.get("/", &[]).await;
    let (_, headers, _) = site.get("/", &[]).await;
    assert_eq!(left(&headers), r#""all";r=6"#);
}

// The time of settlements, and their failures

/// One request through a layer that settles to 0. Returns the units left afterwards, in the header and in the store.
async fn settled(store: &Arc<Watched>) -> (StatusCode, String, u64) {
    let all = policy("all", "9/1d");
    let layer = RateLimitLayer::new(store.clone())
        .limit(all.clone(), everybody())
        .settle(|_, _| 0);
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let response = service.oneshot(Request::default()).await.unwrap();
    let header = left(response.headers()).to_owned();
    (response.status(), header, store.left(&all).await)
}

#[tokio::test]
async fn a_settlement_that_fails_leaves_the_charge_and_the_response() {
    let failed = || StoreError::new(StoreErrorKind::Unavailable, "told to fail");
    let store = Watched::new(move |_| StoreFuture::ready(Err(failed())));
    let (status, header, left) = settled(&store).await;
    assert_eq!((status, header.as_str(), left), (OK, r#""all";r=8"#, 8));
    assert_eq!(store.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_waits_for_its_settlement_until_the_deadline() {
    let store = Watched::new(|_| StoreFuture::pending(pending()));
    let start = Instant::now();
    let (status, header, left) = settled(&store).await;
    assert_eq!(start.elapsed(), Duration::from_millis(100));
    assert_eq!((status, header.as_str(), left), (OK, r#""all";r=8"#, 8));

    let store = Watched::new(|answer| {
        StoreFuture::pending(async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            answer.await
        })
    });
    let start = Instant::now();
    let (_, header, left) = settled(&store).await;
    assert_eq!(start.elapsed(), Duration::from_millis(30));
    assert_eq!((header.as_str(), left), (r#""all";r=9"#, 9));
}

/// Counts its calls of several operations. Each call takes 60 ms.
#[derive(Clone, Debug, Default)]
struct Far {
    store: MemoryStore,
    calls: Arc<AtomicUsize>,
}

impl Store for Far {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if !matches!(operation, Operation::Settle(_)) {
            return self.store.execute(operation);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let settled = self.store.execute(operation);
        StoreFuture::pending(async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            settled.await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_shadows_charged_is_settled_at_the_same_time() {
    let store = Far::default();
    let layer = RateLimitLayer::new(store.clone())
        .limit(policy("now", "9/1d"), everybody())
        .limit(policy("soon", "5/1d").shadow(), everybody())
        .headers(HeaderStyle::DRAFT_11.with_shadows());
    let hello =
        || service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    for (layer, calls) in [
        (layer.clone().settle(|_, _| 0), 2),
        (layer.shadow().settle(|_, _| 0), 3),
    ] {
        let start = Instant::now();
        let service = layer.layer(hello());
        let response = service.oneshot(Request::default()).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_millis(60));
        assert_eq!(store.calls.load(Ordering::SeqCst), calls);
        let field = response.headers()["ratelimit"].to_str().unwrap();
        for left in [r#""now";r=9"#, r#""soon";r=5"#] {
            assert!(field.contains(left), "{field}");
        }
    }
}

/// Records the result of each settlement, and whether another settlement is reported for the shared call.
#[derive(Clone, Default)]
struct Settlements(Arc<Mutex<Vec<String>>>);

impl Settlements {
    fn add(&self, call: &CallInfo<'_>, result: &str) {
        if call.kind == CallKind::Settle {
            let shared = call.shares_call;
            let line = format!("{} {result}, shared: {shared}", call.names());
            self.0.lock().unwrap().push(line);
        }
    }
}

impl Observer for Settlements {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Completion { call, .. } => self.add(call, "done"),
            Event::Error { call, .. } => self.add(call, "failed"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn of_settlements_in_one_call_each_is_told_by_itself_and_the_call_once() {
    let store = Watched::new({
        let begun = AtomicUsize::new(0);
        move |settle| match begun.fetch_add(1, Ordering::SeqCst) {
            0 => StoreFuture::ready(Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "told to fail",
            ))),
            _ => settle,
        }
    });
    let told = Settlements::default();
    let service = RateLimitLayer::new(Limiter::new(store).observer(told.clone()))
        .limit(policy("now", "9/1d"), everybody())
        .limit(policy("soon", "5/1d").shadow(), everybody())
        .settle(|_, _| 0)
        .layer(service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
    service.oneshot(Request::default()).await.unwrap();
    assert_eq!(
        *told.0.lock().unwrap(),
        ["now failed, shared: false", "soon done, shared: true"]
    );
}

#[tokio::test]
async fn what_a_handler_has_settled_is_left_and_so_is_what_its_shadows_charged() {
    let limiter = Limiter::new(MemoryStore::new());
    let (now, soon) = (policy("now", "9/1d"), policy("soon", "5/1d").shadow());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(now.clone(), everybody())
        .limit(soon.clone(), everybody())
        .settle(|_, _| 0);
    let handler = limiter.clone();
    let service = layer.layer(service_fn(move |request: Request<String>| {
        let limiter = handler.clone();
        async move {
            let decisions: &Decisions = request.extensions().get().unwrap();
            let usage = decisions.by_policy("now").unwrap().usage();
            limiter.settle(usage, |_| 2).await.unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    service.oneshot(Request::default()).await.unwrap();
    let charges = [&now, &soon].map(|policy| Charge::new(policy, everybody(), 0));
    let usage = limiter.peek(charges).await.unwrap();
    let shadow = usage.shadow().unwrap().usage();
    let left = [&usage, shadow].map(|it| it.rules().next().unwrap().remaining());
    assert_eq!(left, [7, 3]);
}

/// A store that settles when the test opens a door, and reports it.
fn behind_doors() -> (Arc<Watched>, Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
    let doors = Arc::new(Semaphore::new(0));
    let (settled, settlements) = mpsc::unbounded_channel();
    let store = Watched::new({
        let doors = doors.clone();
        move |answer| {
            let (doors, settled) = (doors.clone(), settled.clone());
            StoreFuture::pending(async move {
                doors.acquire().await.unwrap().forget();
                let usage = answer.await;
                settled.send(()).unwrap();
                usage
            })
        }
    });
    (store, doors, settlements)
}

/// Waits for the next settlement. Fails if none comes in time.
async fn next(settlements: &mut mpsc::UnboundedReceiver<()>) {
    let next = tokio::time::timeout(Duration::from_secs(30), settlements.recv());
    assert_eq!(next.await, Ok(Some(())), "nothing is settled");
}

#[tokio::test]
async fn the_store_is_asked_only_when_the_cost_differs() {
    let store = Watched::new(|answer| answer);
    let limits = RateLimitLayer::new(store.clone())
        .limit(policy("failures", "1/1d"), PeerIp)
        .settle(failures);
    let site = Site::start(Router::new().route("/", post(login)).layer(limits)).await;
    for (password, expected, settlements) in [
        ("sesame", OK, 1),
        ("guess", WRONG, 1),
        ("guess", REJECTED, 1),
    ] {
        let (status, ..) = site.send(Method::POST, "/", &[], password).await;
        assert_eq!((status, store.begun()), (expected, settlements));
    }
}

// No response

/// Sends a request to a handler that never answers, and disconnects once the request has arrived. Returns the units
/// left of nine.
async fn leave(layer: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> u64 {
    let store = Watched::new(|answer| answer);
    let (all, (arrived, mut arrivals)) = (policy("all", "9/1d"), mpsc::unbounded_channel());
    let limits = RateLimitLayer::new(store.clone()).limit(all.clone(), everybody());
    let handler = move || {
        let gone = arrived.clone();
        arrived.send("here").unwrap();
        let dropped = OnDrop(Box::new(move || gone.send("gone").unwrap()));
        async move {
            let _dropped = dropped;
            pending::<()>().await;
        }
    };
    let app = Router::new().route("/", get(handler)).layer(layer(limits));
    let site = Site::start(app).await;
    let mut client = TcpStream::connect(site.address()).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(arrivals.recv().await, Some("here"));
    assert_eq!(store.left(&all).await, 8);
    drop(client);
    assert_eq!(arrivals.recv().await, Some("gone"));
    // The runtime received the settlement before this task was woken.
    tokio::task::yield_now().await;
    store.left(&all).await
}

struct OnDrop(Box<dyn Fn() + Send>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0();
    }
}

#[tokio::test]
async fn a_client_that_goes_away_gets_back_what_it_was_charged() {
    assert_eq!(leave(RateLimitLayer::refund_unanswered).await, 9);
}

#[tokio::test]
async fn a_client_that_goes_away_keeps_its_charge_unless_told_otherwise() {
    assert_eq!(leave(|layer| layer).await, 8);
    assert_eq!(leave(|layer| layer.settle(|_, _| 0)).await, 8);
}

#[tokio::test]
async fn a_failure_without_a_response_settles_as_for_a_client_that_left() {
    for (refund, expected) in [(false, 8), (true, 9)] {
        let (store, all) = (Watched::new(|answer| answer), policy("all", "9/1d"));
        let mut layer = RateLimitLayer::new(store.clone()).limit(all.clone(), everybody());
        if refund {
            layer = layer.refund_unanswered();
        }
        let service = layer.layer(service_fn(async |_: Request<String>| {
            Err::<Response<String>, _>("down")
        }));
        let error = service.oneshot(Request::default()).await.unwrap_err();
        assert_eq!(error, "down");
        tokio::task::yield_now().await;
        assert_eq!(store.left(&all).await, expected, "{refund}");
    }
}

#[tokio::test]
async fn a_service_that_panics_is_as_one_that_fails_without_a_response() {
    for panics_in_call in [true, false] {
        let (store, all) = (Watched::new(|answer| answer), policy("all", "9/1d"));
        let layer = RateLimitLayer::new(store.clone())
            .limit(all.clone(), everybody())
            .refund_unanswered();
        let service = layer.layer(service_fn(move |_: Request<String>| {
            assert!(!panics_in_call, "told to panic");
            async { panic!("told to panic") as Result<Response<String>, Infallible> }
        }));
        let answer = AssertUnwindSafe(service.oneshot(Request::default())).catch_unwind();
        assert!(answer.await.is_err());
        tokio::task::yield_now().await;
        assert_eq!(store.left(&all).await, 9, "in call: {panics_in_call}");
    }
}

#[tokio::test]
async fn a_settlement_whose_closure_panics_is_as_a_service_that_fails_without_a_response() {
    let (store, all) = (Watched::new(|answer| answer), policy("all", "9/1d"));
    let layer = RateLimitLayer::new(store.clone())
        .limit(all.clone(), everybody())
        .settle(|_, _| panic!("told to panic"))
        .refund_unanswered();
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let answer = AssertUnwindSafe(service.oneshot(Request::default())).catch_unwind();
    assert!(answer.await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(store.left(&all).await, 9);
}

/// The warnings when a handler behind these layers reports its actual cost.
fn warned_of_cost(layers: &[RateLimitLayer], cost: &ActualCost) -> Vec<String> {
    traced(false, async {
        let cost = cost.clone();
        let handler = async move || (Extension(cost), "hello");
        let mut app = Router::new().route("/", get(handler));
        for layer in layers {
            app = app.layer(layer.clone());
        }
        for _ in 0..3 {
            let request = Request::get("/").body(axum::body::Body::empty()).unwrap();
            assert_eq!(app.clone().oneshot(request).await.unwrap().status(), OK);
        }
    })
}

#[test]
fn a_cost_for_a_policy_that_does_not_exist_is_warned_of_once() {
    let limits = || RateLimitLayer::new(MemoryStore::new());
    let tokens = || limits().limit(policy("tokens", "900/1d"), everybody());
    let settled = |layer: RateLimitLayer| layer.settle(ActualCost::or_charged);
    for (name, similar) in [("token", r#"similar="tokens""#), ("units", "")] {
        let lines = warned_of_cost(&[settled(tokens())], &ActualCost::of(name, 5));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let named = format!("policy=\"{name}\"");
        assert!(lines[0].starts_with("WARN misconfigured: `ActualCost` names a policy"));
        assert!(
            lines[0].contains(&named) && lines[0].contains(similar),
            "{lines:?}"
        );
    }

    let requests = || limits().limit(policy("requests", "9/1d"), everybody());
    let nobody = |_: &Parts| Err::<Key, _>(ExtractError::missing("nobody"));
    let absent = requests().limit(policy("tokens", "900/1d"), nobody.or_skip());
    let chosen = |_: &Parts| policy("chosen", "900/1d");
    let cost = ActualCost::of("tokens", 5).and("requests", 1);
    for layers in [
        // No warning: another layer has the policy, or a limit that does not apply, or another request may choose it.
        vec![settled(
            requests().limit(policy("tokens", "900/1d"), everybody()),
        )],
        vec![settled(tokens()), settled(requests())],
        vec![settled(requests()), settled(tokens())],
        vec![settled(absent)],
        vec![settled(requests().limit(chosen, everybody()))],
    ] {
        assert_eq!(warned_of_cost(&layers, &cost), [""; 0]);
    }
    assert_eq!(
        warned_of_cost(&[settled(tokens())], &ActualCost::new(5)),
        [""; 0]
    );
}

#[test]
fn a_cost_for_a_policy_of_a_layer_without_a_decision_is_not_warned_of() {
    let limits = || RateLimitLayer::new(MemoryStore::new()).settle(ActualCost::or_charged);
    let requests = limits().limit(policy("requests", "99/1d"), everybody());
    let cost = ActualCost::of("tokens", 5);
    let tokens = || limits().limit(policy("tokens", "900/1d"), everybody());
    let failing = RateLimitLayer::new(Scripted::failing())
        .limit(policy("tokens", "900/1d"), everybody())
        .settle(ActualCost::or_charged);
    let skipping = tokens().skip(|_: &Parts| true);
    for undecided in [failing, skipping] {
        for layers in [
            [requests.clone(), undecided.clone()],
            [undecided.clone(), requests.clone()],
        ] {
            let lines = warned_of_cost(&layers, &cost);
            let about_cost = lines.iter().filter(|line| line.contains("ActualCost"));
            assert_eq!(about_cost.count(), 0, "{lines:?}");
        }
    }
}

#[tokio::test]
async fn a_settlement_that_nobody_waits_for_is_carried_on() {
    let ((store, doors, mut settlements), all) = (behind_doors(), policy("all", "9/1d"));
    let layer = RateLimitLayer::new(store.clone())
        .limit(all.clone(), everybody())
        .settle(|_, _| 0);
    let mut service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let mut response = Box::pin(service.ready().await.unwrap().call(Request::default()));
    assert!(futures::poll!(&mut response).is_pending());
    assert_eq!(store.begun(), 1);
    drop(response);
    doors.add_permits(1);
    next(&mut settlements).await;
    assert_eq!(store.left(&all).await, 9);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_in_the_background_is_bounded() {
    let store = Watched::new(|_| StoreFuture::pending(pending()));
    let limiter = Limiter::new(store.clone()).probe_interval(Duration::ZERO);
    let layer = RateLimitLayer::new(limiter)
        .limit(policy("all", "9999/1d"), everybody())
        .refund_unanswered();
    let mut service = layer.layer(service_fn(async |_: Request<String>| {
        pending::<Result<Response<String>, Infallible>>().await
    }));
    let leave = async |service: &mut _, times: usize| {
        for _ in 0..times {
            let service: &mut sluicegate::middleware::RateLimit<_> = service;
            let mut response = Box::pin(service.call(Request::<String>::default()));
            assert!(futures::poll!(&mut response).is_pending());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    leave(&mut service, 1_500).await;
    assert_eq!(store.begun(), 1_024);
    // Those settlements have timed out, so there is room again.
    tokio::time::sleep(Duration::from_millis(100)).await;
    leave(&mut service, 10).await;
    assert_eq!(store.begun(), 1_034);
}

#[tokio::test(start_paused = true)]
async fn refunds_that_fill_all_places_keep_no_slot_from_being_returned() {
    let store = Watched::new(|_| StoreFuture::pending(pending()));
    let limiter = Limiter::new(store.clone()).probe_interval(Duration::ZERO);
    let jobs = policy("jobs", "9999/30s@concurrent");
    let layer = RateLimitLayer::new(limiter)
        .limit(policy("all", "9999/1d"), everybody())
        .limit_concurrent(jobs.clone(), everybody())
        .refund_unanswered();
    let mut service = layer.layer(service_fn(async |_: Request<String>| {
        pending::<Result<Response<String>, Infallible>>().await
    }));
    for _ in 0..1_100 {
        let mut response = Box::pin(service.call(Request::<String>::default()));
        assert!(futures::poll!(&mut response).is_pending());
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.begun(), 1_024);
    assert_eq!(store.left(&jobs).await, 9_999);
}

#[test]
fn without_a_runtime_the_charge_stays_and_nothing_panics() {
    let store = Watched::new(|answer| answer);
    let layer = RateLimitLayer::new(store.clone())
        .limit(policy("all", "9/1d"), everybody())
        .refund_unanswered();
    let mut service = layer.layer(service_fn(async |_: Request<String>| {
        pending::<Result<Response<String>, Infallible>>().await
    }));
    let response = service.call(Request::<String>::default());
    assert!(response.now_or_never().is_none());
    assert_eq!(store.begun(), 0);
}
