//! The script's call and reply: the wire format that `lua/README.md` describes.

mod decode;
mod encode;
mod label;
mod policy;

pub(super) use decode::{Replies, read_replies};
pub(super) use encode::Call;

pub(super) use crate::domain::numbers::push_number;

/// The version of the call, of a stored block and of a stored value, which has it after the labels of the rules.
pub(super) use crate::store::engine::FORM as VERSION;
