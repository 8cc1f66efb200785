//! What several test binaries share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod contract;
pub(crate) mod history;
#[cfg(feature = "redis")]
pub(crate) mod lua;
pub(crate) mod model;
pub(crate) mod outcome;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub(crate) mod served;
pub(crate) mod vectors;
