//! `sluicegate reset`: deletes the counts of an identity.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use sluicegate::{Policy, Rule};

use super::error::warn;
use super::published::write_others;
use super::reading::ReadArgs;
use super::report::{PolicyReport, Report};
use super::{Error, Output, Result, Settings, confirm, server};

#[derive(Args)]
#[command(after_help = include_str!("help/reset.txt"))]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    read: ReadArgs,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &ResetArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    if !args.yes {
        confirm::possible("nothing was deleted")?;
    }
    server::block_on(settings, async {
        let (limiter, inspector) = server::connect(settings).await?;
        let named = args.read.identities.one(settings.ipv6_prefix())?;
        let limits = args.read.limits(settings, &inspector).await?;
        let reader = args.read.reader(&inspector, &limits, named).await?;
        let report = Report::read(&reader, 0).await?;
        let (title, stays) = (&report.title, stays(&report));
        stays.iter().for_each(warn);
        let stored = || report.policies.iter().filter(|policy| policy.is_stored());
        let mut names: Vec<&str> = stored().map(|policy| policy.policy.as_str()).collect();
        names.dedup();
        let policies = names.join(", ");
        let question = format!("Delete what {title} has used under {policies}?");
        if !names.is_empty() && !args.yes && !confirm::asked(question)? {
            anstream::eprintln!("Nothing was deleted.");
            return Ok(false);
        }
        for policy in stored() {
            limiter.reset(&like(policy)?, &reader.named.key).await?;
        }
        let (mut others, mut why, mut nothing) = (Vec::new(), String::new(), String::new());
        if names.is_empty() {
            why = reader.why_nothing().await.text;
            nothing = format!("Nothing is stored for {title}: nothing was deleted.");
        } else {
            others = reader.other_policies().await;
        }
        // A document has one field for all of this.
        let warnings = [&nothing, &why, stays.as_deref().unwrap_or_default()].into_iter();
        let warnings: Vec<&str> = warnings.filter(|part| !part.is_empty()).collect();
        let warning = Some(warnings.join(" ")).filter(|it| !it.is_empty());
        let document = json!({
            "identity": report.identity, "deleted": names, "other_policies": others, "warning": warning,
        });
        output.report(&document, |_, output| {
            if names.is_empty() {
                output.line(&nothing)?;
                return output.hint(&why);
            }
            output.line(format!("Deleted what {title} had used under {policies}."))?;
            write_others(&others, reader.limits.lacks, output)
        })?;
        Ok(!names.is_empty())
    })
}

/// Returns a policy to reset in place of the stored one, with the same effect. Counts belong to the name of a policy, and
/// slots to the expiry as well: the rest does not matter.
fn like(stored: &PolicyReport) -> Result<Policy> {
    let rule = match stored.slots_expire_after_ms {
        Some(ms) => Rule::concurrent(1).expires_after(Duration::from_millis(ms)),
        None => Rule::new(1, Duration::from_secs(1)),
    };
    Policy::new(stored.policy.as_str(), [rule]).map_err(Error::usage)
}

/// The block or ban that a reset does not end.
fn stays(report: &Report<'_>) -> Option<String> {
    let how = match &report.unreadable_block {
        None => report.blocked.as_ref()?.text(report.now_ms),
        Some(_) => "blocked, in a way that cannot be read".to_owned(),
    };
    let identity = &report.identity;
    Some(format!(
        "{identity} stays {how}: a reset does not end that, `sluicegate unblock` does"
    ))
}
