//! The script's call and reply: the wire format that `lua/README.md` describes.

mod decode;
mod encode;
mod label;

pub(super) use decode::{Replies, no_reply, number, read_replies};
#[cfg(feature = "bb8")]
pub(super) use encode::push_number;
pub(super) use encode::{Call, VERSION};
#[cfg(feature = "bb8")]
pub(super) use label::label;
pub(super) use label::{is_of_a_later_kind, labelled};
