//! The cost of the layer for a request: `cargo bench --bench layer`.

mod end_to_end;
mod measure;

fn main() -> std::process::ExitCode {
    let verdict = measure::run();
    end_to_end::show();
    verdict
}
