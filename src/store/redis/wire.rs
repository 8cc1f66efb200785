//! The script's call and reply: the wire format that `lua/README.md` describes.

mod decode;
mod encode;
mod label;

pub(super) use decode::{Replies, no_reply, number, read_replies};
pub(super) use encode::Call;
#[cfg(feature = "bb8")]
pub(super) use encode::push_number;
pub(super) use label::{Places, is_of_a_later_kind, labelled};
#[cfg(feature = "bb8")]
pub(super) use label::{label, mark};

/// The version of the call, of a stored block and of a stored value, which has it after the labels of the rules.
pub(super) const VERSION: u8 = 1;
