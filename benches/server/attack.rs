//! Users that are all denied and come again at once: with a deny cache before Redis, without, and in memory.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use support::redis::Server;

use super::{Measured, load::Load, measure, median, run as serve, with_limit};

const USERS: usize = 64;
const LIMIT: &str = "header:x-api-key=1/1h,2/2h,3/1d";
const ROUNDS: usize = 10;
const MIN_REQUESTS_PER_CALL: f64 = 200.0;
/// A share of the memory store's requests a second.
const BUDGET: f64 = 0.8;

/// Returns whether all results are good.
pub(crate) fn run() -> bool {
    let redis = Server::start();
    let args = ["--redis", &redis.url()];
    let servers = [
        serve(&mut with_limit(LIMIT)),
        serve(with_limit(LIMIT).args(args)),
        serve(with_limit(LIMIT).args(args).arg("--deny-cache")),
    ];
    let mut load = Load::refused(USERS);
    // Only denials are measured, so use up all limits first.
    for server in &servers {
        load.exhaust(server.address());
    }
    let mut results: [Vec<(Measured, f64)>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (server, results) in servers.iter().zip(&mut results) {
            let before = redis.calls("evalsha");
            let measured = measure(&mut load, server, &redis);
            #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
            let calls = (redis.calls("evalsha") - before) as f64;
            results.push((measured, calls));
        }
    }
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>11} {:>11} {:>14}",
        "all denied", "req/s", "p50 ms", "p99 ms", "server us", "redis us", "requests/call"
    );
    let names = ["memory", "Redis", "Redis, deny cache"];
    for (name, rounds) in names.iter().zip(&results) {
        let figures: [fn(&Measured) -> f64; 5] = [
            Measured::rate,
            |measured| measured.round.latency_ms(0.50),
            |measured| measured.round.latency_ms(0.99),
            |measured| measured.server_us,
            |measured| measured.redis_us,
        ];
        let [rate, p50, p99, server, redis] =
            figures.map(|figure| median(rounds.iter().map(|(measured, _)| figure(measured))));
        let per_call = requests_per_call(rounds);
        println!(
            "{name:<24} {rate:>9.0} {p50:>9.2} {p99:>9.2} {server:>11.1} {redis:>11.1} {per_call:>14.1}"
        );
    }
    let [memory, _, cached] = &results;
    let ratios = cached.iter().zip(memory);
    let ratio = median(ratios.map(|((cached, _), (memory, _))| cached.rate() / memory.rate()));
    let per_call = requests_per_call(cached);
    println!(
        "deny cache / memory: {ratio:.2}, at least {BUDGET} is asked for; {per_call:.0} requests for each call, at least \
         {MIN_REQUESTS_PER_CALL} are"
    );
    let is_admitted = comes_back(&redis);
    println!("a client that comes back after exactly `retry_after` is admitted: {is_admitted}");
    ratio >= BUDGET && per_call >= MIN_REQUESTS_PER_CALL && is_admitted
}

/// The calls include those of the warm-up, which is a fourth of the time.
fn requests_per_call(rounds: &[(Measured, f64)]) -> f64 {
    median(
        rounds
            .iter()
            .map(|(measured, calls)| measured.round.requests() / calls.max(1.0)),
    )
}

/// Whether a user that the cache denies is admitted after exactly the delay, ten times.
fn comes_back(redis: &Server) -> bool {
    let mut command = with_limit("header:x-api-key=1/700ms@exact");
    let server = serve(command.args(["--redis", &redis.url(), "--deny-cache"]));
    let ask = |stream: &mut TcpStream| -> String {
        let request = b"GET / HTTP/1.1\r\nhost: bench\r\naccept: application/json\r\nx-api-key: who-obeys\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut answer = [0; 2_048];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    let mut stream = connect(server.address());
    assert!(ask(&mut stream).starts_with("HTTP/1.1 200 "));
    (0..10).all(|_| {
        for _ in 0..20 {
            let denied = ask(&mut stream);
            assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
            thread::sleep(Duration::from_millis(7));
        }
        // Also the time in a repeated denial has to be exact.
        let told = ask(&mut stream);
        thread::sleep(Duration::from_millis(retry_after_ms(&told)));
        ask(&mut stream).starts_with("HTTP/1.1 200 ")
    })
}

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn retry_after_ms(answer: &str) -> u64 {
    let value = answer.split("\"retry_after_ms\":").nth(1);
    let digits =
        value.and_then(|value| value.split(|letter: char| !letter.is_ascii_digit()).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("no time in {answer}"))
}
