//! The final costs of admitted requests: by their responses, or none without a response.

use http::response;
use sluicegate::observe::CallKind;
use std::panic::AssertUnwindSafe;
use support::fated::{Asked, Fate, Fated};
use tokio::sync::Notify;

use crate::prelude::*;

/// A memory store that counts its settlements.
struct Watched {
    store: Fated,
    begun: Arc<AtomicUsize>,
}

impl Watched {
    /// `fate` says what becomes of each settlement, by its number.
    fn new(fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Self {
        let begun = Arc::<AtomicUsize>::default();
        let count = begun.clone();
        let store = Fated::new(MemoryStore::new(), move |asked| match asked {
            Asked::Execute(Operation::Settle(_)) => fate(count.fetch_add(1, SeqCst)),
            _ => Fate::Answered,
        });
        Self { store, begun }
    }

    fn plain() -> Self {
        Self::new(|_| Fate::Answered)
    }

    fn late(ms: u64) -> Self {
        Self::new(move |_| Fate::Late(Duration::from_millis(ms)))
    }

    fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    /// The units left under the policy that all share.
    async fn left(&self) -> u64 {
        left_of(&support::limiter(self.store.clone()), &all(), &everybody()).await
    }

    /// A layer with that policy.
    fn layer(&self) -> RateLimitLayer {
        support::layer(self.store.clone()).limit(all(), everybody())
    }
}

fn all() -> Policy {
    policy("all", "9/1d")
}

/// The status, and the field without its time.
fn seen(status: StatusCode, headers: &HeaderMap) -> String {
    let quota = field(headers, "ratelimit").split(";t=").next().unwrap();
    format!("{} {quota}", status.as_u16())
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
    match &*body {
        "sesame" => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::test]
async fn a_login_limit_counts_failures_and_is_never_used_up_by_good_logins() {
    let store = Watched::plain();
    let limits = support::layer(store.store.clone()).limit(policy("failures", "2/1d"), PeerIp);
    let app = Router::new().route("/", post(login));
    let site = Site::start(app.layer(limits.settle(failures))).await;
    // The store is asked only when the cost differs.
    for (password, expected, settlements) in [
        ("sesame", r#"200 "failures";r=2"#, 1),
        ("sesame", r#"200 "failures";r=2"#, 2),
        ("sesame", r#"200 "failures";r=2"#, 3),
        ("guess", r#"401 "failures";r=1"#, 3),
        ("sesame", r#"200 "failures";r=1"#, 4),
        ("guess", r#"401 "failures";r=0"#, 4),
        ("sesame", r#"429 "failures";r=0"#, 4),
        ("guess", r#"429 "failures";r=0"#, 4),
    ] {
        let (status, headers, _) = site.send(Method::POST, "/", &[], password).await;
        assert_eq!(seen(status, &headers), expected, "{password}");
        assert_eq!(store.begun(), settlements);
    }
}

#[tokio::test]
async fn a_handler_says_what_its_answer_has_cost() {
    let limits = empty().limit(policy("bytes", "100/1d"), PeerIp);
    let report = async |head: Parts| {
        let body = "x".repeat(head.uri.query().unwrap().parse().unwrap());
        (Extension(ActualCost::new(body.len() as u64)), body)
    };
    let app = Router::new()
        .route("/report", get(report))
        .route("/", get(async || "ok"))
        .layer(limits.settle(ActualCost::or_charged));
    let site = Site::start(app).await;
    for (path, expected) in [
        ("/", r#"200 "bytes";r=99"#),
        ("/report?60", r#"200 "bytes";r=39"#),
        ("/report?0", r#"200 "bytes";r=39"#),
        // Served bytes are charged, even above the limit.
        ("/report?70", r#"200 "bytes";r=0"#),
        ("/", r#"429 "bytes";r=0"#),
    ] {
        let (status, headers, _) = site.get(path, &[]).await;
        assert_eq!(seen(status, &headers), expected, "{path}");
    }
}

#[tokio::test]
async fn what_a_handler_has_settled_is_left_and_so_is_what_its_shadows_charged() {
    let limiter = support::limiter(MemoryStore::new());
    let (now, soon) = (policy("now", "9/1d"), policy("soon", "5/1d").shadow());
    let layer = support::layer(limiter.clone())
        .limit(now.clone(), everybody())
        .limit(soon.clone(), everybody())
        .settle(|_, _| 0);
    let handler = limiter.clone();
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let decisions: &Decisions = request.extensions().get().unwrap();
        let usage = decisions.by_policy("now").unwrap().usage();
        handler.settle(usage, |_| 2).await.unwrap();
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    // The charge of a request is not settled yet when its headers are made.
    for expected in [r#"200 "now";r=8"#, r#"200 "now";r=6"#] {
        let response = service.clone().oneshot(to("/")).await.unwrap();
        assert_eq!(seen(response.status(), response.headers()), expected);
    }
    let charges = [&now, &soon].map(|policy| Charge::new(policy, everybody(), 0));
    let usage = limiter.peek(charges).await.unwrap();
    let shadow = usage.shadow().unwrap();
    let now = usage.rules().next().unwrap().remaining();
    assert_eq!([now, left(shadow)], [5, 1]);
}

// The time of settlements, and their failures

#[tokio::test(start_paused = true)]
async fn a_response_waits_for_its_settlement_until_the_deadline() {
    let (failing, stuck) = (|_| Fate::unavailable(), |_| Fate::Hangs);
    for (store, waits_ms, expected, left) in [
        (Watched::new(failing), 0, r#"200 "all";r=8"#, 8),
        (Watched::new(stuck), 100, r#"200 "all";r=8"#, 8),
        (Watched::late(30), 30, r#"200 "all";r=9"#, 9),
    ] {
        let start = Instant::now();
        let response = ask(&store.layer().settle(|_, _| 0)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(waits_ms));
        assert_eq!(seen(response.status(), response.headers()), expected);
        assert_eq!((store.left().await, store.begun()), (left, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_shadows_charged_is_settled_at_the_same_time() {
    let store = Watched::late(60);
    let layer = support::layer(store.store.clone())
        .limit(policy("now", "9/1d"), everybody())
        .limit(policy("soon", "5/1d").shadow(), everybody())
        .headers(HeaderStyle::DRAFT_11.with_shadows());
    for (layer, calls) in [
        (layer.clone().settle(|_, _| 0), 2),
        (layer.shadow().settle(|_, _| 0), 3),
    ] {
        let start = Instant::now();
        let response = ask(&layer).await;
        assert_eq!(start.elapsed(), Duration::from_millis(60));
        assert_eq!(store.begun(), calls);
        let field = field(response.headers(), "ratelimit");
        for left in [r#""now";r=9"#, r#""soon";r=5"#] {
            assert!(field.contains(left), "{field}");
        }
    }
}

/// Records the result of each settlement, and whether another settlement is reported for the shared call.
fn settlements() -> Log {
    Log::of(|event| {
        let (call, result) = match event {
            Event::Completion { call, .. } => (call, "done"),
            Event::Error { call, .. } => (call, "failed"),
            _ => return None,
        };
        let (names, shared) = (call.names(), call.shares_call);
        let line = || format!("{names} {result}, shared: {shared}");
        (call.kind == CallKind::Settle).then(line)
    })
}

#[tokio::test]
async fn of_settlements_in_one_call_each_is_told_by_itself_and_the_call_once() {
    let store = Watched::new(|number| match number {
        0 => Fate::unavailable(),
        _ => Fate::Answered,
    });
    let told = settlements();
    let layer = support::layer(support::limiter(store.store).observer(told.clone()))
        .limit(policy("now", "9/1d"), everybody())
        .limit(policy("soon", "5/1d").shadow(), everybody());
    ask(&layer.settle(|_, _| 0)).await;
    let expected = ["now failed, shared: false", "soon done, shared: true"];
    assert_eq!(told.lines(), expected);
}

// No response

#[tokio::test]
async fn a_client_that_goes_away_keeps_its_charge_unless_told_otherwise() {
    let settling = |layer: RateLimitLayer| layer.settle(|_, _| 0);
    for (layer, left) in [
        (RateLimitLayer::refund_unanswered as fn(_) -> _, 9),
        (|layer| layer, 8),
        (settling, 8),
    ] {
        let store = Watched::plain();
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let handler = move || {
            let gone = arrived.clone();
            arrived.send("here").unwrap();
            let dropped = OnDrop(Box::new(move || gone.send("gone").unwrap()));
            async move {
                let _dropped = dropped;
                pending::<()>().await;
            }
        };
        let app = Router::new().route("/", get(handler));
        let site = Site::start(app.layer(layer(store.layer()))).await;
        let mut client = TcpStream::connect(site.address()).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        assert_eq!(arrivals.recv().await, Some("here"));
        assert_eq!(store.left().await, 8);
        drop(client);
        assert_eq!(arrivals.recv().await, Some("gone"));
        // The runtime received the settlement before this task was woken.
        tokio::task::yield_now().await;
        assert_eq!(store.left().await, left);
    }
}

#[tokio::test]
async fn a_failure_or_a_panic_settles_as_for_a_client_that_left() {
    for (refund, place, left) in [
        (false, "error", 8),
        (true, "error", 9),
        (true, "call", 9),
        (true, "future", 9),
        (true, "settlement", 9),
    ] {
        let store = Watched::plain();
        let mut layer = store.layer().settle(move |_, charge| {
            assert!(place != "settlement", "told to panic");
            charge.cost()
        });
        if refund {
            layer = layer.refund_unanswered();
        }
        let service = layer.layer(service_fn(move |_: Request<String>| {
            assert!(place != "call", "told to panic");
            async move {
                assert!(place != "future", "told to panic");
                (place != "error").then(|| answer(200)).ok_or("down")
            }
        }));
        let ended = AssertUnwindSafe(service.oneshot(to("/"))).catch_unwind();
        assert_eq!(matches!(ended.await, Ok(Err("down"))), place == "error");
        tokio::task::yield_now().await;
        assert_eq!(store.left().await, left, "{place}");
    }
}

// Names that no policy has

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
            let request = Request::get("/").body(Body::empty()).unwrap();
            assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 200);
        }
    })
}

/// A layer with a limit of this name, which settles by the actual cost.
fn settling(name: &str) -> RateLimitLayer {
    limit(name, "900/1d").settle(ActualCost::or_charged)
}

#[test]
fn a_cost_for_a_policy_that_does_not_exist_is_warned_of_once() {
    for (name, similar) in [("token", r#"similar="tokens""#), ("units", "")] {
        let lines = warned_of_cost(&[settling("tokens")], &ActualCost::of(name, 5));
        let begins = "WARN misconfigured: `ActualCost` names a policy";
        assert_one(&lines, &[begins, &format!("policy=\"{name}\""), similar]);
    }
    let (tokens, requests) = (|| policy("tokens", "900/1d"), || settling("requests"));
    let nobody = |_: &Parts| Err::<Key, _>(ExtractError::missing("nobody"));
    let chosen = |_: &Parts| policy("chosen", "900/1d");
    let cost = ActualCost::of("tokens", 5).and("requests", 1);
    let failing = || {
        let failing = support::layer(Scripted::failing()).limit(tokens(), everybody());
        failing.settle(ActualCost::or_charged)
    };
    let skipping = || settling("tokens").skip(|_: &Parts| true);
    // No warning: another layer has the policy, perhaps without a decision, or a limit that does not apply, or another
    // request may choose it.
    for layers in [
        vec![requests(), failing()],
        vec![failing(), requests()],
        vec![requests(), skipping()],
        vec![skipping(), requests()],
        vec![requests().limit(tokens(), everybody())],
        vec![settling("tokens"), requests()],
        vec![requests(), settling("tokens")],
        vec![requests().limit(tokens(), nobody.or_skip())],
        vec![requests().limit(chosen, everybody())],
    ] {
        let lines = warned_of_cost(&layers, &cost);
        let about_cost = lines.iter().filter(|line| line.contains("ActualCost"));
        assert_eq!(about_cost.count(), 0, "{lines:?}");
    }
    let of_all = warned_of_cost(&[settling("tokens")], &ActualCost::new(5));
    assert_eq!(of_all, [""; 0]);
}

// In the background

#[tokio::test]
async fn a_settlement_that_nobody_waits_for_is_carried_on() {
    let arrives = Arc::new(Notify::new());
    let arriving = arrives.clone();
    let store = Watched::new(move |_| Fate::Delayed(arriving.clone()));
    let limiter = support::limiter(store.store.clone());
    let layer = support::layer(limiter.clone()).limit(all(), everybody());
    let mut service = layer.settle(|_, _| 0).layer(hello());
    let mut response = Box::pin(service.ready().await.unwrap().call(to("/")));
    assert!(futures::poll!(&mut response).is_pending());
    assert_eq!(store.begun(), 1);
    drop(response);
    arrives.notify_one();
    support::finished(&limiter).await;
    assert_eq!(store.left().await, 9);
}

/// A service that never answers.
fn never() -> Inner {
    let never = |_: Request<String>| pending::<Result<Response<String>, Infallible>>();
    Inner::new(service_fn(never))
}

#[test]
fn without_a_runtime_a_request_is_refunded_and_nothing_panics() {
    let store = Watched::plain();
    let limiter = support::limiter(store.store.clone());
    let all = support::layer(limiter.clone()).limit(all(), everybody());
    let mut service = all.refund_unanswered().layer(never());
    assert!(service.call(to("/")).now_or_never().is_none());
    support::runtime().block_on(support::finished(&limiter));
    assert_eq!(store.begun(), 1);
}
