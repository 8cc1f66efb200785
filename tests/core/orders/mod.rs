//! Code that threads of a process share, under every order of its steps.

mod deny_cache_notes;
mod seats;
mod shared_calls;

/// Tests all orders in which threads switch at most three times without waiting for each other.
fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 50_000; // a crowd has many steps
    builder.check(model);
}
