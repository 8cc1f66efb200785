//! What the layer adds to a request: `cargo bench --bench layer`.
//!
//! It measures observers, for which the crate needs the features `metrics` and `tracing`: built without them, this
//! builds it anew.

#[cfg(all(feature = "metrics", feature = "tracing"))]
mod measure;

#[cfg(all(feature = "metrics", feature = "tracing"))]
fn main() -> std::process::ExitCode {
    measure::run()
}

#[cfg(not(all(feature = "metrics", feature = "tracing")))]
#[path = "../common/again.rs"]
mod again;

#[cfg(not(all(feature = "metrics", feature = "tracing")))]
fn main() -> std::process::ExitCode {
    again::with_features("layer", "metrics,tracing")
}
