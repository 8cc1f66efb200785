//! The script's call and reply: the wire format that `lua/README.md` describes.

mod call;
mod label;
mod reply;

pub(super) use call::Call;
#[cfg(feature = "test-util")]
pub(super) use call::Half;
pub(super) use call::VERSION;
pub(super) use label::{is_of_a_later_kind, labelled};
pub(super) use reply::{Replies, no_reply, number, read_replies};
