//! A real twemproxy (`nutcracker`) for one test, in front of two servers.

use std::{
    env, fmt, fs,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::redis::{Server, free_port, starts};

/// A running proxy and two servers.
pub struct Twemproxy {
    child: Child,
    folder: TempDir,
    pub servers: [Server; 2],
}

impl Twemproxy {
    /// Starts a proxy that spreads keys over two servers by the text between these two characters.
    pub fn start(hash_tag: &str) -> Self {
        Self::with(hash_tag, "", [Server::start(), Server::start()])
    }

    /// Starts a proxy with one more line of configuration.
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
            let mut child = spawn(&folder);
            let is_up = || UnixStream::connect(socket(&folder)).is_ok();
            if starts(&mut child, is_up, || log(&folder)) {
                return Self {
                    child,
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

impl Drop for Twemproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The proxy always serves statistics at a port, and ends if that port is taken.
fn spawn(folder: &TempDir) -> Child {
    let file = |name| folder.path().join(name);
    // Not every user has Debian's folder for this program in the PATH.
    let path = format!("{}:/usr/sbin", env::var("PATH").unwrap_or_default());
    Command::new("nutcracker")
        .env("PATH", path)
        .arg("-c")
        .arg(file("configuration"))
        .arg("-o")
        .arg(file("log"))
        .arg("-p")
        .arg(file("pid"))
        .args(["-a", "127.0.0.1", "-s", &free_port().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot run nutcracker: {error}\ninstall it (apt-get install nutcracker)")
        })
}

fn socket(folder: &TempDir) -> String {
    folder.path().join("proxy.sock").to_str().unwrap().into()
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
