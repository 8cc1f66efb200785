//! The simulated capacity of a service and its servers: the load at which the 99th percentile stays below 5 ms plus the
//! round trip.

use std::thread;

use crate::{
    costs::Costs,
    model::{Load, Model, Seen, Setting},
    traffic::{Placement, Traffic, Users},
};

const SERVERS: [usize; 5] = [1, 2, 4, 8, 16];
/// The number of service processes for each server. Each has one core.
const PROCESSES: usize = 4;
/// In µs, in addition to the round trip.
const P99: f64 = 5_000.0;
/// The number of halvings in the search for the rate, for a precision of 2.7 %.
const STEPS: u32 = 7;
const OCTAVES: f64 = 5.0;

/// Users, the features for them, and the name of the case.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    users: Users,
    in_flight: usize,
    deny_cache: bool,
    leases: bool,
}

const fn case(name: &'static str, users: Users) -> Case {
    Case {
        name,
        users,
        in_flight: 4,
        deny_cache: false,
        leases: false,
    }
}

const RANDOM: Case = case("random users", Users::Random);

const CASES: [Case; 7] = [
    Case {
        in_flight: 0,
        ..case("random users, a call each", Users::Random)
    },
    RANDOM,
    Case {
        in_flight: 1,
        ..case("random users, 1 in flight", Users::Random)
    },
    case("hot users", Users::Zipf),
    Case {
        leases: true,
        ..case("hot users, leases", Users::Zipf)
    },
    case("attack", Users::Attack),
    Case {
        deny_cache: true,
        ..case("attack, deny cache", Users::Attack)
    },
];

/// A case, and the simulated capacity for each number of servers.
pub(crate) type Carried = (Case, Vec<(usize, Seen)>);

/// A rate, and the 99th percentiles at that rate in ms, without and with shared calls; `None` above the capacity.
pub(crate) type Latencies = (f64, [Option<f64>; 2]);

/// Prints the rows, and returns those to draw.
pub(crate) fn run() -> (Vec<Carried>, Vec<Latencies>) {
    println!("\nsimulated: one process before one server");
    print_head("processes");
    for case in CASES {
        let seen = carried(&setting(case, Placement::Rendezvous, 1, 1));
        print_row(case.name, 1, &seen);
    }
    let rendezvous = scaled("servers behind rendezvous hashing", Placement::Rendezvous);
    scaled("a cluster", Placement::Cluster);
    round_trips();
    one_rule();
    (rendezvous, latencies())
}

fn setting(case: Case, placement: Placement, processes: usize, servers: usize) -> Setting {
    Setting {
        processes,
        servers,
        placement,
        in_flight: case.in_flight,
        users: case.users,
        deny_cache: case.deny_cache,
        leases: case.leases,
        load: Load::Open(0.0),
        costs: Costs::REFERENCE,
    }
}

fn scaled(title: &str, placement: Placement) -> Vec<Carried> {
    println!("\nsimulated: {title}, {PROCESSES} processes for each");
    print_head("servers");
    // Cases share nothing, and each takes long.
    let all: Vec<Carried> = thread::scope(|scope| {
        let row = |case| {
            scope.spawn(move || {
                let of = |servers| {
                    let setting = setting(case, placement, PROCESSES * servers, servers);
                    (servers, carried(&setting))
                };
                (case, SERVERS.map(of).to_vec())
            })
        };
        let threads = CASES.map(row);
        threads
            .map(|thread| thread.join().expect("a simulation ends"))
            .into()
    });
    for (case, row) in &all {
        for (servers, seen) in row {
            print_row(case.name, *servers, seen);
        }
    }
    all
}

fn one_rule() {
    println!("\nsimulated: one server, {PROCESSES} processes, one rule");
    print_head("servers");
    for case in CASES {
        let mut setting = setting(case, Placement::Rendezvous, PROCESSES, 1);
        setting.costs = Costs::ONE_RULE;
        print_row(case.name, 1, &carried(&setting));
    }
}

/// Calls grow with the round trip, so that a check takes only a few round trips, at any rate.
fn round_trips() {
    for rate in [4e3, 20e3, 80e3] {
        println!(
            "\nsimulated: one server, {PROCESSES} processes, random users, {rate} decisions/s"
        );
        print_head("ms away");
        for round_trip in [300.0, 1_000.0, 4_000.0, 10_000.0, 20_000.0] {
            let mut setting = setting(RANDOM, Placement::Rendezvous, PROCESSES, 1);
            setting.costs.round_trip = round_trip;
            setting.load = Load::Open(rate);
            let seen = simulate(&setting, &Traffic::new(RANDOM.users));
            print_row(RANDOM.name, round_trip / 1_000.0, &seen);
        }
    }
}

/// The 99th percentiles with one server in ms, without and with shared calls; `None` above the capacity.
fn latencies() -> Vec<Latencies> {
    println!(
        "\nsimulated: one server, {PROCESSES} processes, random users: p99 in ms, a call each and shared"
    );
    let rates = [20e3, 40e3, 50e3, 60e3, 70e3, 80e3, 90e3, 100e3];
    let rows = rates.map(|rate| {
        let p99 = [CASES[0], RANDOM].map(|case| {
            let mut setting = setting(case, Placement::Rendezvous, PROCESSES, 1);
            setting.load = Load::Open(rate);
            let seen = simulate(&setting, &Traffic::new(case.users));
            (!seen.is_overloaded).then_some(seen.p99 / 1e3)
        });
        let [each, shared] = p99.map(|p99| p99.map_or("too much".into(), |ms| format!("{ms:.2}")));
        println!("  {rate:>8.0}/s {each:>9} {shared:>9}");
        (rate, p99)
    });
    rows.into()
}

/// The greatest load that this setting can carry.
fn carried(setting: &Setting) -> Seen {
    let traffic = Traffic::new(setting.users);
    let most = setting.processes as f64 * 1e6 / setting.costs.request;
    let mut best = Seen::default();
    let (mut low, mut high) = (most.log2() - OCTAVES, most.log2());
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        let setting = Setting {
            load: Load::Open(middle.exp2()),
            ..*setting
        };
        let seen = simulate(&setting, &traffic);
        if seen.is_overloaded || seen.p99 > P99 + setting.costs.round_trip {
            high = middle;
        } else {
            (low, best) = (middle, seen);
        }
    }
    best
}

/// Simulates long enough that a lease ends, and that a refusal is asked for again.
fn simulate(setting: &Setting, traffic: &Traffic) -> Seen {
    let remembers = setting.leases || setting.deny_cache;
    let (warm_up, end) = if remembers { (5e5, 1.5e6) } else { (2e5, 7e5) };
    Model::new(setting, traffic).run(warm_up, end)
}

fn print_head(scale: &str) {
    println!(
        "  {:<26} {scale:>9} {:>11} {:>7} {:>7} {:>9} {:>15} {:>8}  first bottleneck",
        "", "decisions/s", "p50 ms", "p99 ms", "calls", "Redis max, mean", "service"
    );
}

fn print_row(name: &str, scale: impl std::fmt::Display, seen: &Seen) {
    println!(
        "  {name:<26} {scale:>9} {:>11.0} {:>7.2} {:>7.2} {:>9.3} {:>8.2} {:>6.2} {:>8.2}  {}",
        seen.rate,
        seen.p50 / 1e3,
        seen.p99 / 1e3,
        seen.calls,
        seen.server,
        seen.servers,
        seen.process,
        bottleneck(seen)
    );
}

fn bottleneck(seen: &Seen) -> &'static str {
    const BUSY: f64 = 0.85;
    if seen.process.max(seen.server) < BUSY {
        "round trips, bursts"
    } else if seen.process > seen.server {
        "the service's cores"
    } else if seen.servers < BUSY * seen.server {
        "the hottest server"
    } else {
        "the Redis cores"
    }
}
