//! The cost of a decision for the server, by the server's own statistics: `cargo bench --bench script`.
//!
//! Draws `target/figures/cost.svg`.
//!
//! Moves a clock by hand, and so needs the feature `test-util`. If you leave it out, cargo runs again with it.

#[cfg(feature = "test-util")]
#[path = "../common/chart.rs"]
mod chart;
#[cfg(feature = "test-util")]
mod measure;
#[cfg(feature = "test-util")]
mod picture;

#[cfg(feature = "test-util")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure::run()
}

#[cfg(not(feature = "test-util"))]
#[path = "../common/again.rs"]
mod again;

#[cfg(not(feature = "test-util"))]
fn main() -> std::process::ExitCode {
    again::with_features("script", "test-util")
}
