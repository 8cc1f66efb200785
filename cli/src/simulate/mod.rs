//! `sluicegate simulate`: replays a log against policies, with the log's clock.
//!
//! ```text
//! files ──▶ lines ──▶ records ──▶ requests ──▶ order ──▶ batches ──▶ jobs.rs, on several threads: the policies as they
//! lines.rs            record.rs   request.rs   order.rs              are, with other limits, without limits
//! ```

mod decisions;
mod gzip;
mod jobs;
mod lines;
mod options;
mod order;
mod others;
mod plot;
mod progress;
mod reading;
mod record;
mod replay;
mod report;
mod request;
mod result;
mod stamp;
mod tally;
mod timeline;
mod write;

use std::fs;

use sluicegate::{Policy, policies::Policies};

pub(crate) use self::options::SimulateArgs;
use self::{reading::Reading, request::Mapping, result::Outcome};
use super::{
    Answer,
    error::{Error, Result},
    output::Output,
    policies_file,
    settings::Settings,
};

pub(crate) fn run(args: &SimulateArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let policies = chosen(policies_file::load(&args.policies)?, args)?;
    if policies.iter().next().is_none() {
        return Err(Error::usage(format_args!(
            "{}: the file has no policies",
            args.policies.display()
        )));
    }
    if let Some(factor) = args.factors.iter().find(|it| !(0.0..=1e6).contains(*it)) {
        return Err(Error::usage(format_args!(
            "--factors: {factor} is not from 0 to 1000000"
        )));
    }
    let mapping = Mapping::new(&policies, &args.key, settings.ipv6_prefix())?;
    args.check_outputs()?;
    if let Some(path) = &args.report {
        // Test this before hours of work. The file keeps its content until the page is ready.
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.map_err(|error| Error::file(path, &error))?;
    }
    let bar = progress::bar(&args.logs);
    let mut reading = Reading::open(args, &mapping, &bar)?;
    let jobs = jobs::jobs(&mapping, args)?;
    let jobs = jobs::run(jobs, |send| reading.read(send))?;
    bar.finish_and_clear();
    reading.report();
    let counts = &reading.counts;
    if counts.read > 0 && counts.unreadable == counts.read {
        return Err(Error::usage("no line can be read: nothing was replayed"));
    }
    let outcome = Outcome::new(&mapping, jobs, reading.counts, args.number)?;
    let mistyped = outcome.policies.iter().find(|it| it.is_mistyped());
    if let Some(policy) = mistyped.filter(|_| outcome.requests > 0) {
        let (name, key) = (&policy.name, &policy.key);
        return Err(Error::usage(format_args!(
            "--key: no line has a field `{key}`, so that nothing would be limited by `{name}`"
        )));
    }
    if let Some(path) = &args.report {
        fs::write(path, report::page(&outcome)?).map_err(|error| Error::file(path, &error))?;
    }
    output.report(&outcome, write::write)?;
    Ok(Answer::Yes)
}

/// The policies in `--policy`, or all policies without this argument.
fn chosen(all: Policies, args: &SimulateArgs) -> Result<Policies> {
    if args.policy.is_empty() {
        return Ok(all);
    }
    for name in &args.policy {
        policies_file::named(&all, &args.policies, name)?;
    }
    let is_chosen = |it: &&Policy| args.policy.iter().any(|name| name == it.name());
    Policies::new(all.iter().filter(is_chosen).cloned()).map_err(Error::usage)
}
