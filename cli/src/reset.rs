//! `sluicegate reset`: deletes the counts of an identity.

use std::{io::Write, time::Duration};

use clap::Args;
use serde::Serialize;
use sluicegate::{Policy, Rule};

use super::{
    answer::Answer,
    block_report::BlockReport,
    census, confirm, drift,
    error::{Error, Result, warn},
    identity::IdentityArgs,
    output::Output,
    published::Source,
    reading::{Entry, ReadArgs, Reading},
    server,
    settings::Settings,
};

const EXAMPLES: &str = "\
Examples:
  sluicegate reset user=alice --policy api   asks first
  sluicegate reset user=alice --policies policies.toml --yes
  sluicegate reset user=alice                published policies; asks first

Deletes counts under the policies that you name, or of the file, or else of
those that services publish. Without any of these, the tool scans all keys of
the server to find those of the identity. It names other policies with counts
that it has seen.

With its next request the identity starts again from zero under these policies,
for all replicas of the service. You cannot undo this. A value that cannot be
read is also deleted. A block or a ban stays: `sluicegate unblock` ends it.

Exit codes: 0 done, 1 there was nothing to delete, or you said no.

Rights: those of the service (GET, DEL, EVALSHA, EVAL and TIME); HGETALL for
published policies; SCAN and DBSIZE without these, and for leftovers.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    read: ReadArgs,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    identity: String,
    /// The policies under which counts were deleted.
    deleted: Vec<String>,
    /// Without --policy: other policies with a stored value, within the sample of keys.
    other_policies: Vec<String>,
    /// The block that a reset does not end, or the reason why nothing was deleted; null otherwise.
    warning: Option<String>,
}

pub(crate) fn run(args: &ResetArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    if !args.yes {
        confirm::possible("nothing was deleted")?;
    }
    let key = args.identity.key(settings.ipv6_prefix())?;
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let reader = args.read.reader(settings, inspector, key.clone()).await?;
        let reading = reader.read().await?;
        let stored = stored(&reading);
        let title = args.identity.title(&reading.identity);
        let stays = stays(&reading);
        if let Some(stays) = &stays {
            warn(stays);
        }
        if stored.is_empty() {
            let why = reader.why_nothing(settings).await;
            return nothing(&reading, &title, &why, stays, output);
        }
        let question = format!("Delete what {title} has used under {}?", stored.join(", "));
        if !args.yes && !confirm::asked(question)? {
            anstream::eprintln!("Nothing was deleted.");
            return Ok(Answer::No);
        }
        let limiter = server::limiter(store, settings);
        for entry in reading.entries.iter().filter(|it| is_stored(it)) {
            // Counts belong to the name of a policy, and slots to the expiry as well: the rest does not matter.
            let rule = match entry.slots_expire_after_ms {
                Some(ms) => Rule::concurrent(1).expires_after(Duration::from_millis(ms)),
                None => Rule::new(1, Duration::from_secs(1)),
            };
            let policy = Policy::new(entry.name.as_str(), [rule]).map_err(Error::usage)?;
            limiter.reset(&policy, &key).await?;
        }
        let mut others = Vec::new();
        if reading.has_limits && args.read.only.is_empty() {
            let known = reading.entries.iter().map(|entry| entry.name.as_str());
            let found = census::other_policies(&reader.inspector, settings, &key, known).await;
            others = found.unwrap_or_default();
        }
        let report = Report {
            identity: reading.identity.clone(),
            deleted: stored,
            other_policies: others,
            warning: stays,
        };
        done(&report, &title, reading.source, output)
    })
}

/// The block or ban that a reset does not end.
fn stays(reading: &Reading) -> Option<String> {
    let how = match BlockReport::of(reading.block.clone(), reading.now_ms) {
        Ok(block) => block?.text(reading.now_ms),
        Err(_) => "blocked, in a way that cannot be read".to_owned(),
    };
    let identity = &reading.identity;
    Some(format!(
        "{identity} stays {how}: a reset does not end that, `sluicegate unblock` does"
    ))
}

/// The policies with something to delete.
fn stored(reading: &Reading) -> Vec<String> {
    let stored = reading.entries.iter().filter(|entry| is_stored(entry));
    let mut names: Vec<_> = stored.map(|entry| entry.name.clone()).collect();
    names.dedup();
    names
}

const fn is_stored(entry: &Entry) -> bool {
    !matches!(entry.stored, Ok(None))
}

fn nothing(
    reading: &Reading,
    title: &str,
    why: &str,
    stays: Option<String>,
    output: &mut Output,
) -> Result<Answer> {
    let nothing = format!("Nothing is stored for {title}: nothing was deleted.");
    // A document has one field for all of this.
    if output.is_json() {
        let parts = [Some(nothing), Some(why.to_owned()), stays];
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        output.document(&Report {
            identity: reading.identity.clone(),
            deleted: Vec::new(),
            other_policies: Vec::new(),
            warning: Some(parts.collect::<Vec<_>>().join(" ")),
        })?;
    } else {
        writeln!(output, "{nothing}")?;
        output.hint(why)?;
    }
    Ok(Answer::No)
}

fn done(report: &Report, title: &str, source: Source, output: &mut Output) -> Result<Answer> {
    if output.is_json() {
        output.document(report)?;
    } else {
        let policies = report.deleted.join(", ");
        writeln!(output, "Deleted what {title} had used under {policies}.")?;
        drift::write_other_policies(&report.other_policies, source, output)?;
    }
    Ok(Answer::Yes)
}
