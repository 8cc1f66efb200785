//! `sluicegate inspect` and `sluicegate explain`: everything that is stored for identities, and the answer to a request.

use clap::Args;
use serde_json::json;

use super::reading::ReadArgs;
use super::report::Report;
use super::{BAD, GOOD, Output, Result, Settings, server};

#[derive(Args)]
#[command(after_help = include_str!("help/explain.txt"))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    read: ReadArgs,

    /// The cost of the request; a request of any cost takes one slot
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    cost: u64,
}

pub(crate) fn run(args: &ReadArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    show_all(args, settings, None, output).map(|_| true)
}

pub(crate) fn explain(
    args: &ExplainArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<bool> {
    show_all(&args.read, settings, Some(args.cost), output)
}

/// Reads and shows all identities. With a cost, the limits are needed, and all counts. Returns whether a request passes.
fn show_all(
    args: &ReadArgs,
    settings: &Settings,
    cost: Option<u64>,
    output: &mut Output,
) -> Result<bool> {
    server::inspect(settings, async |inspector| {
        let limits = args.limits(settings, &inspector).await?;
        if limits.policies.is_none() && cost.is_some() {
            limits.why_none()?;
        }
        let mut reports = Vec::new();
        for named in args.identities.named(settings.ipv6_prefix())? {
            let reader = args.reader(&inspector, &limits, named).await?;
            let mut report = Report::read(&reader, cost.unwrap_or(1)).await?;
            report.complete(&reader).await;
            let unreadable = match cost {
                Some(_) => report.unreadable(),
                None => report.unreadable_block.take(),
            };
            unreadable.map_or(Ok(()), Err)?;
            reports.push(report);
        }
        show(&reports, output)
    })
}

/// Shows one identity, or the several identities of one request: it passes if all do.
fn show(reports: &[Report<'_>], output: &mut Output) -> Result<bool> {
    let fails = reports.iter().filter(|report| !report.verdict.passes);
    let fails: Vec<&str> = fails.map(|report| report.title.as_str()).collect();
    let passes = fails.is_empty();
    if let ([_, _, ..], true) = (reports, output.is_json) {
        output.document(&json!({ "passes": passes, "identities": reports }))?;
        return Ok(passes);
    }
    for report in reports {
        output.report(report, |report, output| {
            report.write(output)?;
            report.write_answer(output)
        })?;
    }
    match (reports.len(), passes) {
        (0 | 1, _) => {}
        (_, true) => output.styled(GOOD, "A request of all of these passes.")?,
        (_, false) => output.line(format!(
            "{BAD}A request of all of these does not pass:{BAD:#} see {}.",
            fails.join(", ")
        ))?,
    }
    Ok(passes)
}
