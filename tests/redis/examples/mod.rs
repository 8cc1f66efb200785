//! Starts the examples and calls them.

mod guides;
mod nginx;
mod server;
mod start;
