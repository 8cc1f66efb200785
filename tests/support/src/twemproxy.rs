//! A real twemproxy (`nutcracker`) for one test, in front of two servers.

use std::{
    fmt, fs,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::redis::{Process, Server, free_port};

pub struct Twemproxy {
    _process: Process,
    folder: TempDir,
    pub servers: [Server; 2],
}

impl Twemproxy {
    /// Starts a proxy that spreads keys over two servers by the text between these two characters.
    pub fn start(hash_tag: &str) -> Self {
        Self::with(hash_tag, "", [Server::start(), Server::start()])
    }

    pub fn with(hash_tag: &str, line: &str, servers: [Server; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [&servers[0], &servers[1]].map(Server::address);
        let configuration = format!(
            "limits:\n  listen: {}\n  redis: true\n  hash: murmur\n  hash_tag: \"{hash_tag}\"\n  timeout: 2000\n  {line}\n  \
             servers:\n   - {first}:1\n   - {second}:1\n",
            socket(&folder)
        );
        fs::write(folder.path().join("configuration"), configuration).unwrap();
        for _ in 0..20 {
            let mut process = spawn(&folder);
            let is_up = || UnixStream::connect(socket(&folder)).is_ok();
            if process.starts(is_up, || log(&folder)) {
                return Self {
                    _process: process,
                    folder,
                    servers,
                };
            }
        }
        panic!("no proxy could be started:\n{}", log(&folder));
    }

    pub fn url(&self) -> String {
        format!("unix://{}", socket(&self.folder))
    }
}

impl fmt::Debug for Twemproxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Twemproxy({:?})", self.servers)
    }
}

/// The proxy always serves statistics at a port, and ends if that port is taken.
fn spawn(folder: &TempDir) -> Process {
    let mut command = Command::new("nutcracker");
    command
        .current_dir(folder)
        .args([
            "-c",
            "configuration",
            "-o",
            "log",
            "-p",
            "pid",
            "-a",
            "127.0.0.1",
            "-s",
        ])
        .arg(free_port().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(&mut command, "apt-get install nutcracker")
}

fn socket(folder: &TempDir) -> String {
    folder.path().join("proxy.sock").to_str().unwrap().into()
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
