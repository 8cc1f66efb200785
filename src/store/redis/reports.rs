//! The reports of all processes, added up: a sorted set for each account and span, written by a separate script.
//!
//! ```text
//!   sluicegate:{account=acme}:api:by:<length>:<start>
//!     user=alice   90        the 16 contributors with the most units
//!     user=bob      5
//!     total        95        the units of all, and so never less than those of a member
//!
//!   sluicegate:{!denied}:<length>:<start>
//!     api user=alice       212     the 512 identities with the most denials
//!     !block ip=192.0.2.1   90
//!     total                302
//! ```
//!
//! All sets of denials share one slot of a cluster: they need a few commands a second, whatever the number of requests.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::{RedisStore, error::store_error, transport::Transports};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        error::StoreError,
        key::Key,
        report::{Account, Label, Ranking, Report, Span},
    },
    store::maybe_ready::join_all,
    store::{Reply, StoreFuture},
};

/// Ranks above the other members, which contain a `=`.
const TOTAL: &str = "total";

/// Adds and sets the TTL in one step. In two steps, a connection that ends in between would leave a set that never
/// expires.
const SCRIPT: &str = include_str!("reports.lua");

impl RedisStore {
    pub(super) fn add_reports(&self, reports: &[Report]) -> StoreFuture<Reply> {
        let updates = reports.iter().flat_map(|report| self.updates(report));
        let updates: Vec<(Vec<u8>, Cmd)> = updates.collect();
        let transports = Arc::clone(&self.transports);
        StoreFuture::pending(async move {
            let replies = send_all(&transports, &updates).await;
            let failed = replies.into_iter().find_map(Result::err);
            failed.map_or(Ok(Reply::Report), |error| Err(store_error(&error)))
        })
    }

    pub(super) fn read_rankings(&self, account: Account) -> StoreFuture<Vec<Ranking>> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let now_ms = store.now_ms(&account).await?;
            store.rankings_at(now_ms, &account).await
        })
    }

    /// The rankings of the spans that count at this time of the server. Uses `ZRANGE` because the least rights include
    /// it.
    pub(super) async fn rankings_at(
        &self,
        now_ms: u64,
        account: &Account,
    ) -> Result<Vec<Ranking>, StoreError> {
        let spans = account.spans(now_ms);
        let commands = spans.iter().map(|span| {
            let (name, mut cmd) = (self.names.reported(account, *span), redis::cmd("ZRANGE"));
            cmd.arg(&name).arg(0).arg(-1).arg("WITHSCORES");
            (name, cmd)
        });
        let commands: Vec<_> = commands.collect();
        let replies = send_all(&self.transports, &commands).await.into_iter();
        let rankings = replies.zip(spans);
        let rankings = rankings.map(|(reply, span)| ranking(span, reply?));
        let rankings: RedisResult<_> = rankings.collect();
        rankings.map_err(|error| store_error(&error))
    }

    /// The time of the server that keeps the account.
    pub(super) async fn now_ms(&self, account: &Account) -> Result<u64, StoreError> {
        let key = match account {
            Account::Contributors { key, .. } => key.clone(),
            Account::Denials => Key::new("", ""),
        };
        let decision = self.check_one_hash_slot(&look(key)).await?;
        Ok(decision.usage().decided_at_ms())
    }

    /// The name of the set of each span, and the command.
    fn updates(&self, report: &Report) -> impl Iterator<Item = (Vec<u8>, Cmd)> {
        let account = &report.account;
        report.spans().map(move |span| {
            let (name, mut cmd) = (self.names.reported(account, span), redis::cmd("EVAL"));
            cmd.arg(SCRIPT).arg(1).arg(&name);
            cmd.arg(report.expires_in_ms(span)).arg(account.kept() + 1);
            cmd.arg(TOTAL).arg(report.total());
            for (label, units) in &report.units {
                cmd.arg(self.member(account, label)).arg(units);
            }
            (name, cmd)
        })
    }

    fn member(&self, account: &Account, label: &Label) -> String {
        let key = match account {
            Account::Contributors { .. } => self.names.label(&label.key),
            // As in the names of keys, which the operators' tool takes.
            Account::Denials => {
                String::from_utf8_lossy(&self.names.identity(&label.key)).into_owned()
            }
        };
        account.member(label, key)
    }
}

/// A look at a key, whose answer has the server's time. It needs no other right than a check, and proxies pass it on.
pub(super) fn look(key: Key) -> Check {
    Check::counting([Charge::look(key)])
}

/// The members of a set, and their units.
fn ranking(span: Span, reply: Value) -> RedisResult<Ranking> {
    let members = Vec::<(String, f64)>::from_redis_value(reply)?.into_iter();
    let members = members.map(|(member, score)| (member, units(score)));
    let (totals, members): (Vec<_>, Vec<_>) = members.partition(|it| it.0 == TOTAL);
    Ok(Ranking {
        span,
        total: totals.first().map_or(0, |it| it.1),
        members,
    })
}

/// A score as whole units. A negative score, of units that were only given back, counts as 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, as it is meant to"
)]
pub(super) const fn units(score: f64) -> u64 {
    score as u64
}

/// Sends all commands at once, in this order, each to the server of its key, and waits for all replies.
pub(super) async fn send_all(
    transports: &Transports,
    commands: &[(Vec<u8>, Cmd)],
) -> Vec<RedisResult<Value>> {
    let replies = commands.iter();
    let replies = replies.map(|(key, cmd)| Box::pin(transports.send(cmd, key)));
    join_all(replies.collect()).await
}
