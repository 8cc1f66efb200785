//! The script's call and reply: the wire format that `lua/README.md` describes.

mod decode;
mod encode;
mod label;
mod policy;

pub(super) use decode::{Replies, number, read_replies};
pub(super) use encode::Call;
#[cfg(feature = "bb8")]
pub(super) use label::label;
pub(super) use label::{Places, is_of_a_later_kind, labelled};

/// The version of the call, of a stored block and of a stored value, which has it after the labels of the rules.
pub(super) const VERSION: u8 = 1;

/// The lowest byte first.
#[inline]
pub(super) fn push_number(bytes: &mut Vec<u8>, number: u64, size: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..size]);
}
