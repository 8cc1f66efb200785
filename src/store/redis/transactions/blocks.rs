//! Lists blocks by scanning all keys.

use std::{collections::BTreeMap, sync::Arc};

use redis::Pipeline;
use tokio::time::Instant;

use super::{
    layout::read_block,
    plan::SUFFIX,
    runner::{OptimisticRunner, Settings, renew},
    session::Session,
};
use crate::{
    domain::{
        block::{BLOCKS, BlockedIdentity},
        error::StoreError,
    },
    store::redis::background,
};

/// The number of keys per scan.
const BATCH: u32 = 500;

/// The current blocks, up to a maximum number.
pub(super) async fn list(
    attempts: Arc<OptimisticRunner>,
    most: usize,
) -> Result<Vec<BlockedIdentity>, StoreError> {
    let settings = &attempts.settings;
    let mut held = Session::check_out(&settings.pool, Settings::end()).await?;
    let listed = match scan(&mut held, settings, most).await {
        // The connection may have ended while it was idle.
        Err(_) if held.is_lost() => match held.renew(&settings.pool, Settings::end()).await {
            Ok(()) => scan(&mut held, settings, most).await,
            Err(error) => Err(error),
        },
        listed => listed,
    };
    if held.is_lost() {
        background::spawn(renew(held, Arc::downgrade(&attempts)));
    }
    listed
}

/// Scans with pauses, so that the server is busy for at most half of the time.
async fn scan(
    held: &mut Session,
    settings: &Settings,
    most: usize,
) -> Result<Vec<BlockedIdentity>, StoreError> {
    let mut pattern = settings.names.pattern(None, Some(BLOCKS));
    pattern.extend_from_slice(SUFFIX);
    let (mut blocks, mut cursor) = (BTreeMap::new(), 0_u64);
    while blocks.len() < most {
        let begun = Instant::now();
        let mut scan = Pipeline::new();
        let cmd = scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern);
        cmd.arg("COUNT").arg(BATCH);
        let names: Vec<Vec<u8>>;
        (cursor, names) = held.ask(&scan, Settings::end()).await?;
        let reading = held.look(&names, Settings::end()).await?;
        let now_ms = settings.now_ms(reading.now_ms);
        for (name, value) in names.iter().zip(reading.values) {
            // A block that has ended meanwhile is no longer stored.
            let block = value?.map(|value| read_block(&value)).transpose()?;
            let block = block.filter(|(block, _)| block.holds(now_ms));
            if let (Some(block), Some(identity)) = (block, identity(name)) {
                blocks.insert(identity, block);
            }
        }
        if cursor == 0 {
            break;
        }
        tokio::time::sleep(begun.elapsed()).await;
    }
    let blocks = blocks.into_iter().take(most);
    Ok(blocks
        .map(|(identity, (block, details))| BlockedIdentity::new(identity, block, details))
        .collect())
}

/// The text in the braces of a name.
fn identity(name: &[u8]) -> Option<String> {
    let (_, rest) = str::from_utf8(name).ok()?.split_once(":{")?;
    let (identity, _) = rest.split_once("}:")?;
    Some(identity.to_owned())
}
