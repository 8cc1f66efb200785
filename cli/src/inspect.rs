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
    let mut reports = read(args, settings, None)?;
    for report in &mut reports {
        report.unreadable_block.take().map_or(Ok(()), Err)?;
    }
    show(&reports, output)?;
    Ok(true)
}

pub(crate) fn explain(
    args: &ExplainArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<bool> {
    let mut reports = read(&args.read, settings, Some(args.cost))?;
    for report in &mut reports {
        report.unreadable().map_or(Ok(()), Err)?;
    }
    show(&reports, output)?;
    Ok(reports.iter().all(|report| report.verdict.passes))
}

/// Reads all identities. With a cost, the limits are needed.
fn read(args: &ReadArgs, settings: &Settings, cost: Option<u64>) -> Result<Vec<Report>> {
    server::inspect(settings, async |inspector| {
        let limits = args.limits(settings, &inspector).await?;
        if limits.policies.is_none() && cost.is_some() {
            limits.why_none()?;
        }
        let mut reports = Vec::new();
        for named in args.identities.named(settings.ipv6_prefix())? {
            let reader = args.reader(&inspector, &limits, named).await?;
            let mut report = reader.read(cost.unwrap_or(1)).await?;
            reader.complete(&mut report).await;
            reports.push(report);
        }
        Ok(reports)
    })
}

/// Shows one identity, or the several identities of one request: it passes if all do.
fn show(reports: &[Report], output: &mut Output) -> Result<()> {
    let passes = reports.iter().all(|report| report.verdict.passes);
    if let ([_, _, ..], true) = (reports, output.is_json()) {
        return output.document(&json!({ "passes": passes, "identities": reports }));
    }
    for report in reports {
        output.report(report, |report, output| {
            report.write(output)?;
            report.write_answer(output)
        })?;
    }
    let fails = reports.iter().filter(|report| !report.verdict.passes);
    let fails: Vec<&str> = fails.map(|report| report.title.as_str()).collect();
    match (reports.len(), fails.is_empty()) {
        (0 | 1, _) => Ok(()),
        (_, true) => output.styled(GOOD, "A request of all of these passes."),
        (_, false) => output.line(format!(
            "{BAD}A request of all of these does not pass:{BAD:#} see {}.",
            fails.join(", ")
        )),
    }
}
