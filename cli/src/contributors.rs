//! `sluicegate contributors`: the contributors that use up a shared limit.

use std::{io::Write, path::PathBuf};

use clap::Args;
use serde::Serialize;
use sluicegate::{Key, Policy, Rule, contributors::Contributors};

use super::{
    answer::Answer,
    census::{self, Census},
    error::{Error, Result},
    identity::IdentityArgs,
    output::{BOLD, Output, align_right},
    policies_file, server,
    settings::Settings,
    text::{grouped, millis, printable, span},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate contributors account=acme --policy api --policies policies.toml
  sluicegate contributors account=acme --policy api --window 1h
  sluicegate contributors account=acme --policy api --window 1d@fixed --json

Only limits with named contributors (`Charge::with_contributor`, or `contributors` of the
layer) have any. If a policy has several rules, the longest window counts: the
last window and up to a sixth more, or a fixed window since it began. The window
of a bucket is the time of a full refill: 10m for 600+1/1s@bucket. The service
reports contributions once a second. Units are never too high; the next column
shows the greatest number that is possible.

Exit codes: 0 done, 1 no contributors are known.

Rights: TIME and ZRANGE; to say why there are none, also GET, SCAN and DBSIZE.
Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ContributorsArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    /// The name of the policy
    #[arg(long, value_name = "NAME")]
    policy: String,

    /// The policies of the service, for the window; default: the file in sluicegate.toml
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    policies: Option<PathBuf>,

    /// The longest window of the policy, instead of a file: 1m, 1h, 1d@fixed
    #[arg(long, value_name = "TIME", value_parser = parse_window)]
    window: Option<Rule>,

    /// The maximum number to show
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    number: u16,
}

/// The shortest time that contributions are kept for, even if the window is shorter.
const SHORTEST_MS: u64 = 12_000;

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    policy: String,
    window_ms: u64,
    /// The units of all contributors, including those that are not listed.
    total: u64,
    contributors: Vec<ContributorReport>,
    #[serde(skip)]
    period: String,
}

#[derive(Serialize)]
struct ContributorReport {
    label: String,
    units: u64,
    at_most: u64,
}

pub(crate) fn run(
    args: &ContributorsArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    let policy = policy(args, settings)?;
    let told = server::inspect(settings, async |inspector| {
        Ok(inspector.contributors(&policy, &key).await?)
    })?;
    let report = report(&policy, &told, args.number.into());
    let mut why = String::new();
    if report.contributors.is_empty() && !output.is_json() {
        why = why_none(&args.policy, &key, settings);
    }
    output.report(&report, |report, output| write(report, &why, output))?;
    Ok((!report.contributors.is_empty()).into())
}

/// The policy of the service, or one with this window: the limit does not matter here.
fn policy(args: &ContributorsArgs, settings: &Settings) -> Result<Policy> {
    if let Some(rule) = args.window {
        return Policy::new(&args.policy, [rule]).map_err(Error::usage);
    }
    let Some(file) = settings.policies_or(args.policies.as_deref()) else {
        return Err(Error::usage(
            "the window is needed: give --policies FILE or --window TIME, or write `policies = \"FILE\"` into \
             sluicegate.toml",
        ));
    };
    let policies = policies_file::load(file)?;
    policies_file::named(&policies, file, &args.policy).cloned()
}

fn parse_window(text: &str) -> Result<Rule, String> {
    let rule = format!("1/{text}").parse::<Rule>();
    rule.map_err(|_| "write a time as 1m, 1h or 1d, or of a fixed window 1d@fixed".into())
}

fn report(policy: &Policy, told: &Contributors, number: usize) -> Report {
    // If two windows are equal, use the first rule.
    let longest = policy
        .rules()
        .iter()
        .rev()
        .max_by_key(|rule| window_ms(rule));
    let contributors = told
        .iter()
        .take(number)
        .map(|contributor| ContributorReport {
            label: contributor.label().to_owned(),
            units: contributor.units(),
            at_most: contributor.units().saturating_add(told.error()),
        });
    Report {
        policy: policy.name().to_owned(),
        window_ms: longest.map_or(0, window_ms),
        total: told.total(),
        contributors: contributors.collect(),
        period: longest.map_or_else(String::new, period),
    }
}

/// The time that the counts cover, as [`sluicegate::contributors`] describes.
fn period(rule: &Rule) -> String {
    if let Some(calendar) = rule.in_calendar() {
        return format!(
            "in this {} in {}",
            calendar.period().as_str(),
            calendar.zone()
        );
    }
    let window_ms = window_ms(rule);
    if rule.is_fixed() && window_ms >= SHORTEST_MS {
        return format!("in this window of {}", span(window_ms));
    }
    let from_ms = window_ms.max(SHORTEST_MS);
    let to_ms = from_ms.saturating_add(from_ms.div_ceil(6));
    format!("in the last {} to {}", span(from_ms), span(to_ms))
}

/// The window of a rule; for a bucket, the time of a full refill.
fn window_ms(rule: &Rule) -> u64 {
    let window_ms = millis(rule.window());
    match rule.refill() {
        Some(refill) => (rule.limit() * window_ms).div_ceil(refill),
        None => window_ms,
    }
}

fn why_none(policy: &str, key: &Key, settings: &Settings) -> String {
    let why = server::inspect(settings, async |inspector| {
        let census = Census::take(&inspector, settings).await?;
        match census.why_no_policy(policy) {
            None => census.why_unknown(&inspector, key).await,
            why => Ok(why),
        }
    });
    match why {
        Ok(None) => "Counts are stored for it: does the service name contributors under this policy (`Charge::with_contributor`, or \
                     `contributors` of the layer), and is the window that of its longest rule?"
            .into(),
        Ok(Some(why)) => why,
        Err(error) => census::unknown(error.message()),
    }
}

fn write(report: &Report, why: &str, output: &mut Output) -> Result<()> {
    let policy = &report.policy;
    if report.contributors.is_empty() {
        writeln!(
            output,
            "Nobody is known to have contributed under `{policy}`."
        )?;
        return output.hint(why);
    }
    let total = grouped(report.total);
    let period = &report.period;
    writeln!(
        output,
        "{BOLD}{total}{BOLD:#} units under `{policy}` {period}\n"
    )?;
    let mut table = output.table(["contributor", "units", "at most", "share"]);
    for contributor in &report.contributors {
        let total = report.total.max(1);
        let share = (contributor.units.saturating_mul(100) + total / 2) / total;
        table.add_row([
            printable(contributor.label.as_bytes()),
            grouped(contributor.units),
            grouped(contributor.at_most),
            format!("{share}%"),
        ]);
    }
    align_right(&mut table, 1..=3);
    output.write_table(&table)?;
    // The service does not keep labels with few units, so the rest includes units without a label.
    let listed: u64 = report
        .contributors
        .iter()
        .map(|contributor| contributor.units)
        .sum();
    let others = report.total.saturating_sub(listed);
    if others > 0 {
        let others = grouped(others);
        writeln!(output)?;
        output.hint(&format!(
            "{others} units are of others, or not known whose."
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_the_one_that_is_counted() {
        for (rule, expected) in [
            ("9/1h", "in the last 1h to 1h 10m"),
            ("9/1d@1h", "in the last 1d to 1d 4h"),
            ("600+1/1s@bucket", "in the last 10m to 11m 40s"),
            ("9/1s", "in the last 12s to 14s"),
            ("9/1s@fixed", "in the last 12s to 14s"),
            ("9/12s@fixed", "in this window of 12s"),
            ("9/1d@fixed", "in this window of 1d"),
        ] {
            assert_eq!(period(&rule.parse().unwrap()), expected, "{rule}");
        }
    }
}
