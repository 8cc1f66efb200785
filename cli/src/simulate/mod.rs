//! `sluicegate simulate`: replays a log against policies, with the log's clock.
//!
//! ```text
//! files ──▶ lines ──▶ records ──▶ requests ──▶ order ──▶ batches ──▶ jobs.rs, on several threads: the policies as they
//! lines.rs            reader.rs   request.rs   order.rs              are, with other limits, without limits
//! ```
//!
//! A format (`formats.rs`, of `formats.toml`) has a pattern of text or names of JSON; `view.rs` finds the fields in it that
//! are replayed. `choose.rs` chooses a format by the first lines, which `prefix.rs` has freed from what collectors add.

mod choose;
mod decisions;
mod formats;
mod jobs;
mod lines;
mod logs;
mod options;
mod order;
mod outcome;
mod pattern;
mod prefix;
mod reader;
mod record;
mod replay;
mod report;
mod request;
mod sections;
mod signs;
mod stamp;
mod tally;
mod timeline;
mod verdict;
mod view;
mod write;

use std::fs;

use sluicegate::{Policy, Rule};

use self::jobs::Jobs;
use self::logs::Logs;
pub(crate) use self::options::SimulateArgs;
use self::outcome::Outcome;
use self::request::Mapping;
use self::verdict::Verdict;
use super::error::warn;
use super::{Error, Output, Result, Settings, policies_file};

pub(crate) fn run(args: &SimulateArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let policies = chosen(&policies_file::load(&args.policies)?, args)?;
    verdict::check(&args.max_refused, &policies)?;
    if let Some(factor) = args.factors.iter().find(|it| !(0.0..=1e6).contains(*it)) {
        return Err(Error::usage(format_args!(
            "--factors: {factor} is not from 0 to 1000000"
        )));
    }
    let mapping = Mapping::new(&policies, &args.key, settings.ipv6_prefix())?;
    let mapping = mapping.trusting(&args.trusted_proxies);
    args.check_outputs()?;
    if let Some(path) = &args.report {
        // Test this before hours of work. The file keeps its content until the page is ready.
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.map_err(|error| Error::file(path, &error))?;
    }
    let mut logs = Logs::open(args, mapping)?;
    let mut jobs = Jobs::new(&logs.mapping, args)?;
    logs.read(|requests| jobs.take(requests))?;
    logs.report();
    let tally = jobs.finish()?;
    let counts = &logs.counts;
    if counts.read > 0 && counts.unreadable + counts.left_out == counts.read {
        return Err(Error::usage("no line can be read: nothing was replayed"));
    }
    let mut policies = logs.mapping.policies.iter().zip(&tally.policies);
    let mistyped = policies.find(|(mapped, tally)| mapped.is_named && tally.requests == 0);
    if let Some((_, policy)) = mistyped.filter(|_| tally.requests > 0) {
        let (name, key) = (&policy.name, &policy.key);
        return Err(Error::usage(format_args!(
            "--key: no line has a field `{key}`, so that nothing would be limited by `{name}`"
        )));
    }
    let mut outcome = Outcome::new(logs, tally, args.number);
    if let Some(path) = &args.report {
        fs::write(path, report::page(&outcome)).map_err(|error| Error::file(path, &error))?;
    }
    let verdicts = args.max_refused.iter();
    let verdicts = verdicts.map(|bound| bound.verdict(&outcome.tally, &outcome.lines));
    let verdicts: Result<Vec<Verdict>> = verdicts.collect();
    let judged = verdicts.map(|it| outcome.verdicts = it);
    // You see the outcome even if there is no verdict.
    output.report(&outcome.document(), |_, output| {
        write::write(&outcome, output)
    })?;
    judged?;
    Ok(outcome.verdicts.iter().all(|it| it.kept))
}

/// The policies in `--policy`, or all policies without this argument; none that limits concurrency.
fn chosen(all: &[Policy], args: &SimulateArgs) -> Result<Vec<Policy>> {
    if all.is_empty() {
        let file = args.policies.display();
        return Err(Error::usage(format_args!(
            "{file}: the file has no policies"
        )));
    }
    // You have asked for these, so leaving one out with a warning would not do.
    for name in &args.policy {
        if is_of_slots(policies_file::named(all, &args.policies, name)?) {
            return Err(Error::usage(format_args!("--policy {name}: {NO_ENDS}")));
        }
    }
    let mut chosen = all.to_vec();
    chosen.retain(|policy| {
        args.policy.is_empty() || args.policy.iter().any(|name| name == policy.name())
    });
    let (left_out, chosen): (Vec<Policy>, Vec<Policy>) = chosen.into_iter().partition(is_of_slots);
    if chosen.is_empty() {
        return Err(Error::usage(NO_ENDS));
    }
    for policy in left_out {
        let name = policy.name();
        warn(format_args!("policy `{name}` is left out: {NO_ENDS}"));
    }
    Ok(chosen)
}

const NO_ENDS: &str =
    "a log does not say when responses ended, so that limits of concurrency cannot be replayed";

/// Whether the units of this policy are slots. Such a policy has one rule.
fn is_of_slots(policy: &Policy) -> bool {
    policy.rules().iter().any(Rule::is_concurrency)
}
