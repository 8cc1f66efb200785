//! Draws the simulated rates and latencies.

use std::io;

use crate::{
    chart::{Bar, Chart, Group},
    sweep::{Carried, Latencies},
};

/// Draws the capacity of servers, and the latencies with one server by rate, without and with shared calls.
pub(crate) fn draw(carried: &[Carried], latencies: &[Latencies]) -> io::Result<()> {
    let groups = carried.iter().map(|(case, row)| Group {
        heading: case.name.into(),
        bars: row
            .iter()
            .map(|(servers, seen)| Bar {
                label: format!("{servers} servers"),
                value: seen.rate,
                figure: format!("{:.0} 000/s", seen.rate / 1e3),
                is_ours: true,
            })
            .collect(),
    });
    let chart = Chart {
        title: "Decisions a second, by Redis servers".into(),
        notes: vec![
            "Simulated: servers behind rendezvous hashing, four service processes of one core for each,".into(),
            "three rules, p99 below 5 ms. Calls are shared, but for the first.".into(),
        ],
        groups: groups.collect(),
    };
    chart.save("scaling")?;
    let groups = ["a call each", "calls shared"].into_iter().enumerate();
    let groups = groups.map(|(place, name)| Group {
        heading: name.into(),
        bars: latencies
            .iter()
            .map(|(rate, p99)| Bar {
                label: format!("{:.0} 000/s", rate / 1e3),
                // An overloaded server has no latency to draw: its text says so.
                value: p99[place].unwrap_or(0.0),
                figure: p99[place]
                    .map_or("more than it carries".into(), |ms| format!("{ms:.2} ms")),
                is_ours: place == 1,
            })
            .collect(),
    });
    let chart = Chart {
        title: "How long 99 of 100 decisions take at most".into(),
        notes: vec![
            "Simulated: one Redis server 0.3 ms away, four service processes of one core, random users, three rules,".into(),
            "by the decisions a second.".into(),
        ],
        groups: groups.collect(),
    };
    chart.save("scaling_latency")
}
