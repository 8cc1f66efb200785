//! `sluicegate blocks`: the blocked identities.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
};

use clap::Args;
use serde::Serialize;
use sluicegate::store::redis::inspect::{Inspector, Server, StoredBlock, StoredName};

use super::{
    answer::Answer,
    block_report::{BlockReport, LevelReport},
    census,
    error::Result,
    output::{Output, WARN},
    scan::{DEFAULT_LOAD, Scan, Share},
    server,
    settings::Settings,
    text::{date_time, span},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate blocks
  sluicegate blocks --by pause
  sluicegate blocks --json | jq -r '.blocks[].identity'

The tool shows a secret as its hash, and reads the blocks from an index. The
index lacks the blocks of older versions, and of services without the right to
write to it. --scan finds them: it scans all keys of the server, slowly enough
that other clients do not notice.

Rights: GET of the keys `PREFIX:*`, TIME and ZSCAN; with --scan SCAN and DBSIZE
instead of ZSCAN. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
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

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// Whether the tool has scanned all keys instead of reading the index.
    scanned: bool,
    /// Sorted by identity.
    blocks: Vec<Row>,
    /// The number of blocks.
    total: usize,
    /// The blocks that cannot be read, at most as many as are listed.
    unreadable: Vec<Unreadable>,
}

/// The service can decide no check of this identity that enforces blocks; `unblock` deletes the block.
#[derive(Serialize)]
struct Unreadable {
    identity: String,
    error: String,
}

#[derive(Serialize)]
struct Row {
    identity: String,
    #[serde(flatten)]
    block: BlockReport,
    /// The level of bans that grow; null if there is none.
    ban_level: Option<LevelReport>,
    #[serde(skip)]
    now_ms: u64,
}

pub(crate) fn run(args: &BlocksArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let report = server::inspect(settings, async |inspector| find(args, &inspector).await)?;
    output.report(&report, |report, output| {
        write(report, args, settings, output)
    })?;
    Ok(Answer::Yes)
}

fn write(
    report: &Report,
    args: &BlocksArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<()> {
    for Unreadable { identity, error } in &report.unreadable {
        writeln!(
            output,
            "{WARN}the block of {identity} cannot be read: {error}; `sluicegate unblock` deletes it{WARN:#}"
        )?;
    }
    if report.total == 0 {
        if let Some(by) = &args.by {
            writeln!(output, "No identity is blocked by this origin: {by}.")?;
        } else if report.unreadable.is_empty() {
            writeln!(output, "Nobody is blocked.")?;
            output.hint(&census::ask_why_empty(settings))?;
            if !report.scanned {
                output.hint("Blocks that are not in the index are found by --scan")?;
            }
        }
        return Ok(());
    }
    let mut table = output.table(["identity", "by", "until", "left", "why"]);
    for Row {
        identity,
        block,
        ban_level,
        now_ms,
    } in &report.blocks
    {
        let (until, left) = match block.until_ms {
            None => ("for ever".to_owned(), String::new()),
            Some(ms) => (date_time(ms), span(ms.saturating_sub(*now_ms))),
        };
        let why = block.why().unwrap_or_default();
        let by = match ban_level {
            Some(LevelReport { level, .. }) => format!("{} (level {level})", block.by),
            None => block.by.to_owned(),
        };
        table.add_row([identity, &by, &until, &left, &why]);
    }
    output.write_table(&table)?;
    let more = report.total - report.blocks.len();
    if more > 0 {
        let total = report.total;
        writeln!(output, "and {more} more: list them with --number {total}")?;
    }
    Ok(())
}

async fn find(args: &BlocksArgs, inspector: &Inspector) -> Result<Report> {
    let mut found = Found {
        number: usize::try_from(args.number).unwrap_or(usize::MAX),
        by: args.by.clone(),
        rows: BTreeMap::new(),
        dropped: BTreeSet::new(),
        unreadable: BTreeMap::new(),
    };
    if args.scan {
        let scan = Scan::new(inspector, args.load).await?;
        let batch = async |server: &Server, names: Vec<StoredName>| {
            let now_ms = server.now_ms().await?;
            found.add(&names, server.blocks(&names).await?, now_ms)
        };
        scan.run(&inspector.all_blocks(), batch).await?;
    } else {
        // A cursor may return an identity twice; `Found` counts it once.
        let mut cursor = 0;
        loop {
            let (next, names) = inspector.indexed_blocks(cursor, BATCH).await?;
            let now_ms = inspector.index_now_ms().await?;
            found.add(&names, inspector.blocks(&names).await?, now_ms)?;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(found.report(args.scan))
}

/// Keeps the blocks to list, and counts the others.
struct Found {
    number: usize,
    by: Option<String>,
    rows: BTreeMap<String, Row>,
    /// Hashes of the identities, because a scan may return an identity twice.
    dropped: BTreeSet<u64>,
    unreadable: BTreeMap<String, String>,
}

impl Found {
    fn add(&mut self, names: &[StoredName], blocks: Vec<StoredBlock>, now_ms: u64) -> Result<()> {
        for (name, block) in names.iter().zip(blocks) {
            let identity = name.identity().to_owned();
            let ban_level = LevelReport::of(&block, now_ms);
            let block = match block {
                // Bounded by --number, as the rows are.
                Err(error) if self.unreadable.len() < self.number => {
                    self.unreadable.insert(identity, error.to_string());
                    continue;
                }
                Err(_) => continue,
                block => BlockReport::of(block, now_ms)?,
            };
            let is_meant = |block: &BlockReport| self.by.as_deref().is_none_or(|by| by == block.by);
            if let Some(block) = block.filter(is_meant) {
                self.add_row(Row {
                    identity,
                    block,
                    ban_level,
                    now_ms,
                });
            }
        }
        Ok(())
    }

    fn add_row(&mut self, row: Row) {
        self.rows.insert(row.identity.clone(), row);
        if self.rows.len() > self.number
            && let Some((identity, _)) = self.rows.pop_last()
        {
            let mut hasher = DefaultHasher::new();
            identity.hash(&mut hasher);
            self.dropped.insert(hasher.finish());
        }
    }

    fn report(self, scanned: bool) -> Report {
        let unreadable = self.unreadable.into_iter();
        let unreadable = unreadable.map(|(identity, error)| Unreadable { identity, error });
        Report {
            scanned,
            total: self.rows.len() + self.dropped.len(),
            blocks: self.rows.into_values().collect(),
            unreadable: unreadable.collect(),
        }
    }
}
