//! Which requests and keys a layer decides about, and under which policies.

mod access_lists;
mod policy_selector;
mod routes;

pub(super) use access_lists::AccessLists;
pub(super) use policy_selector::Choice;
pub use policy_selector::{IntoPolicy, PolicySelector};
pub use routes::{Route, Routes};
