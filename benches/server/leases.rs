//! The effect of leases for users that come again and again.

use std::process::ExitCode;

use super::{Load, Measured, Server, measure, median, run, run_floor, with_limit};

const ROUNDS: usize = 7;

const MINUTES: &str = "header:x-api-key=100000/1m,1000000/1h";
/// No user can send this number, so no request is denied.
const ROOMY_MINUTES: &str = "header:x-api-key=100000000/1m,1000000000/1h";
const SECONDS: &str = "header:x-api-key=1000000/1s,60000000/1m,1000000000/1h";

/// Prints requests a second, and the CPU time of each request, relative to the floor or the memory store in the same
/// round.
pub(super) fn measure_all() -> ExitCode {
    let mut zipf = Load::of(10_000, 1.0);
    let mut one = Load::of(1, 0.0);
    println!(
        "{:<44} {:>9} {:>8} {:>10} {:>10} {:>14}",
        "", "req/s", "ratio", "server us", "redis us", "calls/request"
    );
    row(
        "zipf, two rules from 1 m on",
        ROOMY_MINUTES,
        &mut zipf,
        false,
    );
    row("zipf, three rules from 1 s on", SECONDS, &mut zipf, false);
    row(
        "one hot user, two rules, beside memory",
        ROOMY_MINUTES,
        &mut one,
        true,
    );
    println!("(limits as `{MINUTES}`, a thousand times as high, so that nobody is denied)");
    ExitCode::SUCCESS
}

fn row(name: &str, limit: &str, load: &mut Load, beside_memory: bool) {
    let redis = Server::start();
    let other = if beside_memory {
        run(&mut with_limit(limit))
    } else {
        run_floor(&redis)
    };
    let url = redis.url();
    let alone = run(with_limit(limit).args(["--redis", &url]));
    let leases = run(with_limit(limit).args(["--redis", &url, "--leases"]));
    let mut results: [Vec<(Measured, f64)>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (server, results) in [&other, &alone, &leases].into_iter().zip(&mut results) {
            let before = calls(&redis);
            let measured = measure(load, server, &redis);
            results.push((measured, calls(&redis) - before));
        }
    }
    let names = ["other", "without leases", "with leases"];
    for (kind, rounds) in names.iter().zip(&results) {
        let median_of = |figure: fn(&(Measured, f64)) -> f64| median(rounds.iter().map(figure));
        let ratios = rounds.iter().zip(&results[0]);
        let ratio =
            median(ratios.map(|((measured, _), (other, _))| measured.rate() / other.rate()));
        println!(
            "{:<44} {:>9.0} {ratio:>8.2} {:>10.1} {:>10.1} {:>14.4}",
            format!("{name}: {kind}"),
            median_of(|(measured, _)| measured.rate()),
            median_of(|(measured, _)| measured.server_us),
            median_of(|(measured, _)| measured.redis_us),
            // The warm-up adds a third.
            median_of(|(measured, calls)| calls / (measured.round.requests() * 4.0 / 3.0)),
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "there are not that many")]
fn calls(redis: &Server) -> f64 {
    redis.calls("evalsha") as f64
}
