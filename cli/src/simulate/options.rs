//! The arguments of `sluicegate simulate`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;
use same_file::Handle;
use sluicegate::extract::Cidr;

use super::verdict::{self, Bound};
use crate::{Error, text};

#[derive(Args)]
#[command(after_help = include_str!("../help/simulate.txt"))]
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

    /// The networks of your proxies, to find the client in a list of addresses [default: the client is the last]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub(super) trusted_proxies: Vec<Cidr>,

    /// The format: a name, or nginx's log_format or Apache's LogFormat [default: the one that fits the first lines]
    #[arg(long, value_name = "NAME|STRING")]
    pub(super) format: Option<String>,

    /// The field of the time [default: when a request came, as far as the format says]
    #[arg(long, value_name = "FIELD")]
    pub(super) time: Option<String>,

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
    #[arg(long, value_name = "[POLICY=]SHARE", value_parser = verdict::parse)]
    pub(super) max_refused: Vec<Bound>,

    /// The maximum time by which lines may be out of order
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "5s")]
    pub(super) reorder: Duration,

    /// Replay times of whole seconds unchanged, instead of spreading the requests over the second
    #[arg(long)]
    pub(super) no_spread: bool,

    /// The capacity of each simulated store: the identities under policies that count at one time
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = clap::value_parser!(u32).range(1..=100_000_000).map(|keys| keys as usize))]
    pub(super) keys: usize,

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
    /// Refuses to overwrite a file that is read, or that is written twice.
    pub(super) fn check_outputs(&self) -> Result<(), Error> {
        let read = self.logs.iter().chain([&self.policies]);
        let mut taken: Vec<Handle> = read.filter_map(|path| file(path)).collect();
        for path in self.report.iter().chain(&self.decisions) {
            let file = file(path);
            if file.as_ref().is_some_and(|it| taken.contains(it)) {
                return Err(Error::usage(format_args!(
                    "{} would be written over: it is named twice, or is a log or the policies",
                    path.display()
                )));
            }
            taken.extend(file);
        }
        if self.report.is_some() && self.report == self.decisions {
            return Err(Error::usage("--report and --decisions name the same file"));
        }
        Ok(())
    }
}

/// The regular file at this path, or stdin; `None` if there is none.
fn file(path: &Path) -> Option<Handle> {
    let handle = match path == Path::new("-") {
        true => Handle::stdin(),
        false => Handle::from_path(path),
    };
    let is_file = |it: &Handle| it.as_file().metadata().is_ok_and(|it| it.is_file());
    handle.ok().filter(is_file)
}
