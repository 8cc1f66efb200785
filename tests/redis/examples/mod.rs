//! Starts the examples and calls them.

mod chromium;
mod guides;
mod nginx;
mod page;
mod prometheus;
mod server;
