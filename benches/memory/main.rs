//! Whether a process's memory stays bounded while ten million identities pass through shared calls, leases and a deny
//! cache: `cargo bench --bench memory`. Takes some four minutes; Linux only.
//!
//! Every identity is checked twice within its window: the first check is admitted, and the second is denied and cached.
//! Every tenth check is for a single hot identity, which gets leases. Fails when the process grows by more than 16 MiB
//! after the first million.
//!
//! Before that, or alone with the argument `flood`: made-up keys over a full store in memory; or alone with the argument
//! `bytes`: the bytes of an identity, a slot, a caller and a connection.

mod bytes;
mod flood;

use std::{cell::Cell, env, fs, process::ExitCode, rc::Rc};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, store::Leases};
use support::redis::Server;
use tokio::task::LocalSet;

const IDENTITIES: u64 = 10_000_000;
/// The number of identities between two measurements.
const EACH: u64 = 1_000_000;
const TASKS: usize = 256;
const BUDGET_KIB: u64 = 16 * 1_024;

fn main() -> ExitCode {
    let has = |name: &str| env::args().any(|argument| argument == name);
    if has("bytes") {
        return exit(bytes::run(has("renew")));
    }
    let holds_under_flood = flood::run();
    if has("flood") {
        return exit(holds_under_flood);
    }
    exit(stays_bounded() & holds_under_flood)
}

#[tokio::main(flavor = "current_thread")]
async fn stays_bounded() -> bool {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(Leases::new(store))
        .cache_denials(true)
        .timeout(std::time::Duration::from_secs(5));
    let (next, denied, errors) = (
        Rc::new(Cell::new(0)),
        Rc::new(Cell::new(0)),
        Rc::new(Cell::new(0)),
    );
    let mut after_first = 0;
    for million in 1..=IDENTITIES / EACH {
        let tasks = LocalSet::new();
        for _ in 0..TASKS {
            let (limiter, next, denied, errors) = (
                limiter.clone(),
                next.clone(),
                denied.clone(),
                errors.clone(),
            );
            tasks.spawn_local(async move {
                let one = Policy::parse("one", "1/10s").unwrap();
                let hot = Policy::parse("hot", "1000000000/1m").unwrap();
                while next.get() < million * EACH {
                    let identity: u64 = next.replace(next.get() + 1);
                    // A hot key, so that leases are held while identities pass through.
                    if identity.is_multiple_of(10) {
                        let all = Charge::new(&hot, Key::new("all", "all"), 1);
                        errors.set(errors.get() + u64::from(limiter.check([all]).await.is_err()));
                    }
                    // The second check is denied, so that the deny cache has something to remember.
                    for _ in 0..2 {
                        let charge = Charge::new(&one, Key::new("user", identity.to_string()), 1);
                        match limiter.check([charge]).await {
                            Ok(decision) => {
                                denied.set(denied.get() + u64::from(!decision.is_allowed()))
                            }
                            Err(_) => errors.set(errors.get() + 1),
                        }
                    }
                }
            });
        }
        tasks.await;
        let resident = resident_kib();
        println!(
            "{million:>3} million identities, {:>9} denied, {} errors: {:>6} KiB",
            denied.get(),
            errors.get(),
            resident
        );
        if million == 1 {
            after_first = resident;
        }
    }
    let grown = resident_kib().saturating_sub(after_first);
    println!("grown by {grown} KiB since the first million, at most {BUDGET_KIB}");
    grown <= BUDGET_KIB && denied.get() == IDENTITIES && errors.get() == 0
}

fn exit(is_met: bool) -> ExitCode {
    if is_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
