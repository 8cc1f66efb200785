//! Reports the test programs that Cargo has left out. Cargo does so silently if their features are off.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "common/example.rs"]
mod example;

use toml::{Table, Value};

fn main() {
    let manifest: Table = include_str!("../Cargo.toml").parse().unwrap();
    let suites = manifest["test"].as_array().unwrap().iter();
    let left_out: Vec<&str> = suites.filter(|it| is_left_out(it)).map(name).collect();
    if !left_out.is_empty() {
        println!(
            "\nNOT RUN, since their features are off: {}",
            left_out.join(", ")
        );
        println!("`./test quick` runs those that need no server, and `./test` all.\n");
    }
}

fn is_left_out(suite: &Value) -> bool {
    let on = example::features();
    let needed = suite.get("required-features").and_then(Value::as_array);
    let mut needed = needed.into_iter().flatten();
    needed.any(|it| !on.contains(&it.as_str().unwrap()))
}

fn name(suite: &Value) -> &str {
    suite["name"].as_str().unwrap()
}
