//! Layers: stores that wrap a store. Each is a folder, and optional.

mod leases;
mod refund_epochs;

/// The atomics of [`refund_epochs`] and of the balance of [`leases`]. Tests replace them by those of a model checker.
mod sync {
    pub(super) use std::sync::atomic;
}

pub use leases::Leases;
