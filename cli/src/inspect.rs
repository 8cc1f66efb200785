//! `sluicegate inspect` and `sluicegate explain`: everything that is stored for one identity, and the answer to a
//! request.

use clap::Args;

use super::reading::{ReadArgs, Reader};
use super::report::Report;
use super::{Error, Output, Result, Settings, server};

const EXAMPLES: &str = include_str!("help/inspect.txt");

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    read: ReadArgs,
}

const EXPLAIN_EXAMPLES: &str = include_str!("help/explain.txt");

#[derive(Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    read: ReadArgs,

    /// The cost of the request; a request of any cost takes one slot
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    cost: u64,
}

pub(crate) fn run(args: &InspectArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let mut report = read(&args.read, settings, 1, |_| Ok(()))?;
    report.unreadable_block.take().map_or(Ok(()), Err)?;
    show(&report, output)?;
    Ok(true)
}

pub(crate) fn explain(
    args: &ExplainArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<bool> {
    let mut report = read(&args.read, settings, args.cost, limits)?;
    report.unreadable().map_or(Ok(()), Err)?;
    show(&report, output)?;
    Ok(report.verdict.passes)
}

fn read(
    args: &ReadArgs,
    settings: &Settings,
    cost: u64,
    check: impl FnOnce(&Reader<'_>) -> Result<()>,
) -> Result<Report> {
    server::inspect(settings, async |inspector| {
        let reader = args.reader(settings, inspector).await?;
        check(&reader)?;
        let mut report = reader.read(cost).await?;
        reader.complete(&mut report).await;
        Ok(report)
    })
}

fn show(report: &Report, output: &mut Output) -> Result<()> {
    output.report(report, |report, output| {
        report.write(output)?;
        report.write_answer(output)
    })
}

/// An error without limits: there is no answer then.
fn limits(reader: &Reader<'_>) -> Result<()> {
    const HOW: &str = "give --policies FILE, or write `policies = \"FILE\"` into sluicegate.toml";
    match (&reader.limits.policies, &reader.limits.unpublished) {
        (Some(_), _) => Ok(()),
        (None, Some(why)) => Err(Error::server(format_args!(
            "the limits are needed, and the published policies could not be read: {why}; or {HOW}"
        ))),
        (None, None) => Err(Error::usage(format_args!(
            "the limits are needed, and the service publishes none: {HOW}"
        ))),
    }
}
