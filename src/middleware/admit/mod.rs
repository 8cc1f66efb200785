//! From the head of a request to its admission: the requests and keys to limit, and their policies.

mod access_lists;
mod admission;
mod check_draft;
mod failures;
mod layer_config;
mod look_ups;
mod normal_path;
mod other_routes;
mod policy_selector;
mod routes;
mod warnings;

pub(super) use access_lists::AccessLists;
pub(super) use admission::{Admission, Pass};
use check_draft::CheckDraft;
pub(super) use layer_config::{Alternative, ChargeSource, LayerConfig, Limit};
pub(super) use policy_selector::PolicySource;
pub use policy_selector::{IntoPolicy, IntoPolicySelector, PolicySelector};
pub use routes::{Route, Routes};
