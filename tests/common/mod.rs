//! What several tests need.
#![allow(dead_code, reason = "no test needs everything")]

#[cfg(feature = "redis")]
pub mod redis;
