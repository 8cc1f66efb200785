//! The denied identities: a sorted set for each sixth of a minute and of an hour, written by the script of the
//! contributors.
//!
//! ```text
//!   sluicegate:{!denied}:<length>:<start>
//!     api user=alice       212 · 2^27 + 229     denied and admitted, of the 512 that were denied most
//!     !block ip=192.0.2.1  90 · 2^27
//! ```
//!
//! All sets share one slot of a cluster: they need a few commands a second, whatever the number of requests.

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::{
    RedisStore,
    contributors::{SCRIPT, range, send_all},
    error::store_error,
    inspect::Inspector,
};
use crate::{
    domain::{
        block::BLOCKS,
        denials::{DenialReport, DeniedIdentity, KEPT_IDENTITIES, RequestCounts, Span},
        error::StoreError,
        key::Key,
        policy::Policy,
    },
    store::StoreFuture,
};

/// Both counts share one score, so that they are added and dropped together. The score is exact up to 2^53: for 67
/// million denials and 134 million admissions of one identity in ten minutes.
const DENIED: u64 = 1 << 27;

impl RedisStore {
    pub(super) fn add_denials(&self, reports: &[DenialReport]) -> StoreFuture<()> {
        let updates = reports.iter().flat_map(|report| {
            let spans = Span::both(report.start_ms());
            spans.map(|span| self.denial_update(report, span))
        });
        let updates: Vec<(Vec<u8>, Cmd)> = updates.collect();
        let transport = self.transport.clone();
        StoreFuture::pending(async move {
            for reply in send_all(&transport, &updates).await {
                reply.map_err(|error| store_error(&error))?;
            }
            Ok(())
        })
    }

    /// Takes the time from a look at a key, because proxies do not pass `TIME` on.
    pub(super) fn read_denials(&self) -> StoreFuture<Vec<DeniedIdentity>> {
        let (store, no_identity) = (self.clone(), Key::new("", ""));
        StoreFuture::pending(async move {
            let now_ms = store.now_ms(Policy::of_look_ups(), &no_identity).await?;
            Inspector::over(&store).denials(now_ms).await
        })
    }

    /// The name of the set, and the command.
    fn denial_update(&self, report: &DenialReport, span: Span) -> (Vec<u8>, Cmd) {
        let name = self.names.denials(span);
        let mut cmd = redis::cmd("EVAL");
        // A report within a second counts as made at the end of that second.
        let ttl_ms = span.lasts_ms() + 1_000;
        cmd.arg(SCRIPT).arg(1).arg(&name);
        cmd.arg(ttl_ms).arg(KEPT_IDENTITIES);
        for (policy, key, counts) in report.counts() {
            let mut member = policy
                .map_or(BLOCKS, |policy| policy.name())
                .as_bytes()
                .to_vec();
            member.push(b' ');
            self.names.write_identity(&mut member, key);
            cmd.arg(member).arg(score(counts));
        }
        (name, cmd)
    }
}

impl Inspector {
    /// The identities that were denied within the hour before this time: see [`denials`](crate::denials). Sends
    /// `ZRANGE`.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn denials(&self, now_ms: u64) -> Result<Vec<DeniedIdentity>, StoreError> {
        let spans = [Span::OF_MINUTE_MS, Span::OF_HOUR_MS];
        let spans = spans
            .into_iter()
            .flat_map(|length_ms| Span::last(length_ms, now_ms));
        let (mut last_minute, mut last_hour) = (Vec::new(), Vec::new());
        let (spans, commands): (Vec<Span>, Vec<_>) = spans
            .map(|span| (span, range(self.store.names.denials(span))))
            .unzip();
        let replies = send_all(&self.store.transport, &commands);
        let replies = self.in_time(async { Ok(replies.await) }).await?;
        for (span, reply) in spans.into_iter().zip(replies) {
            let rows = reply.and_then(rows).map_err(|error| store_error(&error))?;
            let list = match span.length_ms {
                Span::OF_MINUTE_MS => &mut last_minute,
                _ => &mut last_hour,
            };
            list.extend(rows);
        }
        Ok(DeniedIdentity::list(last_minute, last_hour))
    }
}

fn rows(reply: Value) -> RedisResult<Vec<(Option<String>, String, RequestCounts)>> {
    let members = Vec::<(String, f64)>::from_redis_value(reply)?.into_iter();
    let rows = members.filter_map(|(member, score)| {
        let (policy, identity) = member.split_once(' ')?;
        let policy = (policy != BLOCKS).then(|| policy.to_owned());
        Some((policy, identity.to_owned(), counts(score)))
    });
    Ok(rows.collect())
}

/// Both bounds are far above the counts of one process in a second.
fn score(counts: RequestCounts) -> u64 {
    let denied = counts.denied().min((1 << 26) - 1);
    denied * DENIED + counts.admitted().min(DENIED - 1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, as it is meant to"
)]
const fn counts(score: f64) -> RequestCounts {
    let score = score as u64;
    RequestCounts::new(score / DENIED, score % DENIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a score is below 2^53")]
    fn a_score_holds_both_counts() {
        let most = ((1 << 26) - 1, DENIED - 1);
        for (denied, admitted) in [(0, 0), (0, 1), (1, 0), (212, 229), most] {
            let both = RequestCounts::new(denied, admitted);
            assert_eq!(counts(score(both) as f64), both);
        }
        assert_eq!(counts(-5.0), RequestCounts::default());
    }
}
