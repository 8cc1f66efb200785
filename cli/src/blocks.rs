//! `sluicegate blocks`: the blocked identities.

use std::collections::{BTreeMap, HashSet};

use clap::Args;
use serde_json::{Value, json};
use sluicegate::store::redis::inspect::{Inspector, StoredBlock, StoredName};

use super::block_report::{BlockReport, LevelReport};
use super::scan::{LOAD, Scan, parse_load};
use super::text::{date_time, hash, span};
use super::{Cell, Output, Result, Settings, Table, hints, server};

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
    #[arg(long, value_name = "SHARE", default_value = LOAD, value_parser = parse_load)]
    load: f64,
}

/// The number of blocks to read at a time.
const BATCH: u32 = 250;

/// The blocks to list, and the number of all.
struct Found<'a> {
    args: &'a BlocksArgs,
    /// The first `--number`, by identity.
    rows: BTreeMap<String, Row>,
    /// Hashes of all identities, because a scan may return an identity twice.
    seen: HashSet<u64>,
    /// Whether all keys are scanned, instead of the index.
    scanned: bool,
}

/// A block as JSON, and as cells; without cells if it cannot be read.
type Row = (Value, Option<[Cell; 5]>);

pub(crate) fn run(args: &BlocksArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    server::inspect(settings, async |inspector| {
        let mut found = Found {
            args,
            rows: BTreeMap::new(),
            seen: HashSet::new(),
            scanned: args.scan,
        };
        let missing = found.find(&inspector).await?;
        let is_none = found.rows.is_empty() && args.by.is_none() && !output.is_json;
        let why = hints::why_empty(&inspector, is_none).await;
        output.report(&found.document(), |_, output| found.write(&why, output))?;
        missing.map(|()| true)
    })
}

impl Found<'_> {
    /// Reads the index, or scans: also if the node of the index does not answer. The inner error says that a node is missing.
    async fn find(&mut self, inspector: &Inspector) -> Result<Result<()>> {
        if !self.scanned {
            match self.read_index(inspector).await {
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

    async fn read_index(&mut self, inspector: &Inspector) -> Result<()> {
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
        let by = self.args.by.as_deref();
        for (name, stored) in names.iter().zip(blocks) {
            let identity = name.identity();
            let row = match (&stored, BlockReport::of(&stored, now_ms)) {
                (Err(error), _) if by.is_none() => (
                    json!({ "identity": identity, "error": error.to_string() }),
                    None,
                ),
                (_, Ok(Some(block))) if by.is_none_or(|by| block.by == by) => {
                    let level = LevelReport::of(&stored, now_ms);
                    row(identity, &block, level.as_ref(), now_ms)
                }
                _ => continue,
            };
            self.seen.insert(hash(identity));
            self.rows.insert(identity.to_owned(), row);
            if self.rows.len() as u64 > self.args.number.into() {
                self.rows.pop_last();
            }
        }
    }

    fn document(&self) -> Value {
        let rows = self.rows.values();
        let (blocks, unreadable): (Vec<_>, Vec<_>) = rows.partition(|row| row.1.is_some());
        let [blocks, unreadable] = [blocks, unreadable].map(|it| it.into_iter().map(|row| &row.0));
        json!({
            "scanned": self.scanned, "total": self.seen.len(), "blocks": blocks.collect::<Vec<_>>(),
            "unreadable": unreadable.collect::<Vec<_>>(),
        })
    }

    fn write(self, why: &str, output: &mut Output) -> Result<()> {
        if self.rows.is_empty() {
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
        let more = self.seen.len() - self.rows.len();
        let mut table = Table::new(["identity", "by", "until", "left", "why"]);
        for (identity, (document, cells)) in self.rows {
            match (cells, document["error"].as_str().unwrap_or_default()) {
                (Some(cells), _) => table.row(cells),
                (None, error) => output.warn(format!(
                    "the block of {identity} cannot be read: {error}; `sluicegate unblock` deletes it"
                ))?,
            }
        }
        output.table(&table)?;
        if more > 0 {
            let total = self.seen.len();
            output.line(format!("and {more} more: list them with --number {total}"))?;
        }
        Ok(())
    }
}

fn row(identity: &str, block: &BlockReport, level: Option<&LevelReport>, now_ms: u64) -> Row {
    let left = |ms: u64| span(ms.saturating_sub(now_ms));
    let until = block.until_ms.map_or("for ever".to_owned(), date_time);
    let of_level = level.map(|it| format!(" (level {})", it.level));
    let by = format!("{}{}", block.by, of_level.unwrap_or_default());
    let left = block.until_ms.map_or(String::new(), left);
    let why = block.why().unwrap_or_default();
    let mut document = json!(block);
    document["identity"] = json!(identity);
    document["ban_level"] = json!(level);
    let cells = [identity.to_owned(), by, until, left, why];
    (document, Some(cells.map(Cell::from)))
}
