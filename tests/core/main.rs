//! Without a server: the limiter, the memory store, the local decisions, code under every order of its steps, and the
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
mod first_of;
mod fuzzed;
mod histories;
mod inspect;
mod known_blocks;
mod late;
mod leases;
mod local;
mod meters;
mod mutants;
mod near_limit;
mod orders;
mod pauses;
mod plain;
mod published;
mod reload;
mod reports;
mod script_example;
mod settle;
mod sizes;
mod slots;
mod sources;
mod usage;
mod walls;
