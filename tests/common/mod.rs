//! Helpers that several test binaries share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[cfg(feature = "test-util")]
pub(crate) mod blocks;
#[cfg(feature = "test-util")]
pub(crate) mod calls;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
#[cfg(feature = "test-util")]
pub(crate) mod contract;
#[cfg(feature = "test-util")]
pub(crate) mod contributors;
#[cfg(unix)]
pub(crate) mod cut_streams;
#[cfg(feature = "test-util")]
pub(crate) mod denials;
pub(crate) mod example;
#[cfg(feature = "test-util")]
pub(crate) mod flaky;
#[cfg(feature = "test-util")]
pub(crate) mod history;
#[cfg(all(feature = "calendar", feature = "test-util"))]
pub(crate) mod kinds;
pub(crate) mod log;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod lua;
#[cfg(feature = "test-util")]
pub(crate) mod model;
#[cfg(feature = "redis")]
pub(crate) mod nginx;
#[cfg(feature = "test-util")]
pub(crate) mod outcome;
pub(crate) mod plain;
#[cfg(feature = "test-util")]
pub(crate) mod promise;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod scripted;
#[cfg(feature = "test-util")]
pub(crate) mod sentence;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod served;
pub(crate) mod sharing;
pub(crate) mod site;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod stored;
#[cfg(feature = "redis")]
pub(crate) mod stores;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod trace;
#[cfg(feature = "redis")]
pub(crate) mod twemproxy;
#[cfg(feature = "test-util")]
pub(crate) mod vectors;
#[cfg(feature = "test-util")]
pub(crate) mod verified;
