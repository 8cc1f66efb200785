//! Rebuilds a bench with the features that you left out.

use std::process::{Command, ExitCode};

/// Runs this bench again with the features that it needs and was built without.
pub(crate) fn with_features(bench: &str, features: &str) -> ExitCode {
    let again = ["bench", "--bench", bench, "--features", features];
    println!("cargo {}", again.join(" "));
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(again)
        .status();
    let ended_well = status.is_ok_and(|status| status.success());
    ExitCode::from(u8::from(!ended_well))
}
