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
fn main() -> std::process::ExitCode {
    let again = ["bench", "--bench", "layer", "--features", "metrics,tracing"];
    println!("cargo {}", again.join(" "));
    let status = std::process::Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(again)
        .status();
    let ended_well = status.is_ok_and(|status| status.success());
    std::process::ExitCode::from(u8::from(!ended_well))
}
