//! The terms of the crate, as data and arithmetic: rules and policies, keys and charges, checks and decisions, blocks,
//! and the windows in which units count. This code never waits, and does not depend on a store.

mod actual_cost;
pub mod block;
pub mod calendar;
pub mod charge;
pub(crate) mod check;
#[cfg(feature = "serde")]
mod config;
pub mod contributors;
pub mod decision;
pub mod denials;
pub mod error;
mod failure;
pub(crate) mod first_of;
pub mod key;
pub(crate) mod late;
pub(crate) mod marks;
pub(crate) mod numbers;
pub(crate) mod operation;
pub mod policies;
pub mod policy;
pub(crate) mod published;
pub(crate) mod report;
pub mod rule;
pub(crate) mod settlement;
pub(crate) mod similar;
pub(crate) mod slot_id;
pub(crate) mod slots;
mod text;
mod unit;
pub(crate) mod wanted;
pub(crate) mod window;
pub(crate) mod words;

pub use actual_cost::ActualCost;
pub use failure::FailurePolicy;
pub use text::Text;
