//! `sluicegate simulate`: replays a log against policies, with the log's clock.
//!
//! ```text
//! files ──▶ lines ──▶ records ──▶ requests ──▶ order ──▶ batches ──▶ jobs.rs, on several threads: the policies as they
//! lines.rs            reader.rs   request.rs   order.rs              are, with other limits, without limits
//! ```
//!
//! A format (`formats.rs`, of `formats.toml`) has a pattern of text or names of JSON; `view.rs` finds the fields in it that
//! are replayed. `logs.rs` chooses a format by the first lines, which `reader.rs` has freed from what collectors add.

mod formats;
mod jobs;
mod lines;
mod logs;
mod options;
mod order;
mod reader;
mod replay;
mod report;
mod request;
mod sections;
mod stamp;
mod tally;
mod timeline;
mod verdict;
mod view;

use std::fs;

use serde_json::{Value, json};
use sluicegate::{Policy, Rule};

use self::jobs::Jobs;
use self::lines::LineCounts;
use self::logs::Logs;
pub(crate) use self::options::SimulateArgs;
use self::request::Mapping;
use self::tally::{Hit, Tally};
use self::timeline::OverTime;
use self::verdict::Verdict;
use super::error::warn;
use super::{Error, Output, Result, Settings, policies_file, text};

pub(crate) fn run(args: &SimulateArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let policies = chosen(&policies_file::load(&args.policies, &args.policy)?, args)?;
    verdict::check(&args.max_refused, &policies)?;
    if let Some(factor) = args.factors.iter().find(|it| !(0.0..=1e6).contains(*it)) {
        return Err(Error::usage(format_args!(
            "--factors: {factor} is not from 0 to 1000000"
        )));
    }
    let (proxies, bits) = (&args.trusted_proxies, settings.ipv6_prefix());
    let mapping = Mapping::new(&policies, &args.key, proxies, bits)?;
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
        sections::write(&outcome, output)
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
    let is_named = |policy: &&Policy| args.policy.iter().any(|name| name == policy.name());
    let wanted = all
        .iter()
        .filter(|it| args.policy.is_empty() || is_named(it));
    let (left_out, wanted): (Vec<_>, Vec<_>) = wanted.cloned().partition(is_of_slots);
    // You have asked for these, so leaving one out with a warning would not do.
    if let Some(named) = left_out.iter().find(is_named) {
        let name = named.name();
        return Err(Error::usage(format_args!("--policy {name}: {NO_ENDS}")));
    }
    if wanted.is_empty() {
        return Err(Error::usage(NO_ENDS));
    }
    for policy in left_out {
        let name = policy.name();
        warn(format_args!("policy `{name}` is left out: {NO_ENDS}"));
    }
    Ok(wanted)
}

/// The maximum number of spans in a plot.
const MOST_SPANS: u64 = 240;

const NO_ENDS: &str =
    "a log does not say when responses ended, so that limits of concurrency cannot be replayed";

/// Whether the units of this policy are slots. Such a policy has one rule.
fn is_of_slots(policy: &Policy) -> bool {
    policy.rules().iter().any(Rule::is_concurrency)
}

struct Outcome {
    tally: Tally,
    /// The formats of the logs, each with its time.
    formats: Vec<String>,
    /// Facts to know about the clients before you trust a verdict.
    notes: Vec<String>,
    lines: LineCounts,
    over_time: OverTime,
    /// The identities with the most refusals, the greatest first.
    hardest_hit: Vec<(String, Hit)>,
    /// A verdict for each `--max-refused`.
    verdicts: Vec<Verdict>,
}

impl Outcome {
    fn new(logs: Logs<'_>, tally: Tally, top: usize) -> Self {
        let hits = tally.hits.iter();
        let hits = hits.map(|(key, hit)| (text::identity(key), *hit));
        let mut hardest_hit: Vec<(String, Hit)> = hits.collect();
        hardest_hit.sort_by(|(one, a), (two, b)| b.refused.cmp(&a.refused).then(one.cmp(two)));
        hardest_hit.truncate(top);
        let (formats, of_formats): (Vec<_>, Vec<_>) = logs.formats.into_iter().unzip();
        let notes = logs.mapping.notes().into_iter();
        Self {
            formats,
            notes: notes.chain(of_formats.into_iter().flatten()).collect(),
            lines: logs.counts,
            over_time: tally.timeline.spans(MOST_SPANS),
            hardest_hit,
            verdicts: Vec::new(),
            tally,
        }
    }

    /// The answer as JSON.
    fn document(&self) -> Value {
        let tally = &self.tally;
        let time = |ms| (tally.requests > 0).then(|| text::rfc3339(ms));
        let hit = self.hardest_hit.iter().map(|(identity, hit)| {
            json!({
                "identity": identity, "refused": hit.refused, "first_ms": hit.first_ms, "last_ms": hit.last_ms,
            })
        });
        json!({
            "requests": tally.requests, "refused": tally.refused, "banned": tally.banned,
            "unlimited": tally.unlimited, "from": time(tally.first_ms), "to": time(tally.last_ms),
            "lines": self.lines, "policies": tally.policies, "over_time": self.over_time,
            "hardest_hit": hit.collect::<Vec<_>>(), "identities_refused": tally.hits.len(), "full": tally.full,
            "verdicts": self.verdicts, "formats": self.formats, "notes": self.notes,
        })
    }
}
