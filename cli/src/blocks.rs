//! `sluicegate blocks`: who is blocked.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
};

use clap::Args;
use serde::Serialize;
use sluicegate::store::redis::inspect::{Server, StoredBlock, StoredName};

use super::{
    Answer,
    block::BlockReport,
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
  sluicegate blocks --json | jq -r '.blocks[].identity'

A secret is shown as its hash. Blocks are listed from an index. Not in it are those that an older version or a
service that decides by transactions has made, or one that lacks the rights to write it: --scan finds them, by
looking at all keys of the server, slowly, so as not to be in the way.

Rights: GET of the keys `PREFIX:*`, TIME and ZSCAN; with --scan SCAN and DBSIZE instead of ZSCAN. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BlocksArgs {
    /// How many to show
    #[arg(short, long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,

    /// Look at all keys of the server, for blocks that are not in the index
    #[arg(long)]
    scan: bool,

    /// With --scan, for which share of the time a server may be kept busy, from 0.1%
    #[arg(long, value_name = "SHARE", default_value_t = DEFAULT_LOAD, value_parser = Share::parse_load)]
    load: Share,
}

/// How many blocks are read at a time.
const BATCH: u32 = 250;

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// Whether all keys were looked at, and not the index.
    scanned: bool,
    /// By identity.
    blocks: Vec<Row>,
    /// How many blocks there are.
    total: usize,
    /// Whose cannot be read, at most as many as are listed.
    unreadable: Vec<Unreadable>,
}

/// No check of this identity that enforces blocks can be decided; `unblock` deletes what cannot be read.
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
    #[serde(skip)]
    now_ms: u64,
}

pub(crate) fn run(args: &BlocksArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let report = server::block_on(settings, find(args, settings))?;
    output.report(&report, |report, output| write(report, settings, output))?;
    Ok(Answer::Yes)
}

fn write(report: &Report, settings: &Settings, output: &mut Output) -> Result<()> {
    for Unreadable { identity, error } in &report.unreadable {
        writeln!(
            output,
            "{WARN}the block of {identity} cannot be read: {error}; `sluicegate unblock` deletes it{WARN:#}"
        )?;
    }
    if report.total == 0 {
        if report.unreadable.is_empty() {
            writeln!(output, "Nobody is blocked.")?;
            output.hint(&census::ask_reason(settings, None, &[]))?;
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
        now_ms,
    } in &report.blocks
    {
        let (until, left) = match block.until_ms {
            None => ("for ever".to_owned(), String::new()),
            Some(ms) => (date_time(ms), span(ms.saturating_sub(*now_ms))),
        };
        let why = block.why().unwrap_or_default();
        table.add_row([identity.as_str(), block.by, &until, &left, &why]);
    }
    output.write_table(&table)?;
    let more = report.total - report.blocks.len();
    if more > 0 {
        let total = report.total;
        writeln!(output, "and {more} more: list them with --number {total}")?;
    }
    Ok(())
}

async fn find(args: &BlocksArgs, settings: &Settings) -> Result<Report> {
    let (_, inspector) = server::connect(settings).await?;
    let mut found = Found {
        number: usize::try_from(args.number).unwrap_or(usize::MAX),
        rows: BTreeMap::new(),
        dropped: BTreeSet::new(),
        unreadable: BTreeMap::new(),
    };
    if args.scan {
        let scan = Scan::new(&inspector, args.load).await?;
        let batch = async |server: &Server, names: Vec<StoredName>| {
            let now_ms = server.now_ms().await?;
            found.add(&names, server.blocks(&names).await?, now_ms)
        };
        scan.run(&inspector.all_blocks(), batch).await?;
    } else {
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

/// Keeps so many as are listed, and of the others what counts them.
struct Found {
    number: usize,
    rows: BTreeMap<String, Row>,
    /// Hashes: an identity that comes twice counts once.
    dropped: BTreeSet<u64>,
    unreadable: BTreeMap<String, String>,
}

impl Found {
    fn add(&mut self, names: &[StoredName], blocks: Vec<StoredBlock>, now_ms: u64) -> Result<()> {
        for (name, block) in names.iter().zip(blocks) {
            let identity = name.identity().to_owned();
            let block = match block {
                Err(error) if self.unreadable.len() < self.number => {
                    self.unreadable.insert(identity, error.to_string());
                    continue;
                }
                Err(_) => continue,
                block => BlockReport::of(block, now_ms)?,
            };
            if let Some(block) = block {
                self.add_row(Row {
                    identity,
                    block,
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
