//! `sluicegate top --denied`: the identities that are denied most.

use std::{collections::HashSet, io::Write};

use comfy_table::{ColumnConstraint, Width};
use serde::Serialize;
use sluicegate::{denials::DeniedIdentity, store::redis::inspect::Inspector};

use super::{TopArgs, add_rows, shorten, table};
use crate::{
    answer::Answer,
    block_report::BlockReport,
    census::{self, Census},
    denied::{CountsReport, DenialReport},
    error::{Error, Result},
    identity::Named,
    output::{BAD, Output, align_right},
    server,
    settings::Settings,
    text::{grouped, printable, time},
};

/// The columns for `blocked until 16:22:32.713` in two lines, with a blank on both sides.
const END_OF_BLOCK: u16 = 15;

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// The server's clock, in ms since the Unix epoch.
    now_ms: u64,
    /// The number of identities that were denied in the last minute, as far as the store keeps them.
    identities_last_minute: usize,
    identities_last_hour: usize,
    /// Sorted by the denials of the last minute, the most first.
    denied: Vec<Row>,
    /// The reason why this policy denied no identity.
    #[serde(skip)]
    why: String,
}

#[derive(Serialize)]
struct Row {
    identity: String,
    #[serde(flatten)]
    denials: DenialReport,
    /// The block in force; null if there is none.
    blocked: Option<BlockReport>,
}

pub(super) fn run(args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let report = server::inspect(settings, async |inspector| {
        let mut report = report(args, &inspector).await?;
        if let (Some(policy), true) = (&args.policy, report.denied.is_empty()) {
            report.why = why_none(policy, &inspector, settings).await?;
        }
        Ok(report)
    })?;
    output.report(&report, |report, output| {
        write(report, args, settings, output)
    })?;
    Ok(Answer::Yes)
}

/// The reason why this policy denied no identity. An error if there is no policy of this name.
async fn why_none(policy: &str, inspector: &Inspector, settings: &Settings) -> Result<String> {
    let published = inspector.policies().await.unwrap_or_default();
    if published
        .iter()
        .any(|published| published.policy().name() == policy)
    {
        return Ok(String::new());
    }
    match Census::take(inspector, settings).await {
        Ok(census) => match census.why_no_policy(policy) {
            Some(why) => Err(Error::usage(why)),
            None => Ok(String::new()),
        },
        Err(error) => Ok(format!(
            "Whether there is such a policy could not be checked: {}",
            error.message()
        )),
    }
}

async fn report(args: &TopArgs, inspector: &Inspector) -> Result<Report> {
    let now_ms = inspector.index_now_ms().await?;
    let denials = inspector.denials(now_ms).await?;
    let only = args.policy.as_deref();
    let is_asked_for = |denied: &&DeniedIdentity| only.is_none() || denied.policy() == only;
    let mut rows = Vec::new();
    for denied in denials.iter().filter(is_asked_for).take(args.number.into()) {
        rows.push(Row {
            identity: denied.identity().to_owned(),
            denials: DenialReport::of(denied),
            // Only for the rows that are shown: each takes a call.
            blocked: blocked(inspector, denied.identity(), now_ms).await?,
        });
    }
    Ok(Report {
        now_ms,
        identities_last_minute: identities(&denials, |denied| {
            is_asked_for(&denied) && denied.last_minute().denied() > 0
        }),
        identities_last_hour: identities(&denials, |denied| is_asked_for(&denied)),
        denied: rows,
        why: String::new(),
    })
}

/// The block of an identity. `None` if it cannot be read; then `inspect` says why.
async fn blocked(
    inspector: &Inspector,
    identity: &str,
    now_ms: u64,
) -> Result<Option<BlockReport>> {
    let Some(named) = Named::listed(identity) else {
        return Ok(None);
    };
    let block = inspector.block(&named.key).await?;
    Ok(BlockReport::of(block, now_ms).unwrap_or_default())
}

fn identities(denials: &[DeniedIdentity], counts: impl Fn(&DeniedIdentity) -> bool) -> usize {
    let counting = denials.iter().filter(|denied| counts(denied));
    let identities: HashSet<_> = counting.map(DeniedIdentity::identity).collect();
    identities.len()
}

impl Row {
    fn cells(&self, now_ms: u64) -> Vec<String> {
        let DenialReport {
            policy,
            last_minute,
            last_hour,
        } = &self.denials;
        let policy = policy.as_deref().unwrap_or("(blocked)");
        let mut cells = vec![self.identity.clone(), policy.to_owned()];
        for counts in [last_minute, last_hour] {
            cells.extend([CountsReport::counts(counts), CountsReport::percent(counts)]);
        }
        cells.push(self.blocked.as_ref().map_or_else(String::new, |block| {
            let how = if block.is_ban() { "banned" } else { "blocked" };
            match block.until_ms {
                Some(until_ms) => format!("{how} until {}", time(until_ms, now_ms)),
                None => format!("{how} for ever"),
            }
        }));
        cells
    }
}

fn write(report: &Report, args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<()> {
    if report.denied.is_empty() {
        let Some(policy) = &args.policy else {
            writeln!(output, "No identity was denied within the last hour.")?;
            return output.hint(&census::ask_why_empty(settings));
        };
        let policy = printable(policy.as_bytes());
        writeln!(
            output,
            "No identity was denied within the last hour under {policy}."
        )?;
        return output.hint(&report.why);
    }
    let of = |identities: usize| match identities {
        1 => "1 identity".to_owned(),
        many => format!("{} identities", grouped(many as u64)),
    };
    let minute = of(report.identities_last_minute);
    let hour = grouped(report.identities_last_hour as u64);
    writeln!(
        output,
        "{BAD}{minute}{BAD:#} denied in the last minute, {hour} in the last hour"
    )?;
    let header = ["identity", "policy", "last minute", "", "last hour", "", ""];
    let rows = report.denied.iter().map(|row| row.cells(report.now_ms));
    let mut rows: Vec<Vec<String>> = rows.collect();
    if output.is_terminal() && !args.wide {
        let width = output.width().saturating_sub(END_OF_BLOCK + 1);
        shorten(&mut rows, &header[..6], width.into());
    }
    let has_blocks = report.denied.iter().any(|row| row.blocked.is_some());
    let mut table = table(&header, args.wide, output);
    // The end of a block needs a minimum width, but an empty column needs none.
    if let Some(blocks) = table.column_mut(6).filter(|_| has_blocks && !args.wide) {
        blocks.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(END_OF_BLOCK)));
    }
    add_rows(&mut table, rows, 3);
    align_right(&mut table, 2..=5);
    output.write_table(&table)
}
