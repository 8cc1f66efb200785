//! Without a server: the limiter, the memory store, the local decisions and the script in another Lua.

mod acquire;
mod blocks;
mod breaker;
mod calendar;
mod chart;
mod composed;
mod contract;
mod contributors;
mod custom_store;
mod denials;
mod deny_cache;
mod fast_path;
mod fuzzed;
mod histories;
mod inspect;
mod known_blocks;
mod leases;
mod local;
mod lua54;
#[cfg(all(feature = "calendar", feature = "test-util"))]
mod near_limit;
mod pauses;
mod plain;
mod prose;
mod published;
#[cfg(all(feature = "calendar", feature = "test-util", feature = "tracing"))]
mod reload;
mod settle;
mod shadow;
mod slots;
mod vectors;
mod walls;
