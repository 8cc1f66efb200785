//! From the head of a request to its admission: the requests and keys to limit, and their policies.

mod access_lists;
mod extract_failure;
mod look_ups;
mod normal_path;
mod other_routes;
mod plan;
mod policy_selector;
mod routes;
mod similar;
mod step;
mod warnings;

pub(super) use access_lists::AccessLists;
pub(super) use plan::{ChargeLookUp, Limit, Newest, Plan};
pub use policy_selector::{IntoPolicy, IntoPolicySelector, PolicySelector};
pub use routes::{Route, Routes};
pub(super) use step::Step;
