//! Helpers that these tests share with those of the library.
#![allow(dead_code, reason = "those of the library use the rest")]

#[path = "../../../tests/common/cluster.rs"]
pub(crate) mod cluster;
#[path = "../../../tests/common/redis.rs"]
pub(crate) mod redis;
#[path = "../../../tests/common/sentinel.rs"]
pub(crate) mod sentinel;
#[path = "../../../tests/common/served.rs"]
pub(crate) mod served;
#[path = "../../../tests/common/sharing.rs"]
pub(crate) mod sharing;
#[path = "../../../tests/common/twemproxy.rs"]
pub(crate) mod twemproxy;
