//! A real nginx for one test: one process in a separate folder, killed on drop.

use std::{
    env,
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::redis::{free_port, starts};

/// A running proxy.
pub struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    /// Starts a proxy. The closure makes the content of the `http` block for a free port.
    pub fn start(http: impl Fn(u16) -> String) -> Self {
        let mut said = String::new();
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let port = free_port();
            fs::write(
                folder.path().join("configuration"),
                configuration(&http(port)),
            )
            .unwrap();
            let mut child = spawn(&folder);
            // nginx listens before writing the file with the process number.
            let is_up = || folder.path().join("pid").exists();
            if starts(&mut child, is_up, || log(&folder)) {
                return Self {
                    child,
                    address: SocketAddr::from(([127, 0, 0, 1], port)),
                    _folder: folder,
                };
            }
            said = log(&folder);
        }
        panic!("no nginx could be started:\n{said}");
    }

    /// The address for IPv4 clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Without a master process, no worker outlives the killed process. All paths are in the folder.
fn configuration(http: &str) -> String {
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders = folders.map(|it| format!("{it}_temp_path {it};")).join(" ");
    format!(
        "daemon off; master_process off; pid pid; error_log stderr;\n\
         events {{ }}\n\
         http {{\n access_log off; {folders}\n{http}\n}}\n"
    )
}

fn spawn(folder: &TempDir) -> Child {
    // Not every user has Debian's folder for this program in the PATH.
    let path = format!("{}:/usr/sbin", env::var("PATH").unwrap_or_default());
    Command::new("nginx")
        .env("PATH", path)
        .current_dir(folder)
        .arg("-p")
        .arg(folder.path())
        .args(["-c", "configuration"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(folder.path().join("log")).unwrap())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot run nginx: {error}\ninstall it (apt-get install nginx-light)")
        })
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
