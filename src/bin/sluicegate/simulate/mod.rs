//! `sluicegate simulate`: replays a log against policies, with the log's clock.
//!
//! ```text
//! files ──▶ lines ──▶ records ──▶ requests ──▶ order ──▶ batches ──▶ jobs, on several threads: the policies as they
//! lines.rs            record.rs   request.rs   order.rs              are, with other limits, without limits
//! ```

mod lines;
mod order;
mod plot;
mod record;
mod replay;
mod report;
mod request;
mod result;
mod stamp;
mod tally;
mod timeline;
mod write;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::{
    lines::{Line, Lines},
    order::Order,
    record::{Field, Record},
    request::{Mapping, Request},
    result::Outcome,
    tally::{Job, Peaks, Tally, Variant},
};
use super::{Answer, error::Error, output::Output, policies_file, settings::Settings, text};

const EXAMPLES: &str = "\
Examples:
  sluicegate simulate policies.toml access.log
  sluicegate simulate policies.toml access.log.1 access.log.2.gz --key user
  zcat app.log.gz | sluicegate simulate policies.toml - --key api=customer.id
  sluicegate simulate policies.toml access.log --report report.html

Logs are Common, Combined, or a JSON object on each line; gzip is unpacked;
several files are merged by time. Fields are ip, user, method, path, status,
referer, agent, extra1 (what follows the agent, and so on), or for JSON any
name or path with dots: request.remote_ip. A policy that is called `user` is
by user, any other by ip, unless --key says otherwise. A line without the field
of a policy is not limited by that policy.

All policies of a line are decided together, as the middleware decides them;
each request costs 1. Times of whole seconds are spread over the second.

Exit codes: 0 done, 2 a file or an argument cannot be used.";

/// How many requests a thread is handed at once.
const BATCH: usize = 2_048;

/// Unreadable lines that are shown.
const SHOWN: usize = 5;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// The file of policies
    policies: PathBuf,

    /// The logs; - is stdin
    #[arg(default_value = "-", value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// The field that tells clients apart: FIELD for all policies, POLICY=FIELD for one
    #[arg(long, value_name = "[POLICY=]FIELD")]
    key: Vec<String>,

    /// The field of the time in JSON logs [default: time, ts, timestamp and others]
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "time",
        hide_default_value = true
    )]
    time: String,

    /// Replay only requests whose path begins with this
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,

    /// What else each limit is tried at, as parts of itself
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.5,0.8,1.25,2"
    )]
    factors: Vec<f64>,

    /// How far lines may be out of order
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "5s")]
    reorder: Duration,

    /// Take times of whole seconds as they stand, instead of spreading the requests over the second
    #[arg(long)]
    no_spread: bool,

    /// How many keys each simulated store holds: identities under policies that count at one time
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = capacity)]
    keys: usize,

    /// How many identities are listed
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    top: usize,

    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write a line of JSON for each request to this file
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
}

fn capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=100_000_000) => Ok(count),
        _ => Err("write a number from 1 to 100000000".into()),
    }
}

pub(crate) fn run(
    args: &SimulateArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<Answer, Error> {
    let policies = policies_file::load(&args.policies)?;
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
    let jobs = jobs(&mapping, args)?;
    let progress = Progress::new(&args.logs);
    let mut reading = Reading::open(args, &mapping, &progress)?;
    let jobs = replay(jobs, |send| reading.read(send))?;
    progress.bar.finish_and_clear();
    reading.report();
    let outcome = Outcome::new(&mapping, jobs, reading.counts, args.top)?;
    if let Some(path) = &args.report {
        fs::write(path, report::page(&outcome)?).map_err(|error| Error::file(path, &error))?;
    }
    if output.is_json() {
        output.document(&outcome)?;
    } else {
        write::write(&outcome, output)?;
    }
    Ok(Answer::Yes)
}

fn jobs(mapping: &Mapping, args: &SimulateArgs) -> Result<Vec<Job>, Error> {
    let policies = &mapping.policies;
    let tally = Tally::new(policies, args.keys, args.decisions.as_deref())?;
    let peaks = replay::times(policies, PEAK_FACTOR).map_err(Error::usage)?;
    let mut jobs = vec![
        Job::Tally(Box::new(tally)),
        Job::Peaks(Peaks::new(peaks, args.keys)),
    ];
    let mut place = 0;
    for (index, (policy, _)) in policies.iter().enumerate() {
        for (rule_index, rule) in policy.rules().iter().enumerate() {
            for limit in other_limits(rule.limit(), &args.factors) {
                let changed =
                    replay::with_limit(policies, index, rule_index, limit).map_err(Error::usage)?;
                let variant = Variant::new(changed, args.keys, place, limit, policy.is_shadow());
                jobs.push(Job::Variant(variant));
            }
            place += 1;
        }
    }
    Ok(jobs)
}

/// Above the limits that somebody might choose; it bounds the steps of a key.
const PEAK_FACTOR: u64 = 100;

/// Rounded, at least 1, each once, and without the limit itself.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "limits that a log can reach are exact; a cast of a float saturates"
)]
fn other_limits(limit: u64, factors: &[f64]) -> Vec<u64> {
    let scaled = |factor: &f64| (limit as f64 * factor).round().max(1.0) as u64;
    let mut limits: Vec<u64> = factors
        .iter()
        .map(scaled)
        .map(|it| it.min(sluicegate::rule::MAX_UNITS))
        .collect();
    limits.sort_unstable();
    limits.dedup();
    limits.retain(|it| *it != limit);
    limits
}

/// Hands batches of requests to the jobs, each of which sees all of them in order, and answers the jobs.
fn replay(
    jobs: Vec<Job>,
    read: impl FnOnce(&mut dyn FnMut(Vec<Request>) -> bool) -> Result<(), Error>,
) -> Result<Vec<Job>, Error> {
    let count = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(jobs.len());
    let mut shares: Vec<Vec<Job>> = (0..count).map(|_| Vec::new()).collect();
    for (index, job) in jobs.into_iter().enumerate() {
        shares[index % count].push(job);
    }
    thread::scope(|scope| {
        let workers = shares.into_iter().map(|share| {
            let (sender, receiver) = sync_channel(4);
            (sender, scope.spawn(move || work(share, &receiver)))
        });
        let (senders, handles): (Vec<SyncSender<Arc<[Request]>>>, Vec<_>) = workers.unzip();
        // A worker that has failed hears no more; its error is told below.
        let read = read(&mut |batch| {
            let batch: Arc<[Request]> = batch.into();
            senders.iter().all(|it| it.send(batch.clone()).is_ok())
        });
        drop(senders);
        let mut done = Vec::new();
        for handle in handles {
            match handle.join() {
                Ok(share) => done.extend(share?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        read.map(|()| done)
    })
}

fn work(mut jobs: Vec<Job>, batches: &Receiver<Arc<[Request]>>) -> Result<Vec<Job>, Error> {
    for batch in batches {
        for job in &mut jobs {
            for request in &*batch {
                job.take(request)?;
            }
        }
    }
    Ok(jobs)
}

/// What became of the lines.
#[derive(Clone, Default, Serialize)]
struct Counts {
    read: u64,
    /// Left out by --path.
    filtered: u64,
    /// Later than --reorder allows; replayed at the first second to come.
    late: u64,
    unreadable: u64,
    #[serde(skip)]
    shown: Vec<Unreadable>,
}

#[derive(Clone)]
struct Unreadable {
    place: String,
    why: &'static str,
    text: String,
}

/// The logs that are being read.
struct Reading<'a> {
    args: &'a SimulateArgs,
    mapping: &'a Mapping,
    progress: &'a Progress,
    time: Field,
    path: Field,
    logs: Vec<Log>,
    counts: Counts,
}

struct Log {
    lines: Lines,
    /// The next request of it.
    next: Option<Request>,
}

impl<'a> Reading<'a> {
    fn open(
        args: &'a SimulateArgs,
        mapping: &'a Mapping,
        progress: &'a Progress,
    ) -> Result<Self, Error> {
        let logs = args.logs.iter().map(|path| {
            let lines = Lines::open(path, &progress.read)?;
            Ok(Log { lines, next: None })
        });
        Ok(Self {
            args,
            mapping,
            progress,
            time: Field::new(&args.time),
            path: Field::new("path"),
            logs: logs.collect::<Result<_, Error>>()?,
            counts: Counts::default(),
        })
    }

    /// Reads all logs to their ends, merged by time, until `send` wants no more.
    fn read(&mut self, send: &mut dyn FnMut(Vec<Request>) -> bool) -> Result<(), Error> {
        let mut order = Order::new(self.args.reorder, !self.args.no_spread);
        let mut batch = Vec::with_capacity(BATCH);
        for log in 0..self.logs.len() {
            self.advance(log)?;
        }
        loop {
            let times = self
                .logs
                .iter()
                .enumerate()
                .filter_map(|(at, log)| Some((log.next.as_ref()?.ms, at)));
            let Some((_, log)) = times.min() else { break };
            if let Some(request) = self.logs[log].next.take() {
                order.push(request);
            }
            self.advance(log)?;
            while let Some(requests) = order.ready() {
                batch.extend(requests);
            }
            if batch.len() >= BATCH && !send(std::mem::take(&mut batch)) {
                return Ok(());
            }
        }
        while let Some(requests) = order.pop() {
            batch.extend(requests);
            if batch.len() >= BATCH && !send(std::mem::take(&mut batch)) {
                return Ok(());
            }
        }
        self.counts.late = order.late;
        send(batch);
        Ok(())
    }

    /// Reads the next request of a log.
    fn advance(&mut self, at: usize) -> Result<(), Error> {
        let log = &mut self.logs[at];
        let path = &self.args.logs[at];
        loop {
            let (number, line) = log
                .lines
                .next()
                .map_err(|error| Error::file(path, &error))?;
            let line = match line {
                Line::End => return Ok(()),
                Line::TooLong => Err((&b""[..], "the line is longer than 64 KiB")),
                Line::Text(line) if line.trim_ascii().is_empty() => continue,
                Line::Text(line) => Ok(line),
            };
            self.counts.read += 1;
            if self.counts.read.is_multiple_of(8_192) {
                self.progress.show();
            }
            let read = line.and_then(|line| {
                let record = Record::read(line).map_err(|why| (line, why))?;
                let stamp = record.stamp(&self.time).map_err(|why| (line, why))?;
                Ok((record, stamp))
            });
            match read {
                Ok((record, _)) if !chosen(&record, &self.path, self.args.path.as_deref()) => {
                    self.counts.filtered += 1
                }
                Ok((record, stamp)) => {
                    log.next = Some(self.mapping.request(&record, stamp, at, number));
                    return Ok(());
                }
                Err((line, why)) => {
                    self.counts.unreadable += 1;
                    if self.counts.shown.len() < SHOWN {
                        let text = text::printable(&line[..line.len().min(200)]);
                        let place = format!("{}:{number}", path.display());
                        self.counts.shown.push(Unreadable { place, why, text });
                    }
                }
            }
        }
    }

    /// Tells a person of what could not be read.
    fn report(&self) {
        for Unreadable { place, why, text } in &self.counts.shown {
            let short: String = text.chars().take(100).collect();
            anstream::eprintln!("{place}: {why}: {short}");
        }
        let more = self.counts.unreadable - self.counts.shown.len() as u64;
        if more > 0 {
            anstream::eprintln!("… and {more} more lines that cannot be read");
        }
    }
}

fn chosen(record: &Record<'_>, field: &Field, prefix: Option<&str>) -> bool {
    prefix.is_none_or(|prefix| {
        record
            .get(field)
            .is_some_and(|path| path.starts_with(prefix.as_bytes()))
    })
}

/// A bar on stderr, if that is a terminal.
struct Progress {
    bar: ProgressBar,
    read: Arc<AtomicU64>,
}

impl Progress {
    fn new(logs: &[PathBuf]) -> Self {
        let sizes = logs.iter().map(|path| {
            fs::metadata(path)
                .ok()
                .filter(fs::Metadata::is_file)
                .map(|it| it.len())
        });
        let size: Option<u64> = sizes.sum();
        let (bar, template) = match size {
            Some(size) => (
                ProgressBar::new(size),
                "{bar:40} {percent:>3} %  {bytes_per_sec}, {eta} left",
            ),
            None => (
                ProgressBar::no_length(),
                "{spinner} {bytes} read, {bytes_per_sec}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self {
            bar,
            read: Arc::default(),
        }
    }

    fn show(&self) {
        self.bar.set_position(self.read.load(Ordering::Relaxed));
    }
}
