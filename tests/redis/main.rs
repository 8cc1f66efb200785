//! Tests with real Redis servers, clusters, sentinels and twemproxies, which they start.

mod acl;
mod blocks;
#[cfg(feature = "calendar")]
mod calendar;
mod cluster;
mod composed;
mod connections;
mod contract;
mod contributors;
mod denials;
mod deny_cache;
mod footprint;
mod foreign;
mod histories;
mod latency;
mod leases;
mod observe;
mod outage;
mod pauses;
mod plain;
mod policies;
mod replicas;
mod sentinel;
mod shared_calls;
mod slots;
mod timeouts;
mod tls;
mod transactions;
mod twemproxy;
mod vectors;
