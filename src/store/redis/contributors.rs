//! Who has contributed to accounts: a sorted set for each sixth of a window, by plain commands.
//!
//! ```text
//!   sluicegate:{account=acme}:api:by:<length>:<start>
//!     user=alice   90        the 16 labels that have most
//!     user=bob      5
//!     total        95        what all have, and so never less than a label
//!     total+error  95        the same and how much labels may be too low
//! ```

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Value};

use super::{RedisStore, error::store_error, transport::Transport};
use crate::{
    charge::Charge,
    check::Check,
    contributors::{Contribution, Contributors, KEPT_LABELS, Kept, Span},
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::millis,
    store::{ContributeFuture, StoreFuture},
};

/// No label is like these: each has a `=`.
const TOTAL: &str = "total";
const TOTAL_AND_ERROR: &str = "total+error";

/// Of a set that is full: labels, and the two sums, which stand above them.
const MEMBERS: usize = KEPT_LABELS + 2;

type Reply<'a> = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;

/// The commands for one set, and what its labels are there.
struct Update {
    name: Vec<u8>,
    expire: Cmd,
    commands: Vec<Cmd>,
    labels: usize,
}

impl RedisStore {
    /// Nothing is added to a set that could not be given a TTL: that is tried first, also where there is no set yet.
    pub(super) fn add_contributions(&self, contributions: &[Contribution]) -> ContributeFuture {
        let updates = contributions.iter().map(|it| self.update(it));
        let updates: Vec<Update> = updates.collect();
        let transport = self.transport.clone();
        StoreFuture::pending(async move {
            let expiries = updates.iter().map(|it| (&it.expire, &*it.name));
            let expiries = send_all(&transport, expiries.collect()).await;
            let mut commands = Vec::new();
            for update in with_expiry(&updates, &expiries) {
                commands.extend(update.commands.iter().map(|cmd| (cmd, &*update.name)));
            }
            let mut replies = send_all(&transport, commands).await.into_iter();
            let kept = updates.iter().zip(expiries).map(|(update, expiry)| {
                expiry?;
                update.kept(replies.by_ref().take(update.commands.len()).collect())
            });
            let kept = kept.map(|it| it.map_err(|error| store_error(&error)));
            Ok(kept.collect())
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
            let spans = Span::window(&policy, now_ms);
            let names = spans.map(|span| store.names.contributors(policy.name(), &key, span));
            let names: Vec<Vec<u8>> = names.collect();
            let commands: Vec<Cmd> = names.iter().map(|name| range(name, 0)).collect();
            let commands = commands.iter().zip(names.iter().map(Vec::as_slice));
            let sets = send_all(&store.transport, commands.collect()).await;
            let sets: Vec<Set> = sets
                .into_iter()
                .map(|reply| Set::read(reply?))
                .collect::<Result<_, _>>()
                .map_err(|error| store_error(&error))?;
            Ok(merged(sets))
        })
    }

    /// The time of the server that keeps this key: asked by looking at it, which needs no other right than a check.
    async fn now_ms(&self, policy: &Policy, key: &Key) -> Result<u64, StoreError> {
        let look = Check::new([Charge::new(policy, key.clone(), 0)])?;
        let decision = self.check_one_slot(&look).await?;
        Ok(decision.usage().decided_at_ms())
    }

    fn update(&self, contribution: &Contribution) -> Update {
        let name = contribution.policy().name();
        let name = self
            .names
            .contributors(name, contribution.key(), contribution.span);
        let add = |member: &str, units: i64| {
            let mut cmd = redis::cmd("ZINCRBY");
            cmd.arg(&name).arg(units).arg(member);
            cmd
        };
        let (total, error) = (contribution.total(), contribution.error());
        let expire = expire(&name, contribution);
        let mut commands = vec![
            add(TOTAL, total),
            // Right behind the command that may have made the set.
            expire.clone(),
            add(TOTAL_AND_ERROR, total.saturating_add(error)),
        ];
        let labels = contribution.units();
        commands.extend(labels.map(|(label, units)| add(&self.names.label(label), units)));
        commands.push(trim(&name));
        commands.push(range(&name, MEMBERS));
        Update {
            labels: contribution.units().len(),
            name,
            expire,
            commands,
        }
    }
}

impl Update {
    /// What is left of each label. The last reply tells the least that is kept, in a set that is full.
    fn kept(&self, replies: Vec<RedisResult<Value>>) -> RedisResult<Kept> {
        let replies: Vec<Value> = replies.into_iter().collect::<RedisResult<_>>()?;
        let mut replies = replies.into_iter();
        let floor = replies.next_back().map(Set::members).transpose()?;
        let floor = floor.and_then(|members| members.first().map(|(_, units)| *units));
        let floor = floor.unwrap_or(0);
        let units = replies.skip(3).take(self.labels).map(|reply| {
            let units = f64::from_redis_value(reply).map(units)?;
            Ok(if units < floor { 0 } else { units })
        });
        Ok(Kept::new(units.collect::<RedisResult<_>>()?, floor))
    }
}

fn with_expiry<'a>(
    updates: &'a [Update],
    expiries: &[RedisResult<Value>],
) -> impl Iterator<Item = &'a Update> {
    let all = updates.iter().zip(expiries);
    all.filter_map(|(update, expiry)| expiry.is_ok().then_some(update))
}

fn expire(name: &[u8], contribution: &Contribution) -> Cmd {
    let mut cmd = redis::cmd("PEXPIRE");
    cmd.arg(name).arg(millis(contribution.expires_in()));
    cmd
}

fn trim(name: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("ZREMRANGEBYRANK");
    cmd.arg(name).arg(0).arg(format!("-{}", MEMBERS + 1));
    cmd
}

/// The member at this place from the greatest, or all for 0.
fn range(name: &[u8], place: usize) -> Cmd {
    let mut cmd = redis::cmd("ZRANGE");
    let (first, last) = match place {
        0 => ("0".to_owned(), "-1".to_owned()),
        place => (format!("-{place}"), format!("-{place}")),
    };
    cmd.arg(name).arg(first).arg(last).arg("WITHSCORES");
    cmd
}

/// What is stored for one sixth of a window.
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
        // What a full set has dropped had no more than the least that it has kept.
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

/// A score of whole units; those that were only given back are none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, as it is meant to"
)]
const fn units(score: f64) -> u64 {
    score as u64
}

/// Sends all at once, in this order, and answers when all are answered.
async fn send_all<'a>(
    transport: &'a Transport,
    commands: Vec<(&'a Cmd, &'a [u8])>,
) -> Vec<RedisResult<Value>> {
    let mut replies: Vec<Result<RedisResult<Value>, Reply<'a>>> = commands
        .into_iter()
        .map(|(cmd, key)| Err(Box::pin(transport.send(cmd, key)) as Reply<'a>))
        .collect();
    poll_fn(|cx| poll_all(&mut replies, cx)).await;
    let replies = replies.into_iter();
    replies
        .map(|reply| reply.unwrap_or_else(|_| Err(unanswered())))
        .collect()
}

fn poll_all(
    replies: &mut [Result<RedisResult<Value>, Reply<'_>>],
    cx: &mut Context<'_>,
) -> Poll<()> {
    let mut all = Poll::Ready(());
    for reply in replies {
        if let Err(pending) = reply {
            match pending.as_mut().poll(cx) {
                Poll::Ready(result) => *reply = Ok(result),
                Poll::Pending => all = Poll::Pending,
            }
        }
    }
    all
}

fn unanswered() -> RedisError {
    super::error::closed()
}
