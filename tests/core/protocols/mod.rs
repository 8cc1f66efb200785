//! The protocols between processes as small state machines that are searched exhaustively, and the concurrent code
//! inside a process under every order of its steps. No server is needed.

mod cross_slot;
mod deny_cache_notes;
mod seats;
mod shared_calls;
