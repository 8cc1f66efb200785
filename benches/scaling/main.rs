//! How many decisions a second one Redis server can make, and several servers: `cargo bench --bench scaling`.
//!
//! First the small end, measured and simulated: one process and one server that this program starts. Fails when the
//! results differ by more than a quarter. Then the capacity of more servers than this machine has, simulated with the
//! costs in `costs.rs`, and the pictures `target/figures/scaling.svg` and `scaling_latency.svg`. With the argument
//! `compare` or `simulate`, runs only one part.
//!
//! This is a bench because the measurement needs the profile of benches, and the simulation the costs that they find.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../common/chart.rs"]
mod chart;
mod costs;
mod events;
mod line;
mod model;
mod picture;
mod real;
mod sweep;
mod traffic;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = |name: &str| std::env::args().any(|argument| argument == name);
    let is_close = only("simulate") || real::compare()?;
    if !only("compare") {
        let (carried, latencies) = sweep::run();
        picture::draw(&carried, &latencies)?;
    }
    if is_close {
        Ok(())
    } else {
        Err(format!("simulated and measured are more than {} apart", real::MOST).into())
    }
}
