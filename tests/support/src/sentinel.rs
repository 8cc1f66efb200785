//! A primary, two replicas and three sentinels for one test, killed on drop.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
};

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use super::{
    redis::{Process, Server, free_port, program, signal},
    sharing::wait,
};

/// The name of the primary for the sentinels.
pub const NAME: &str = "mymaster";

/// A majority of three.
const QUORUM: usize = 2;

/// A sentinel. [`Server`] cannot start one, because a sentinel writes to the configuration file.
pub struct Sentinel {
    process: Process,
    port: u16,
    _folder: TempDir,
}

/// The servers and the sentinels of one name.
pub struct Group {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Sentinel>,
}

impl Group {
    /// Starts a primary with two replicas, all with these arguments, and waits until all of them know each other.
    pub fn start(args: &[&str]) -> Self {
        let primary = Server::with(args);
        let port = primary.address().port().to_string();
        let replica = || {
            let more = format!("--replicaof 127.0.0.1 {port} --repl-diskless-sync-delay 0");
            Server::with(&[args, &more.split(' ').collect::<Vec<_>>()].concat())
        };
        let servers = vec![replica(), replica(), primary];
        let sentinels = (0..3).map(|_| Sentinel::start(&servers[2])).collect();
        let group = Self { servers, sentinels };
        group.settle();
        group
    }

    /// Waits until all sentinels agree on a primary with two connected replicas.
    pub fn settle(&self) {
        wait("the group has settled", || {
            let primary = self.primary();
            let knows = |sentinel: &Sentinel| {
                sentinel.primary() == Some(self.servers[primary].address().port())
                    && sentinel.number("num-slaves") == Some(2)
                    && sentinel.number("num-other-sentinels") == Some(2)
            };
            self.sentinels.iter().all(knows)
                && self.servers.iter().enumerate().all(|(index, server)| {
                    let state = if index == primary {
                        "connected_slaves:2"
                    } else {
                        "master_link_status:up"
                    };
                    replication(server).contains(state)
                })
        });
    }

    /// The index of the primary, according to the first sentinel.
    pub fn primary(&self) -> usize {
        let port = self.sentinels[0].primary().unwrap();
        let is_it = |server: &Server| server.address().port() == port;
        self.servers.iter().position(is_it).unwrap()
    }

    /// Lets the sentinels promote another server, as an operator would. Returns its index.
    pub fn fail_over(&self) -> usize {
        let old = self.primary();
        let command = format!("SENTINEL FAILOVER {NAME}");
        wait("there is a failover", || {
            // Sentinels refuse this while a failover is under way, and abort it if no replica has reported lately.
            self.primary() != old || {
                let _ = self.sentinels[0].ask::<()>(&command);
                false
            }
        });
        self.promoted(old)
    }

    /// Waits until another server accepts writes, and the sentinels say so. Returns its index.
    pub fn promoted(&self, old: usize) -> usize {
        wait("a replica is promoted", || {
            let new = self.primary();
            new != old && replication(&self.servers[new]).contains("role:master")
        });
        self.primary()
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::url).collect()
    }
}

impl Sentinel {
    fn start(primary: &Server) -> Self {
        Self::watch(primary.address(), "")
    }

    /// Starts a sentinel of the primary at this address, with more lines of configuration.
    pub fn watch(primary: SocketAddr, more: &str) -> Self {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("sentinel.conf");
            let port = free_port();
            let to = primary.port();
            let config = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\n{more}\
                 sentinel monitor {NAME} 127.0.0.1 {to} {QUORUM}\n\
                 sentinel down-after-milliseconds {NAME} 500\n\
                 sentinel failover-timeout {NAME} 3000\n\
                 sentinel parallel-syncs {NAME} 2\n",
                folder.path().display(),
            );
            fs::write(&file, config).unwrap();
            let mut command = Command::new(program());
            let command = command.arg(&file).arg("--sentinel");
            let command = command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut sentinel = Self {
                process: Process::start(command, "apt-get install redis-server"),
                port,
                _folder: folder,
            };
            let answers = || ask::<String>(&format!("redis://127.0.0.1:{port}"), "PING").is_ok();
            if sentinel.process.starts(answers, String::new) {
                sentinel.hurry();
                return sentinel;
            }
        }
        panic!("no sentinel could be started");
    }

    /// Makes the sentinel look ten times as often as usual, if its version can (from Redis 7.0). More often would not
    /// work: while a primary is down, replicas report once a second, and the sentinel would trust none of them.
    fn hurry(&self) {
        let periods =
            "info-period 1000 ask-period 100 publish-period 200 min-link-reconnect-period 1000";
        let _ = self.ask::<()>(&format!("SENTINEL DEBUG {periods}"));
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port of the server that this sentinel calls the primary.
    pub fn primary(&self) -> Option<u16> {
        let address = self.ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"));
        let (_, port): (String, u16) = address.ok()?;
        Some(port)
    }

    fn number(&self, field: &str) -> Option<u64> {
        let facts: HashMap<String, String> = self.ask(&format!("SENTINEL MASTER {NAME}")).ok()?;
        facts.get(field)?.parse().ok()
    }

    /// Sends one command.
    pub fn ask<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        ask(&self.url(), command)
    }

    /// Stops the sentinel (SIGSTOP): it accepts connections without replies.
    pub fn stop(&self) {
        signal(&self.process.0, "-STOP");
    }

    pub fn cont(&self) {
        signal(&self.process.0, "-CONT");
    }
}

/// Sends one command over a new connection, because a demoted server closes all its connections.
pub fn ask<T: FromRedisValue>(url: &str, command: &str) -> RedisResult<T> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    cmd.arg(words.collect::<Vec<_>>()).query(&mut connection)
}

fn replication(server: &Server) -> String {
    ask(&server.socket_url(), "INFO replication").unwrap_or_default()
}

/// A sentinel that always names the same server.
pub struct Parrot(TcpListener);

impl Parrot {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                std::thread::spawn(move || repeat(&stream, server));
            }
        });
        Self(listener)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.0.local_addr().unwrap())
    }
}

/// Answers for one name. Each word is on a line, with its length on the line before.
fn repeat(stream: &TcpStream, server: SocketAddr) {
    let port = server.port().to_string();
    let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let reply = match line.as_str() {
            "CLIENT" => "+OK\r\n",
            "PING" => "+PONG\r\n",
            NAME => &named,
            "another" => "*-1\r\n",
            _ => continue,
        };
        let mut stream = stream;
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}
