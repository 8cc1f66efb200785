//! The parts of a run other than the traffic: a server behind a proxy, perhaps a replica of it, and their clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use redis::{Connection, RedisResult};
use tokio::runtime::Handle;

use super::{clock::Clock, traffic::Traffic};
use support::{proxy::Proxy, redis::Server};

/// A killed server keeps its data up to the last answer, because the data reaches the kernel before the answer.
pub(crate) const ARGS: &str = "--appendonly yes --appendfsync no --lua-time-limit 10";

pub(crate) struct Site {
    pub(crate) runtime: Handle,
    pub(crate) server: Server,
    pub(crate) is_down: bool,
    pub(crate) replica: Option<Server>,
    pub(crate) clock: Option<Clock>,
    pub(crate) proxy: Proxy,
    pub(crate) traffic: Option<Traffic>,
}

impl Site {
    pub(crate) fn new(
        runtime: Handle,
        latency: Duration,
        with_replica: bool,
        with_clock: bool,
    ) -> Self {
        let clock = with_clock.then(Clock::new);
        let env = || clock.as_ref().map(Clock::env).unwrap_or_default();
        let start = || Server::with_env(&ARGS.split(' ').collect::<Vec<_>>(), env());
        let server = start();
        let replica = with_replica.then(|| {
            let replica = start();
            replica.follow(&server);
            replica
        });
        let proxy = runtime.block_on(Proxy::new(server.address(), latency));
        Self {
            runtime,
            server,
            is_down: false,
            replica,
            clock,
            proxy,
            traffic: None,
        }
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
        self.is_down = true;
    }

    pub(crate) fn restart(&mut self) {
        self.server.restart();
        self.is_down = false;
    }

    /// Promotes the replica to the server, behind the same address. The old server is gone for good.
    pub(crate) fn promote(&mut self) {
        let replica = self.replica.take().unwrap();
        replica.run::<()>("REPLICAOF NO ONE");
        self.proxy.lead_to(replica.address());
        self.server = replica;
        self.is_down = false;
    }

    /// Repeats an action on the server in a separate thread, until the returned value is dropped.
    pub(crate) fn again_and_again(
        &self,
        act: impl Fn(&mut Connection) -> RedisResult<()> + Send + 'static,
    ) -> Repeated {
        let url = self.server.socket_url();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Relaxed) {
                // The server may be gone, stopped or busy now.
                if let Ok(mut connection) = connect(&url) {
                    while !over.load(Relaxed) && act(&mut connection).is_ok() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Repeated {
            is_over,
            thread: Some(thread),
        }
    }
}

pub(crate) struct Repeated {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A connection with a short timeout for replies.
pub(crate) fn connect(url: &str) -> RedisResult<Connection> {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let connection = redis::Client::open(url)?.get_connection_with_timeout(TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// The number of keys without a TTL, which would never expire.
pub(crate) fn keys_without_ttl(server: &Server) -> u64 {
    let script = "local n = 0 \
         for _, key in ipairs(redis.call('KEYS', 'sluicegate:*')) do if redis.call('PTTL', key) == -1 then n = n + 1 end end \
         return n";
    let mut connection = connect(&server.socket_url()).unwrap();
    redis::cmd("EVAL")
        .arg(script)
        .arg(0)
        .query(&mut connection)
        .unwrap()
}
