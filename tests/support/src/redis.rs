//! A real Redis server for one test: in a separate folder, without persistence, and killed on drop.

use std::{
    env, fmt,
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A running server, unless it was [killed](Self::kill).
pub struct Server {
    process: Process,
    port: u16,
    args: Vec<String>,
    env: Vec<(String, String)>,
    folder: TempDir,
    /// Connects at the first use, so that a test can count the connections of others.
    control: Mutex<Option<redis::Connection>>,
}

impl Server {
    /// Starts a server; `SLUICEGATE_REDIS_SERVER` names another program than `redis-server`.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more arguments, such as `["--requirepass", "sesame"]`.
    pub fn with(args: &[&str]) -> Self {
        Self::with_env(args, Vec::new())
    }

    pub fn with_env(args: &[&str], env: Vec<(String, String)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args: Vec<String> = args.iter().map(|&arg| arg.into()).collect();
        for _ in 0..20 {
            let port = free_port();
            let mut process = spawn(&folder, port, &args, &env);
            if process.starts(|| listens(&folder), || log(&folder)) {
                return Self {
                    process,
                    port,
                    args,
                    env,
                    folder,
                    control: Mutex::default(),
                };
            }
        }
        panic!("no server could be started:\n{}", log(&folder));
    }

    /// Starts a node of a cluster. It ends right after the start if the port between nodes is taken: then another.
    pub fn node(start: impl Fn() -> Self) -> Self {
        let mut nodes = (0..20).map(|_| start());
        nodes.find(Self::answers).expect("a node that answers")
    }

    /// Whether the server answers. A node of a cluster ends right after the start if the second port is taken.
    pub fn answers(&self) -> bool {
        let client = redis::Client::open(self.socket_url()).unwrap();
        let connection = client.get_connection();
        connection.is_ok_and(|mut it| redis::cmd("PING").exec(&mut it).is_ok())
    }

    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The URL of the socket, which is faster.
    pub fn socket_url(&self) -> String {
        format!("unix://{}", socket(&self.folder))
    }

    /// Sends one command that must succeed, over a connection that is kept. Sends the command again if the connection
    /// was closed: sentinels close all connections of a server when they change its role.
    pub fn run<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let mut control = self.control.lock().unwrap();
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        let cmd = cmd.arg(words.collect::<Vec<_>>());
        match cmd.query(control.get_or_insert_with(|| self.connect())) {
            Err(error) if error.kind() == redis::ErrorKind::Io => {
                cmd.query(control.insert(self.connect())).unwrap()
            }
            result => result.unwrap(),
        }
    }

    /// A connection of another program, logged in.
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.socket_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut args = self.args.iter().skip_while(|&arg| arg != "--requirepass");
        if let Some(password) = args.nth(1) {
            let mut login = redis::cmd("AUTH");
            login.arg(password).exec(&mut connection).unwrap();
        }
        connection
    }

    /// The first number of the version of Redis that the server is compatible with.
    pub fn version(&self) -> u32 {
        let info: String = self.run("INFO server");
        let mut lines = info.lines();
        let version = lines.find_map(|line| line.strip_prefix("redis_version:"));
        let major = version.and_then(|it| it.split('.').next()?.parse().ok());
        major.expect("a version")
    }

    pub fn info(&self, section: &str, field: &str) -> u64 {
        let info: String = self.run(&format!("INFO {section}"));
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no {field} in {info}"))
    }

    /// The number of connections that were made, also those of the tests.
    pub fn connections_made(&self) -> u64 {
        self.info("stats", "total_connections_received")
    }

    /// Follows another server, at the return.
    pub fn follow(&self, primary: &Self) {
        let port = primary.port;
        self.run::<()>(&format!("REPLICAOF 127.0.0.1 {port}"));
        super::sharing::wait("the replica follows", || {
            let told: String = self.run("INFO replication");
            told.contains("master_link_status:up")
        });
    }

    /// Runs a script that does not end. Returns when the server rejects all other commands.
    pub fn keep_busy(&self) -> JoinHandle<()> {
        let (mut running, mut asking) = (self.connect(), self.connect());
        let endless = std::thread::spawn(move || {
            let mut endless = redis::cmd("EVAL");
            let _ = endless.arg("while true do end").arg(0).exec(&mut running);
        });
        super::sharing::wait("the server is busy", move || {
            let answer = redis::cmd("PING").exec(&mut asking);
            answer.is_err_and(|error| error.code() == Some("BUSY"))
        });
        endless
    }

    /// Whether this replica has received everything that was written so far. (`WAIT` only covers the same connection.)
    pub fn has_told(&self, replica: &Self) -> bool {
        let written = self.info("replication", "master_repl_offset");
        replica.info("replication", "slave_repl_offset") >= written
    }

    /// The number of calls of a command, including those that failed.
    pub fn calls(&self, command: &str) -> u64 {
        let info: String = self.run("INFO commandstats");
        let prefix = format!("cmdstat_{}:calls=", command.to_lowercase());
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Kills the server like `kill -9`, without notice to clients.
    pub fn kill(&mut self) {
        self.process.kill();
        *self.control.get_mut().unwrap() = None;
    }

    /// Deletes the data that a killed server with `--appendonly yes` would find after a restart.
    pub fn wipe(&mut self) {
        let _ = fs::remove_dir_all(self.folder.path().join("appendonlydir"));
    }

    /// Restarts a killed server at the same address, without data, unless the arguments keep the data.
    pub fn restart(&mut self) {
        let timeout = Instant::now() + Duration::from_secs(10);
        while Instant::now() < timeout {
            let _ = fs::remove_file(socket(&self.folder));
            self.process = spawn(&self.folder, self.port, &self.args, &self.env);
            let (is_up, log) = (|| listens(&self.folder), || log(&self.folder));
            if self.process.starts(is_up, log) {
                return;
            }
        }
        panic!("it could not be started again:\n{}", log(&self.folder));
    }

    /// Stops the server (SIGSTOP): connections stay open, without replies.
    pub fn stop(&self) {
        signal(&self.process.0, "-STOP");
    }

    pub fn cont(&self) {
        signal(&self.process.0, "-CONT");
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address())
    }
}

#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts a program without input; `install` says how to get it. Not every user has Debian's folder of servers in the
    /// PATH.
    pub fn start(command: &mut Command, install: &str) -> Self {
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
        match command.stdin(Stdio::null()).spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("cannot run {command:?}: {error}\ninstall it ({install})"),
        }
    }

    /// Waits until the program is up, or has ended, for example because another has the port.
    pub fn starts(&mut self, is_up: impl Fn() -> bool, log: impl Fn() -> String) -> bool {
        let timeout = Instant::now() + Duration::from_secs(10);
        while self.0.try_wait().unwrap().is_none() {
            if is_up() {
                return true;
            }
            assert!(Instant::now() < timeout, "it hangs:\n{}", log());
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let status = Command::new("kill").args([name, &id]).status();
    assert!(status.unwrap().success());
}

pub fn program() -> String {
    env::var("SLUICEGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

fn spawn(folder: &TempDir, port: u16, args: &[String], env: &[(String, String)]) -> Process {
    let log = File::create(folder.path().join("log")).unwrap();
    let mut command = Command::new(program());
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--unixsocket", &socket(folder)])
        .args(["--dir", folder.path().to_str().unwrap()])
        .args(["--save", "", "--appendonly", "no"])
        .args(args)
        .envs(env.iter().cloned())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let install = "apt-get install redis-server, or name one in SLUICEGATE_REDIS_SERVER";
    Process::start(&mut command, install)
}

/// A server takes the port before it creates the socket, so the socket proves both.
fn listens(folder: &TempDir) -> bool {
    UnixStream::connect(socket(folder)).is_ok()
}

/// A port below those that the system gives to clients, since a client could take the port of a killed server.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 11_000 + u16::try_from(start.wrapping_add(step) % 20_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn socket(folder: &TempDir) -> String {
    folder.path().join("redis.sock").to_str().unwrap().into()
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
