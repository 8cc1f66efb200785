//! The cost of the layer with a `MemoryStore`, in nanoseconds and allocations for each request, beside a bare service.
//!
//! Prints a table, and fails when a row adds more than its bar allows: one rule and three; to three rules, an observer (a
//! `TracingObserver` without a subscriber, or a `MetricsObserver` with the Prometheus exporter as its recorder), or
//! contributors with the extraction of the label; to a denial, and to an admission of a client that was denied, the count
//! of denials. Allocations are counted separately from time.
//!
//! `tower_governor`, with its headers and by the same address, is the yardstick: bars and aims are multiples of what it
//! adds, since times differ from machine to machine. A missed bar fails the bench; a missed aim fails nothing.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    net::SocketAddr,
    pin::pin,
    process::ExitCode,
    task::{Context, Poll, Waker},
    time::Instant,
};

use axum::{body::Body, extract::ConnectInfo};
use governor::middleware::StateInformationMiddleware;
use http::{HeaderValue, Request, Response, request::Parts};
use sluicegate::{
    Header, Key, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{CostMeter, RateLimit},
    observe::Observer,
};
use tower::{Layer, Service, service_fn};
use tower_governor::{
    GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor,
};

/// Few requests in a row and many rounds, so that no other program disturbs most rounds.
const REQUESTS: u16 = 200;
const ROUNDS: usize = 3_000;
const CLIENTS: usize = 1_000;

/// The number of rounds after which the recorder's buckets are emptied.
const UPKEEP: usize = 50;
/// Bars, and aims.
const ONE_RULE: [f64; 2] = [3.3, 1.6];
const THREE_RULES: [f64; 2] = [4.2, 2.1];
const OBSERVER: [f64; 2] = [2.0, 0.7];
const CONTRIBUTORS: [f64; 2] = [1.5, 0.7];
const DENIAL: [f64; 2] = [0.3, 0.2];
const ADMISSION: [f64; 2] = [0.2, 0.07];

pub(crate) const ONE: &str = "1000000000/1m";
pub(crate) const THREE: &str = "1000000000/1s,1000000000/1m,1000000000/1h";
const FULL: &str = "0/1s,0/1m,0/1h";

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

fn limited(rules: &str, keys: usize) -> RateLimit<Bare> {
    limited_by(Limiter::new(MemoryStore::new()), rules, keys)
}

fn limited_by(limiter: Limiter, rules: &str, keys: usize) -> RateLimit<Bare> {
    let mut layer = RateLimitLayer::new(limiter).limit(Policy::parse("ip", rules).unwrap(), PeerIp);
    if keys == 2 {
        layer = layer.limit(
            Policy::parse("user", rules).unwrap(),
            Header::new("x-api-key"),
        );
    }
    layer.layer(Bare)
}

/// The layer of `tower_governor`, which denies nothing here.
pub(crate) fn governor() -> GovernorLayer<PeerIpKeyExtractor, StateInformationMiddleware, Body> {
    let mut config = GovernorConfigBuilder::default();
    config.per_nanosecond(1).burst_size(u32::MAX);
    GovernorLayer::new(config.use_headers().finish().unwrap())
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

fn request((address, api_key): &Client) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-api-key", api_key.clone());
    request.extensions_mut().insert(ConnectInfo(*address));
    request
}

/// Makes one request, which is answered at once, since there is no store to wait for.
fn serve<S, B>(service: &mut S, client: &Client)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut response = pin!(service.call(request(client)));
    assert!(black_box(response.as_mut().poll(&mut cx)).is_ready());
}

/// A measured subject, and the time of one request in each round.
struct Row {
    name: &'static str,
    serve: Box<dyn FnMut(&Client)>,
    rounds_ns: Vec<f64>,
    allocations: f64,
    is_observed: bool,
    /// Has tasks in the background after each round, which are no part of it.
    background: Option<Limiter>,
}

impl Row {
    fn new<S, B>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<()>, Response = Response<B>, Error = Infallible> + 'static,
    {
        Self {
            name,
            serve: Box::new(move |client| serve(&mut service, client)),
            rounds_ns: Vec::with_capacity(ROUNDS),
            allocations: 0.0,
            is_observed: false,
            background: None,
        }
    }

    /// The time of the best round, which no other program disturbed.
    fn ns(&self) -> f64 {
        self.rounds_ns.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The additional time over `other`: the median of the differences within each round.
    fn exceeds(&self, other: &Self) -> f64 {
        let rounds = self.rounds_ns.iter().zip(&other.rounds_ns);
        let mut differences: Vec<f64> = rounds.map(|(own, others)| own - others).collect();
        differences.sort_by(f64::total_cmp);
        differences[differences.len() / 2]
    }

    fn time(&mut self, clients: &[Client]) {
        let start = Instant::now();
        allocation_counter::opt_out(|| self.serve_all(clients));
        let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS);
        self.rounds_ns.push(ns);
    }

    fn count(&mut self, clients: &[Client]) {
        let counted = allocation_counter::measure(|| self.serve_all(clients));
        let total = u32::try_from(counted.count_total).unwrap_or(u32::MAX);
        self.allocations = (f64::from(total) / f64::from(REQUESTS)).round();
    }

    fn serve_all(&mut self, clients: &[Client]) {
        for client in clients {
            (self.serve)(client);
        }
    }
}

/// Three rules that all clients share: without counting contributors, and with it.
fn contributed() -> [Row; 2] {
    let shared = || {
        let policy = Policy::parse("all", THREE).unwrap();
        RateLimitLayer::new(MemoryStore::new()).limit(policy, Key::new("account", "acme"))
    };
    let label = |head: &Parts| Some(Key::new("user", head.headers.get("x-api-key")?));
    [
        Row::new("3 rules, shared", shared().layer(Bare)),
        Row::new("  contributors", shared().contributors(label).layer(Bare)),
    ]
}

/// Three rules that deny, and one rule that admits clients that were just denied: each without counting denials, and
/// with it. There are few clients, because denied clients usually are few.
fn denied(clients: &[Client]) -> [Row; 4] {
    let limiter = |counts| Limiter::new(MemoryStore::new()).count_denials(counts);
    let once_denied = |counts| {
        // The same limiter counts the denials of the first layer and the admissions of the second.
        let limiter = limiter(counts);
        let mut full = limited_by(limiter.clone(), FULL, 1);
        for client in clients {
            serve(&mut full, client);
        }
        limited_by(limiter, ONE, 1)
    };
    let few: Vec<Client> = clients.iter().take(8).cloned().collect();
    let of_few = |name, mut service: RateLimit<Bare>| {
        let (few, mut next) = (few.clone(), 0);
        let mut row = Row::new(name, Bare);
        row.serve = Box::new(move |_| {
            next = (next + 1) % few.len();
            serve(&mut service, &few[next]);
        });
        row
    };
    [
        of_few("3 rules, denied", limited_by(limiter(false), FULL, 1)),
        of_few("  denials", limited_by(limiter(true), FULL, 1)),
        of_few("1 rule, few keys", once_denied(false)),
        of_few("  once denied", once_denied(true)),
    ]
}

/// Limits for which the layer follows the body: the layer returns a slot, or settles a metered cost, in the background.
/// A row measures the additional time of the request alone.
fn followed() -> [Row; 3] {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = |rules| Policy::parse("ip", rules).unwrap();
    let layer = || RateLimitLayer::new(limiter.clone());
    let metering = service_fn(|request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>();
        meter.expect("the layer meters").set(7);
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    // Enough slots for all requests, and so long an expiry that the run renews none.
    let slots = policy("1000000000/1h@concurrent");
    let meters = layer().limit(policy(ONE), PeerIp).meter_costs();
    let mut rows = [
        Row::new(
            "1 slot",
            layer().limit_concurrent(slots, PeerIp).layer(Bare),
        ),
        Row::new("1 rule, nothing metered", meters.clone().layer(Bare)),
        Row::new("1 rule, metered", meters.layer(metering)),
    ];
    for row in &mut rows {
        row.background = Some(limiter.clone());
    }
    rows
}

/// Three rules with each of the observers.
fn observed() -> Vec<Row> {
    vec![
        observed_row(
            "  tracing, off",
            sluicegate::observe::TracingObserver::new(),
        ),
        observed_row("  Prometheus", sluicegate::observe::MetricsObserver::new()),
    ]
}

fn observed_row(name: &'static str, observer: impl Observer) -> Row {
    let limiter = Limiter::new(MemoryStore::new()).observer(observer);
    Row {
        is_observed: true,
        ..Row::new(name, limited_by(limiter, THREE, 1))
    }
}

/// Installs a recorder as in production. The returned function empties its buckets.
fn recorder() -> impl Fn() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    move || handle.run_upkeep()
}

pub(crate) fn run() -> ExitCode {
    // Tasks report the counts to the store. They are spawned, and never run.
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let _entered = runtime.enter();
    let clients = clients();
    let upkeep = recorder();
    let mut rows = vec![
        Row::new("bare service", Bare),
        Row::new(
            "no limit",
            RateLimitLayer::new(MemoryStore::new()).layer(Bare),
        ),
        Row::new("1 rule, 1 key", limited(ONE, 1)),
        Row::new("3 rules, 1 key", limited(THREE, 1)),
    ];
    let (bare, one, three) = (0, rows.len() - 2, rows.len() - 1);
    rows.push(Row::new("tower_governor", governor().layer(Bare)));
    let governor = rows.len() - 1;
    rows.extend(observed());
    rows.extend([
        Row::new("1 rule, 2 keys", limited(ONE, 2)),
        Row::new("3 rules, 2 keys", limited(THREE, 2)),
    ]);
    let denials = rows.len();
    rows.extend(denied(&clients));
    let shared = rows.len();
    rows.extend(contributed());
    rows.extend(followed());
    let clients: Vec<&[Client]> = clients.chunks(REQUESTS.into()).collect();
    for (round, clients) in clients.iter().cycle().take(ROUNDS).enumerate() {
        for row in &mut rows {
            row.time(clients);
            if let Some(limiter) = &row.background {
                runtime.block_on(limiter.finish(std::time::Duration::from_secs(60)));
            }
        }
        if round % UPKEEP == 0 {
            upkeep();
        }
    }
    for row in &mut rows {
        row.count(clients[0]);
    }

    println!(
        "{:<26}{:>10}{:>12}{:>14}",
        "", "ns", "adds ns", "allocations"
    );
    for row in &rows {
        let adds = row.ns() - rows[bare].ns();
        let allocations = row.allocations - rows[bare].allocations;
        println!(
            "{:<26}{:>10.0}{adds:>12.0}{allocations:>14.1}",
            row.name,
            row.ns()
        );
    }
    let adds = |row: usize| rows[row].ns() - rows[bare].ns();
    let within = |name: &str, adds: f64, [bar, aim]: [f64; 2]| {
        let ratio = adds / (rows[governor].ns() - rows[bare].ns());
        let verdict = if ratio <= bar { "ok    " } else { "MISSED" };
        println!("{verdict} {name}, of tower_governor: {ratio:.2}, at most {bar:.2}, aim {aim:.2}");
        ratio <= bar
    };
    let mut is_met = within("one rule", adds(one), ONE_RULE);
    is_met &= within("three rules", adds(three), THREE_RULES);
    for row in rows.iter().filter(|row| row.is_observed) {
        let more = row.exceeds(&rows[three]);
        is_met &= within(row.name.trim_start(), more, OBSERVER);
    }
    let more = rows[shared + 1].exceeds(&rows[shared]);
    is_met &= within("contributors", more, CONTRIBUTORS);
    let more = rows[denials + 1].exceeds(&rows[denials]);
    is_met &= within("denials, to a denial", more, DENIAL);
    let more = rows[denials + 3].exceeds(&rows[denials + 2]);
    is_met &= within("denials, to an admission", more, ADMISSION);
    if is_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
