//! `sluicegate top --denied`: the identities that are denied most.

use std::collections::HashSet;

use serde_json::{Value, json};
use sluicegate::denials::DeniedIdentity;
use sluicegate::store::redis::inspect::Inspector;

use super::networks::Networks;
use super::{TopArgs, write_table};
use crate::block_report::BlockReport;
use crate::denied::DenialReport;
use crate::hints::Hints;
use crate::identity::Named;
use crate::text::{grouped, printable, time};
use crate::{BAD, Cell, Output, Result, Settings, Table, server};

pub(super) fn run(args: &TopArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let (document, table, why) = server::inspect(settings, async |inspector| {
        let (document, table) = ranking(args, &inspector).await?;
        let why = match table.is_empty() {
            false => String::new(),
            true => why_none(args.policy.as_deref(), &inspector, settings).await?,
        };
        Ok((document, table, why))
    })?;
    output.report(&document, |_, output| {
        if table.is_empty() {
            let under = args.policy.as_ref();
            let under = under.map(|it| format!(" under {}", printable(it.as_bytes())));
            let under = under.unwrap_or_default();
            output.line(format!(
                "No identity was denied within the last hour{under}."
            ))?;
            return output.hint(&why);
        }
        let number = |field: &str| document[field].as_u64().unwrap_or(0);
        let minute = match number("identities_last_minute") {
            1 => "1 identity".to_owned(),
            many => format!("{} identities", grouped(many)),
        };
        let hour = grouped(number("identities_last_hour"));
        output.line(format!(
            "{BAD}{minute}{BAD:#} denied in the last minute, {hour} in the last hour"
        ))?;
        write_table(table, args, output)
    })?;
    Ok(true)
}

/// The reason why no identity was denied, or none by this policy. An error if there is no policy of this name.
async fn why_none(
    policy: Option<&str>,
    inspector: &Inspector,
    settings: &Settings,
) -> Result<String> {
    let published = inspector.policies().await.unwrap_or_default();
    let mut names = published.iter().map(|it| it.policy().name());
    if names.any(|name| Some(name) == policy) {
        return Ok(String::new());
    }
    let hints = Hints::look(inspector, settings, &published).await;
    hints.why_none(policy)
}

async fn ranking(args: &TopArgs, inspector: &Inspector) -> Result<(Value, Table)> {
    let now_ms = inspector.index_now_ms().await?;
    let only = args.policy.as_deref();
    let mut denials = inspector.denials(now_ms).await?;
    denials.retain(|denied| only.is_none() || denied.policy() == only);
    let identities = |counts: fn(&&DeniedIdentity) -> bool| {
        let identities = denials.iter().filter(counts).map(DeniedIdentity::identity);
        identities.collect::<HashSet<_>>().len()
    };
    let (rows, table) = match args.by_prefix {
        Some(bits) => {
            let mut networks = Networks::new(bits, ["last minute", "last hour"]);
            for it in &denials {
                let policy = it.policy().unwrap_or(BLOCKED);
                networks.add(it.identity(), policy, [it.last_minute(), it.last_hour()]);
            }
            networks.first(args.number.into())
        }
        None => {
            let first = &denials[..denials.len().min(args.number.into())];
            listed(first, inspector, now_ms).await?
        }
    };
    let document = json!({
        "now_ms": now_ms, "identities_last_minute": identities(|it| it.last_minute() > 0),
        "identities_last_hour": identities(|_| true), "denied": rows,
    });
    Ok((document, table))
}

const BLOCKED: &str = "(blocked)";

/// The rows that are shown, each with its block, which takes a call.
async fn listed(
    denials: &[DeniedIdentity],
    inspector: &Inspector,
    now_ms: u64,
) -> Result<(Vec<Value>, Table)> {
    let mut rows = Vec::new();
    let mut table = Table::new(["identity", "policy", "last minute", "last hour", ""]);
    for denied in denials {
        let (identity, report) = (denied.identity(), DenialReport::of(denied));
        let block = blocked(inspector, identity, now_ms).await?;
        let end = block.as_ref().map(|block| {
            let how = if block.is_ban() { "banned" } else { "blocked" };
            let until = block.until_ms;
            let until = until.map(|ms| format!("until {}", time(ms, now_ms)));
            let until = until.unwrap_or_else(|| "for ever".to_owned());
            // Not to be broken here at a narrow terminal.
            format!("{how}\u{a0}{until}")
        });
        table.row([
            identity.into(),
            report.policy.as_deref().unwrap_or(BLOCKED).into(),
            Cell::right(grouped(report.last_minute)).style(BAD),
            Cell::right(grouped(report.last_hour)),
            end.unwrap_or_default().into(),
        ]);
        let mut row = json!(report);
        row["identity"] = json!(identity);
        row["blocked"] = json!(block);
        rows.push(row);
    }
    Ok((rows, table))
}

/// The block of an identity. `None` if the value cannot be read; then `inspect` says why.
async fn blocked(
    inspector: &Inspector,
    identity: &str,
    now_ms: u64,
) -> Result<Option<BlockReport>> {
    let Some(named) = Named::listed(identity) else {
        return Ok(None);
    };
    let block = inspector.block(&named.key).await?;
    Ok(BlockReport::of(&block, now_ms).unwrap_or_default())
}
