//! What the layer with a `MemoryStore` adds to a request, in nanoseconds and allocations, beside a bare service.
//!
//! `cargo bench --bench layer` prints a table, and fails when three rules add a microsecond or more. Allocations are not
//! counted while time is taken.

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

use http::{HeaderValue, Request, Response};
use sluicegate::{Header, MemoryStore, PeerIp, Policy, RateLimitLayer, middleware::RateLimit};
use tower::{Layer, Service};

/// Few in a row and many rounds: the best of them are those that nobody else disturbed.
const REQUESTS: u32 = 2_000;
const ROUNDS: usize = 300;
const CLIENTS: usize = 1_000;
const BUDGET_NS: f64 = 1_000.0;

const ONE: &str = "1000000000/1m";
const THREE: &str = "1000000000/1s,1000000000/1m,1000000000/1h";
const FULL: &str = "0/1s,0/1m,0/1h";

/// Answers at once, with nothing.
#[derive(Clone)]
struct Bare;

impl Service<Request<()>> for Bare {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(String::new())))
    }
}

fn limited(rules: &str, keys: usize) -> RateLimit<Bare> {
    let mut layer =
        RateLimitLayer::new(MemoryStore::new()).limit(Policy::parse("ip", rules).unwrap(), PeerIp);
    if keys == 2 {
        layer = layer.limit(
            Policy::parse("user", rules).unwrap(),
            Header::new("x-api-key"),
        );
    }
    layer.layer(Bare)
}

/// Who asks: an address and an API key.
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
    request.extensions_mut().insert(*address);
    request
}

/// One request that is answered at once, as it is without a store to wait for.
fn serve<S>(service: &mut S, client: &Client)
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut response = pin!(service.call(request(client)));
    assert!(black_box(response.as_mut().poll(&mut cx)).is_ready());
}

/// A subject of the measurement, and the best that it has shown.
struct Row {
    name: &'static str,
    serve: Box<dyn FnMut(&Client)>,
    ns: f64,
    allocations: f64,
}

impl Row {
    fn new<S>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<()>, Response = Response<String>, Error = Infallible> + 'static,
    {
        Self {
            name,
            serve: Box::new(move |client| serve(&mut service, client)),
            ns: f64::INFINITY,
            allocations: 0.0,
        }
    }

    fn time(&mut self, clients: &[Client]) {
        let start = Instant::now();
        allocation_counter::opt_out(|| self.serve_all(clients));
        let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS);
        self.ns = self.ns.min(ns);
    }

    fn count(&mut self, clients: &[Client]) {
        let counted = allocation_counter::measure(|| self.serve_all(clients));
        let total = u32::try_from(counted.count_total).unwrap_or(u32::MAX);
        self.allocations = f64::from(total) / f64::from(REQUESTS);
    }

    fn serve_all(&mut self, clients: &[Client]) {
        for client in clients.iter().cycle().take(REQUESTS as usize) {
            (self.serve)(client);
        }
    }
}

fn main() -> ExitCode {
    let clients = clients();
    let mut rows = [
        Row::new("bare service", Bare),
        Row::new(
            "no limit",
            RateLimitLayer::new(MemoryStore::new()).layer(Bare),
        ),
        Row::new("1 rule, 1 key", limited(ONE, 1)),
        Row::new("3 rules, 1 key", limited(THREE, 1)),
        Row::new("1 rule, 2 keys", limited(ONE, 2)),
        Row::new("3 rules, 2 keys", limited(THREE, 2)),
        Row::new("3 rules, refused", limited(FULL, 1)),
    ];
    for _ in 0..ROUNDS {
        for row in &mut rows {
            row.time(&clients);
        }
    }
    for row in &mut rows {
        row.count(&clients);
    }
    println!(
        "{:<18}{:>10}{:>12}{:>14}",
        "", "ns", "adds ns", "allocations"
    );
    let bare = (rows[0].ns, rows[0].allocations);
    for Row {
        name,
        ns,
        allocations,
        ..
    } in &rows
    {
        let (adds, allocations) = (ns - bare.0, allocations - bare.1);
        println!("{name:<18}{ns:>10.0}{adds:>12.0}{allocations:>14.1}");
    }
    let adds = rows[3].ns - bare.0;
    if adds < BUDGET_NS {
        return ExitCode::SUCCESS;
    }
    println!("three rules add {adds:.0} ns, the budget is {BUDGET_NS}");
    ExitCode::FAILURE
}
