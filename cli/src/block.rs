//! `sluicegate block` and `unblock`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use sluicegate::block::{BlockDetails, BlockRequest, BlockedBy, Until};
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Key, Limiter};
use tokio::sync::OnceCell;

use super::block_report::{BlockReport, LevelReport};
use super::error::warn;
use super::hints::{Hints, Why};
use super::identity::{IdentitiesArgs, Named};
use super::scan::{DEFAULT_LOAD, Scan};
use super::text::{date_time, millis};
use super::{BAD, BOLD, Error, Output, Result, Settings, confirm, hints, published, server, text};

#[derive(Args)]
#[command(after_help = include_str!("help/block.txt"))]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    identities: IdentitiesArgs,

    #[command(flatten)]
    until: UntilArgs,

    /// The reason, visible to all who may list blocks; at most 200 bytes [default: that of the operator's block in
    /// force]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// The person that asks for it, shown like the reason [default: USER@HOST]
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    /// Block even if services use another prefix, no identity of this kind, or IPv6 networks of other bits
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
#[command(after_help = include_str!("help/unblock.txt"))]
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
        let reason = self.reason.as_deref().filter(|reason| !reason.is_empty());
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

/// The document of a change for one identity, the line that says so and a less important one, and warnings.
type Done = (Value, [String; 2], Vec<String>);

pub(crate) fn block(args: &BlockArgs, settings: &Settings, output: &mut Output) -> Result<bool> {
    let named = args.identities.named(settings.ipv6_prefix())?;
    server::block_on(settings, async {
        let (limiter, inspector) = server::connect(settings).await?;
        let published = inspector.policies().await.unwrap_or_default();
        let doubts = Doubts::new(&inspector, &published).await;
        // Look before a block is stored, since it would hide that the service does not know the identity.
        let mut warnings = Vec::new();
        for named in &named {
            let doubt = doubts.of(&named.key).await;
            if doubt.is_proven && !args.force {
                let why = format!("{} (--force blocks all the same)", doubt.text);
                return Err(Error::usage(format_args!("nothing was blocked: {why}")));
            }
            let text = Some(doubt.text).filter(|text| !text.is_empty());
            let unenforced = published::why_unenforced(&published, &named.key);
            let reasons: Vec<String> = unenforced.into_iter().chain(text).collect();
            warnings.push((!reasons.is_empty()).then(|| reasons.join("; ")));
        }
        let mut warnings = warnings.into_iter();
        let work = async |named: &Named| {
            let warning = warnings.next().flatten();
            block_one(named, args, &limiter, &inspector, warning).await
        };
        let of = ("blocked", args.identities.is_list());
        each(&named, of, &inspector, output, work).await?;
        Ok(true)
    })
}

async fn block_one(
    named: &Named,
    args: &BlockArgs,
    limiter: &Limiter,
    inspector: &Inspector,
    warning: Option<String>,
) -> Result<Done> {
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
    let ends = held.until_ms.zip(span_ms);
    let now_ms = ends.map_or(now_ms, |(end, span)| end.saturating_sub(span));
    let asked_ms = until.ms(now_ms);
    let kept = is_as_before && held.until_ms != asked_ms;
    let stays = kept.then(|| {
        let asked = asked_ms.map_or_else(String::new, date_time);
        format!(
            "that block was there before and stays, as it ends later than {asked}, which you asked for; to shorten it, \
             unblock first"
        )
    });
    let stored = inspector.name(key, "");
    let (title, text) = (named.title(stored.identity()), held.text(now_ms));
    let line = format!("{BOLD}{title}{BOLD:#} is {BAD}{text}{BAD:#}.");
    let lines = [line, held.origin().unwrap_or_default()];
    let document = json!({
        "identity": stored.identity(), "now_ms": now_ms, "blocked": held, "kept": kept, "warning": warning,
    });
    Ok((document, lines, warning.into_iter().chain(stays).collect()))
}

/// Does the same for each identity, and writes one document: with all identities if the arguments are a list. An error
/// has the number of identities done before it. Warnings that differ by the identity alone are given once, and counted.
///
/// Each line is written as soon as its change is made, so that you know what is done when the next change fails.
async fn each(
    named: &[Named],
    (what, is_list): (&str, bool),
    inspector: &Inspector,
    output: &mut Output,
    mut work: impl AsyncFnMut(&Named) -> Result<Done>,
) -> Result<Vec<Value>> {
    let (mut documents, mut warned) = (Vec::new(), BTreeMap::<String, u64>::new());
    for named in named {
        let (document, [line, hint], warnings) = work(named).await.map_err(|error| {
            let error = error.at(inspector.node_address(&named.key));
            match documents.len() {
                0 => error,
                done => error.of(format_args!("after {done} were {what}")),
            }
        })?;
        let identity = document["identity"].as_str().unwrap_or_default();
        for warning in &warnings {
            let count = warned.entry(warning.replace(identity, "it")).or_default();
            *count += 1;
            if *count == 1 {
                warn(warning);
            }
        }
        if !output.is_json {
            output.line(&line)?;
            output.hint(&hint)?;
        }
        documents.push(document);
    }
    for (warning, count) in warned.into_iter().filter(|it| it.1 > 1) {
        warn(format_args!("for {} more: {warning}", count - 1));
    }
    match &documents[..] {
        _ if !output.is_json => {}
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
    server::block_on(settings, async {
        let (limiter, inspector) = server::connect(settings).await?;
        let (named, missing) = match args.all {
            true => all_blocked(&inspector).await?,
            false => (args.identities.named(settings.ipv6_prefix())?, Ok(())),
        };
        let question = format!("Unblock all {}?", named.len());
        if args.all && !args.yes && !named.is_empty() && !confirm::asked(question)? {
            anstream::eprintln!("Nothing was unblocked.");
            return Ok(false);
        }
        let doubts = OnceCell::new();
        let work = async |named: &Named| unblock_one(named, &limiter, &inspector, &doubts).await;
        let of = ("unblocked", args.all || args.identities.is_list());
        let all = each(&named, of, &inspector, output, work).await?;
        if named.is_empty() && !output.is_json {
            output.line("Nobody is blocked.")?;
            output.hint(&hints::why_empty(&inspector, true).await)?;
        }
        missing?;
        let were_blocked = all.iter().all(|it| it["was_blocked"] == true);
        Ok(were_blocked && !named.is_empty())
    })
}

/// All identities with a stored block, including blocks that cannot be read; and the error if a node is missing.
async fn all_blocked(inspector: &Inspector) -> Result<(Vec<Named>, Result<()>)> {
    let mut identities = BTreeSet::new();
    let mut scan = Scan::new(inspector, DEFAULT_LOAD).await?;
    scan.run(&inspector.all_blocks(), async |_, names| {
        identities.extend(names.iter().map(|name| name.identity().to_owned()));
        Ok(())
    })
    .await?;
    let identities = identities.iter();
    let named = identities.filter_map(|it| Named::listed(it)).collect();
    Ok((named, scan.end()))
}

async fn unblock_one<'a>(
    named: &Named,
    limiter: &Limiter,
    inspector: &'a Inspector,
    doubts: &OnceCell<Doubts<'a>>,
) -> Result<Done> {
    let key = &named.key;
    let (now_ms, stored) = (inspector.now_ms(key).await?, inspector.block(key).await?);
    limiter.unblock(key).await?;
    let held = BlockReport::of(&stored, now_ms);
    let level = LevelReport::of(&stored, now_ms);
    let was_blocked = !matches!(held, Ok(None));
    let mut hint = String::new();
    if !was_blocked {
        let doubts = doubts.get_or_init(|| Doubts::new(inspector, &[])).await;
        hint = doubts.of(key).await.text;
    }
    let said = match (&held, &level) {
        (Err(_), _) => ": a block that could not be read was deleted.",
        (Ok(Some(_)), _) => " is no longer blocked.",
        (Ok(None), Some(_)) => " was not blocked; its ban level is cleared.",
        (Ok(None), None) => " was not blocked.",
    };
    let stored = inspector.name(key, "");
    let identity = stored.identity();
    let line = format!("{BOLD}{}{BOLD:#}{said}", named.title(identity));
    let document = json!({
        "identity": identity, "now_ms": now_ms, "was_blocked": was_blocked, "ban_level": level,
        "warning": Some(&hint).filter(|it| !it.is_empty()),
    });
    Ok((document, [line, hint], Vec::new()))
}

/// Reasons to doubt that a block of these identities has an effect.
struct Doubts<'a> {
    hints: Hints<'a>,
    /// The identities that the service has denied within the last hour. Empty if the tool may not read them.
    denied: HashSet<String>,
}

impl<'a> Doubts<'a> {
    async fn new(inspector: &'a Inspector, published: &[PublishedPolicy]) -> Self {
        let denials = match inspector.index_now_ms().await {
            Ok(now_ms) => inspector.denials(now_ms).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        Self {
            hints: Hints::look(inspector, published).await,
            denied: denials.iter().map(|it| it.identity().to_owned()).collect(),
        }
    }

    /// The reason why the service may not know this identity. Missing counts prove nothing: those of a blocked identity
    /// expire.
    async fn of(&self, key: &Key) -> Why {
        let inspector = self.hints.inspector;
        let held = inspector.block(key).await.ok().and_then(Result::ok);
        let stored = inspector.name(key, "");
        let why = match held.flatten().map(|held| held.block.source()) {
            Some(BlockedBy::Ban) => None,
            _ if self.denied.contains(stored.identity()) => None,
            Some(_) => self.hints.why_misnamed(stored.identity()),
            None => self.hints.why_unknown(key).await.unwrap_or_default(),
        };
        why.unwrap_or_default()
    }
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
