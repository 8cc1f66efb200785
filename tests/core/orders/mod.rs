//! Code that threads of a process share, under every order of its steps.

mod deny_cache_notes;
mod seats;
mod shared_calls;
