//! `sluicegate inspect` and `sluicegate explain`: everything that is stored for one identity, and the answer to a
//! request.

use clap::Args;

use super::reading::{ReadArgs, Reader};
use super::report::Report;
use super::{Error, Output, Result, Settings, server};

const EXAMPLES: &str = "\
Examples:
  sluicegate inspect ip=203.0.113.7 --policies policies.toml
  sluicegate inspect user=alice --policy api
  sluicegate inspect header:x-api-key=- < key.txt
  sluicegate inspect user=alice --json | jq '.policies[].rules[].used'

Reads the keys of the policies that you name, or of the file, or else of those
that services publish. Without any of these, the tool scans all keys.

`one more` is the time when one more unit fits, `empty` the time when no units
count. The picture shows the window of the rule, with the newest units at the
right; the highest bar is full. A `?` is a limit that no policy has: the rule
belongs to a process with other rules, or the rules have changed.

Below the table you see the end of a calendar period, the holders of slots by
their own clocks, recent denials, and the answer of `explain` to one request.

Rights: GET of the keys `PREFIX:*`, and TIME; HGETALL for published policies and
the labels of processes, SCAN and DBSIZE without policies, and ZRANGE for slots
and past denials.
Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    read: ReadArgs,
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  sluicegate explain user=alice --policies policies.toml
  sluicegate explain ip=203.0.113.7 --policies policies.toml --cost 5

Shows what `inspect` shows, and the decision that the service would get if it
charged the identity under all policies, or under those that you name with
--policy. The limits are those that the service publishes, or those of the file.
Nothing is charged.

Name the policies of a route with --policy. If a request is charged for several
identities, such as an address and a user, ask for each of them.

Exit codes: 0 the request would pass, 1 it would be denied, or the answer is not
known. It is not known if the service publishes or counts other rules than the
file has, if its processes differ (as for 15 minutes after a deploy), if plans
that share a policy's name disagree, or if no published policy enforces the
block.

Rights: GET of the keys `PREFIX:*`, and TIME; HGETALL for published policies,
and ZRANGE for past denials. Nothing is written.";

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
    Ok(report.passes)
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
