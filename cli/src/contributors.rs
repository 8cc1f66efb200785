//! `sluicegate contributors`: the contributors that use up a shared limit.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sluicegate::contributors::Contributors;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Key, Policy, Rule};

use super::hints::Hints;
use super::identity::IdentitiesArgs;
use super::text::{grouped, millis, printable, span};
use super::{BOLD, Cell, Error, Output, Result, Settings, Table, policies_file, published, server};

#[derive(Args)]
#[command(after_help = include_str!("help/contributors.txt"))]
pub(crate) struct ContributorsArgs {
    #[command(flatten)]
    identities: IdentitiesArgs,

    /// The name of the policy
    #[arg(long, value_name = "NAME")]
    policy: String,

    /// The policies of the service, for the window; default: the file in sluicegate.toml, or what services publish
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

pub(crate) fn run(
    args: &ContributorsArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<bool> {
    let key = args.identities.one(settings.ipv6_prefix())?.key;
    let file = settings.policies_or(args.policies.as_deref());
    if let Some(file) = file.filter(|_| args.window.is_none()) {
        // The tool names a mistake in the file before it calls the server.
        policies_file::load(file, std::slice::from_ref(&args.policy))?;
    }
    let (policy, all, why) = server::inspect(settings, async |inspector| {
        let policy = policy(args, settings, &inspector).await?;
        let all = inspector.contributors(&policy, &key).await?;
        let why = match all.iter().next().is_none() && !output.is_json {
            true => why_none(&args.policy, &key, &inspector).await?,
            false => String::new(),
        };
        Ok((policy, all, why))
    })?;
    // If two windows are equal, use the first rule.
    let rules = policy.rules().iter().rev();
    let longest = rules.max_by_key(|rule| window_ms(rule));
    let (rows, table, listed) = listed(&all, args.number.into());
    let is_empty = rows.is_empty();
    let document = json!({
        "policy": policy.name(), "window_ms": longest.map_or(0, window_ms), "total": all.total(), "contributors": rows,
    });
    output.report(&document, |_, output| {
        let (policy, total) = (policy.name(), grouped(all.total()));
        if is_empty {
            output.line(format!(
                "Nobody is known to have contributed under `{policy}`."
            ))?;
            return output.hint(&why);
        }
        let period = longest.map_or_else(String::new, period);
        output.line(format!(
            "{BOLD}{total}{BOLD:#} units under `{policy}` {period}\n"
        ))?;
        output.table(&table)?;
        // The service does not keep labels with few units, so the rest includes units without a label.
        match grouped(all.total().saturating_sub(listed)) {
            others if others == "0" => Ok(()),
            others => output.hint(&format!(
                "\n{others} units are of others, or not known whose."
            )),
        }
    })?;
    Ok(!is_empty)
}

/// The first contributors, as JSON and as a table, and their units.
fn listed(all: &Contributors, number: usize) -> (Vec<Value>, Table, u64) {
    let (mut rows, mut listed) = (Vec::new(), 0);
    let mut table = Table::new(["contributor", "units", "share"]);
    for contributor in all.iter().take(number) {
        let (units, total) = (contributor.units(), all.total().max(1));
        let share = (units.saturating_mul(100) + total / 2) / total;
        let label = contributor.label();
        rows.push(json!({ "label": label, "units": units }));
        let share = Cell::right(format!("{share}%"));
        table.row([printable(label.as_bytes()).into(), units.into(), share]);
        listed += units;
    }
    (rows, table, listed)
}

/// The policy of the file, or that services publish, or one with this window: the limit does not matter here.
async fn policy(
    args: &ContributorsArgs,
    settings: &Settings,
    inspector: &Inspector,
) -> Result<Policy> {
    if let Some(rule) = args.window {
        return Policy::new(&args.policy, [rule]).map_err(Error::usage);
    }
    let (file, named) = (args.policies.as_deref(), std::slice::from_ref(&args.policy));
    let limits = published::limits(settings, file, inspector, named).await?;
    limits.of(&args.policy).pop().ok_or_else(|| {
        Error::usage(
            "the window is needed, and no service publishes this policy: give --policies FILE or --window TIME, or write \
             `policies = \"FILE\"` into sluicegate.toml",
        )
    })
}

fn parse_window(text: &str) -> Result<Rule, String> {
    let rule = format!("1/{text}").parse::<Rule>();
    rule.map_err(|_| "write a time as 1m, 1h or 1d, or of a fixed window 1d@fixed".into())
}

/// The time that the counts cover, as [`sluicegate::contributors`] describes.
fn period(rule: &Rule) -> String {
    if let Some(calendar) = rule.in_calendar() {
        let period = calendar.period().as_str();
        return format!("in this {period} in {}", calendar.zone());
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

async fn why_none(policy: &str, key: &Key, inspector: &Inspector) -> Result<String> {
    let hints = Hints::look(inspector, &[]).await;
    let why = match hints.why_no_policy(policy) {
        None => hints.why_unknown(key).await?,
        why => why,
    };
    let text = "Counts are stored for it: does the service name contributors under this policy (`Charge::with_contributor`, or \
                `contributors` of the layer), and is the window that of its longest rule?";
    Ok(why.map_or(text.to_owned(), |why| why.text))
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
