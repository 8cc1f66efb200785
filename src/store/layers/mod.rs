//! Layers: stores that wrap a store. Each is a folder, and optional.

mod deny_cache;
mod give_backs;
mod leases;

/// The atomics of [`give_backs`] and of the balance of [`leases`]. Tests replace them by those of a model checker.
mod sync {
    pub(super) use std::sync::atomic;
}

pub use deny_cache::DenyCache;
pub use leases::Leases;
