//! `sluicegate block` and `unblock`.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use sluicegate::Limiter;
use sluicegate::block::{BlockDetails, BlockRequest, Until};
use sluicegate::store::redis::inspect::Inspector;
use tokio::sync::OnceCell;

use super::block_report::{BlockReport, LevelReport};
use super::error::warn;
use super::hints::Doubts;
use super::identity::{IdentitiesArgs, Named};
use super::scan::{DEFAULT_LOAD, Scan, of_home};
use super::text::{date_time, millis};
use super::{BAD, BOLD, Error, Output, Result, Settings, confirm, hints, published, server, text};

const EXAMPLES: &str = include_str!("help/block.txt");

const UNBLOCK_EXAMPLES: &str = include_str!("help/unblock.txt");

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

impl BlockArgs {
    /// The request of a block, instead of the one in force.
    fn request(&self, before: Option<&BlockReport>) -> BlockRequest {
        let author = self.author.clone().or_else(user_and_host);
        let earlier = before.and_then(|report| report.reason.as_deref());
        let reason = Some(&*self.reason).filter(|reason| !reason.is_empty());
        let reason = reason.or(earlier).unwrap_or_default();
        let request = BlockRequest::new(self.until.get()).reason(reason);
        request.author(author.as_deref().unwrap_or_default())
    }
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

pub(crate) fn block(args: &BlockArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let named = args.identities.named(settings.ipv6_prefix())?;
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let limiter = server::limiter(store, settings);
        let doubts = Doubts::new(&inspector, settings).await;
        let published = inspector.policies().await.unwrap_or_default();
        if !args.force && published.is_empty() {
            doubts.refuse_other_prefix()?;
        }
        let is_list = args.identities.is_list();
        let all = each(
            &named,
            ("blocked", is_list),
            &inspector,
            output,
            async |named, output| {
                // Look before the block is stored, since a block would hide that the service does not know the identity.
                let unenforced = published::why_unenforced(&published, &named.key);
                let reasons = [unenforced, doubts.of(&named.key).await];
                let reasons = reasons.into_iter().flatten().collect::<Vec<_>>();
                let warning = (!reasons.is_empty()).then(|| reasons.join("; "));
                block_one(named, args, &limiter, &inspector, warning, output).await
            },
        );
        all.await?;
        Ok(true)
    })
}

async fn block_one(
    named: &Named,
    args: &BlockArgs,
    limiter: &Limiter,
    inspector: &Inspector,
    warning: Option<String>,
    output: &mut Output,
) -> Result<Value> {
    let (key, until) = (&named.key, &args.until);
    let now_ms = inspector.now_ms(key).await?;
    if until.ms(now_ms).is_some_and(|end_ms| end_ms <= now_ms) {
        let why = "this time has passed by the server's clock: no block would hold";
        return Err(Error::usage(why));
    }
    let before = BlockReport::of(&inspector.block(key).await?, now_ms)?;
    let block = limiter.block(key, args.request(before.as_ref())).await?;
    let held = BlockReport::of(&inspector.block(key).await?, now_ms)?;
    let held = held.unwrap_or_else(|| BlockReport::new(block, &BlockDetails::default()));
    let is_as_before = before.is_some_and(|before| before.until_ms == held.until_ms);
    // The server counts the duration from its own time, a little later than `now_ms`.
    let span_ms = until.span.map(millis).filter(|_| !is_as_before);
    let begun_ms = held
        .until_ms
        .zip(span_ms)
        .map(|(end, span)| end.saturating_sub(span));
    let now_ms = begun_ms.unwrap_or(now_ms);
    let asked_ms = until.ms(now_ms);
    let is_kept = is_as_before && held.until_ms != asked_ms;
    if let Some(warning) = &warning {
        warn(warning);
    }
    let stored = inspector.name(key, "");
    if !output.is_json() {
        let (title, text) = (named.title(stored.identity()), held.text(now_ms));
        output.line(format!("{BOLD}{title}{BOLD:#} is {BAD}{text}{BAD:#}."))?;
        output.hint(&held.origin().unwrap_or_default())?;
        if is_kept {
            let asked = asked_ms.map_or_else(String::new, date_time);
            warn(format_args!(
                "that block was there before and stays, as it ends later than {asked}, which you asked for; to shorten \
                 it, unblock first"
            ));
        }
    }
    Ok(json!({
        "identity": stored.identity(), "now_ms": now_ms, "blocked": held, "kept": is_kept, "warning": warning,
    }))
}

/// Does the same for each identity, and writes one document: with all identities if the arguments are a list. An error
/// has the number of identities done before it.
async fn each(
    named: &[Named],
    (what, is_list): (&str, bool),
    inspector: &Inspector,
    output: &mut Output,
    mut work: impl AsyncFnMut(&Named, &mut Output) -> Result<Value>,
) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    for named in named {
        let done = work(named, output).await.map_err(|error| {
            let error = of_home(error, inspector, &named.key);
            match documents.len() {
                0 => error,
                done => error.of(format_args!("after {done} were {what}")),
            }
        });
        documents.push(done?);
    }
    match &documents[..] {
        _ if !output.is_json() => {}
        [document] if !is_list => output.document(document)?,
        identities => output.document(&json!({ "identities": identities }))?,
    }
    Ok(documents)
}

pub(crate) fn unblock(
    args: &UnblockArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<bool> {
    if args.all && !args.yes {
        // Fail here and not after the scan, which may take minutes.
        confirm::possible("nothing was unblocked")?;
    }
    let named = match args.all {
        true => Vec::new(),
        false => args.identities.named(settings.ipv6_prefix())?,
    };
    server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let Some(named) = args.confirmed(named, &inspector).await? else {
            return Ok(false);
        };
        let limiter = server::limiter(store, settings);
        let doubts = OnceCell::new();
        let is_list = args.all || args.identities.is_list();
        let all = each(
            &named,
            ("unblocked", is_list),
            &inspector,
            output,
            async |named, output| {
                let (mut document, text) = unblock_one(named, &limiter, &inspector).await?;
                let warning = if document["was_blocked"] == false {
                    let doubts = doubts.get_or_init(|| Doubts::new(&inspector, settings));
                    doubts.await.of(&named.key).await
                } else {
                    None
                };
                if !output.is_json() {
                    output.line(text)?;
                    output.hint(warning.as_deref().unwrap_or_default())?;
                }
                document["warning"] = warning.into();
                Ok(document)
            },
        );
        let all = all.await?;
        if named.is_empty() && !output.is_json() {
            output.line("Nobody is blocked.")?;
            output.hint(&hints::why_nothing(&inspector, settings, None, &[]).await)?;
        }
        let were_blocked = all.iter().all(|it| it["was_blocked"] == true);
        Ok(were_blocked && !named.is_empty())
    })
}

impl UnblockArgs {
    /// The identities to unblock; `None` if you have said no.
    async fn confirmed(
        &self,
        named: Vec<Named>,
        inspector: &Inspector,
    ) -> Result<Option<Vec<Named>>> {
        if !self.all {
            return Ok(Some(named));
        }
        let all = all_blocked(inspector).await?;
        let (count, asks) = (all.len(), !self.yes && !all.is_empty());
        if asks && !confirm::asked(format_args!("Unblock all {count}?"))? {
            anstream::eprintln!("Nothing was unblocked.");
            return Ok(None);
        }
        Ok(Some(all))
    }
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
    let identities = identities.iter();
    Ok(identities.filter_map(|it| Named::listed(it)).collect())
}

/// Also returns the text.
async fn unblock_one(
    named: &Named,
    limiter: &Limiter,
    inspector: &Inspector,
) -> Result<(Value, String)> {
    let now_ms = inspector.now_ms(&named.key).await?;
    let held = inspector.block(&named.key).await?;
    limiter.unblock(&named.key).await?;
    let level = LevelReport::of(&held, now_ms);
    let held = BlockReport::of(&held, now_ms);
    let stored = inspector.name(&named.key, "");
    let title = format!("{BOLD}{}{BOLD:#}", named.title(stored.identity()));
    let text = match (&held, &level) {
        (Err(_), _) => format!("{title}: a block that could not be read was deleted."),
        (Ok(Some(_)), _) => format!("{title} is no longer blocked."),
        (Ok(None), Some(_)) => format!("{title} was not blocked; its ban level is cleared."),
        (Ok(None), None) => format!("{title} was not blocked."),
    };
    let was_blocked = !matches!(held, Ok(None));
    let document = json!({
        "identity": stored.identity(), "now_ms": now_ms, "was_blocked": was_blocked, "ban_level": level,
    });
    Ok((document, text))
}

/// The user that runs the tool, if the system says so.
fn user_and_host() -> Option<String> {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["USER", "USERNAME", "LOGNAME"].iter().find_map(set);
    let user = user.or_else(user_id)?;
    let host = ["HOSTNAME", "COMPUTERNAME"].iter().find_map(set);
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    Some(format!("{user}@{}", host?.trim()))
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
