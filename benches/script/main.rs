//! The cost of a decision for the server, by the server's own statistics: `cargo bench --bench script`.
//!
//! Draws `target/figures/cost.svg`.
//!
//! Moves a clock by hand, and compares all kinds of rules: so it needs the features `test-util` and `calendar`. If you
//! leave them out, cargo runs again with them.

#[cfg(all(feature = "calendar", feature = "test-util"))]
#[path = "../common/chart.rs"]
mod chart;
#[cfg(all(feature = "calendar", feature = "test-util"))]
mod measure;
#[cfg(all(feature = "calendar", feature = "test-util"))]
mod picture;
#[cfg(all(feature = "calendar", feature = "test-util"))]
mod renewing;

#[cfg(all(feature = "calendar", feature = "test-util"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure::run()
}

#[cfg(not(all(feature = "calendar", feature = "test-util")))]
#[path = "../common/again.rs"]
mod again;

#[cfg(not(all(feature = "calendar", feature = "test-util")))]
fn main() -> std::process::ExitCode {
    again::with_features("script", "calendar,test-util")
}
