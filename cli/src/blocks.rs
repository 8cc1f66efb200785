//! `sluicegate blocks`: the blocked identities.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use clap::Args;
use serde_json::{Value, json};
use sluicegate::StoreError;
use sluicegate::store::redis::inspect::{Inspector, StoredBlock, StoredName};

use super::block_report::{BlockReport, LevelReport};
use super::scan::{DEFAULT_LOAD, Scan, Share};
use super::text::{date_time, span};
use super::{Error, Output, Result, Settings, Table, hints, server};

#[derive(Args)]
#[command(after_help = include_str!("help/blocks.txt"))]
pub(crate) struct BlocksArgs {
    /// The maximum number to show
    #[arg(short, long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,

    /// Only blocks of this origin; a pause is a time that another service has asked yours to wait
    #[arg(long, value_name = "ORIGIN", value_parser = ["operator", "ban", "pause"])]
    by: Option<String>,

    /// Scan all keys of the server, for blocks that are not in the index
    #[arg(long)]
    scan: bool,

    /// With --scan, the share of the time in which a server may be busy, from 0.1%
    #[arg(long, value_name = "SHARE", default_value_t = DEFAULT_LOAD, value_parser = Share::parse_load)]
    load: Share,
}

/// The number of blocks to read at a time.
const BATCH: u32 = 250;

/// The blocks to list, and the number of all.
struct Found<'a> {
    args: &'a BlocksArgs,
    /// The first `--number`, by identity.
    blocks: BTreeMap<String, Listed>,
    /// Hashes of all identities, because a scan may return an identity twice.
    seen: HashSet<u64>,
    /// Whether all keys are scanned, instead of the index.
    scanned: bool,
}

/// A block and a level at a time, or the reason why the block cannot be read.
type Listed = Result<(BlockReport, Option<LevelReport>, u64), String>;

pub(crate) fn run(args: &BlocksArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::inspect(settings, async |inspector| {
        let mut found = Found {
            args,
            blocks: BTreeMap::new(),
            seen: HashSet::new(),
            scanned: args.scan,
        };
        let missing = found.find(&inspector).await?;
        let is_none = found.blocks.is_empty() && args.by.is_none() && !output.is_json();
        let why = match is_none {
            true => hints::why_empty(&inspector, settings).await,
            false => String::new(),
        };
        output.report(&found.document(), |_, output| found.write(&why, output))?;
        missing.map(|()| true)
    })
}

impl Found<'_> {
    /// Reads the index, or scans: also if the node of the index does not answer. The inner error says that a node is missing.
    async fn find(&mut self, inspector: &Inspector) -> Result<Result<()>> {
        if !self.scanned {
            match self.read_index(inspector).await.map_err(Error::from) {
                Err(error) if error.is_away => self.scanned = true,
                read => return read.map(Ok),
            }
        }
        let mut scan = Scan::new(inspector, self.args.load).await?;
        let batch = async |server: &Inspector, names: Vec<StoredName>| {
            let now_ms = server.index_now_ms().await?;
            self.add(&names, server.blocks(&names).await?, now_ms);
            Ok(())
        };
        scan.run(&inspector.all_blocks(), batch).await?;
        Ok(scan.end())
    }

    async fn read_index(&mut self, inspector: &Inspector) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let (next, names) = inspector.indexed_blocks(cursor, BATCH).await?;
            let now_ms = inspector.index_now_ms().await?;
            self.add(&names, inspector.blocks(&names).await?, now_ms);
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    fn add(&mut self, names: &[StoredName], blocks: Vec<StoredBlock>, now_ms: u64) {
        for (name, block) in names.iter().zip(blocks) {
            let listed = match (BlockReport::of(&block, now_ms), &block) {
                (_, Err(error)) => Err(error.to_string()),
                (Ok(Some(held)), _) => Ok((held, LevelReport::of(&block, now_ms), now_ms)),
                _ => continue,
            };
            let (by, mut hasher) = (self.args.by.as_deref(), DefaultHasher::new());
            let is_meant = |by| listed.as_ref().is_ok_and(|(block, ..)| block.by == by);
            name.identity().hash(&mut hasher);
            if by.is_none_or(is_meant) {
                self.seen.insert(hasher.finish());
                self.blocks.insert(name.identity().to_owned(), listed);
            }
            if self.blocks.len() as u64 > self.args.number.into() {
                self.blocks.pop_last();
            }
        }
    }

    fn document(&self) -> Value {
        let (mut blocks, mut unreadable) = (Vec::new(), Vec::new());
        for (identity, listed) in &self.blocks {
            match listed {
                Ok((block, level, _)) => {
                    let mut row = json!(block);
                    row["identity"] = json!(identity);
                    row["ban_level"] = json!(level);
                    blocks.push(row);
                }
                Err(error) => unreadable.push(json!({ "identity": identity, "error": error })),
            }
        }
        json!({
            "scanned": self.scanned, "total": self.seen.len(), "blocks": blocks, "unreadable": unreadable,
        })
    }

    fn write(&self, why: &str, output: &mut Output) -> Result<()> {
        if self.blocks.is_empty() {
            if let Some(by) = &self.args.by {
                return output.line(format!("No identity is blocked by this origin: {by}."));
            }
            output.line("Nobody is blocked.")?;
            output.hint(why)?;
            return output.hint(match self.scanned {
                true => "",
                false => "Blocks that are not in the index are found by --scan",
            });
        }
        let mut table = Table::new(["identity", "by", "until", "left", "why"]);
        for (identity, listed) in &self.blocks {
            let (block, level, now_ms) = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    output.warn(format!(
                        "the block of {identity} cannot be read: {error}; `sluicegate unblock` deletes it"
                    ))?;
                    continue;
                }
            };
            let left = |ms: u64| span(ms.saturating_sub(*now_ms));
            let until = block.until_ms.map_or("for ever".to_owned(), date_time);
            let level = level.as_ref().map(|it| format!(" (level {})", it.level));
            table.row([
                identity.as_str().into(),
                format!("{}{}", block.by, level.unwrap_or_default()).into(),
                until.into(),
                block.until_ms.map_or(String::new(), left).into(),
                block.why().unwrap_or_default().into(),
            ]);
        }
        output.table(&table)?;
        let (total, listed) = (self.seen.len(), self.blocks.len());
        if total > listed {
            let more = total - listed;
            output.line(format!("and {more} more: list them with --number {total}"))?;
        }
        Ok(())
    }
}
