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
    queue::{Group, Queue},
    session::Session,
    snapshot::{Snapshot, names_of},
};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        error::{StoreError, StoreErrorKind},
        key::Key,
    },
    store::{
        Operation, Reply, engine,
        redis::{
            RedisStore, background,
            error::{NO_RUNTIME, SHUT_DOWN},
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
    pub(super) pool: Pool<RedisConnectionManager>,
    /// Over the same pool, with the names and the clock: writes and reads the index of blocks.
    pub(super) store: RedisStore,
    queue: Queue<Job>,
    hasher: RandomState,
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
    pub(super) fn new(pool: Pool<RedisConnectionManager>, store: RedisStore) -> Arc<Self> {
        Arc::new(Self {
            pool,
            store,
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
        let runner = Arc::clone(self);
        let place = Place {
            runner: Arc::clone(self),
            identities,
        };
        background::spawn_in(&runtime, async move {
            let end = end();
            let session = Session::check_out(&runner.pool, end).await;
            if session.is_ok() {
                jobs.retain(|job| !job.has_left() && job.sent.begin());
            }
            let (session, replies) = match session {
                // All callers left while waiting for the connection.
                Ok(session) if jobs.is_empty() => (Some(session), Ok(Vec::new())),
                Ok(mut session) => {
                    let replies = runner.attempt(&mut session, &jobs, end).await;
                    (Some(session), replies)
                }
                Err(error) => (None, Err(error.unsent())),
            };
            // Free the identities first, so that the next group starts while the callers of this one are answered.
            drop(place);
            answer(jobs, replies);
            if let Some(session) = session.filter(Session::is_lost) {
                let (pool, runner) = (runner.pool.clone(), Arc::downgrade(&runner));
                renew(session, pool, runner).await;
            }
        });
    }

    /// Reads, decides and writes, repeatedly until no other process has written in between.
    async fn attempt(
        &self,
        session: &mut Session,
        jobs: &[Job],
        end: Instant,
    ) -> Result<Vec<Replies>, StoreError> {
        let operations = jobs.iter().flat_map(|job| &job.operations);
        let names = names_of(&self.store.names, operations);
        if names.is_empty() {
            let mut nothing = Snapshot::new(&self.store.names, 0, &[], Vec::new());
            return Ok(decide(jobs, &mut nothing));
        }
        // A later retry would hardly end in time, and then the outcome would be unknown.
        let last_begin = end - TIMEOUT / 4;
        let mut was_lost = false;
        loop {
            let reading = match session.read(&names, end).await {
                // Nothing was written yet. The connection may have ended while it was idle, so try a new one.
                Err(_) if session.is_lost() && !was_lost && Instant::now() < end => {
                    was_lost = true;
                    let renewed = session.renew(&self.pool, end).await;
                    renewed.map_err(StoreError::unsent)?;
                    continue;
                }
                reading => reading.map_err(StoreError::unsent)?,
            };
            let now_ms = self.store.clock.now_ms().unwrap_or(reading.now_ms);
            let mut snapshot = Snapshot::new(&self.store.names, now_ms, &names, reading.values);
            let replies = decide(jobs, &mut snapshot);
            let changes = snapshot.into_changes();
            // A denial needs no write and no transaction: it depends on one key, which was read at one time.
            if changes.is_empty() {
                return Ok(replies);
            }
            let ttl_ms = |expires_ms| self.ttl_ms(expires_ms, now_ms);
            if session.write(&changes, ttl_ms, end).await? {
                return Ok(replies);
            }
            if Instant::now() >= last_begin {
                return Err(CONTENDED.unsent());
            }
        }
    }

    /// How long a key is kept, in ms from the write, which is no earlier than the read.
    fn ttl_ms(&self, expires_ms: u64, now_ms: u64) -> u64 {
        let ttl_ms = expires_ms.saturating_sub(now_ms).max(1);
        match self.store.clock.now_ms() {
            Some(_) => ttl_ms + 86_400_000, // a clock that is set by hand must not meet real expiry
            None => ttl_ms,
        }
    }
}

/// The deadline of an attempt that begins now.
fn end() -> Instant {
    Instant::now() + TIMEOUT
}

/// Holds a lost connection until a new one replaces it, so that the pool cannot hand out the lost one. Ends with the
/// last user of the store.
async fn renew(
    mut session: Session,
    pool: Pool<RedisConnectionManager>,
    runner: Weak<OptimisticRunner>,
) {
    while runner.strong_count() > 0 && session.renew(&pool, end()).await.is_err() {
        sleep(RECONNECT_PAUSE).await;
    }
}

/// Sends each job its replies. An error of the whole attempt goes to every job.
fn answer(jobs: Vec<Job>, replies: Result<Vec<Replies>, StoreError>) {
    let replies = match replies {
        Ok(replies) => replies.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error); jobs.len()],
    };
    for (job, replies) in jobs.into_iter().zip(replies) {
        let _ = job.reply.send(replies);
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

/// Executes the operations of all jobs whose callers still wait.
fn decide(jobs: &[Job], snapshot: &mut Snapshot<'_>) -> Vec<Replies> {
    let replies = jobs.iter().map(|job| {
        let has_left = job.has_left();
        let todo = job.operations.iter().filter(|_| !has_left);
        todo.map(|operation| engine::execute(operation, snapshot))
            .collect()
    });
    replies.collect()
}

/// The identities of an operation, possibly with duplicates.
fn identities(operation: &Operation) -> impl Iterator<Item = &Key> {
    let charges = operation.check().into_iter().flat_map(Check::all_charges);
    charges.map(Charge::key).chain(operation.key())
}

const CONTENDED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "others have changed the same keys at each attempt",
);
