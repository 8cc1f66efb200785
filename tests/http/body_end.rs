//! The end of a response's body: metered costs are settled then, however the response ends.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use sluicegate::{
    Charge, Decision, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy, RateLimitLayer,
    Store,
    middleware::{ActualCost, CostMeter, EndOutcome, ResponseEnd, ToBodyEnd},
    store::{Check, Operation, Reply, StoreFuture},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use support::trace::traced;

/// A body that sends frames one by one: data, then trailers, then perhaps an error.
#[derive(Default)]
struct Frames {
    left: Vec<Result<Frame<Bytes>, &'static str>>,
    meter: Option<CostMeter>,
}

impl Frames {
    fn data(texts: &[&'static str]) -> Self {
        let frames = texts.iter().rev();
        Self {
            left: frames
                .map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
                .collect(),
            meter: None,
        }
    }

    fn then(mut self, last: Result<Frame<Bytes>, &'static str>) -> Self {
        self.left.insert(0, last);
        self
    }

    /// One unit for each frame.
    fn metered(mut self, meter: &CostMeter) -> Self {
        self.meter = Some(meter.clone());
        self
    }
}

/// The body of a rejection.
impl From<String> for Frames {
    fn from(text: String) -> Self {
        Self {
            left: vec![Ok(Frame::data(text.into()))],
            meter: None,
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        let frame = self.left.pop();
        if let (Some(Ok(_)), Some(meter)) = (&frame, &self.meter) {
            meter.add(1);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }
}

struct Budget {
    limiter: Limiter,
    policy: Policy,
    key: Key,
}

impl Budget {
    fn new() -> Self {
        Self::of("100/1h", MemoryStore::new())
    }

    fn of(rules: &str, store: MemoryStore) -> Self {
        Self {
            limiter: Limiter::new(store),
            policy: Policy::parse("tokens", rules).unwrap(),
            key: Key::new("user", "alice"),
        }
    }

    /// Each request is charged 10 on arrival.
    fn layer(&self) -> RateLimitLayer {
        RateLimitLayer::new(self.limiter.clone())
            .limit(self.policy.clone(), self.key.clone())
            .cost(|_, _| 10)
    }

    /// The remaining units after all settlements under way.
    async fn left(&self) -> u64 {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        self.left_of(&self.policy).await
    }

    async fn left_of(&self, policy: &Policy) -> u64 {
        let charge = Charge::new(policy, self.key.clone(), 0);
        let usage = self.limiter.peek([charge]).await.unwrap();
        usage.policies().next().unwrap().rules()[0].remaining()
    }
}

/// Calls a handler through the layer.
async fn respond<B: Body>(
    layer: &RateLimitLayer<sluicegate::middleware::ProblemJson, ToBodyEnd>,
    method: Method,
    handler: impl Fn(CostMeter) -> Response<B> + Clone,
) -> Response<sluicegate::middleware::FollowedBody<B>>
where
    sluicegate::middleware::ProblemJson: sluicegate::middleware::MakeRejection<B>,
{
    let service = service_fn(|request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>().unwrap().clone();
        let response = handler(meter);
        async { Ok::<_, Infallible>(response) }
    });
    let request = Request::builder().method(method).body(()).unwrap();
    layer.layer(service).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_body_that_is_read_to_its_end_costs_what_was_metered() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let stream = |meter: CostMeter| Response::new(Frames::data(&["a", "b", "c"]).metered(&meter));

    let response = respond(&layer, Method::GET, stream).await;
    assert_eq!(budget.left().await, 90); // the charge, as long as the response is under way

    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.to_bytes(), "abc");
    assert_eq!(budget.left().await, 97);
}

#[tokio::test]
async fn a_body_that_is_dropped_costs_the_frames_that_were_sent() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let stream = |meter: CostMeter| Response::new(Frames::data(&["a", "b", "c"]).metered(&meter));

    let mut body = respond(&layer, Method::GET, stream).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(budget.left().await, 90);
    drop(body);
    assert_eq!(budget.left().await, 99);
}

#[tokio::test]
async fn a_body_that_fails_costs_what_was_metered() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let stream = |meter: CostMeter| {
        let frames = Frames::data(&["a", "b"]).then(Err("reset"));
        Response::new(frames.metered(&meter))
    };
    let mut body = respond(&layer, Method::GET, stream).await.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    assert_eq!(
        budget.left().await,
        98,
        "settled while the body is still held"
    );
}

#[tokio::test]
async fn the_last_frame_ends_the_response_if_the_length_is_known() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let stream = |meter: CostMeter| Response::new(Frames::data(&["a"]).metered(&meter));
    let mut body = respond(&layer, Method::GET, stream).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(budget.left().await, 99);
    assert!(body.is_end_stream());
}

#[tokio::test]
async fn a_body_that_no_client_gets_ends_with_the_head() {
    for (method, status) in [
        (Method::HEAD, StatusCode::OK),
        (Method::GET, StatusCode::NO_CONTENT),
        (Method::GET, StatusCode::NOT_MODIFIED),
    ] {
        let budget = Budget::new();
        let layer = budget.layer().meter_costs();
        let stream = |meter: CostMeter| {
            meter.set(4);
            let mut response = Response::new(Frames::data(&["a"]));
            *response.status_mut() = status;
            response
        };
        let response = respond(&layer, method, stream).await;
        assert_eq!(budget.left().await, 96, "{status}");
        drop(response);
    }
}

#[tokio::test]
async fn an_empty_body_ends_with_the_head() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let empty = |meter: CostMeter| {
        meter.set(0);
        Response::new(Frames::default())
    };
    let response = respond(&layer, Method::GET, empty).await;
    assert_eq!(budget.left().await, 100);
    drop(response);
}

#[tokio::test]
async fn a_request_that_meters_nothing_keeps_its_charge() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let response = respond(&layer, Method::GET, |_| Response::new(Frames::data(&["a"]))).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(budget.left().await, 90);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_pays_what_was_metered() {
    // A refund of unanswered requests does not hide the metered cost, less than was charged, as much, or more.
    for (metered, left) in [(3, 97), (10, 90), (20, 80)] {
        let budget = Budget::new();
        let layer = budget.layer().refund_unanswered().meter_costs();
        let service = service_fn(async |request: Request<()>| {
            request
                .extensions()
                .get::<CostMeter>()
                .unwrap()
                .add(metered);
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let mut service = layer.layer(service);
        let mut response = Box::pin(service.ready().await.unwrap().call(Request::new(())));
        assert!(futures::poll!(&mut response).is_pending());
        drop(response);
        assert_eq!(budget.left().await, left);
    }
}

#[tokio::test]
async fn what_a_handler_meters_while_it_is_cancelled_is_settled() {
    /// Meters when the handler's future is dropped.
    struct AtTheEnd(CostMeter);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            self.0.add(4);
        }
    }

    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let service = service_fn(async |request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>().unwrap().clone();
        meter.add(3);
        let _at_the_end = AtTheEnd(meter);
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let mut response = Box::pin(layer.layer(service).oneshot(Request::new(())));
    assert!(futures::poll!(&mut response).is_pending());
    drop(response);
    assert_eq!(budget.left().await, 93);
}

#[tokio::test]
async fn a_handler_that_panics_or_fails_pays_what_was_metered() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let fails = service_fn(async |request: Request<()>| {
        request.extensions().get::<CostMeter>().unwrap().add(3);
        Err::<Response<String>, _>("broken")
    });
    assert!(layer.layer(fails).oneshot(Request::new(())).await.is_err());
    assert_eq!(budget.left().await, 97);

    let panics = layer.layer(service_fn(async |request: Request<()>| {
        request.extensions().get::<CostMeter>().unwrap().add(3);
        if request.method() == Method::GET {
            panic!("on purpose");
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let panicked = tokio::spawn(panics.oneshot(Request::new(()))).await;
    assert!(panicked.is_err());
    assert_eq!(budget.left().await, 94);
}

#[tokio::test]
async fn a_guard_delays_the_end_until_it_is_dropped() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let held = std::sync::Mutex::new(None);
    let service = service_fn(|request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>().unwrap().clone();
        *held.lock().unwrap() = Some((meter.delay_end(), meter));
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        async { Ok::<_, Infallible>(response) }
    });
    let response = layer
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    drop(response);
    assert_eq!(budget.left().await, 90);

    let (guard, meter) = held.lock().unwrap().take().unwrap();
    meter.add(25);
    drop(guard);
    assert_eq!(budget.left().await, 75);
    drop(meter.delay_end()); // delays nothing any more
    meter.add(25);
    assert_eq!(budget.left().await, 75);
}

#[tokio::test]
async fn a_guard_delays_the_refund_of_a_request_without_a_response() {
    for (metered, left) in [(Some(50), 50), (Some(10), 90), (None, 100)] {
        let budget = Budget::new();
        let layer = budget.layer().refund_unanswered().meter_costs();
        let held = std::sync::Mutex::new(None);
        let service = service_fn(|request: Request<()>| {
            let meter = request.extensions().get::<CostMeter>().unwrap().clone();
            *held.lock().unwrap() = Some((meter.delay_end(), meter));
            std::future::pending::<Result<Response<String>, Infallible>>()
        });
        let mut service = layer.layer(service);
        let mut response = Box::pin(service.call(Request::new(())));
        assert!(futures::poll!(&mut response).is_pending());
        drop(response); // the client leaves, and the work goes on
        assert_eq!(budget.left().await, 90);
        let (guard, meter) = held.lock().unwrap().take().unwrap();
        metered.inspect(|units| meter.add(*units));
        drop(guard);
        assert_eq!(budget.left().await, left, "{metered:?}");
    }
}

#[tokio::test]
async fn a_request_with_a_response_is_not_refunded_however_its_body_ends() {
    for is_read in [false, true] {
        let budget = Budget::new();
        let layer = budget.layer().refund_unanswered().meter_costs();
        let answer = |_: CostMeter| Response::new(Frames::data(&["a", "b"]));
        let response = respond(&layer, Method::GET, answer).await;
        if is_read {
            response.into_body().collect().await.unwrap();
        } else {
            drop(response);
        }
        assert_eq!(budget.left().await, 90);
    }
}

#[tokio::test]
async fn a_response_that_is_dropped_during_its_settlement_is_not_refunded() {
    let budget = Budget::new();
    let soon = Policy::parse("soon", "100/1h").unwrap().shadow();
    let store = Slow(MemoryStore::new());
    let limiter = Limiter::new(store.clone());
    let layer = RateLimitLayer::new(limiter)
        .limit(budget.policy.clone(), budget.key.clone())
        .limit(soon, budget.key.clone())
        .settle(|_, charge| u64::from(charge.policy().name() == "tokens"))
        .refund_unanswered();
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let mut service = layer.layer(service);
    let mut response = Box::pin(service.call(Request::new(())));
    assert!(futures::poll!(&mut response).is_pending(), "it settles");
    drop(response);
    let charge = Charge::new(&budget.policy, budget.key.clone(), 0);
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    let look = Limiter::new(store).peek([charge]).await.unwrap();
    let left = look.policies().next().unwrap().rules()[0].remaining();
    assert_eq!(left, 99);
}

#[tokio::test]
async fn a_settlement_that_has_begun_goes_on_at_once_although_a_guard_delays_the_end() {
    let budget = Budget::new();
    let store = Slow(MemoryStore::new());
    let layer = RateLimitLayer::new(Limiter::new(store.clone()))
        .limit(budget.policy.clone(), budget.key.clone())
        .settle(|_, _| 0)
        .meter_costs();
    let held = std::sync::Mutex::new(None);
    let service = service_fn(|request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>().unwrap();
        *held.lock().unwrap() = Some(meter.delay_end());
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    });
    let mut service = layer.layer(service);
    let mut response = Box::pin(service.call(Request::new(())));
    assert!(futures::poll!(&mut response).is_pending(), "it settles");
    drop(response);
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    let charge = Charge::new(&budget.policy, budget.key.clone(), 0);
    let look = Limiter::new(store).peek([charge]).await.unwrap();
    let left = look.policies().next().unwrap().rules()[0].remaining();
    assert!(held.lock().unwrap().is_some());
    assert_eq!(left, 100);
}

/// Answers settlements at the next poll.
#[derive(Clone, Debug)]
struct Slow(MemoryStore);

impl Store for Slow {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let reply = self.0.execute(operation);
        StoreFuture::pending(async {
            tokio::task::yield_now().await;
            reply.await
        })
    }
}

#[tokio::test]
async fn named_policies_are_metered_and_others_keep_their_charge() {
    let budget = Budget::new();
    let requests = Policy::parse("requests", "50/1h").unwrap();
    let layer = budget.layer().limit(requests.clone(), budget.key.clone());
    let layer = layer.cost(|_, policy| if policy.name() == "tokens" { 10 } else { 1 });
    let layer = layer.meter_costs_under("tokens");
    let handler = |meter: CostMeter| {
        meter.add(30);
        Response::new("hello".to_owned())
    };
    drop(respond(&layer, Method::GET, handler).await);
    assert_eq!(budget.left().await, 70);
    assert_eq!(budget.left_of(&requests).await, 49);
}

#[tokio::test]
async fn the_meter_of_a_policy_replaces_the_meter_of_all_whatever_the_layer_meters() {
    let budget = Budget::new();
    let [bytes, money] = ["bytes", "money"].map(|name| Policy::parse(name, "1000/1h").unwrap());
    let handler = |meter: CostMeter| {
        assert_eq!(meter.under("bytes").units(), None);
        meter.add(30);
        meter.under("bytes").add(5);
        meter.under(String::from("bytes")).add(2);
        assert_eq!(meter.under("bytes").units(), Some(7));
        let _ = meter.under("money"); // without a reading
        assert_eq!(meter.units(), Some(30));
        Response::new("hello".to_owned())
    };
    let layer = || {
        let layer = budget.layer().limit(bytes.clone(), budget.key.clone());
        layer.limit(money.clone(), budget.key.clone())
    };
    let left = async || {
        let left = [budget.left().await, budget.left_of(&bytes).await];
        [left[0], left[1], budget.left_of(&money).await]
    };
    drop(respond(&layer().meter_costs(), Method::GET, handler).await);
    assert_eq!(left().await, [70, 993, 970]);
    let one = layer().meter_costs_under("tokens");
    drop(respond(&one, Method::GET, handler).await);
    assert_eq!(left().await, [40, 986, 960], "money keeps its charge");
}

#[tokio::test]
async fn a_closure_reads_the_meters_of_policies_and_wins_over_them() {
    let budget = Budget::new();
    let layer = budget.layer().settle_at_end(|end: &ResponseEnd, charge| {
        assert_eq!(end.metered_under("bytes"), None);
        end.metered_under(charge.policy().name()).unwrap() / 2
    });
    let handler = |meter: CostMeter| {
        meter.under("tokens").set(30);
        Response::new("hello".to_owned())
    };
    drop(respond(&layer, Method::GET, handler).await);
    assert_eq!(budget.left().await, 85);
}

#[test]
fn the_meter_of_a_policy_that_no_layer_has_is_warned_of_once() {
    let handler = |meter: CostMeter| {
        meter.under("token").add(1);
        Response::new("hello".to_owned())
    };
    let lines = traced(false, async {
        let layer = Budget::new().layer().meter_costs();
        for _ in 0..2 {
            drop(respond(&layer, Method::GET, handler).await);
        }
    });
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("WARN misconfigured: `CostMeter::under` names a policy"));
    assert!(
        line.contains(r#"policy="token" similar="tokens""#),
        "{line}"
    );

    // A limit that does not apply to a request, and one of another layer, are no mistakes.
    let lines = traced(false, async {
        let (outer, inner) = (Budget::new(), Budget::new());
        let bytes = Policy::parse("bytes", "1000/1h").unwrap();
        let absent = Header::new("x-absent").or_skip();
        let service = inner
            .layer()
            .meter_costs()
            .layer(service_fn(async |request: Request<()>| {
                request
                    .extensions()
                    .get::<CostMeter>()
                    .unwrap()
                    .under("bytes")
                    .add(1);
                Ok::<_, Infallible>(Response::new("hello".to_owned()))
            }));
        let outer = RateLimitLayer::new(outer.limiter.clone())
            .limit(bytes.clone(), outer.key.clone())
            .meter_costs();
        outer
            .layer(service)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        let skipping = Budget::new().layer().limit(bytes, absent).meter_costs();
        let handler = |meter: CostMeter| {
            meter.under("bytes").add(1);
            Response::new("hello".to_owned())
        };
        drop(respond(&skipping, Method::GET, handler).await);
    });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn a_misspelled_policy_to_meter_is_warned_of_by_the_name_of_the_setting() {
    let lines = traced(false, async {
        let layer = Budget::new().layer().meter_costs_under("token");
        for _ in 0..2 {
            let hello = |_: CostMeter| Response::new("hello".to_owned());
            drop(respond(&layer, Method::GET, hello).await);
        }
    });
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("WARN misconfigured: `meter_costs_under` names a policy"));
    assert!(
        line.contains(r#"policy="token" similar="tokens""#),
        "{line}"
    );
}

#[tokio::test]
async fn the_cost_in_a_response_wins_over_the_meter_under_the_policies_that_it_names() {
    let budget = Budget::new();
    let bytes = Policy::parse("bytes", "1000/1h").unwrap();
    let layer = budget
        .layer()
        .limit(bytes.clone(), budget.key.clone())
        .meter_costs();
    let handler = |meter: CostMeter| {
        meter.add(30);
        let mut response = Response::new("hello".to_owned());
        response
            .extensions_mut()
            .insert(ActualCost::of("tokens", 2));
        response
    };
    drop(respond(&layer, Method::GET, handler).await);
    assert_eq!(budget.left().await, 98);
    assert_eq!(budget.left_of(&bytes).await, 970);
}

#[tokio::test]
async fn layers_around_each_other_share_one_meter() {
    let (outer, inner) = (Budget::new(), Budget::new());
    let service = inner
        .layer()
        .meter_costs()
        .layer(service_fn(async |request: Request<()>| {
            let meter = request.extensions().get::<CostMeter>().unwrap().clone();
            meter.add(4);
            let guard = meter.delay_end();
            Ok::<_, Infallible>(Response::new(Frames::data(&["a"]).metered(&meter)))
                .inspect(|_| drop(guard))
        }));
    let response = outer
        .layer()
        .meter_costs()
        .layer(service)
        .oneshot(Request::new(()))
        .await;
    response.unwrap().into_body().collect().await.unwrap();
    assert_eq!((outer.left().await, inner.left().await), (95, 95));
}

#[tokio::test]
async fn a_closure_settles_by_trailers_or_the_last_data() {
    for (handler, left) in [
        (
            (|_| {
                let trailers = HeaderMap::from_iter([("x-tokens".parse().unwrap(), 7.into())]);
                Response::new(Frames::data(&["a", "b"]).then(Ok(Frame::trailers(trailers))))
            }) as fn(CostMeter) -> Response<Frames>,
            93,
        ),
        (|_| Response::new(Frames::data(&["a", "usage: 12", ""])), 88),
        (|_| Response::new(Frames::data(&["a"])), 90),
    ] {
        let budget = Budget::new();
        let layer = budget.layer().settle_at_end(|end, charge| {
            assert_eq!(
                (end.outcome, end.status),
                (EndOutcome::Complete, Some(StatusCode::OK))
            );
            let trailer = end
                .trailers
                .as_ref()
                .and_then(|trailers| trailers.get("x-tokens"));
            let told = trailer.and_then(|tokens| tokens.to_str().ok());
            let last = std::str::from_utf8(end.last_data()).unwrap();
            let tokens = told.or(last.strip_prefix("usage: "));
            tokens.map_or(charge.cost(), |tokens| tokens.parse().unwrap())
        });
        let response = respond(&layer, Method::GET, handler).await;
        response.into_body().collect().await.unwrap();
        assert_eq!(budget.left().await, left);
    }
}

/// The usage comes one event before the last one, and a network may cut events anywhere.
#[tokio::test]
async fn a_closure_finds_a_report_in_the_tail_of_the_body_over_frames() {
    let budget = Budget::new();
    let layer = budget.layer().settle_at_end(|end: &ResponseEnd, charge| {
        assert_eq!(end.last_data(), b"data: [DONE]\n\n");
        let tail = String::from_utf8_lossy(&end.tail);
        let usage = tail.rsplit_once(r#""total_tokens":"#).map(|(_, rest)| rest);
        let digits = usage.and_then(|rest| rest.split(|it: char| !it.is_ascii_digit()).next());
        digits.map_or(charge.cost(), |digits| digits.parse().unwrap())
    });
    let stream = |_| {
        Response::new(Frames::data(&[
            "data: {\"a\":1}\n\n",
            "data: {\"usage\":{\"total_tok",
            "ens\":42}}\n\n",
            "data: [DONE]\n\n",
            "",
        ]))
    };
    let response = respond(&layer, Method::GET, stream).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(budget.left().await, 58);
}

#[tokio::test]
async fn the_tail_is_the_last_4_kib_however_the_body_is_cut() {
    let mut random = fastrand::Rng::with_seed(54);
    for _ in 0..200 {
        let most = [10, 1_000, 5_000, 20_000][random.usize(..4)];
        let frames = random.usize(..40);
        let frames: Vec<Vec<u8>> = (0..frames)
            .map(|_| (0..random.usize(..most)).map(|_| random.u8(..)).collect())
            .collect();
        let whole = frames.concat();
        let last = frames.iter().rfind(|frame| !frame.is_empty());
        let last = last.cloned().unwrap_or_default();
        let expected = [&whole[..], &last].map(|it| it[it.len().saturating_sub(4_096)..].to_vec());
        let budget = Budget::new();
        let layer = budget.layer().settle_at_end(move |end: &ResponseEnd, _| {
            assert_eq!([&end.tail[..], end.last_data()], expected);
            1
        });
        let stream = move |_| {
            let frames = frames.iter().rev();
            let left = frames.map(|frame| Ok(Frame::data(frame.clone().into())));
            Response::new(Frames {
                left: left.collect(),
                meter: None,
            })
        };
        let response = respond(&layer, Method::GET, stream).await;
        response.into_body().collect().await.unwrap();
        assert_eq!(budget.left().await, 99, "the closure saw the tail");
    }
}

#[tokio::test]
async fn a_closure_learns_how_the_response_ended_and_what_was_sent() {
    let budget = Budget::new();
    let layer = budget
        .layer()
        .settle_at_end(|end: &ResponseEnd, charge| match end.outcome {
            EndOutcome::Dropped => end.data_bytes,
            _ => charge.cost(),
        });
    let stream = |_| Response::new(Frames::data(&["abcde", "f"]));
    let mut body = respond(&layer, Method::GET, stream).await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(budget.left().await, 95);
}

/// A server drops a body that does not know its end after the bytes that the head has promised.
#[tokio::test]
async fn a_body_that_is_dropped_after_its_length_is_complete() {
    let budget = Budget::new();
    let layer = budget
        .layer()
        .settle_at_end(|end: &ResponseEnd, _| u64::from(end.outcome == EndOutcome::Complete));
    let stream = |_| {
        let mut response = Response::new(Frames::data(&["abc", "def", "not sent"]));
        response.headers_mut().insert("content-length", 6.into());
        response
    };
    for frames in [1, 2] {
        let mut body = respond(&layer, Method::GET, stream).await.into_body();
        for _ in 0..frames {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert_eq!(budget.left().await, 101 - frames);
    }
}

#[tokio::test]
async fn a_closure_that_panics_leaves_the_charge_also_while_a_handler_panics() {
    let budget = Budget::new();
    let layer = budget.layer();
    let layer = layer.settle_at_end(|_: &ResponseEnd, _| panic!("on purpose"));
    let panics = layer.layer(service_fn(async |request: Request<()>| {
        if request.method() == Method::GET {
            panic!("on purpose");
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    assert!(
        tokio::spawn(panics.oneshot(Request::new(())))
            .await
            .is_err()
    );
    assert_eq!(budget.left().await, 90);
}

/// The closure is asked for the shadow after the rest.
#[tokio::test]
async fn a_closure_that_panics_about_one_charge_settles_the_others() {
    let (budget, soon) = (Budget::new(), Policy::parse("soon", "100/1h").unwrap());
    let shadow = soon.clone().shadow();
    let layer = budget.layer().limit(shadow, budget.key.clone());
    let layer = layer
        .refund_unanswered()
        .settle_at_end(|end: &ResponseEnd, charge| {
            assert!(charge.policy().name() != "soon", "on purpose");
            end.data_bytes
        });
    let body = |_| Response::new(Frames::data(&["abc"]));
    let response = respond(&layer, Method::GET, body).await;
    response.into_body().collect().await.unwrap();
    assert_eq!(budget.left().await, 97);
    assert_eq!(budget.left_of(&soon).await, 90);
}

#[test]
fn a_body_that_is_dropped_outside_of_the_runtime_is_settled_inside() {
    let runtime = support::runtime();
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let stream = |meter: CostMeter| Response::new(Frames::data(&["a", "b"]).metered(&meter));
    let body = runtime.block_on(async {
        let mut body = respond(&layer, Method::GET, stream).await.into_body();
        body.frame().await.unwrap().unwrap();
        body
    });
    drop(body);
    assert_eq!(runtime.block_on(budget.left()), 99);
}

#[tokio::test]
async fn sizes_and_trailers_pass_unchanged() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let response = respond(&layer, Method::GET, |_| Response::new("hello".to_owned())).await;
    assert_eq!(response.body().size_hint().exact(), Some(5));
    assert!(!response.body().is_end_stream());

    let trailers = HeaderMap::from_iter([("x-tokens".parse().unwrap(), 7.into())]);
    let handler =
        move |_| Response::new(Frames::data(&["a"]).then(Ok(Frame::trailers(trailers.clone()))));
    let whole = respond(&layer, Method::GET, handler)
        .await
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(whole.trailers().unwrap()["x-tokens"], "7");
}

#[tokio::test]
async fn a_denied_request_is_answered_through_the_same_body() {
    let budget = Budget::new();
    let layer = budget.layer().cost(|_, _| 60).meter_costs();
    let handler = |_| Response::new("hello".to_owned());
    let first = respond(&layer, Method::GET, handler).await;
    let second = respond(&layer, Method::GET, handler).await;
    assert_eq!(
        (first.status(), second.status()),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
    );
    let text = second.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"{"));
}
