//! The arguments of `sluicegate simulate`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use same_file::Handle;

use super::super::{error::Error, text};

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

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// The file of policies
    pub(super) policies: PathBuf,

    /// The logs; - is stdin
    #[arg(default_value = "-", value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,

    /// Replay under this policy alone; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Vec<String>,

    /// The field that tells clients apart: FIELD for all policies, POLICY=FIELD for one
    #[arg(long, value_name = "[POLICY=]FIELD")]
    pub(super) key: Vec<String>,

    /// The field of the time in JSON logs [default: time, ts, timestamp and others]
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "time",
        hide_default_value = true
    )]
    pub(super) time: String,

    /// Replay only requests whose path begins with this
    #[arg(long, value_name = "PREFIX")]
    pub(super) path: Option<String>,

    /// What else each limit is tried at, as parts of itself
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.5,0.8,1.25,2"
    )]
    pub(super) factors: Vec<f64>,

    /// How far lines may be out of order
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "5s")]
    pub(super) reorder: Duration,

    /// Take times of whole seconds as they stand, instead of spreading the requests over the second
    #[arg(long)]
    pub(super) no_spread: bool,

    /// How many keys each simulated store holds: identities under policies that count at one time
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = capacity)]
    pub(super) keys: usize,

    /// How many identities to show
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub(super) number: usize,

    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// Write a line of JSON for each request to this file
    #[arg(long, value_name = "FILE")]
    pub(super) decisions: Option<PathBuf>,
}

impl SimulateArgs {
    /// Refuses to write over a file that is read, or that is written, too.
    pub(super) fn check_outputs(&self) -> Result<(), Error> {
        let read = self.logs.iter().chain([&self.policies]);
        let mut taken: Vec<Handle> = read.filter_map(|it| file(it)).collect();
        for path in self.report.iter().chain(&self.decisions) {
            let Some(file) = file(path) else {
                continue;
            };
            if taken.contains(&file) {
                return Err(Error::usage(format_args!(
                    "{} would be written over: it is named twice, or is a log or the policies",
                    path.display()
                )));
            }
            taken.push(file);
        }
        if self.report.is_some() && self.report == self.decisions {
            return Err(Error::usage("--report and --decisions name the same file"));
        }
        Ok(())
    }
}

/// The file at this path, or stdin; `None` if there is none, or it is no regular one.
fn file(path: &Path) -> Option<Handle> {
    let handle = if path == Path::new("-") {
        Handle::stdin()
    } else {
        Handle::from_path(path)
    };
    let is_file = |it: &Handle| it.as_file().metadata().is_ok_and(|it| it.is_file());
    handle.ok().filter(is_file)
}

fn capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=100_000_000) => Ok(count),
        _ => Err("write a number from 1 to 100000000".into()),
    }
}
