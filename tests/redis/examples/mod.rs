//! Starts the examples and calls them.

mod guides;
mod nginx;
mod prometheus;
mod server;
