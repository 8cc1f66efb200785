//! [`OptimisticRunner`]: queues jobs on the same identities in this process, and retries each when another process
//! writes first.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use bb8::Pool;
use bb8_redis::RedisConnectionManager;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    plan::{Plan, identities},
    queue::{Group, Queue},
    session::Session,
    snapshot::Snapshot,
};
use crate::{
    domain::error::{StoreError, StoreErrorKind},
    store::{
        Operation, Reply,
        redis::{
            background,
            error::{NO_RUNTIME, SHUT_DOWN},
            key_names::Names,
            set_clock::SetClock,
        },
        sent::Sent,
    },
};

/// How long an attempt may take, whatever the timeouts of its callers: time for a connection, and for two round trips
/// each time that another process writes first.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two attempts to replace a lost connection of the pool.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The reply to each operation of a job.
pub(super) type Replies = Vec<Result<Reply, StoreError>>;

/// Executes operations over the connections of a pool.
pub(super) struct OptimisticRunner {
    pub(super) settings: Settings,
    queue: Queue<Job>,
    hasher: RandomState,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) pool: Pool<RedisConnectionManager>,
    pub(super) names: Names,
    pub(super) clock: SetClock,
}

/// The operations of one caller.
struct Job {
    operations: Vec<Operation>,
    reply: oneshot::Sender<Result<Replies, StoreError>>,
    sent: Sent,
    /// The runtime of the caller. That of its first job runs an attempt.
    runtime: Handle,
}

impl Job {
    fn has_left(&self) -> bool {
        self.reply.is_closed()
    }
}

impl fmt::Debug for OptimisticRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OptimisticRunner")
    }
}

impl OptimisticRunner {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            queue: Queue::new(),
            hasher: RandomState::new(),
        })
    }

    /// Executes these operations in this order.
    ///
    /// Cancellation: before the write, dropping the future cancels all operations; afterwards all of them are done.
    pub(super) async fn execute(
        self: Arc<Self>,
        operations: Vec<Operation>,
        sent: Sent,
    ) -> Result<Replies, StoreError> {
        let runtime = Handle::try_current().map_err(|_| NO_RUNTIME)?;
        let (reply, answer) = oneshot::channel();
        let keys = operations.iter().flat_map(identities);
        let keys: Vec<u64> = keys.map(|key| self.hasher.hash_one(key)).collect();
        let job = Job {
            operations,
            reply,
            sent: sent.clone(),
            runtime,
        };
        if let Some(group) = self.queue.enter(keys, job) {
            self.begin(group);
        }
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(SHUT_DOWN.unsent_if(sent.leave())))
    }

    /// Tries a group in a task, so that the attempt ends even if its callers leave.
    fn begin(self: &Arc<Self>, group: Group<Job>) {
        let Group {
            identities,
            mut jobs,
        } = group;
        let runtime = jobs[0].runtime.clone();
        let runner = Arc::downgrade(self);
        let place = Place {
            runner: Arc::clone(self),
            identities,
        };
        background::spawn_in(&runtime, async move {
            let settings = &place.runner.settings.clone();
            let end = Settings::end();
            jobs.retain(|job| !job.has_left() && job.sent.begin());
            let session = Session::check_out(&settings.pool, end).await;
            let (session, replies) = match session {
                // All callers left while waiting for the connection.
                Ok(session) if jobs.iter().all(Job::has_left) => (Some(session), Ok(Vec::new())),
                Ok(mut session) => {
                    let replies = settings.attempt(&mut session, &jobs, end).await;
                    (Some(session), replies)
                }
                Err(error) => (None, Err(error.unsent())),
            };
            // Free the identities first, so that the next group starts while the callers of this one are answered.
            drop(place);
            answer(jobs, replies);
            if let Some(session) = session.filter(Session::is_lost) {
                renew(session, runner).await;
            }
        });
    }
}

/// Holds a lost connection until a new one replaces it, so that the pool cannot hand out the lost one.
pub(super) async fn renew(mut session: Session, runner: Weak<OptimisticRunner>) {
    while let Some(settings) = runner.upgrade().map(|runner| runner.settings.clone()) {
        if session.renew(&settings.pool, Settings::end()).await.is_ok() {
            return;
        }
        drop(settings);
        sleep(RECONNECT_PAUSE).await;
    }
}

/// Sends each job its replies. An error of the whole attempt goes to every job.
fn answer(jobs: Vec<Job>, replies: Result<Vec<Replies>, StoreError>) {
    match replies {
        Ok(replies) => {
            for (job, replies) in jobs.into_iter().zip(replies) {
                let _ = job.reply.send(Ok(replies));
            }
        }
        Err(error) => {
            for job in jobs {
                let _ = job.reply.send(Err(error.clone()));
            }
        }
    }
}

/// The identities of a group under way. Dropping this frees them for the next group.
struct Place {
    runner: Arc<OptimisticRunner>,
    identities: Vec<u64>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let identities = mem::take(&mut self.identities);
        for group in self.runner.queue.end(identities, Job::has_left) {
            self.runner.begin(group);
        }
    }
}

impl Settings {
    /// The deadline of an attempt that begins now.
    pub(super) fn end() -> Instant {
        Instant::now() + TIMEOUT
    }

    /// Reads, decides and writes, repeatedly until no other process has written in between.
    async fn attempt(
        &self,
        session: &mut Session,
        jobs: &[Job],
        end: Instant,
    ) -> Result<Vec<Replies>, StoreError> {
        let plan = Plan::new(&self.names, jobs.iter().flat_map(|job| &job.operations));
        if plan.keys.is_empty() {
            return Ok(decide(jobs, &plan, &mut Snapshot::new(0, Vec::new(), 0)));
        }
        // A later retry would hardly end in time, and then the outcome would be unknown.
        let last_begin = end - TIMEOUT / 4;
        let mut was_lost = false;
        loop {
            let reading = match session.read(&plan.keys, end).await {
                // Nothing was written yet. The connection may have ended while it was idle, so try a new one.
                Err(_) if session.is_lost() && !was_lost && Instant::now() < end => {
                    was_lost = true;
                    let renewed = session.renew(&self.pool, end).await;
                    renewed.map_err(StoreError::unsent)?;
                    continue;
                }
                reading => reading.map_err(StoreError::unsent)?,
            };
            let now_ms = self.now_ms(reading.now_ms);
            let mut snapshot = Snapshot::new(now_ms, reading.values, plan.block_count);
            let replies = decide(jobs, &plan, &mut snapshot);
            let mut changes = snapshot.changes().peekable();
            // A denial needs no write and no transaction: it depends on one key, which was read at one time.
            if changes.peek().is_none() {
                return Ok(replies);
            }
            let changes = changes.map(|(place, change)| (&*plan.keys[place], change));
            let ttl_ms = |expires_ms| self.ttl_ms(expires_ms, now_ms);
            if session.write(changes, ttl_ms, end).await? {
                return Ok(replies);
            }
            if Instant::now() >= last_begin {
                return Err(CONTENDED.unsent());
            }
        }
    }

    pub(super) fn now_ms(&self, server_ms: u64) -> u64 {
        self.clock.now_ms().unwrap_or(server_ms)
    }

    /// How long a key is kept, in ms from the write, which is no earlier than the read.
    fn ttl_ms(&self, expires_ms: u64, now_ms: u64) -> u64 {
        let ttl_ms = expires_ms.saturating_sub(now_ms).max(1);
        match self.clock.now_ms() {
            Some(_) => ttl_ms + 86_400_000, // a clock that is set by hand must not meet real expiry
            None => ttl_ms,
        }
    }
}

/// Executes the operations of all jobs whose callers still wait.
fn decide(jobs: &[Job], plan: &Plan, snapshot: &mut Snapshot) -> Vec<Replies> {
    let mut places = plan.places.iter();
    let replies = jobs.iter().map(|job| {
        let places = places.by_ref().take(job.operations.len());
        let has_left = job.has_left();
        let todo = job.operations.iter().zip(places);
        let todo = todo.filter(|_| !has_left);
        todo.map(|(operation, places)| snapshot.execute(operation, places))
            .collect()
    });
    replies.collect()
}

const CONTENDED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "others have changed the same keys at each attempt",
);
