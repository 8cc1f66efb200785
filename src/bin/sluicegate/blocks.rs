//! `sluicegate blocks`: who is blocked.

use std::{collections::BTreeMap, io::Write};

use clap::Args;
use serde::Serialize;

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

Looks at all keys of the server for those of blocks: slowly, so as not to be in the way. A secret is shown as its hash.

Rights: GET of the keys `PREFIX:*`, TIME, SCAN and DBSIZE. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BlocksArgs {
    /// How many to show
    #[arg(short, long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,

    /// For which share of the time a server may be kept busy, from 0.1%
    #[arg(long, value_name = "SHARE", default_value_t = DEFAULT_LOAD, value_parser = Share::parse_load)]
    load: Share,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
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
            output.hint(&census::ask_reason(settings, None))?;
        }
        return Ok(());
    }
    let mut table = output.table(["identity", "by", "until", "left"]);
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
        table.add_row([identity.as_str(), block.by, &until, &left]);
    }
    output.write_table(&table)?;
    let more = report.total - report.blocks.len();
    if more > 0 {
        let total = report.total;
        writeln!(output, "and {more} more: list them with --number {total}")?;
    }
    Ok(())
}

/// Keeps so many as are listed, and counts the others, one that comes twice possibly twice.
async fn find(args: &BlocksArgs, settings: &Settings) -> Result<Report> {
    let (_, inspector) = server::connect(settings).await?;
    let number = usize::try_from(args.number).unwrap_or(usize::MAX);
    let mut rows = BTreeMap::new();
    let (mut dropped, mut unreadable) = (0, BTreeMap::new());
    let scan = Scan::new(&inspector, args.load).await?;
    scan.run(&inspector.all_blocks(), async |server, names| {
        let now_ms = server.now_ms().await?;
        let blocks = server.blocks(&names).await?;
        for (name, block) in names.iter().zip(blocks) {
            let identity = name.identity().to_owned();
            let block = match block {
                Err(error) if unreadable.len() < number => {
                    unreadable.insert(identity, error.to_string());
                    continue;
                }
                Err(_) => continue,
                block => BlockReport::of(block, now_ms)?,
            };
            let Some(block) = block else {
                continue;
            };
            rows.insert(
                identity.clone(),
                Row {
                    identity,
                    block,
                    now_ms,
                },
            );
            if rows.len() > number {
                rows.pop_last();
                dropped += 1;
            }
        }
        Ok(())
    })
    .await?;
    let blocks: Vec<Row> = rows.into_values().collect();
    let unreadable = unreadable.into_iter();
    let unreadable = unreadable.map(|(identity, error)| Unreadable { identity, error });
    Ok(Report {
        total: blocks.len() + dropped,
        blocks,
        unreadable: unreadable.collect(),
    })
}
