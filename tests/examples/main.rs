//! Starts the examples and calls them.

#[path = "../common/mod.rs"]
mod common;

mod chromium;
mod guides;
mod nginx;
mod page;
mod prometheus;
mod server;
