//! `sluicegate block` and `unblock`.

use std::{
    collections::BTreeSet,
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde::Serialize;
use sluicegate::{
    Key, Limiter,
    block::{BlockDetails, BlockRequest, BlockedBy, Until},
    denials::DeniedIdentity,
    policies::PublishedPolicy,
    store::redis::inspect::Inspector,
};
use tokio::sync::OnceCell;

use super::{
    answer::Answer,
    block_report::{BlockReport, LevelReport},
    census::{self, Census},
    confirm,
    error::{Error, Result, warn},
    identity::{IdentitiesArgs, Named},
    output::{BAD, BOLD, Output},
    published,
    scan::{DEFAULT_LOAD, Scan, of_home},
    server,
    settings::Settings,
    text::{self, date_time, millis},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate block ip=203.0.113.7 --for 2h --reason 'scrapes prices'
  sluicegate block user=alice user=bob --until 2026-12-01T08:00:00+01:00
  sluicegate block header:x-api-key=- --forever < key.txt
  sluicegate block -f abusers.txt --for 1d

From its next request on, every replica denies the identity, if its limiter
enforces blocks, as limiters do by default. If there are two blocks, the later
end is in force: to shorten a block, unblock first. Times without an offset are
UTC.

The tool checks all identities before it blocks the first. If nothing is stored
for an identity, the tool blocks it and warns you why the service may not know
it; for this it looks at up to 10 000 keys. It also warns you if no published
policy for this kind enforces blocks. If it has looked at all keys and all have
other prefixes, it blocks nothing and reports an error, unless you add --force.

Rights: those of the service (GET, SET, EVALSHA, EVAL and TIME); for the
warnings also SCAN, DBSIZE, ZRANGE and HGETALL.";

const UNBLOCK_EXAMPLES: &str = "\
Examples:
  sluicegate unblock ip=203.0.113.7
  sluicegate unblock -f abusers.txt
  sluicegate unblock --all

Ends every block and ban of the identity for all replicas at once, and forgets
its strikes and its ban level. The counts stay: `sluicegate reset` deletes them. --all asks
first, and scans all keys of the server like `sluicegate blocks --scan`, slowly
enough that other clients do not notice. So it also ends blocks that are not in
the index.

Exit codes: 0 done, 1 an identity was not blocked (its strikes are forgotten in
any case), or you said no.

Rights: those of the service (GET, DEL, EVALSHA, EVAL and TIME); with --all,
or to say why an identity was not blocked, also SCAN and DBSIZE.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    identities: IdentitiesArgs,

    #[command(flatten)]
    until: UntilArgs,

    /// The reason, visible to all who may list blocks; at most 200 bytes [default: that of the operator's block in
    /// force]
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    /// The person that asks for it, shown like the reason [default: USER@HOST]
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    /// Block even if no service uses this prefix, but services use others
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct UntilArgs {
    /// The duration: 90s, 2h, 7d, 1h30m
    #[arg(long = "for", value_name = "TIME", value_parser = text::parse_duration)]
    span: Option<Duration>,

    /// The end: 2026-12-01T08:00:00+01:00, or without an offset in UTC
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    until: Option<SystemTime>,

    /// Until you unblock the identity
    #[arg(long = "forever")]
    for_ever: bool,
}

#[derive(Args)]
#[command(after_help = UNBLOCK_EXAMPLES)]
pub(crate) struct UnblockArgs {
    #[command(flatten)]
    identities: IdentitiesArgs,

    /// All identities that are blocked or banned
    #[arg(long, conflicts_with_all = ["identities", "file"])]
    all: bool,

    /// With --all, do not ask
    #[arg(long, short, requires = "all")]
    yes: bool,
}

/// The answer about one identity as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    identity: String,
    #[serde(skip)]
    title: String,
    /// The server's clock, in ms since the Unix epoch.
    now_ms: u64,
    /// The block in force; null if there is none.
    blocked: Option<BlockReport>,
    /// For `block`: whether an existing block ends later than the requested one, and therefore stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
    /// For `unblock`: whether the identity was blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    was_blocked: Option<bool>,
    /// For `unblock`: the level of bans that grow that was cleared.
    #[serde(skip_serializing_if = "Option::is_none")]
    ban_level: Option<LevelReport>,
    /// The reason why the block may have no effect, or why the service may not know this identity; null without doubts.
    warning: Option<String>,
}

/// The answer about several identities.
#[derive(Serialize)]
struct ListReport<'a> {
    identities: &'a [Report],
}

impl UntilArgs {
    fn get(&self) -> Until {
        match (self.span, self.until) {
            (Some(span), _) => Until::After(span),
            (None, Some(date)) => Until::At(date),
            (None, None) => Until::Forever,
        }
    }

    /// In ms since the Unix epoch; `None` for a block without an end.
    fn ms(&self, now_ms: u64) -> Option<u64> {
        let date = |date: SystemTime| millis(date.duration_since(UNIX_EPOCH).unwrap_or_default());
        let span = |span| now_ms.saturating_add(millis(span));
        self.span.map(span).or(self.until.map(date))
    }
}

pub(crate) fn block(args: &BlockArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let named = args.identities.named(settings.ipv6_prefix())?;
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let limiter = server::limiter(store, settings);
        let doubts = Doubts::new(&inspector, settings);
        if !args.force {
            doubts.refuse_other_prefix().await?;
        }
        let mut reports = Vec::new();
        for named in &named {
            // Look before the block is stored, since a block would hide that the service does not know the identity.
            let warning = doubts.of(&named.key).await;
            let blocked = block_one(named, args, &limiter, &inspector).await;
            let (report, asked_ms) = blocked.map_err(|error| {
                after(&reports, "blocked", of_home(error, &inspector, &named.key))
            })?;
            let report = Report { warning, ..report };
            write_blocked(&report, asked_ms, output)?;
            reports.push(report);
        }
        write_documents(&reports, args.identities.is_list(), output)?;
        Ok(Answer::Yes)
    })
}

/// Also returns the requested end.
async fn block_one(
    named: &Named,
    args: &BlockArgs,
    limiter: &Limiter,
    inspector: &Inspector,
) -> Result<(Report, Option<u64>)> {
    let (key, until) = (&named.key, &args.until);
    let now_ms = inspector.now_ms(key).await?;
    if until.ms(now_ms).is_some_and(|end_ms| end_ms <= now_ms) {
        return Err(Error::usage(
            "this time has passed by the server's clock: no block would hold",
        ));
    }
    let before = BlockReport::of(inspector.block(key).await?, now_ms)?;
    let author = args.author.clone().or_else(user_and_host);
    let earlier = before.as_ref().and_then(|report| report.reason.as_deref());
    let reason = Some(&*args.reason)
        .filter(|reason| !reason.is_empty())
        .or(earlier);
    let request = BlockRequest::new(until.get()).reason(reason.unwrap_or_default());
    let request = request.author(author.as_deref().unwrap_or_default());
    let block = limiter.block(key, request).await?;
    let held = BlockReport::of(inspector.block(key).await?, now_ms)?;
    let held = held.unwrap_or_else(|| BlockReport::new(block, &BlockDetails::default()));
    let is_as_before = before
        .as_ref()
        .is_some_and(|before| before.until_ms == held.until_ms);
    // The server counts the duration from its own time, a little later than `now_ms`.
    let span_ms = until.span.map(millis).filter(|_| !is_as_before);
    let begun_ms = held
        .until_ms
        .zip(span_ms)
        .map(|(end, span)| end.saturating_sub(span));
    let now_ms = begun_ms.unwrap_or(now_ms);
    let asked_ms = until.ms(now_ms);
    let report = Report {
        kept: Some(is_as_before && held.until_ms != asked_ms),
        blocked: Some(held),
        ..Report::of(named, now_ms, inspector)
    };
    Ok((report, asked_ms))
}

fn write_blocked(report: &Report, asked_ms: Option<u64>, output: &mut Output) -> Result<()> {
    if let Some(warning) = &report.warning {
        warn(warning);
    }
    let Some(block) = report.blocked.as_ref().filter(|_| !output.is_json()) else {
        return Ok(());
    };
    let (title, text) = (&report.title, block.text(report.now_ms));
    writeln!(output, "{BOLD}{title}{BOLD:#} is {BAD}{text}{BAD:#}.")?;
    output.hint(&block.origin().unwrap_or_default())?;
    if report.kept == Some(true) {
        let asked = asked_ms.map_or_else(String::new, date_time);
        warn(format_args!(
            "that block was there before and stays, as it ends later than {asked}, which you asked for; to shorten it, \
             unblock first"
        ));
    }
    Ok(())
}

impl Report {
    fn of(named: &Named, now_ms: u64, inspector: &Inspector) -> Self {
        let stored = inspector.name(&named.key, "");
        let identity = stored.identity().to_owned();
        Self {
            title: named.title(&identity),
            identity,
            now_ms,
            blocked: None,
            kept: None,
            was_blocked: None,
            ban_level: None,
            warning: None,
        }
    }
}

/// Reads the keys, the denials and the published policies once, and only when needed.
struct Doubts<'a> {
    inspector: &'a Inspector,
    settings: &'a Settings,
    census: OnceCell<Result<Census, String>>,
    denials: OnceCell<Vec<DeniedIdentity>>,
    published: OnceCell<Vec<PublishedPolicy>>,
}

impl<'a> Doubts<'a> {
    const fn new(inspector: &'a Inspector, settings: &'a Settings) -> Self {
        Self {
            inspector,
            settings,
            census: OnceCell::const_new(),
            denials: OnceCell::const_new(),
            published: OnceCell::const_new(),
        }
    }

    /// The reason why a block of this identity may have no effect, or why the service may not know the identity.
    async fn of(&self, key: &Key) -> Option<String> {
        let unenforced = published::why_unenforced(self.published().await, key);
        let reasons = [unenforced, self.of_name(key).await];
        let reasons = reasons.into_iter().flatten().collect::<Vec<_>>().join("; ");
        (!reasons.is_empty()).then_some(reasons)
    }

    /// The reason why the service may not know this identity. Missing counts prove nothing: those of a blocked identity
    /// expire.
    async fn of_name(&self, key: &Key) -> Option<String> {
        let inspector = self.inspector;
        let why = match self.census().await {
            Ok(census) => census.why_unknown(inspector, key).await,
            Err(error) => Ok(Some(census::unknown(error))),
        };
        let why = why.unwrap_or_else(|error| Some(census::unknown(error.message())))?;
        let held = inspector.block(key).await.ok().and_then(Result::ok);
        let by = held.flatten().map(|(block, _)| block.source());
        let stored = inspector.name(key, "");
        if by == Some(BlockedBy::Ban) || self.was_denied(stored.identity()).await {
            return None;
        }
        match by {
            Some(_) => self.census().await.ok()?.why_misnamed(stored.identity()),
            None => Some(why),
        }
    }

    /// Whether the service has denied the identity within the last hour. False if the tool may not read denials.
    async fn was_denied(&self, identity: &str) -> bool {
        let read = async || {
            let denials = match self.inspector.index_now_ms().await {
                Ok(now_ms) => self.inspector.denials(now_ms).await,
                Err(error) => Err(error),
            };
            denials.unwrap_or_default()
        };
        let mut denials = self.denials.get_or_init(read).await.iter();
        denials.any(|denied| denied.identity() == identity)
    }

    /// An error if services use other prefixes and none uses this one, since you probably mistyped or forgot the
    /// prefix. A doubt without proof is only a warning: a fresh server has no keys of the service yet.
    async fn refuse_other_prefix(&self) -> Result<()> {
        if !self.published().await.is_empty() {
            return Ok(());
        }
        match self.census().await.ok().and_then(Census::why_elsewhere) {
            Some(why) => Err(Error::usage(format_args!(
                "nothing was blocked: {why} (--force blocks all the same)"
            ))),
            None => Ok(()),
        }
    }

    /// Empty if the tool cannot read them.
    async fn published(&self) -> &[PublishedPolicy] {
        let read = async || self.inspector.policies().await.unwrap_or_default();
        self.published.get_or_init(read).await
    }

    async fn census(&self) -> Result<&Census, &str> {
        let take = async || {
            let census = Census::take(self.inspector, self.settings).await;
            census.map_err(|error| error.message().to_owned())
        };
        let census = self.census.get_or_init(take).await;
        census.as_ref().map_err(String::as_str)
    }
}

/// The error about one identity, with the number of identities done before it.
fn after(reports: &[Report], what: &str, error: Error) -> Error {
    match reports.len() {
        0 => error,
        done => error.of(format_args!("after {done} were {what}")),
    }
}

/// Writes one document, with all identities if the arguments are a list.
fn write_documents(reports: &[Report], is_list: bool, output: &mut Output) -> Result<()> {
    match reports {
        _ if !output.is_json() => Ok(()),
        [report] if !is_list => output.document(report),
        identities => output.document(&ListReport { identities }),
    }
}

pub(crate) fn unblock(
    args: &UnblockArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<Answer> {
    if args.all {
        return unblock_all(args.yes, settings, output);
    }
    let named = args.identities.named(settings.ipv6_prefix())?;
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let limiter = server::limiter(store, settings);
        let reports = unblock_each(&named, &limiter, &inspector, settings, output).await?;
        write_documents(&reports, args.identities.is_list(), output)?;
        let were_blocked = reports
            .iter()
            .all(|report| report.was_blocked == Some(true));
        Ok(were_blocked.into())
    })
}

fn unblock_all(yes: bool, settings: &Settings, output: &mut Output) -> Result<Answer> {
    if !yes {
        // Fail here and not after the scan, which may take minutes.
        confirm::possible("nothing was unblocked")?;
    }
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let named = all_blocked(&inspector).await?;
        let count = named.len();
        if count > 0 && !yes && !confirm::asked(format_args!("Unblock all {count}?"))? {
            anstream::eprintln!("Nothing was unblocked.");
            return Ok(Answer::No);
        }
        let limiter = server::limiter(store, settings);
        let reports = unblock_each(&named, &limiter, &inspector, settings, output).await?;
        write_documents(&reports, true, output)?;
        if count == 0 && !output.is_json() {
            writeln!(output, "Nobody is blocked.")?;
            output.hint(&census::why_empty(&inspector, settings).await)?;
        }
        Ok((count > 0).into())
    })
}

/// All identities with a stored block, including blocks that cannot be read.
async fn all_blocked(inspector: &Inspector) -> Result<Vec<Named>> {
    let mut identities = BTreeSet::new();
    let scan = Scan::new(inspector, DEFAULT_LOAD).await?;
    scan.run(&inspector.all_blocks(), async |_, names| {
        identities.extend(names.iter().map(|name| name.identity().to_owned()));
        Ok(())
    })
    .await?;
    Ok(identities
        .iter()
        .filter_map(|identity| Named::listed(identity))
        .collect())
}

async fn unblock_each(
    named: &[Named],
    limiter: &Limiter,
    inspector: &Inspector,
    settings: &Settings,
    output: &mut Output,
) -> Result<Vec<Report>> {
    let doubts = Doubts::new(inspector, settings);
    let mut reports = Vec::new();
    for named in named {
        let ended = unblock_one(named, limiter, inspector).await;
        let (mut report, is_readable) = ended
            .map_err(|error| after(&reports, "unblocked", of_home(error, inspector, &named.key)))?;
        if report.was_blocked == Some(false) {
            report.warning = doubts.of_name(&named.key).await;
        }
        write_unblocked(&report, is_readable, output)?;
        reports.push(report);
    }
    Ok(reports)
}

/// Also returns whether the block could be read.
async fn unblock_one(
    named: &Named,
    limiter: &Limiter,
    inspector: &Inspector,
) -> Result<(Report, bool)> {
    let now_ms = inspector.now_ms(&named.key).await?;
    let held = inspector.block(&named.key).await?;
    limiter.unblock(&named.key).await?;
    let ban_level = LevelReport::of(&held, now_ms);
    let held = BlockReport::of(held, now_ms).ok();
    let report = Report {
        was_blocked: Some(held.as_ref().is_none_or(Option::is_some)),
        ban_level,
        ..Report::of(named, now_ms, inspector)
    };
    Ok((report, held.is_some()))
}

fn write_unblocked(report: &Report, is_readable: bool, output: &mut Output) -> Result<()> {
    if output.is_json() {
        return Ok(());
    }
    let title = &report.title;
    match (is_readable, report.was_blocked) {
        (false, _) => writeln!(
            output,
            "{BOLD}{title}{BOLD:#}: a block that could not be read was deleted."
        )?,
        (true, Some(true)) => writeln!(output, "{BOLD}{title}{BOLD:#} is no longer blocked.")?,
        (true, _) => {
            let cleared = match report.ban_level {
                Some(_) => "; its ban level is cleared",
                None => "",
            };
            writeln!(output, "{BOLD}{title}{BOLD:#} was not blocked{cleared}.")?;
        }
    }
    output.hint(report.warning.as_deref().unwrap_or_default())
}

/// The user that runs the tool, if the system says so.
fn user_and_host() -> Option<String> {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["USER", "USERNAME", "LOGNAME"].iter().find_map(set);
    let user = user.or_else(user_id)?;
    let host = ["HOSTNAME", "COMPUTERNAME"].iter().find_map(set);
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    Some(match host {
        Some(host) => format!("{user}@{}", host.trim()),
        None => user,
    })
}

/// The number of the user, because jobs and containers often have no user name in their environment.
fn user_id() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        Some(std::fs::metadata("/proc/self").ok()?.uid().to_string())
    }
    #[cfg(not(target_os = "linux"))]
    None
}

fn parse_date(text: &str) -> Result<SystemTime, String> {
    let date = text::parse_date(text).and_then(|date| date.try_into().ok());
    date.ok_or_else(|| "write a date such as 2026-12-01T08:00:00+01:00".into())
}
