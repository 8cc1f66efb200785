//! An example that serves, usually the server example: in a separate process, which is killed on drop.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
};

use super::{redis::Process, root};

pub struct Example {
    process: Process,
    address: SocketAddr,
}

impl Example {
    pub fn start(args: &[&str]) -> Self {
        Self::run(Self::command().args(["--listen", "127.0.0.1:0"]).args(args))
    }

    /// Starts any server that prints the address on the first line.
    pub fn run(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("listening on http://")
            .and_then(|it| it.strip_suffix('\n'));
        let Some(address) = address.and_then(|it| it.parse().ok()) else {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            panic!("the first line was {line:?}: {output:?}");
        };
        let process = Process(child);
        Self { process, address }
    }

    pub fn command() -> Command {
        Command::new(build("server"))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Sends a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Kills the server. Returns its output on stderr.
    pub fn end(&mut self) -> String {
        let _ = self.process.0.kill();
        let mut stderr = String::new();
        if let Some(mut pipe) = self.process.0.stderr.take() {
            let _ = pipe.read_to_string(&mut stderr);
        }
        stderr
    }

    pub fn complaint(&mut self) -> String {
        let pipe = self.process.0.stderr.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        // Read byte by byte, so that the next line stays in the pipe for the next call.
        while pipe.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Asks the server to stop. Returns whether it ended with success, and its output on stderr.
    pub fn stop(mut self) -> (bool, String) {
        self.signal("TERM");
        let mut stderr = String::new();
        let mut pipe = self.process.0.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.process.0.wait().unwrap().success(), stderr)
    }
}

/// The source of an example: a file, or the main program of its own package.
pub fn source(example: &str) -> PathBuf {
    let folder = root().join("examples");
    let file = folder.join(example).with_extension("rs");
    if file.exists() {
        file
    } else {
        folder.join(example).join("src/main.rs")
    }
}

/// The package of an example; `None` if the example is a file of this package.
pub fn package(example: &str) -> Option<String> {
    let is_package = source(example).ends_with("src/main.rs");
    is_package.then(|| format!("example-{}", example.replace('_', "-")))
}

/// The program of an example, with the profile of this test. Builds all of them if need be; if `EXAMPLES_ARE_BUILT` is
/// set, does not call Cargo, which may be compiling for other tests.
pub fn build(example: &str) -> PathBuf {
    static ARE_BUILT: Once = Once::new();
    let test = env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    if env::var_os("EXAMPLES_ARE_BUILT").is_none() {
        ARE_BUILT.call_once(|| build_all(target));
    }
    match package(example) {
        Some(package) => target.join(package),
        None => target.join("examples").join(example),
    }
}

/// Builds with the features of `./test`, so that Cargo reuses what is compiled. A bench needs the server alone, as a
/// service would build it.
fn build_all(target: &Path) {
    let profile = match target.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        "release" => "bench",
        profile => profile,
    };
    let mut cargo = Command::new(env!("CARGO"));
    // With the variables that cargo sets for a test's package, build scripts of dependencies would run again.
    for (name, _) in env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
        .current_dir(root())
        .args(["build", "--quiet", "--profile", profile]);
    if profile == "bench" {
        cargo.args(["-p", "example-server"]);
    } else {
        cargo.args(["--workspace", "--all-features", "--bins", "--examples"]);
    }
    assert!(
        cargo.status().unwrap().success(),
        "the examples do not build"
    );
}
