//! Without a server: the limiter, the memory store, the local decisions, the protocols as state machines, and the
//! script in another Lua.

mod acquire;
mod background;
mod blocks;
mod breaker;
mod budget;
mod calendar;
mod composed;
mod contract;
mod custom_store;
mod deny_cache;
mod fast_path;
mod fuzzed;
mod histories;
mod inspect;
mod known_blocks;
mod leases;
mod llms;
mod local;
mod lua54;
mod meters;
mod mutants;
mod near_limit;
mod pauses;
mod plain;
mod prose;
mod protocols;
mod published;
mod reload;
mod reports;
mod script_example;
mod settle;
mod shadow;
mod slots;
mod vectors;
mod walls;
