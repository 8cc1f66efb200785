//! The contributors to accounts: a sorted set for each sixth of a window, written by a separate script.
//!
//! ```text
//!   sluicegate:{account=acme}:api:by:<length>:<start>
//!     user=alice   90        the 16 labels that have most
//!     user=bob      5
//!     total        95        what all have, and so never less than a label
//!     total+error  95        the same and how much labels may be too low
//! ```

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::{RedisStore, error::store_error, transport::Transport};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        contributors::{Contribution, Contributors, KEPT_LABELS, Kept, Span},
        error::StoreError,
        key::Key,
        policy::Policy,
        rule::millis,
    },
    store::maybe_ready::join_all,
    store::{Reply, StoreFuture},
};

/// Labels always contain a `=`, so no label equals these.
const TOTAL: &str = "total";
const TOTAL_AND_ERROR: &str = "total+error";

/// The size of a full set: the labels and the two sums, which rank above them.
const MEMBERS: usize = KEPT_LABELS + 2;

/// Adds and sets the TTL in one step. In two steps, a connection that ends in between would leave a set that never
/// expires.
pub(super) const SCRIPT: &str = include_str!("contributors.lua");

impl RedisStore {
    pub(super) fn add_contributions(&self, contributions: &[Contribution]) -> StoreFuture<Reply> {
        let updates = contributions
            .iter()
            .map(|contribution| self.update(contribution));
        let updates: Vec<(Vec<u8>, Cmd)> = updates.collect();
        let transport = self.transport.clone();
        StoreFuture::pending(async move {
            let replies = send_all(&transport, &updates).await.into_iter();
            let kept = replies.map(|reply| reply.and_then(kept));
            let kept = kept.map(|kept| kept.map_err(|error| store_error(&error)));
            Ok(Reply::Contribute(kept.collect()))
        })
    }

    pub(super) fn read_contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> StoreFuture<Contributors> {
        let (store, policy, key) = (self.clone(), policy.clone(), key.clone());
        StoreFuture::pending(async move {
            let now_ms = store.now_ms(&policy, &key).await?;
            store.contributors_at(now_ms, &policy, &key).await
        })
    }

    /// The contributors in the window that counts at this time of the server.
    pub(super) async fn contributors_at(
        &self,
        now_ms: u64,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let spans = Span::window(policy, now_ms);
        let names = spans.map(|span| self.names.contributors(policy.name(), key, span));
        let commands: Vec<_> = names.map(range).collect();
        let sets = send_all(&self.transport, &commands).await;
        let sets: Vec<Set> = sets
            .into_iter()
            .map(|reply| Set::read(reply?))
            .collect::<Result<_, _>>()
            .map_err(|error| store_error(&error))?;
        Ok(merged(sets))
    }

    /// The time of the server that keeps this key. Uses a look at the key, which needs no other right than a check.
    pub(super) async fn now_ms(&self, policy: &Policy, key: &Key) -> Result<u64, StoreError> {
        let look = Check::new([Charge::new(policy, key.clone(), 0)])?;
        let decision = self.check_one_slot(&look).await?;
        Ok(decision.usage().decided_at_ms())
    }

    /// The name of the set, and the command.
    fn update(&self, contribution: &Contribution) -> (Vec<u8>, Cmd) {
        let (policy, key) = (contribution.policy().name(), contribution.key());
        let name = self.names.contributors(policy, key, contribution.span);
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(SCRIPT).arg(1).arg(&name);
        cmd.arg(millis(contribution.expires_in())).arg(MEMBERS);
        let (total, error) = (contribution.total(), contribution.error());
        cmd.arg(TOTAL).arg(total);
        cmd.arg(TOTAL_AND_ERROR).arg(total.saturating_add(error));
        for (label, units) in contribution.units() {
            cmd.arg(self.names.label(label)).arg(units);
        }
        (name, cmd)
    }
}

/// The units of each label after the update, 0 if the full set dropped the label. The last part of the reply is the
/// lowest member of a full set.
fn kept(reply: Value) -> RedisResult<Kept> {
    let mut scores = Vec::<Value>::from_redis_value(reply)?;
    let floor = scores.pop().map(Set::members).transpose()?;
    let floor = floor.and_then(|members| members.first().map(|(_, units)| *units));
    let floor = floor.unwrap_or(0);
    // The scores of the two sums come first.
    let units = scores.into_iter().skip(2).map(|score| {
        let units = f64::from_redis_value(score).map(units)?;
        Ok(if units < floor { 0 } else { units })
    });
    Ok(Kept::new(units.collect::<RedisResult<_>>()?, floor))
}

/// All members, the lowest first. Uses `ZRANGE` because the least rights include it.
pub(super) fn range(name: Vec<u8>) -> (Vec<u8>, Cmd) {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&name).arg(0).arg(-1).arg("WITHSCORES");
    (name, cmd)
}

/// The stored set for one sixth of a window.
struct Set {
    labels: Vec<(String, u64)>,
    total: u64,
    error: u64,
}

impl Set {
    fn read(reply: Value) -> RedisResult<Self> {
        let mut labels = Self::members(reply)?;
        let mut sum = |name| {
            let place = labels.iter().position(|(label, _)| label == name);
            place.map_or(0, |place| labels.swap_remove(place).1)
        };
        let (total, most) = (sum(TOTAL), sum(TOTAL_AND_ERROR));
        // A label that a full set has dropped had no more units than the lowest that is left.
        let floor = labels.iter().map(|(_, units)| *units).min();
        let floor = floor.filter(|_| labels.len() >= KEPT_LABELS);
        Ok(Self {
            labels,
            total,
            error: most
                .saturating_sub(total)
                .saturating_add(floor.unwrap_or(0)),
        })
    }

    fn members(reply: Value) -> RedisResult<Vec<(String, u64)>> {
        let members = Vec::<(String, f64)>::from_redis_value(reply)?.into_iter();
        Ok(members
            .map(|(label, score)| (label, units(score)))
            .collect())
    }
}

fn merged(sets: Vec<Set>) -> Contributors {
    let sum = |part: fn(&Set) -> u64| sets.iter().map(part).fold(0, u64::saturating_add);
    let (total, error) = (sum(|set| set.total), sum(|set| set.error));
    let labels = sets.into_iter().flat_map(|set| set.labels);
    Contributors::new(labels, total, error)
}

/// A score as whole units. A negative score, of units that were only given back, counts as 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, as it is meant to"
)]
const fn units(score: f64) -> u64 {
    score as u64
}

/// Sends all commands at once, in this order, each to the server of its key, and waits for all replies.
pub(super) async fn send_all(
    transport: &Transport,
    commands: &[(Vec<u8>, Cmd)],
) -> Vec<RedisResult<Value>> {
    let replies = commands.iter();
    let replies = replies.map(|(key, cmd)| Box::pin(transport.send(cmd, key)));
    join_all(replies.collect()).await
}
