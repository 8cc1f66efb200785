//! `sluicegate top --denied`: the identities that are denied most.

use std::collections::HashSet;

use serde_json::json;
use sluicegate::denials::DeniedIdentity;
use sluicegate::store::redis::inspect::Inspector;

use super::rows::{Row, Rows};
use super::{TopArgs, write_table};
use crate::block_report::BlockReport;
use crate::denied::DenialReport;
use crate::hints::Hints;
use crate::identity::Named;
use crate::text::{grouped, printable, time};
use crate::{BAD, Cell, Output, Result};

const BLOCKED: &str = "(blocked)";

pub(super) async fn run(
    args: &TopArgs,
    inspector: &Inspector,
    output: &mut Output,
) -> Result<bool> {
    let (now_ms, only) = (inspector.index_now_ms().await?, args.policy.as_deref());
    let mut denials = inspector.denials(now_ms).await?;
    denials.retain(|denied| only.is_none() || denied.policy() == only);
    let mut rows = Rows::new(args, ["last minute", "last hour"]);
    for denied in &denials {
        let (identity, policy) = (denied.identity(), denied.policy().unwrap_or(BLOCKED));
        let [minute, hour] = [denied.last_minute(), denied.last_hour()];
        let (rank, numbers) = ((minute.into(), hour), [minute, hour]);
        rows.offer((identity, policy), numbers, rank, None, || row(denied));
    }
    add_blocks(&mut rows, inspector, now_ms).await?;
    let mut why = String::new();
    if denials.is_empty() {
        let published = inspector.policies().await.unwrap_or_default();
        why = Hints::look(inspector, &published).await.why_none(only)?;
    }
    // An identity that several policies deny counts once.
    let identities = |least: u64| {
        let denied = denials.iter().filter(|it| it.last_minute() >= least);
        let denied: HashSet<_> = denied.map(DeniedIdentity::identity).collect();
        denied.len() as u64
    };
    let (minute, hour) = (identities(1), identities(0));
    let (shown, table) = rows.shown(&["identity", "policy", "last minute", "last hour", ""]);
    let document = json!({
        "now_ms": now_ms, "identities_last_minute": minute, "identities_last_hour": hour, "denied": shown,
    });
    output.report(&document, |_, output| {
        if denials.is_empty() {
            let under = only.map(|it| format!(" under {}", printable(it.as_bytes())));
            let under = under.unwrap_or_default();
            output.line(format!(
                "No identity was denied within the last hour{under}."
            ))?;
            return output.hint(&why);
        }
        let (count, hour) = (grouped(minute), grouped(hour));
        let noun = ["identities", "identity"][usize::from(minute == 1)];
        output.line(format!(
            "{BAD}{count} {noun}{BAD:#} denied in the last minute, {hour} in the last hour"
        ))?;
        write_table(table, args, output)
    })?;
    Ok(true)
}

/// Adds the blocks of the rows that are shown: each takes a call.
async fn add_blocks(rows: &mut Rows, inspector: &Inspector, now_ms: u64) -> Result<()> {
    for (document, cells, _) in rows.rows() {
        let identity = document["identity"].as_str().unwrap_or_default();
        let block = match Named::listed(identity) {
            Some(named) => inspector.block(&named.key).await?,
            None => Ok(None),
        };
        // If the value cannot be read, `inspect` says why.
        let block = BlockReport::of(&block, now_ms).unwrap_or_default();
        let end = block.as_ref().map(|block| {
            let how = if block.is_ban() { "banned" } else { "blocked" };
            let until = |ms: u64| format!("until {}", time(ms, now_ms));
            let until = block.until_ms.map_or("for ever".to_owned(), until);
            // Not to be broken here at a narrow terminal.
            format!("{how}\u{a0}{until}")
        });
        cells.push(end.unwrap_or_default().into());
        document["blocked"] = json!(block);
    }
    Ok(())
}

fn row(denied: &DeniedIdentity) -> Row {
    let (identity, report) = (denied.identity(), DenialReport::of(denied));
    let [minute, hour] = [report.last_minute, report.last_hour].map(Cell::from);
    let policy = report.policy.as_deref().unwrap_or(BLOCKED).into();
    let cells = vec![identity.into(), policy, minute.style(BAD), hour];
    let mut document = json!(report);
    document["identity"] = json!(identity);
    (document, cells, Vec::new())
}
