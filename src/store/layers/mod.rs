//! Stores around a store: each is a folder of its own, and optional.

mod deny_cache;
mod give_backs;
mod leases;

/// What [`give_backs`] and the balance of [`leases`] count with: tests give them others.
mod sync {
    pub(super) use std::sync::atomic;
}

pub use deny_cache::DenyCache;
pub use leases::Leases;
