//! Reads blocks in the format that `lua/README.md` describes.

use std::collections::BTreeMap;

use super::{Inspector, Selection, Server, StoredName, UnreadableValue, stored};
use crate::{
    domain::{
        block::{BLOCKS, Block, BlockDetails, BlockedBy, BlockedIdentity},
        error::StoreError,
        key::Key,
    },
    store::redis::{
        error::store_error,
        reports::send_all,
        wire::{VERSION, number},
    },
};

/// The block of an identity: `None` if there is none, or the reason why it cannot be read.
pub type StoredBlock = Result<Option<(Block, BlockDetails)>, UnreadableValue>;

/// The number of keys per scan.
const BATCH: u32 = 500;

impl Inspector {
    /// Reads the block of an identity. The block may have ended: compare it with [the server's time](Self::now_ms).
    ///
    /// # Errors
    ///
    /// The outer error if the server does not answer in time, or with an error; the inner one if the stored value
    /// cannot be read.
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

    /// Reads the index of blocks: returns the keys of about `count` blocks, and a cursor for your next call. Use the
    /// cursor 0 for the first call; a returned 0 means the end.
    ///
    /// Blocks that have ended or were removed may still be among them, and some may come twice. A block that could not
    /// be indexed is missing: one of an older version, or one whose
    /// writer had no right to the index.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn indexed_blocks(
        &self,
        cursor: u64,
        count: u32,
    ) -> Result<(u64, Vec<StoredName>), StoreError> {
        let names = &self.store.names;
        let index = names.block_index();
        let mut scan = redis::cmd("ZSCAN");
        scan.arg(&index).arg(cursor).arg("COUNT").arg(count);
        let found = self.send(&scan, &index).await;
        let found = found.and_then(|found| Ok(redis::from_redis_value(found)?));
        let (next, found): (u64, Vec<(Vec<u8>, f64)>) =
            found.map_err(|error| store_error(&error))?;
        let found = found
            .iter()
            .filter_map(|(identity, _)| StoredName::of_block(names, identity));
        Ok((next, found.collect()))
    }

    /// The time of the server that keeps the index, in ms since the Unix epoch.
    ///
    /// # Errors
    ///
    /// As [`now_ms`](Self::now_ms).
    pub async fn index_now_ms(&self) -> Result<u64, StoreError> {
        self.now_ms_at(&self.store.names.block_index()).await
    }

    /// Reads the blocks that these keys hold, at the same time.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn blocks(&self, names: &[StoredName]) -> Result<Vec<StoredBlock>, StoreError> {
        let gets = names.iter().map(|name| {
            let name = name.as_bytes().to_vec();
            let mut get = redis::cmd("GET");
            get.arg(&name);
            (name, get)
        });
        let gets: Vec<_> = gets.collect();
        let replies = send_all(&self.store.transport, &gets);
        let replies = self.in_time(async { Ok(replies.await) }).await?;
        let replies = replies.into_iter();
        replies.map(|reply| stored(reply, read)).collect()
    }

    /// The current blocks, up to a maximum number.
    pub(in crate::store::redis) async fn all_blocked(
        &self,
        most: usize,
    ) -> Result<Vec<BlockedIdentity>, StoreError> {
        // A map, because the index may return an identity more than once.
        let (mut blocks, mut cursor) = (BTreeMap::new(), 0);
        while blocks.len() < most {
            let names;
            (cursor, names) = self.indexed_blocks(cursor, BATCH).await?;
            let now_ms = self.index_now_ms().await?;
            for (name, block) in names.iter().zip(self.blocks(&names).await?) {
                if let Some(held) = block?.filter(|(block, _)| block.holds(now_ms)) {
                    blocks.insert(name.identity().to_owned(), held);
                }
            }
            if cursor == 0 {
                break;
            }
        }
        let blocks = blocks.into_iter().take(most);
        Ok(blocks
            .map(|(identity, (block, details))| BlockedIdentity::new(identity, block, details))
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
        replies
            .into_iter()
            .map(|reply| stored(reply, read))
            .collect()
    }
}

fn read(value: &[u8]) -> Result<(Block, BlockDetails), UnreadableValue> {
    let Some((&[a, b, c, d, e, f, by, version], details)) = value.split_first_chunk() else {
        return Err(UnreadableValue::Malformed);
    };
    // A block has no details, or at least the time and the lengths of the texts.
    if !details.is_empty() && details.len() < 10 {
        return Err(UnreadableValue::Malformed);
    }
    if version != VERSION {
        return Err(UnreadableValue::OtherVersion(version));
    }
    let Some(by) = BlockedBy::of_code(by) else {
        return Err(UnreadableValue::Malformed);
    };
    let block = Block::new(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), by);
    Ok((block, read_details(details)))
}

/// An unknown format, of a block of an older version, is no error, because no check reads the details.
fn read_details(mut bytes: &[u8]) -> BlockDetails {
    match number(&mut bytes, 6) {
        Some(created_ms) => BlockDetails::read_texts(created_ms, bytes).unwrap_or_default(),
        None => BlockDetails::default(),
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
        let (block, details) = read(&[1, 2, 0, 0, 0, 0, 2, VERSION]).unwrap();
        assert_eq!(details, BlockDetails::default());
        assert_eq!(
            (block.until_ms(), block.source()),
            (Some(513), BlockedBy::Ban)
        );
        let (for_ever, _) = read(&[255, 255, 255, 255, 255, 255, 1, VERSION]).unwrap();
        assert_eq!(
            (for_ever.until_ms(), for_ever.source()),
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
