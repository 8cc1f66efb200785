//! The examples that serve, started and asked.

#[path = "../common/mod.rs"]
mod common;

mod prometheus;
mod server;
