//! The example with several settings of `--in-flight`, beside each other.

use std::env;

use super::{
    FIGURES, Load, Measured, example, load, measure, median, print_rows, redis_server::Server, run,
    run_floor,
};

const ROUNDS: usize = 20;

pub(crate) struct Settings {
    in_flight: Vec<String>,
    connections: usize,
    /// Of Zipf's law; 0 for users who come equally often.
    exponent: f64,
    rounds: usize,
}

impl Settings {
    /// `None` when there are none.
    pub(crate) fn read() -> Option<Self> {
        let mut settings = Self {
            in_flight: Vec::new(),
            connections: load::CONNECTIONS,
            exponent: 0.0,
            rounds: ROUNDS,
        };
        let mut args = env::args().skip(1).filter(|it| it != "--bench");
        while let Some(name) = args.next() {
            let value = args.next().unwrap_or_else(|| panic!("{name}: which?"));
            match &*name {
                "--in-flight" => {
                    settings.in_flight = value.split(',').map(Into::into).collect();
                }
                "--connections" => settings.connections = value.parse().unwrap(),
                "--rounds" => settings.rounds = value.parse().unwrap(),
                "--users" if value == "random" => settings.exponent = 0.0,
                "--users" if value == "zipf" => settings.exponent = 1.0,
                _ => panic!("{name} {value}: there is no such setting"),
            }
        }
        (!settings.in_flight.is_empty()).then_some(settings)
    }

    pub(crate) fn compare(&self, redis: &Server) {
        let mut servers = vec![run_floor(redis)];
        for in_flight in &self.in_flight {
            let url = redis.url();
            servers.push(run(example().args([
                "--redis",
                &url,
                "--in-flight",
                in_flight,
            ])));
        }
        let mut load = Load::of(load::USERS, self.exponent).connections(self.connections);
        let mut results: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            // Each is the first in its turn, since the machine's pace changes within a round, too.
            for place in 0..servers.len() {
                let place = (place + round) % servers.len();
                results[place].push(measure(&mut load, &servers[place], redis));
            }
        }
        let names = self.in_flight.iter().map(|it| format!("--in-flight {it}"));
        let names = [String::from("one empty script")].into_iter().chain(names);
        let rows: Vec<_> = names.zip(&results).collect();
        print_rows(rows.iter().map(|(name, rounds)| (name, *rounds)));
        let first = &results[1];
        println!("\nof the first, in the same round:");
        for (name, rounds) in &rows {
            let ratios = FIGURES.map(|figure| {
                let pairs = rounds.iter().zip(first);
                median(pairs.map(|(ours, first)| figure(ours) / figure(first)))
            });
            let [rate, p50, p99, server, redis, load] = ratios;
            println!(
                "{name:<20} {rate:>9.2} {p50:>9.2} {p99:>9.2} {server:>11.2} {redis:>11.2} {load:>11.2}"
            );
        }
    }
}
