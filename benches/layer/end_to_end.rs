//! The same through a socket: axum servers with one worker, in turn under the same load, which runs on the other core.

use std::{
    fs,
    net::SocketAddr,
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use axum::{Router, routing::get};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer};

#[path = "../server/load.rs"]
#[allow(dead_code, reason = "the bench of the server uses the rest")]
mod load;

use self::load::Load;
use super::measure::{ONE, THREE, governor};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(1);

struct Server {
    name: &'static str,
    address: SocketAddr,
    /// The kernel's file with the running time of the thread.
    schedstat: String,
    /// For each round: requests a second, the median latency in ms, µs of the thread for each request.
    rounds: Vec<[f64; 3]>,
}

/// Prints a table: the median of all rounds.
pub(crate) fn show() {
    let app = || Router::new().route("/", get(async || "ok\n"));
    let mut servers = [
        Server::start("bare server", app()),
        Server::start("1 rule, 1 key", app().layer(limit(ONE))),
        Server::start("3 rules, 1 key", app().layer(limit(THREE))),
        Server::start("tower_governor", app().layer(governor())),
    ];
    let mut load = Load::new();
    // In turns, so that a slow moment of the machine meets all servers.
    for _ in 0..ROUNDS {
        for server in &mut servers {
            server.measure(&mut load);
        }
    }
    println!(
        "{:<18}{:>10}{:>12}{:>14}",
        "", "req/s", "p50 ms", "server us"
    );
    for server in &servers {
        let [rate, p50, cpu] = [0, 1, 2].map(|figure| server.median(figure));
        println!("{:<18}{rate:>10.0}{p50:>12.3}{cpu:>14.2}", server.name);
    }
}

fn limit(rules: &str) -> RateLimitLayer {
    let policy = Policy::parse("ip", rules).unwrap();
    RateLimitLayer::new(MemoryStore::new()).limit(policy, PeerIp)
}

impl Server {
    fn start(name: &'static str, app: Router) -> Self {
        let (ready, started) = channel();
        thread::spawn(move || serve(app, &ready));
        let (address, schedstat) = started.recv().unwrap();
        Self {
            name,
            address,
            schedstat,
            rounds: Vec::new(),
        }
    }

    fn measure(&mut self, load: &mut Load) {
        let before = self.cpu_us();
        let round = load.run(self.address, ROUND);
        let cpu = (self.cpu_us() - before) / round.requests();
        self.rounds.push([round.rate(), round.latency_ms(0.5), cpu]);
    }

    fn cpu_us(&self) -> f64 {
        let told = fs::read_to_string(&self.schedstat).unwrap();
        let ns: f64 = told.split(' ').next().unwrap().parse().unwrap();
        ns / 1_000.0
    }

    fn median(&self, figure: usize) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(|round| round[figure]).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(app: Router, ready: &Sender<(SocketAddr, String)>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let thread = fs::read_link("/proc/thread-self").unwrap();
    let schedstat = format!("/proc/{}/schedstat", thread.display());
    ready
        .send((listener.local_addr().unwrap(), schedstat))
        .unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await.unwrap();
}
