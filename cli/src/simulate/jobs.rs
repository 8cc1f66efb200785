//! The jobs: replays of the same requests under the policies of the file and under changed ones, shared by threads.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sluicegate::rule::MAX_UNITS;

use super::options::SimulateArgs;
use super::others::Other;
use super::replay;
use super::request::{Mapping, Request};
use super::tally::Tally;
use crate::{Error, Result};

/// One replay of the whole log.
pub(super) enum Job {
    Tally(Box<Tally>),
    Other(Other),
}

/// All jobs. Each has its own store.
pub(super) fn jobs(mapping: &Mapping, args: &SimulateArgs) -> Result<Vec<Job>> {
    let (policies, capacity) = (&mapping.policies, args.capacity());
    let tally = Tally::new(policies.clone(), capacity, args.decisions.as_deref())?;
    let mut jobs = vec![Job::Tally(Box::new(tally))];
    for (index, mapped) in policies.iter().enumerate() {
        let shadow = mapped.policy.is_shadow().then_some(index);
        for (rule_index, rule) in mapped.policy.rules().iter().enumerate() {
            let place = mapped.first_rule + rule_index;
            let peak = vec![replay::peak(mapped, rule).map_err(Error::usage)?];
            jobs.push(Job::Other(Other::new(peak, capacity, (place, None), None)?));
            for limit in other_limits(rule.limit(), &args.factors) {
                let changed = replay::with_limit(policies, index, rule_index, limit);
                let (changed, place) = (changed.map_err(Error::usage)?, (place, Some(limit)));
                jobs.push(Job::Other(Other::new(changed, capacity, place, shadow)?));
            }
        }
    }
    Ok(jobs)
}

/// The scaled limits: rounded, at least 1, without duplicates and without the limit itself.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "limits that a log can reach are exact; a cast of a float saturates"
)]
fn other_limits(limit: u64, factors: &[f64]) -> Vec<u64> {
    let scaled = |factor: &f64| (limit as f64 * factor).round().max(1.0) as u64;
    let limits = factors.iter().map(|factor| scaled(factor).min(MAX_UNITS));
    let mut limits: Vec<u64> = limits.collect();
    limits.sort_unstable();
    limits.dedup();
    limits.retain(|other| *other != limit);
    limits
}

/// Sends batches of requests to the jobs, and returns the jobs. Each job receives all requests in order.
pub(super) fn run(
    jobs: Vec<Job>,
    read: impl FnOnce(&mut dyn FnMut(Vec<Request>) -> bool) -> Result<()>,
) -> Result<Vec<Job>> {
    let count = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(jobs.len());
    let mut shares: Vec<Vec<Job>> = (0..count).map(|_| Vec::new()).collect();
    for (index, job) in jobs.into_iter().enumerate() {
        shares[index % count].push(job);
    }
    thread::scope(|scope| {
        let workers = shares.into_iter().map(|share| {
            let (sender, receiver) = sync_channel(4);
            (sender, scope.spawn(move || work(share, &receiver)))
        });
        let (senders, handles): (Vec<SyncSender<Arc<[Request]>>>, Vec<_>) = workers.unzip();
        // A worker that has failed receives no more. Joining it below returns its error.
        let read = read(&mut |batch| {
            let batch: Arc<[Request]> = batch.into();
            senders
                .iter()
                .all(|sender| sender.send(batch.clone()).is_ok())
        });
        drop(senders);
        let mut done = Vec::new();
        for handle in handles {
            match handle.join() {
                Ok(share) => done.extend(share?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        read.map(|()| done)
    })
}

fn work(mut jobs: Vec<Job>, batches: &Receiver<Arc<[Request]>>) -> Result<Vec<Job>> {
    for batch in batches {
        for job in &mut jobs {
            for request in &*batch {
                match job {
                    Job::Tally(tally) => tally.take(request)?,
                    Job::Other(other) => other.take(request)?,
                }
            }
        }
    }
    Ok(jobs)
}
