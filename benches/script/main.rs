//! What a decision costs the server, by the server's own statistics: `cargo bench --bench script`.
//!
//! It moves a clock by hand, for which the crate needs the feature `test-util`: built without it, this builds it anew.

#[cfg(feature = "test-util")]
mod measure;

#[cfg(feature = "test-util")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure::run()
}

#[cfg(not(feature = "test-util"))]
fn main() -> std::process::ExitCode {
    let again = ["bench", "--bench", "script", "--features", "test-util"];
    println!("cargo {}", again.join(" "));
    let status = std::process::Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(again)
        .status();
    let ended_well = status.is_ok_and(|status| status.success());
    std::process::ExitCode::from(u8::from(!ended_well))
}
