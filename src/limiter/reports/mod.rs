//! Contributors and denials, counted in this process by [`Counts`] and reported to the store.
//!
//! ```text
//!  decision ──▶ tally of its account ──▶ sketch        on the request's path: a lock, no waiting
//!                   │
//!                reporter, once a second ──▶ Operation::Report ──▶ what was kept ──▶ sketch
//! ```

mod counts;
mod hash;
mod sketch;
mod tally;

pub(super) use counts::Counts;
