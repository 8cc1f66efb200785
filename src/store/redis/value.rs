//! The stored values of keys, in the format that `lua/README.md` describes, and the reasons why one cannot be read.

use std::{error::Error, fmt};

use super::{error::UNREADABLE, reports::units};
use crate::domain::{block::HeldBlock, error::StoreError, slot_id::SlotId, window::SlotSet};

/// The latest time of a server, in ms: later ones could not be stored.
pub(super) const MAX_TIME_MS: u64 = 1 << 48;

/// Why the value of a key cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreadableValue {
    /// The value is no string, so this crate has not written it.
    WrongType,
    /// The name says that the counts have the form of this number, which another version of this crate stores.
    OtherForm(u8),
    /// The value has a form that this crate does not write.
    Malformed,
}

/// Reads the slots of a key with this window: the members of a sorted set, and when they expire.
pub(super) fn read_slots(
    window_ms: u64,
    members: Vec<(Vec<u8>, f64)>,
) -> Result<SlotSet, UnreadableValue> {
    let slots = members.into_iter().map(|(member, expiry_ms)| {
        let (id, expiry_ms) = (member.try_into().ok()?, units(expiry_ms));
        (expiry_ms <= MAX_TIME_MS).then(|| (expiry_ms, SlotId::from_bytes(id)))
    });
    let slots: Option<Vec<_>> = slots.collect();
    slots
        .map(|slots| SlotSet::of(window_ms, slots))
        .ok_or(UnreadableValue::Malformed)
}

/// Reads the block of an identity.
pub(super) fn read_block(value: &[u8]) -> Result<HeldBlock, UnreadableValue> {
    HeldBlock::from_bytes(value).ok_or(UnreadableValue::Malformed)
}

impl fmt::Display for UnreadableValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType => f.write_str("a value of another type, not written by this crate"),
            Self::OtherForm(number) => write!(
                f,
                "counts of the stored form {number}, which another version of this crate keeps"
            ),
            Self::Malformed => {
                f.write_str("a value that cannot be read, not written by this crate")
            }
        }
    }
}

impl Error for UnreadableValue {}

impl From<UnreadableValue> for StoreError {
    fn from(error: UnreadableValue) -> Self {
        match error {
            UnreadableValue::WrongType => {
                Self::protocol("a key holds a value of another type, not written by this crate")
                    .unsent()
            }
            UnreadableValue::OtherForm(_) | UnreadableValue::Malformed => UNREADABLE,
        }
    }
}
