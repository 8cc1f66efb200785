//! The stored form of a block, as `lua/README.md` describes it.

use std::num::NonZeroU8;

use super::{Block, BlockDetails, BlockedBy, HeldBlock, Level};
use crate::domain::numbers::{number, push_number};

/// The number of this form.
const FORM: u8 = 1;

impl HeldBlock {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (mut bytes, Self { block, details }) = (Vec::new(), self);
        push_number(&mut bytes, block.until_ms, 6);
        bytes.extend([block.source().code(), FORM]);
        push_number(&mut bytes, details.created_ms().unwrap_or(0), 6);
        details.write_texts(&mut bytes);
        if let Some(level) = details.level {
            push_number(&mut bytes, level.number.get().into(), 1);
            push_number(&mut bytes, level.ends_ms, 6);
            push_number(&mut bytes, level.kept_until_ms, 6);
        }
        bytes
    }

    /// Reads the output of [`to_bytes`](Self::to_bytes); `None` for any other bytes.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let until_ms = number(&mut bytes, 6)?;
        let (&[by, form], details) = bytes.split_first_chunk()?;
        // A block has no details, or at least the time and the lengths of the texts.
        if !details.is_empty() && details.len() < 10 || form != FORM {
            return None;
        }
        let block = Block::new(until_ms, BlockedBy::of_code(by)?);
        let details = read_details(details).unwrap_or_default();
        Some(Self { block, details })
    }
}

/// An unknown format, of a block of an older version, is no error, because no check reads the details.
fn read_details(mut bytes: &[u8]) -> Option<BlockDetails> {
    let created_ms = number(&mut bytes, 6)?;
    let mut details = BlockDetails::read_texts(created_ms, &mut bytes)?;
    if !bytes.is_empty() {
        details.level = Some(Level {
            number: NonZeroU8::new(number(&mut bytes, 1)?.try_into().ok()?)?,
            ends_ms: number(&mut bytes, 6)?,
            kept_until_ms: number(&mut bytes, 6)?,
        });
    }
    bytes.is_empty().then_some(details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        block::{BlockRequest, Until},
        policy::Policy,
    };

    #[test]
    fn only_what_the_script_writes_is_a_block() {
        let held = HeldBlock::from_bytes(&[1, 2, 0, 0, 0, 0, 2, FORM]).unwrap();
        assert_eq!(held.details, BlockDetails::default());
        assert_eq!(held.block, Block::new(513, BlockedBy::Ban));
        let for_ever = HeldBlock::from_bytes(&[255, 255, 255, 255, 255, 255, 1, FORM]).unwrap();
        assert_eq!(for_ever.block, Block::new(u64::MAX, BlockedBy::Operator));
        assert_eq!(HeldBlock::from_bytes(&[1, 2, 0, 0, 0, 0, 2, 9]), None);
        for bytes in [
            &[][..],
            &[FORM],
            &[0; 8],
            &[0, 0, 0, 0, 0, 2, FORM],
            &[1, 2, 0, 0, 0, 0, 9, FORM],
        ] {
            assert!(HeldBlock::from_bytes(bytes).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let policy = Policy::parse("login", "10/1m").unwrap();
        let policy = policy.ban("5/10m=1h,1d".parse().unwrap());
        for request in [
            BlockRequest::new(Until::Forever).reason("why"),
            BlockRequest::ban(Until::Forever, &policy, &policy.rules()[0]),
        ] {
            let (_, held) = HeldBlock::request(None, &request, 1_700_000_000_000);
            let held = held.unwrap();
            assert_eq!(HeldBlock::from_bytes(&held.to_bytes()), Some(held));
        }
    }
}
