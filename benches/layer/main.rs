//! The cost of the layer for a request: `cargo bench --bench layer`.
//!
//! Measures observers and a server, and needs the features `axum`, `metrics` and `tracing`. If you leave them out,
//! cargo runs again with them.

#[cfg(all(feature = "axum", feature = "metrics", feature = "tracing"))]
mod end_to_end;
#[cfg(all(feature = "axum", feature = "metrics", feature = "tracing"))]
mod measure;

#[cfg(all(feature = "axum", feature = "metrics", feature = "tracing"))]
fn main() -> std::process::ExitCode {
    let verdict = measure::run();
    end_to_end::show();
    verdict
}

#[cfg(not(all(feature = "axum", feature = "metrics", feature = "tracing")))]
#[path = "../common/again.rs"]
mod again;

#[cfg(not(all(feature = "axum", feature = "metrics", feature = "tracing")))]
fn main() -> std::process::ExitCode {
    again::with_features("layer", "axum,metrics,tracing")
}
