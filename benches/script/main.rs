//! What a decision costs the server, by the server's own statistics: `cargo bench --bench script`.
//!
//! Draws `target/figures/cost.svg`.
//!
//! It moves a clock by hand, for which the crate needs the feature `test-util`: built without it, this builds it anew.

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
