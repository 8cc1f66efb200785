//! The end of a response's body: metered costs are settled then, however the response ends.

use bytes::Bytes;
use http_body::{Body, Frame};
use sluicegate::middleware::{EndOutcome, FollowedBody, ResponseEnd};
use support::fated::{Asked, Fate, Fated};

use crate::prelude::*;

type Metered = RateLimitLayer<ProblemJson, ToBodyEnd>;

/// A body that sends frames one by one: data, then trailers, then perhaps an error.
#[derive(Default)]
struct Frames {
    left: Vec<Result<Frame<Bytes>, &'static str>>,
    meter: Option<CostMeter>,
}

impl Frames {
    fn data(texts: &[&'static str]) -> Self {
        let frame = |text: &&'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
        let left = texts.iter().rev().map(frame).collect();
        Self { left, meter: None }
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
}

impl Budget {
    fn new() -> Self {
        Self {
            limiter: support::limiter(MemoryStore::new()),
            policy: policy("tokens", "100/1h"),
        }
    }

    /// Each request is charged 10 on arrival.
    fn layer(&self) -> RateLimitLayer {
        let layer = support::layer(self.limiter.clone()).limit(self.policy.clone(), alice());
        layer.cost(|_, _| 10)
    }

    /// The remaining units after all settlements under way.
    async fn left(&self) -> u64 {
        settled().await;
        self.left_of(&self.policy).await
    }

    async fn left_of(&self, policy: &Policy) -> u64 {
        left_of(&self.limiter, policy, &alice()).await
    }
}

/// Calls a handler through the layer.
async fn respond<B: Body>(
    layer: &Metered,
    handler: impl Fn(CostMeter) -> Response<B> + Clone,
) -> Response<FollowedBody<B>>
where
    ProblemJson: MakeRejection<B>,
{
    respond_to(Method::GET, layer, handler).await
}

async fn respond_to<B: Body>(
    method: Method,
    layer: &Metered,
    handler: impl Fn(CostMeter) -> Response<B> + Clone,
) -> Response<FollowedBody<B>>
where
    ProblemJson: MakeRejection<B>,
{
    let service = service_fn(|request: Request<()>| {
        let response = handler(meter_of(&request));
        async { Ok::<_, Infallible>(response) }
    });
    let request = Request::builder().method(method).body(()).unwrap();
    layer.layer(service).oneshot(request).await.unwrap()
}

fn meter_of<B>(request: &Request<B>) -> CostMeter {
    request.extensions().get::<CostMeter>().unwrap().clone()
}

/// A response of three frames, each metered as it is sent.
#[expect(clippy::needless_pass_by_value, reason = "a handler owns its meter")]
fn abc(meter: CostMeter) -> Response<Frames> {
    Response::new(Frames::data(&["a", "b", "c"]).metered(&meter))
}

/// A response of a text.
fn text(_: CostMeter) -> Response<String> {
    Response::new("hello".to_owned())
}

async fn read(response: Response<FollowedBody<Frames>>) -> Bytes {
    let whole = response.into_body().collect().await;
    whole.unwrap().to_bytes()
}

#[tokio::test]
async fn a_body_costs_what_was_metered_whether_it_is_read_dropped_or_fails() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let response = respond(&layer, abc).await;
    assert_eq!(budget.left().await, 90); // the charge, as long as the response is under way
    assert_eq!(read(response).await, "abc");
    assert_eq!(budget.left().await, 97);

    let mut body = respond(&layer, abc).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(budget.left().await, 87);
    drop(body);
    assert_eq!(budget.left().await, 96);

    let fails = |meter: CostMeter| {
        let frames = Frames::data(&["a", "b"]).then(Err("reset"));
        Response::new(frames.metered(&meter))
    };
    let mut body = respond(&layer, fails).await.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    assert_eq!(budget.left().await, 94); // settled while the body is still held

    let unmetered = |_| Response::new(Frames::data(&["a"]));
    read(respond(&layer, unmetered).await).await;
    assert_eq!(budget.left().await, 84); // without a reading, the charge stays
}

#[tokio::test]
async fn the_last_frame_ends_the_response_if_the_length_is_known() {
    let budget = Budget::new();
    let stream = |meter: CostMeter| Response::new(Frames::data(&["a"]).metered(&meter));
    let response = respond(&budget.layer().meter_costs(), stream).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(budget.left().await, 99);
    assert!(body.is_end_stream());
}

#[tokio::test]
async fn a_body_that_is_empty_or_that_no_client_gets_ends_with_the_head() {
    for (method, status, data) in [
        (Method::HEAD, StatusCode::OK, &["a"][..]),
        (Method::GET, StatusCode::NO_CONTENT, &["a"]),
        (Method::GET, StatusCode::NOT_MODIFIED, &["a"]),
        (Method::GET, StatusCode::OK, &[]),
    ] {
        let budget = Budget::new();
        let stream = |meter: CostMeter| {
            meter.set(4);
            let mut response = Response::new(Frames::data(data));
            *response.status_mut() = status;
            response
        };
        let response = respond_to(method, &budget.layer().meter_costs(), stream).await;
        assert_eq!(budget.left().await, 96, "{status} {data:?}");
        drop(response);
    }
}

// No response

type Never = Result<Response<String>, Infallible>;

#[tokio::test]
async fn a_client_that_leaves_before_the_response_pays_what_was_metered() {
    // A refund of unanswered requests does not hide the metered cost, less than was charged, as much, or more.
    for (metered, at_the_end, left) in [(3, 0, 97), (10, 0, 90), (20, 0, 80), (3, 4, 93)] {
        let budget = Budget::new();
        let layer = budget.layer().refund_unanswered().meter_costs();
        let service = layer.layer(service_fn(async |request: Request<String>| {
            let meter = meter_of(&request);
            meter.add(metered);
            let _at_the_end = OnDrop(Box::new(move || meter.add(at_the_end)));
            pending::<Never>().await
        }));
        let mut response = Box::pin(service.oneshot(to("/")));
        assert!(futures::poll!(&mut response).is_pending());
        drop(response);
        assert_eq!(budget.left().await, left);
    }
}

#[tokio::test]
async fn a_handler_that_panics_or_fails_pays_what_was_metered() {
    let budget = Budget::new();
    let layer = budget.layer().meter_costs();
    let fails = service_fn(async |request: Request<()>| {
        meter_of(&request).add(3);
        Err::<Response<String>, _>("broken")
    });
    assert!(layer.layer(fails).oneshot(Request::new(())).await.is_err());
    assert_eq!(budget.left().await, 97);

    let panics = layer.layer(service_fn(async |request: Request<String>| -> Never {
        meter_of(&request).add(3);
        panic!("on purpose")
    }));
    assert!(tokio::spawn(panics.oneshot(to("/"))).await.is_err());
    assert_eq!(budget.left().await, 94);
}

// Guards

type Held = Arc<Mutex<Option<(sluicegate::middleware::EndGuard, CostMeter)>>>;

/// A place for a guard, and a closure that puts the guard of a request there.
fn holding() -> (Held, impl Fn(&Request<String>) + Clone + Send + Sync) {
    let held = Held::default();
    let place = held.clone();
    let hold = move |request: &Request<String>| {
        let meter = meter_of(request);
        *place.lock().unwrap() = Some((meter.delay_end(), meter));
    };
    (held, hold)
}

#[tokio::test]
async fn a_guard_delays_the_end_until_it_is_dropped() {
    let budget = Budget::new();
    let (held, hold) = holding();
    let layer = budget.layer().meter_costs();
    let service = layer.layer(answering(move |request| {
        hold(&request);
        answer(101)
    }));
    drop(service.oneshot(to("/")).await.unwrap());
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
        let (held, hold) = holding();
        let service = layer.layer(service_fn(move |request: Request<String>| {
            hold(&request);
            pending::<Never>()
        }));
        let mut response = Box::pin(service.oneshot(to("/")));
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
        let response = respond(&layer, |_| Response::new(Frames::data(&["a", "b"]))).await;
        match is_read {
            true => drop(read(response).await),
            false => drop(response),
        }
        assert_eq!(budget.left().await, 90);
    }
}

#[tokio::test]
async fn a_response_that_is_dropped_during_its_settlement_is_not_refunded() {
    let store = slow();
    let tokens = policy("tokens", "100/1h");
    let layer = support::layer(support::limiter(store.clone()))
        .limit(tokens.clone(), alice())
        .limit(policy("soon", "100/1h").shadow(), alice())
        .settle(|_, charge| u64::from(charge.policy().name() == "tokens"))
        .refund_unanswered();
    let mut response = Box::pin(layer.layer(hello()).oneshot(to("/")));
    assert!(futures::poll!(&mut response).is_pending(), "it settles");
    drop(response);
    settled().await;
    let left = left_of(&support::limiter(store), &tokens, &alice()).await;
    assert_eq!(left, 99);
}

#[tokio::test]
async fn a_settlement_that_has_begun_goes_on_at_once_although_a_guard_delays_the_end() {
    let store = slow();
    let tokens = policy("tokens", "100/1h");
    let layer = support::layer(support::limiter(store.clone()))
        .limit(tokens.clone(), alice())
        .settle(|_, _| 0)
        .meter_costs();
    let (held, hold) = holding();
    let service = layer.layer(answering(move |request| {
        hold(&request);
        Response::new(String::new())
    }));
    let mut response = Box::pin(service.oneshot(to("/")));
    assert!(futures::poll!(&mut response).is_pending(), "it settles");
    drop(response);
    settled().await;
    assert!(held.lock().unwrap().is_some());
    let left = left_of(&support::limiter(store), &tokens, &alice()).await;
    assert_eq!(left, 100);
}

/// A store that executes settlements at once, and never answers them.
fn slow() -> Fated {
    Fated::new(MemoryStore::new(), |asked| match asked {
        Asked::Execute(Operation::Settle(_)) => Fate::Held(Arc::default()),
        _ => Fate::Answered,
    })
}

// Several policies

#[tokio::test]
async fn the_meter_of_a_policy_replaces_the_meter_of_all_whatever_the_layer_meters() {
    let budget = Budget::new();
    let [bytes, money] = ["bytes", "money"].map(|name| policy(name, "1000/1h"));
    let handler = |meter: CostMeter| {
        assert_eq!(meter.under("bytes").units(), None);
        meter.add(30);
        meter.under("bytes").add(5);
        meter.under(String::from("bytes")).add(2);
        assert_eq!(meter.under("bytes").units(), Some(7));
        let _ = meter.under("money"); // without a reading
        assert_eq!(meter.units(), Some(30));
        text(meter)
    };
    let layer = || {
        let layer = budget.layer().limit(bytes.clone(), alice());
        layer.limit(money.clone(), alice())
    };
    let left = async || {
        let left = [budget.left().await, budget.left_of(&bytes).await];
        [left[0], left[1], budget.left_of(&money).await]
    };
    drop(respond(&layer().meter_costs(), handler).await);
    assert_eq!(left().await, [70, 993, 970]);
    drop(respond(&layer().meter_costs_under("tokens"), handler).await);
    assert_eq!(left().await, [40, 986, 960], "money keeps its charge");

    // The cost in a response wins over the meter under the policies that it names.
    let actual = |meter: CostMeter| {
        meter.add(30);
        let mut response = text(meter);
        let cost = ActualCost::of("tokens", 2);
        response.extensions_mut().insert(cost);
        response
    };
    drop(respond(&layer().meter_costs(), actual).await);
    assert_eq!(left().await, [38, 956, 930]);
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
        text(meter)
    };
    drop(respond(&layer, handler).await);
    assert_eq!(budget.left().await, 85);
}

#[test]
fn the_name_of_a_policy_that_no_layer_has_is_warned_of_once() {
    let metering = |name: &'static str| {
        move |meter: CostMeter| {
            meter.under(name).add(1);
            text(meter)
        }
    };
    let layer = || Budget::new().layer();
    let under = layer().meter_costs_under("token");
    for (layer, metered, source) in [
        (layer().meter_costs(), "token", "`CostMeter::under`"),
        (under, "tokens", "`meter_costs_under`"),
    ] {
        let lines = traced(false, async {
            for _ in 0..2 {
                drop(respond(&layer, metering(metered)).await);
            }
        });
        let begins = format!("WARN misconfigured: {source} names a policy");
        assert_one(&lines, &[&begins, r#"policy="token" similar="tokens""#]);
    }

    // A limit that does not apply to a request, and one of another layer, are no mistakes.
    let lines = traced(false, async {
        let service = Budget::new().layer().meter_costs();
        let service = service.layer(answering(|request| {
            meter_of(&request).under("bytes").add(1);
            Response::new(String::new())
        }));
        let outer = limit("bytes", "1000/1h").meter_costs();
        outer.layer(service).oneshot(to("/")).await.unwrap();
        let absent = Header::new("x-absent").or_skip();
        let skipping = Budget::new().layer().limit(policy("bytes", "9/1h"), absent);
        drop(respond(&skipping.meter_costs(), metering("bytes")).await);
    });
    assert_eq!(lines, [""; 0]);
}

#[tokio::test]
async fn layers_around_each_other_share_one_meter() {
    let (outer, inner) = (Budget::new(), Budget::new());
    let service = service_fn(async |request: Request<()>| {
        let meter = meter_of(&request);
        meter.add(4);
        let guard = meter.delay_end();
        Ok::<_, Infallible>(Response::new(Frames::data(&["a"]).metered(&meter)))
            .inspect(|_| drop(guard))
    });
    let both = (outer.layer().meter_costs(), inner.layer().meter_costs());
    let response = both.layer(service).oneshot(Request::new(())).await;
    response.unwrap().into_body().collect().await.unwrap();
    assert_eq!((outer.left().await, inner.left().await), (95, 95));
}

// Closures

fn trailers() -> Frame<Bytes> {
    let tokens = ("x-tokens".parse().unwrap(), 7.into());
    Frame::trailers(HeaderMap::from_iter([tokens]))
}

#[tokio::test]
async fn a_closure_settles_by_trailers_or_the_last_data() {
    for (with_trailers, data, left) in [
        (true, &["a", "b"][..], 93),
        (false, &["a", "usage: 12", ""], 88),
        (false, &["a"], 90),
    ] {
        let budget = Budget::new();
        let layer = budget.layer().settle_at_end(|end, charge| {
            let expected = (EndOutcome::Complete, Some(StatusCode::OK));
            assert_eq!((end.outcome, end.status), expected);
            let trailers = end.trailers.as_ref();
            let trailer = trailers.and_then(|it| it.get("x-tokens"));
            let told = trailer.and_then(|tokens| tokens.to_str().ok());
            let last = std::str::from_utf8(end.last_data()).unwrap();
            let tokens = told.or(last.strip_prefix("usage: "));
            tokens.map_or(charge.cost(), |tokens| tokens.parse().unwrap())
        });
        let handler = |_| match (Frames::data(data), with_trailers) {
            (frames, true) => Response::new(frames.then(Ok(trailers()))),
            (frames, false) => Response::new(frames),
        };
        read(respond(&layer, handler).await).await;
        assert_eq!(budget.left().await, left);
    }
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
            let (left, meter) = (left.collect(), None);
            Response::new(Frames { left, meter })
        };
        let response = respond(&layer, stream).await;
        read(response).await;
        assert_eq!(budget.left().await, 99, "the closure saw the tail");
    }
}

/// A server drops a body that does not know its end after the bytes that the head has promised.
#[tokio::test]
async fn a_body_that_is_dropped_before_its_length_is_dropped_and_after_it_is_complete() {
    let budget = Budget::new();
    let by_bytes = |end: &ResponseEnd, _: &Charge| match end.outcome {
        EndOutcome::Complete => 1,
        EndOutcome::Dropped => end.data_bytes,
        other => panic!("{other:?}"),
    };
    let layer = budget.layer().settle_at_end(by_bytes);
    let stream = |_| {
        let mut response = Response::new(Frames::data(&["abc", "def", "not sent"]));
        response.headers_mut().insert("content-length", 6.into());
        response
    };
    for (frames, left) in [(1, 97), (2, 96)] {
        let mut body = respond(&layer, stream).await.into_body();
        for _ in 0..frames {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert_eq!(budget.left().await, left);
    }
}

#[tokio::test]
async fn a_closure_that_panics_leaves_the_charge_also_while_a_handler_panics() {
    let budget = Budget::new();
    let layer = budget.layer();
    let layer = layer.settle_at_end(|_: &ResponseEnd, _| panic!("on purpose"));
    let panics = service_fn(async |_: Request<String>| -> Never { panic!("on purpose") });
    let panics = layer.layer(panics);
    assert!(tokio::spawn(panics.oneshot(to("/"))).await.is_err());
    assert_eq!(budget.left().await, 90);
}

/// The closure is asked for the shadow after the rest.
#[tokio::test]
async fn a_closure_that_panics_about_one_charge_settles_the_others() {
    let (budget, soon) = (Budget::new(), policy("soon", "100/1h"));
    let layer = budget.layer().limit(soon.clone().shadow(), alice());
    let layer = layer
        .refund_unanswered()
        .settle_at_end(|end: &ResponseEnd, charge| {
            assert!(charge.policy().name() != "soon", "on purpose");
            end.data_bytes
        });
    read(respond(&layer, |_| Response::new(Frames::data(&["abc"]))).await).await;
    assert_eq!(budget.left().await, 97);
    assert_eq!(budget.left_of(&soon).await, 90);
}

#[tokio::test]
async fn sizes_and_trailers_pass_unchanged_and_a_rejection_goes_through_the_same_body() {
    let budget = Budget::new();
    let layer = budget.layer().cost(|_, _| 40).meter_costs();
    let response = respond(&layer, text).await;
    assert_eq!(response.body().size_hint().exact(), Some(5));
    assert!(!response.body().is_end_stream());

    let handler = |_| Response::new(Frames::data(&["a"]).then(Ok(trailers())));
    let whole = respond(&layer, handler).await.into_body().collect().await;
    assert_eq!(whole.unwrap().trailers().unwrap()["x-tokens"], "7");

    let denied = respond(&layer, text).await;
    assert_eq!(denied.status(), 429);
    let text = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"{"));
}
