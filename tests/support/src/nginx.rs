//! A real nginx for one test: one process in a separate folder, killed on drop.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::redis::{Process, free_port};

pub struct Nginx {
    _process: Process,
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
            let file = folder.path().join("configuration");
            fs::write(file, configuration(&http(port))).unwrap();
            let mut process = spawn(&folder);
            // nginx listens before writing the file with the process number.
            let is_up = || folder.path().join("pid").exists();
            if process.starts(is_up, || log(&folder)) {
                return Self {
                    _process: process,
                    address: SocketAddr::from(([127, 0, 0, 1], port)),
                    _folder: folder,
                };
            }
            said = log(&folder);
        }
        panic!("no nginx could be started:\n{said}");
    }

    pub fn address(&self) -> SocketAddr {
        self.address
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

fn spawn(folder: &TempDir) -> Process {
    let mut command = Command::new("nginx");
    command
        .current_dir(folder)
        .arg("-p")
        .arg(folder.path())
        .args(["-c", "configuration"])
        .stdout(Stdio::null())
        .stderr(File::create(folder.path().join("log")).unwrap());
    Process::start(&mut command, "apt-get install nginx-light")
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}
