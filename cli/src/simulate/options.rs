//! The arguments of `sluicegate simulate`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use same_file::Handle;
use sluicegate::extract::Cidr;

use super::bound;
use super::bound::Bound;
use crate::{Error, text};

const EXAMPLES: &str = "\
Examples:
  sluicegate simulate policies.toml access.log
  sluicegate simulate policies.toml access.log.1 access.log.2.gz --key user
  zcat app.log.gz | sluicegate simulate policies.toml - --key api=customer.id
  sluicegate simulate policies.toml access.log --report report.html
  sluicegate simulate policies.toml access.log --max-refused 0.5%

Logs are Common, Combined, or a JSON object on each line. The tool unpacks gzip,
and merges several files by time. Fields are ip, user, method, path, status,
referer, agent, extra1 (the field behind the agent) and so on, or for JSON any
name or path with dots: request.remote_ip. A policy with the name `user` limits
by user, any other by ip, unless you use --key. A policy does not limit lines
without its field. The client of a list of addresses, as in X-Forwarded-For, is
the one that ForwardedIp finds with --trusted-proxies, or else the first.

The tool decides all policies of a line together, like the middleware. Each
request costs 1. Times of whole seconds are spread over the second. Concurrency
rules are left out: a log does not say when responses ended.

Exit codes: 0 done, 1 more requests are refused than a --max-refused allows,
2 the tool cannot use a file or an argument, or fewer than nine tenths of the
lines can be judged.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// The file of policies
    pub(super) policies: PathBuf,

    /// The logs; - is stdin
    #[arg(default_value = "-", value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,

    /// Replay only this policy; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Vec<String>,

    /// The field that distinguishes clients: FIELD for all policies, POLICY=FIELD for one
    #[arg(long, value_name = "[POLICY=]FIELD")]
    pub(super) key: Vec<String>,

    /// The networks of your proxies, to find the client in a list of addresses [default: the client is the first]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub(super) trusted_proxies: Vec<Cidr>,

    /// The field of the time in JSON logs [default: time, ts, timestamp and others]
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "time",
        hide_default_value = true
    )]
    pub(super) time: String,

    /// Replay only requests with a path that begins with this
    #[arg(long, value_name = "PREFIX")]
    pub(super) path: Option<String>,

    /// Other limits to replay, as multiples of each limit
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.5,0.8,1.25,2"
    )]
    pub(super) factors: Vec<f64>,

    /// The share of requests that may be refused, SHARE of all or POLICY=SHARE of a policy's; else exit code 1
    #[arg(long, value_name = "[POLICY=]SHARE", value_parser = bound::parse)]
    pub(super) max_refused: Vec<Bound>,

    /// The maximum time by which lines may be out of order
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "5s")]
    pub(super) reorder: Duration,

    /// Replay times of whole seconds unchanged, instead of spreading the requests over the second
    #[arg(long)]
    pub(super) no_spread: bool,

    /// The capacity of each simulated store: the identities under policies that count at one time
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys: u32,

    /// The maximum number of identities to show
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
    pub(super) fn capacity(&self) -> usize {
        usize::try_from(self.keys).unwrap_or(usize::MAX)
    }

    /// Refuses to overwrite a file that is read, or that is written twice.
    pub(super) fn check_outputs(&self) -> Result<(), Error> {
        let read = self.logs.iter().chain([&self.policies]);
        let mut taken: Vec<Handle> = read.filter_map(|path| file(path)).collect();
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

/// The regular file at this path, or stdin; `None` if there is none.
fn file(path: &Path) -> Option<Handle> {
    let handle = if path == Path::new("-") {
        Handle::stdin()
    } else {
        Handle::from_path(path)
    };
    let is_file = |it: &Handle| it.as_file().metadata().is_ok_and(|it| it.is_file());
    handle.ok().filter(is_file)
}
