//! [`BlockReport`]: a block, as verbs show it.

use serde::Serialize;
use sluicegate::block::{Block, BlockDetails, BlockedBy};
use sluicegate::store::redis::inspect::StoredBlock;

use super::text::{date_time, printable, span};
use super::{Error, Result};

/// A block as JSON; fields are only ever added.
#[derive(Default, Serialize)]
pub(crate) struct BlockReport {
    /// In ms since the Unix epoch; null: forever.
    pub(crate) until_ms: Option<u64>,
    /// `operator`, `ban` or `pause`.
    pub(crate) by: &'static str,
    /// The time of the block, in ms since the Unix epoch. Blocks of an older version have null here and in the next
    /// fields.
    pub(crate) created_ms: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) author: Option<String>,
    /// For a ban: the policy and the rule that denied.
    pub(crate) policy: Option<String>,
    pub(crate) rule: Option<String>,
}

/// How many bans in a row an identity has had, as JSON; fields are only ever added.
#[derive(Clone, Serialize)]
pub(crate) struct LevelReport {
    pub(crate) level: u8,
    /// Until when the next ban is of the next level, in ms since the Unix epoch.
    until_ms: u64,
}

impl LevelReport {
    /// The level that counts at this time. The block may have ended.
    pub(crate) fn of(stored: &StoredBlock, now_ms: u64) -> Option<Self> {
        let details = &stored.as_ref().ok()?.as_ref()?.details;
        let until_ms = details.ban_level_until_ms()?;
        let level = details.ban_level()?;
        (until_ms > now_ms).then_some(Self { level, until_ms })
    }

    /// `ban level 2 until 2026-11-24 16:40:03.123 UTC (1d 23h): the next ban is of level 3`
    pub(crate) fn text(&self, now_ms: u64) -> String {
        let Self { level, until_ms } = *self;
        let (until, left) = (date_time(until_ms), span(until_ms.saturating_sub(now_ms)));
        let next = level.saturating_add(1);
        format!("ban level {level} until {until} ({left}): the next ban is of level {next}")
    }
}

impl BlockReport {
    pub(crate) fn new(block: Block, details: &BlockDetails) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            until_ms: block.until_ms(),
            by: block.source().as_str(),
            created_ms: details.created_ms(),
            reason: owned(details.reason()),
            author: owned(details.author()),
            policy: owned(details.policy()),
            rule: owned(details.rule()),
        }
    }

    /// The block in force at this time, from the stored value.
    pub(crate) fn of(stored: &StoredBlock, now_ms: u64) -> Result<Option<Self>> {
        let block = stored.as_ref().map_err(|error| {
            Error::server(format_args!(
                "the block of the identity: {error}. No check that enforces it can be decided: the service's failure policy \
                 applies. `sluicegate unblock` deletes it"
            ))
        })?;
        let holds = |it: &Self| it.until_ms.is_none_or(|until| until > now_ms);
        let block = block
            .as_ref()
            .map(|held| Self::new(held.block, &held.details));
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

    /// The same without the remaining time, so that the text changes only with the block.
    pub(crate) fn text_without_span(&self) -> String {
        let by = match self.by {
            by if by == BlockedBy::Ban.as_str() => "banned",
            by if by == BlockedBy::Pause.as_str() => "paused",
            _ => "blocked by an operator",
        };
        match self.until_ms {
            None => format!("{by} for ever"),
            Some(until) => format!("{by} until {}", date_time(until)),
        }
    }

    /// `since 2026-11-22 14:40:03.123 UTC, by kim@host: scrapes prices`, without the parts that are not stored.
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
}
