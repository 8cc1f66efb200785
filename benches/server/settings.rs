//! The example with several settings, side by side.

use std::env;

use support::redis::Server;

use super::{
    FIGURES, LIMIT, Load, Measured, load, measure, median, print_rows, run, run_floor, with_limit,
};

const ROUNDS: usize = 20;

pub(crate) struct Settings {
    /// The arguments of each server.
    servers: Vec<Vec<String>>,
    limit: String,
    connections: usize,
    /// The exponent of Zipf's law; 0 for equally likely users.
    exponent: f64,
    rounds: usize,
}

impl Settings {
    /// Reads the arguments; `None` if there are none.
    pub(crate) fn read() -> Option<Self> {
        let mut settings = Self {
            servers: Vec::new(),
            limit: LIMIT.into(),
            connections: load::CONNECTIONS,
            exponent: 0.0,
            rounds: ROUNDS,
        };
        let mut args = env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(name) = args.next() {
            // Compares a server that enforces no blocks with one that does.
            if name == "--blocks" {
                settings.servers = vec![vec!["--no-blocks".into()], vec![]];
                continue;
            }
            let value = args.next().unwrap_or_else(|| panic!("{name}: which?"));
            match &*name {
                "--in-flight" => {
                    let values = value.split(',');
                    settings.servers = values
                        .map(|number| vec![name.clone(), number.into()])
                        .collect();
                }
                "--limit" => settings.limit = value,
                "--connections" => settings.connections = value.parse().unwrap(),
                "--rounds" => settings.rounds = value.parse().unwrap(),
                "--users" if value == "random" => settings.exponent = 0.0,
                "--users" if value == "zipf" => settings.exponent = 1.0,
                _ => panic!("{name} {value}: there is no such setting"),
            }
        }
        (!settings.servers.is_empty()).then_some(settings)
    }

    pub(crate) fn compare(&self, redis: &Server) {
        let mut servers = vec![run_floor(redis)];
        for args in &self.servers {
            let mut command = with_limit(&self.limit);
            servers.push(run(command.args(["--redis", &redis.url()]).args(args)));
        }
        let mut load = Load::of(load::USERS, self.exponent).connections(self.connections);
        let mut results: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            // Each is the first in turn, since the speed of the machine also changes within a round.
            for place in 0..servers.len() {
                let place = (place + round) % servers.len();
                results[place].push(measure(&mut load, &servers[place], redis));
            }
        }
        let names = self.servers.iter().map(|args| match args.join(" ") {
            none if none.is_empty() => "the example".into(),
            args => args,
        });
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
