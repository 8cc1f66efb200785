//! Reads blocks, and the index of blocks.

use std::collections::BTreeMap;

use super::{Inspector, Selection, StoredName, UnreadableValue, stored};
use crate::{
    domain::{
        block::{BLOCKS, BlockedIdentity, HeldBlock},
        error::StoreError,
        key::Key,
    },
    store::redis::{error::store_error, value::read_block},
};

/// The block of an identity: `None` if there is none, or the reason why it cannot be read.
pub type StoredBlock = Result<Option<HeldBlock>, UnreadableValue>;

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
        stored(
            self.send(redis::cmd("GET").arg(name), name).await,
            read_block,
        )
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

    /// The time of the server that keeps the index, in ms since the Unix epoch; of one server, its time.
    ///
    /// # Errors
    ///
    /// As [`now_ms`](Self::now_ms).
    pub async fn index_now_ms(&self) -> Result<u64, StoreError> {
        self.now_ms_at(&self.store.names.block_index()).await
    }

    /// Reads the blocks that these keys hold, at the same time, of one server in one pipeline.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn blocks(&self, names: &[StoredName]) -> Result<Vec<StoredBlock>, StoreError> {
        let replies = self.get_all(names).await?.into_iter();
        replies.map(|reply| stored(reply, read_block)).collect()
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
                if let Some(held) = block?.filter(|held| held.block.holds(now_ms)) {
                    blocks.insert(name.identity().to_owned(), held);
                }
            }
            if cursor == 0 {
                break;
            }
        }
        let blocks = blocks.into_iter().take(most);
        let blocks = blocks.map(|(identity, held)| BlockedIdentity::new(identity, held));
        Ok(blocks.collect())
    }
}
