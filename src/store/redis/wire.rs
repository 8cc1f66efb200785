//! The script's call and reply: the wire format that `lua/README.md` describes.

mod decode;
mod encode;
mod label;

pub(super) use decode::{Replies, no_reply, number, read_replies};
pub(super) use encode::Call;
pub(super) use encode::VERSION;
pub(super) use label::{is_of_a_later_kind, labelled};
