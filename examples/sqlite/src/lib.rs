//! A store in a SQLite file: counts that survive a restart without Redis, shared by the processes of one machine.
//!
//! [`Engine`] knows all kinds of rules, blocks and bans. This file only reads and writes bytes by name, in transactions.
//! A thread owns the connection and executes all operations that wait in one transaction, so many callers wait for one
//! commit. An answer is given after the commit: each admitted unit is in the file, also after a `kill -9`. After a loss of
//! power the last commits may be missing, unless you set `PRAGMA synchronous = FULL`.
//!
//! The clock is the machine's date. Keep the file on a local disk: file locks over a network are not to be trusted.

use std::{
    fmt, iter,
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use sluicegate::{
    Decision, Store, StoreError,
    error::StoreErrorKind,
    store::{
        Check, Operation, Reply, StoreFuture,
        engine::{Engine, Values},
    },
};
use tokio::sync::oneshot;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value BLOB NOT NULL, expires_ms INTEGER NOT NULL)
        WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS by_expiry ON counts (expires_ms);
    CREATE TABLE IF NOT EXISTS secret (bytes BLOB NOT NULL);
    INSERT INTO secret SELECT randomblob(16) WHERE NOT EXISTS (SELECT 1 FROM secret);
    COMMIT;
";
const READ: &str = "SELECT value FROM counts WHERE name = ?";
const LIST: &str =
    "SELECT name, value FROM counts WHERE name GLOB ?1 || '*' AND expires_ms > ?2 LIMIT ?3";
const WRITE: &str = "INSERT OR REPLACE INTO counts VALUES (?, ?, ?)";
const DELETE: &str = "DELETE FROM counts WHERE name = ?";
const DELETE_EXPIRED: &str =
    "DELETE FROM counts WHERE name IN (SELECT name FROM counts WHERE expires_ms < ? LIMIT 8)";

/// How long to wait for a transaction of another process.
const BUSY: Duration = Duration::from_secs(1);

/// The most operations that wait, and the most of one transaction.
const MOST_WAITING: usize = 1_024;
const MOST_TOGETHER: usize = 128;

/// Values are kept for a day after they expire, so that nothing is lost when the date is set back.
const LONGER_MS: u64 = 86_400_000;

/// A store in a SQLite file; cheap to clone.
#[derive(Clone)]
pub struct SqliteStore {
    jobs: SyncSender<Job>,
}

/// An operation, and where the caller waits for its reply.
struct Job {
    operation: Operation,
    caller: oneshot::Sender<Result<Reply, StoreError>>,
}

impl SqliteStore {
    /// Opens a file, or creates it. The clock is the date.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or written.
    pub fn open(path: impl AsRef<Path>) -> rusqlite::Result<Self> {
        let since = || UNIX_EPOCH.elapsed().unwrap_or_default();
        let now_ms = move || u64::try_from(since().as_millis()).unwrap_or(0);
        Self::with_clock(path, LONGER_MS, now_ms)
    }

    /// The same with another clock, for tests: the time in ms since the Unix epoch. Values are kept for `longer_ms` after
    /// they expire.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or written.
    pub fn with_clock(
        path: impl AsRef<Path>,
        longer_ms: u64,
        now_ms: impl Fn() -> u64 + Send + 'static,
    ) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch(TABLES)?;
        let secret = connection.query_row("SELECT bytes FROM secret", [], |row| row.get(0))?;
        let engine = Engine::new(secret);
        let (jobs, waiting) = sync_channel(MOST_WAITING);
        let file = File {
            connection,
            engine,
            longer_ms,
            now_ms,
        };
        thread::spawn(move || file.serve(&waiting));
        Ok(Self { jobs })
    }

    fn ask(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send + use<> {
        let (caller, reply) = oneshot::channel();
        let sent = self.jobs.try_send(Job { operation, caller });
        async move {
            sent.map_err(|_| unavailable("too many operations wait").unsent())?;
            let lost = |_| unavailable("the thread of the store has ended");
            reply.await.map_err(lost)?
        }
    }
}

impl Store for SqliteStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let reply = self.ask(Operation::Check(check.clone()));
        StoreFuture::pending(async {
            match reply.await? {
                Reply::Check(decision) => Ok(decision),
                _ => Err(unavailable("the store has answered something else")),
            }
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        StoreFuture::pending(self.ask(operation))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

/// The thread that executes.
struct File<C> {
    connection: Connection,
    engine: Engine,
    longer_ms: u64,
    now_ms: C,
}

impl<C: Fn() -> u64> File<C> {
    /// Executes operations until the last store of this file is dropped.
    fn serve(mut self, waiting: &Receiver<Job>) {
        while let Ok(first) = waiting.recv() {
            let others = waiting.try_iter().take(MOST_TOGETHER - 1);
            let jobs: Vec<Job> = iter::once(first).chain(others).collect();
            let replies = self.transact(&jobs).unwrap_or_else(|error| {
                let error = unavailable("the transaction has failed").with_source(error);
                vec![Err(error); jobs.len()]
            });
            for (job, reply) in jobs.into_iter().zip(replies) {
                let _ = job.caller.send(reply); // the caller may have left
            }
        }
    }

    /// Executes operations in one transaction, which takes all of them back if a row cannot be read or written.
    fn transact(&mut self, jobs: &[Job]) -> rusqlite::Result<Vec<Result<Reply, StoreError>>> {
        let exclusive = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(exclusive)?;
        // Other processes wait for this one, so that the time of a value does not step back.
        let now_ms = (self.now_ms)();
        let mut rows = Rows {
            transaction: &transaction,
            now_ms,
            error: None,
        };
        let replies = jobs.iter();
        let replies = replies.map(|job| self.engine.execute(&job.operation, &mut rows));
        let replies = replies.collect();
        if let Some(error) = rows.error {
            return Err(error);
        }
        let expired_ms = as_number(now_ms.saturating_sub(self.longer_ms));
        let mut delete = transaction.prepare_cached(DELETE_EXPIRED)?;
        delete.execute([expired_ms])?;
        drop(delete);
        transaction.commit()?;
        Ok(replies)
    }
}

/// The rows of a transaction, and the first error.
struct Rows<'a> {
    transaction: &'a Transaction<'a>,
    now_ms: u64,
    error: Option<rusqlite::Error>,
}

impl Values for Rows<'_> {
    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.transaction.prepare_cached(READ);
        let value = read.and_then(|mut it| it.query_row([name], |row| row.get(0)).optional());
        self.noted(value)
    }

    fn list(&mut self, begin: &str, most: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let list = || {
            let mut list = self.transaction.prepare_cached(LIST)?;
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let rows = list.query_map(params![begin, as_number(self.now_ms), most], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            rows.collect()
        };
        let rows = list();
        self.noted(rows)
    }

    fn write(&mut self, name: &str, value: &[u8], expires_ms: u64) -> Result<(), StoreError> {
        let written = if value.is_empty() {
            let delete = self.transaction.prepare_cached(DELETE);
            delete.and_then(|mut it| it.execute([name]))
        } else {
            let write = self.transaction.prepare_cached(WRITE);
            write.and_then(|mut it| it.execute(params![name, value, as_number(expires_ms)]))
        };
        self.noted(written.map(drop))
    }
}

impl Rows<'_> {
    fn noted<T>(&mut self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| {
            self.error.get_or_insert(error);
            unavailable("a row cannot be read or written")
        })
    }
}

/// SQLite's numbers have a sign.
fn as_number(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

const fn unavailable(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, message)
}
