//! The cost of a decision in memory, and of the layer for a request: `cargo bench --bench layer`; with `-- decisions`,
//! the decisions alone.

mod decisions;
mod end_to_end;
mod measure;

use std::process::ExitCode;

fn main() -> ExitCode {
    let decisions = decisions::run();
    if std::env::args().any(|argument| argument == "decisions") {
        return decisions;
    }
    let layer = measure::run();
    end_to_end::show();
    if decisions == ExitCode::SUCCESS {
        layer
    } else {
        decisions
    }
}
