//! Blocks, as `lua/README.md` describes what is stored of them.

use std::{collections::BTreeMap, time::Instant};

use tokio::time::sleep;

use super::{Inspector, Selection, Server, StoredName, UnreadableValue, stored};
use crate::{
    block::{BLOCKS, Block, BlockedBy, BlockedIdentity},
    error::StoreError,
    key::Key,
    store::redis::script::VERSION,
};

/// What is read of the block of an identity: `None` if there is none; or why it cannot be read.
pub type StoredBlock = Result<Option<Block>, UnreadableValue>;

/// How many keys are looked at at a time.
const BATCH: u32 = 500;

impl Inspector {
    /// Reads the block of an identity. It may have ended: compare it with [the server's time](Self::now_ms).
    ///
    /// # Errors
    ///
    /// The outer when the server does not answer in time, or with an error; the inner when what it keeps cannot be
    /// read.
    pub async fn block(&self, key: &Key) -> Result<StoredBlock, StoreError> {
        let name = StoredName::write(&self.store.names, key, BLOCKS);
        let name = name.as_bytes();
        stored(self.send(redis::cmd("GET").arg(name), name).await, read)
    }

    /// The keys that hold blocks.
    #[must_use]
    pub fn all_blocks(&self) -> Selection {
        self.all(Some(BLOCKS))
    }

    /// Who is blocked now, at most so many. The servers are kept busy for at most half of the time.
    pub(in crate::store::redis) async fn blocks(
        &self,
        most: usize,
    ) -> Result<Vec<BlockedIdentity>, StoreError> {
        let mut blocks = BTreeMap::new();
        for server in self.servers().await? {
            let (now_ms, mut cursor) = (server.now_ms().await?, 0);
            while blocks.len() < most {
                let begun = Instant::now();
                let names;
                (cursor, names) = server.scan(cursor, &self.all_blocks(), BATCH).await?;
                for (name, block) in names.iter().zip(server.blocks(&names).await?) {
                    if let Some(block) = block?.filter(|it| it.holds(now_ms)) {
                        blocks.insert(name.identity().to_owned(), block);
                    }
                }
                if cursor == 0 {
                    break;
                }
                sleep(begun.elapsed()).await;
            }
        }
        let blocks = blocks.into_iter().take(most);
        Ok(blocks
            .map(|(identity, block)| BlockedIdentity::new(identity, block))
            .collect())
    }
}

impl Server {
    /// Reads the blocks that these keys hold, in one pipeline.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn blocks(&self, names: &[StoredName]) -> Result<Vec<StoredBlock>, StoreError> {
        let replies = self.get_all(names).await?;
        replies.into_iter().map(|it| stored(it, read)).collect()
    }
}

fn read(value: &[u8]) -> Result<Block, UnreadableValue> {
    let &[ref until @ .., by, version] = value else {
        return Err(UnreadableValue::Malformed);
    };
    if version != VERSION {
        return Err(UnreadableValue::OtherVersion(version));
    }
    match (<[u8; 6]>::try_from(until), BlockedBy::of_code(by)) {
        (Ok([a, b, c, d, e, f]), Some(by)) => {
            Ok(Block::new(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), by))
        }
        _ => Err(UnreadableValue::Malformed),
    }
}

impl From<UnreadableValue> for StoreError {
    fn from(error: UnreadableValue) -> Self {
        Self::protocol("a block cannot be read").with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_script_writes_is_a_block() {
        let block = read(&[1, 2, 0, 0, 0, 0, 2, VERSION]).unwrap();
        assert_eq!((block.until_ms(), block.by()), (Some(513), BlockedBy::Ban));
        let for_ever = read(&[255, 255, 255, 255, 255, 255, 1, VERSION]).unwrap();
        assert_eq!(
            (for_ever.until_ms(), for_ever.by()),
            (None, BlockedBy::Operator)
        );
        assert_eq!(
            read(&[1, 2, 0, 0, 0, 0, 2, 9]),
            Err(UnreadableValue::OtherVersion(9))
        );
        for bytes in [
            &[][..],
            &[VERSION],
            &[0; 8],
            &[0, 0, 0, 0, 0, 2, VERSION],
            &[1, 2, 0, 0, 0, 0, 9, VERSION],
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
