//! The cost of a decision for the server, by the server's own statistics: `cargo bench --bench script`.
//!
//! Draws `target/figures/cost.svg`.

#[path = "../common/chart.rs"]
mod chart;
mod crowded;
mod figures;
mod measure;
mod picture;
mod renewing;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure::run()
}
