//! `sluicegate block` and `unblock`.

use std::{io::Write, time::Duration};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use sluicegate::{
    block::{Block, BlockDetails, BlockRequest, BlockedBy, Until},
    store::redis::inspect::StoredBlock,
};

use super::{
    Answer,
    error::{Error, Result},
    identity::IdentityArgs,
    output::{BAD, BOLD, Output},
    server,
    settings::Settings,
    text::{self, date_time, millis, printable, span},
};

const EXAMPLES: &str = "\
Examples:
  sluicegate block ip=203.0.113.7 --for 2h --reason 'scrapes prices'
  sluicegate block user=alice --until 2026-12-01T08:00:00+01:00
  sluicegate block header:x-api-key=- --forever < key.txt

The identity is denied whatever it asks, from its next request on, by every replica whose limiter enforces
blocks, as limiters do by default. Of two blocks the later end holds: to shorten one, unblock first.
Times without an offset are UTC.

Rights: those of the service (GET, SET, EVALSHA, EVAL and TIME).";

const UNBLOCK_EXAMPLES: &str = "\
Examples:
  sluicegate unblock ip=203.0.113.7

Ends every block of the identity, bans among them, for all replicas at once, and forgets its strikes. What it has used
stays: `sluicegate reset` deletes that.

Exit codes: 0 done, 1 it was not blocked; strikes are forgotten all the same.

Rights: those of the service (GET, DEL, EVALSHA, EVAL and TIME).";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    #[command(flatten)]
    until: UntilArgs,

    /// Why: shown to all who may list blocks; at most 200 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    /// Who asks for it, shown like the reason [default: USER@HOST]
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct UntilArgs {
    /// For how long: 90s, 2h, 7d, 1h30m
    #[arg(long = "for", value_name = "TIME", value_parser = text::parse_duration)]
    span: Option<Duration>,

    /// Until when: 2026-12-01T08:00:00+01:00, or without an offset in UTC
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    until: Option<Timestamp>,

    /// Until it is unblocked
    #[arg(long = "forever", alias = "for-ever")]
    for_ever: bool,
}

#[derive(Args)]
#[command(after_help = UNBLOCK_EXAMPLES)]
pub(crate) struct UnblockArgs {
    #[command(flatten)]
    identity: IdentityArgs,
}

/// A block as JSON; fields are only ever added.
#[derive(Serialize)]
pub(crate) struct BlockReport {
    /// In ms since the Unix epoch; null for ever.
    pub(crate) until_ms: Option<u64>,
    /// `operator` or `ban`.
    pub(crate) by: &'static str,
    /// When it was made, in ms since the Unix epoch; null in a block of an older version, as all below.
    pub(crate) created_ms: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) author: Option<String>,
    /// Of a ban: the policy, and its rule that denied.
    pub(crate) policy: Option<String>,
    pub(crate) rule: Option<String>,
}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    identity: String,
    /// The server's clock, in ms since the Unix epoch.
    now_ms: u64,
    /// The block that holds now; null when none does.
    blocked: Option<BlockReport>,
}

impl BlockReport {
    fn new(block: Block, details: &BlockDetails) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            until_ms: block.until_ms(),
            by: block.by().as_str(),
            created_ms: details.created_ms(),
            reason: owned(details.reason()),
            author: owned(details.author()),
            policy: owned(details.policy()),
            rule: owned(details.rule()),
        }
    }

    /// The block that holds at this time, of what is stored.
    pub(crate) fn of(stored: StoredBlock, now_ms: u64) -> Result<Option<Self>> {
        let block = stored.map_err(|error| {
            Error::server(format_args!(
                "the block of the identity: {error}. No check that enforces it can be decided: the service's failure policy \
                 applies. `sluicegate unblock` deletes it"
            ))
        })?;
        let holds = |it: &Self| it.until_ms.is_none_or(|until| until > now_ms);
        let block = block.map(|(block, details)| Self::new(block, &details));
        Ok(block.filter(holds))
    }

    pub(crate) fn is_ban(&self) -> bool {
        self.by == BlockedBy::Ban.as_str()
    }

    /// `blocked by an operator until 2026-11-22 16:40:03.123 UTC (1h 59m)`
    pub(crate) fn text(&self, now_ms: u64) -> String {
        let text = self.text_without_span();
        match self.until_ms {
            None => text,
            Some(until) => format!("{text} ({})", span(until.saturating_sub(now_ms))),
        }
    }

    /// The same without how long it still lasts: it changes with the block alone.
    pub(crate) fn text_without_span(&self) -> String {
        let by = if self.is_ban() {
            "banned"
        } else {
            "blocked by an operator"
        };
        match self.until_ms {
            None => format!("{by} for ever"),
            Some(until) => format!("{by} until {}", date_time(until)),
        }
    }

    /// `since 2026-11-22 14:40:03.123 UTC, by kim@host: scrapes prices`, as far as it is known.
    pub(crate) fn origin(&self) -> Option<String> {
        let since = format!("since {}", date_time(self.created_ms?));
        Some(match self.why() {
            Some(why) => format!("{since}, {why}"),
            None => since,
        })
    }

    /// `by kim@host: scrapes prices`, or `by 10/1m of login`.
    pub(crate) fn why(&self) -> Option<String> {
        let by = match (&self.policy, &self.rule, &self.author) {
            (Some(policy), Some(rule), _) => Some(format!("by {rule} of {policy}")),
            (_, _, Some(author)) => Some(format!("by {author}")),
            _ => None,
        };
        let parts = [by, self.reason.clone()].into_iter().flatten();
        let why = parts.collect::<Vec<_>>().join(": ");
        (!why.is_empty()).then(|| printable(why.as_bytes()))
    }

    /// Whether a block that ends later was there before. The server counted a span from its own time, a little later.
    fn is_other_than(&self, asked_ms: Option<u64>) -> bool {
        const ROUND_TRIP_MS: u64 = 10_000;
        match (self.until_ms, asked_ms) {
            (Some(held), Some(asked)) => held > asked.saturating_add(ROUND_TRIP_MS),
            (held, asked) => held != asked,
        }
    }
}

impl UntilArgs {
    fn get(&self) -> Until {
        match (self.span, self.until) {
            (Some(span), _) => Until::After(span),
            (None, Some(date)) => Until::At(date.into()),
            (None, None) => Until::ForEver,
        }
    }

    /// In ms since the Unix epoch; `None` for ever.
    fn ms(&self, now_ms: u64) -> Option<u64> {
        let date = |date: Timestamp| u64::try_from(date.as_millisecond()).unwrap_or(0);
        let span = |span| now_ms.saturating_add(millis(span));
        self.span.map(span).or(self.until.map(date))
    }
}

pub(crate) fn block(args: &BlockArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    let (report, asked_ms) = server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let now_ms = inspector.now_ms(&key).await?;
        let until_ms = args.until.ms(now_ms);
        if until_ms.is_some_and(|it| it <= now_ms) {
            return Err(Error::usage(
                "this time has passed by the server's clock: nobody was blocked",
            ));
        }
        let limiter = server::limiter(store, settings);
        let request = BlockRequest::new(args.until.get()).reason(&args.reason);
        let author = args.author.clone().or_else(user_and_host);
        let request = request.author(author.as_deref().unwrap_or_default());
        let block = limiter.block(&key, request).await?;
        let held = BlockReport::of(inspector.block(&key).await?, now_ms)?;
        let report = Report {
            identity: inspector.name(&key, "").identity().to_owned(),
            now_ms,
            blocked: Some(
                held.unwrap_or_else(|| BlockReport::new(block, &BlockDetails::default())),
            ),
        };
        Ok((report, until_ms))
    })?;
    if output.is_json() {
        output.document(&report)?;
    } else if let Some(block) = &report.blocked {
        let text = block.text(report.now_ms);
        let identity = &report.identity;
        writeln!(output, "{BOLD}{identity}{BOLD:#} is {BAD}{text}{BAD:#}.")?;
        if let Some(origin) = block.origin() {
            output.hint(&origin)?;
        }
        if block.is_other_than(asked_ms) {
            output.hint(
                "That block ends later than what was asked for, and so it holds: unblock first to shorten it.",
            )?;
        }
    }
    Ok(Answer::Yes)
}

pub(crate) fn unblock(
    args: &UnblockArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<Answer> {
    let key = args.identity.key(settings.ipv6_prefix())?;
    let (identity, now_ms, held) = server::block_on(settings, async {
        let (store, inspector) = server::connect(settings).await?;
        let now_ms = inspector.now_ms(&key).await?;
        let held = inspector.block(&key).await?;
        server::limiter(store, settings).unblock(&key).await?;
        let identity = inspector.name(&key, "").identity().to_owned();
        Ok((identity, now_ms, BlockReport::of(held, now_ms).ok()))
    })?;
    let was_blocked = held.as_ref().is_none_or(Option::is_some);
    if output.is_json() {
        output.document(&Report {
            identity,
            now_ms,
            blocked: None,
        })?;
    } else if held.is_none() {
        writeln!(
            output,
            "{BOLD}{identity}{BOLD:#}: a block that could not be read was deleted."
        )?;
    } else if was_blocked {
        writeln!(output, "{BOLD}{identity}{BOLD:#} is no longer blocked.")?;
    } else {
        writeln!(output, "{BOLD}{identity}{BOLD:#} was not blocked.")?;
        output.hint(&settings.prefix_hint())?;
    }
    Ok(was_blocked.into())
}

/// Who runs the tool, as far as the system says so.
fn user_and_host() -> Option<String> {
    let set = |name: &&str| std::env::var(name).ok().filter(|it| !it.is_empty());
    let user = ["USER", "USERNAME", "LOGNAME"].iter().find_map(set)?;
    let host = ["HOSTNAME", "COMPUTERNAME"].iter().find_map(set);
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    Some(match host {
        Some(host) => format!("{user}@{}", host.trim()),
        None => user,
    })
}

fn parse_date(text: &str) -> Result<Timestamp, String> {
    let date = text::parse_date(text);
    date.ok_or_else(|| "write a date such as 2026-12-01T08:00:00+01:00".into())
}
