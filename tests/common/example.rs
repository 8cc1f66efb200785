//! An example that serves, usually the server example: in a separate process, which is killed on drop.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
};

/// A running server.
pub(crate) struct Example {
    child: Child,
    address: SocketAddr,
}

impl Example {
    /// Starts the server example on a free port.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::run(Self::command().args(["--listen", "127.0.0.1:0"]).args(args))
    }

    /// Starts any server that prints the address on the first line.
    pub(crate) fn run(command: &mut Command) -> Self {
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
        Self { child, address }
    }

    /// The output of the server example when it does not serve.
    pub(crate) fn output(args: &[&str]) -> Output {
        Self::command().args(args).output().unwrap()
    }

    /// The program, built with the features of this test.
    pub(crate) fn command() -> Command {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        Command::new(PROGRAM.get_or_init(|| build("server")))
    }

    /// The address that the server listens at.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Kills the server. Returns its output on stderr.
    pub(crate) fn end(&mut self) -> String {
        let _ = self.child.kill();
        let mut stderr = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_string(&mut stderr);
        }
        stderr
    }

    /// The next line on stderr.
    pub(crate) fn complaint(&mut self) -> String {
        let pipe = self.child.stderr.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        // Read byte by byte, so that the next line stays in the pipe for the next call.
        while pipe.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Asks the server to stop. Returns whether it ended with success, and its output on stderr.
    pub(crate) fn stop(mut self) -> (bool, String) {
        self.signal("TERM");
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().success(), stderr)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The features of this test.
pub(crate) fn features() -> Vec<&'static str> {
    let features = [
        cfg!(feature = "axum").then_some("axum"),
        cfg!(feature = "bb8").then_some("bb8"),
        cfg!(feature = "calendar").then_some("calendar"),
        cfg!(feature = "cluster").then_some("cluster"),
        cfg!(feature = "default").then_some("default"),
        cfg!(feature = "metrics").then_some("metrics"),
        cfg!(feature = "redis").then_some("redis"),
        cfg!(feature = "sentinel").then_some("sentinel"),
        cfg!(feature = "serde").then_some("serde"),
        cfg!(feature = "test-util").then_some("test-util"),
        cfg!(feature = "tls").then_some("tls"),
        cfg!(feature = "tonic").then_some("tonic"),
        cfg!(feature = "tracing").then_some("tracing"),
    ];
    features.into_iter().flatten().collect()
}

/// The source of an example: a file, or the main program of its own package.
pub(crate) fn source(example: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let file = folder.join(example).with_extension("rs");
    if file.exists() {
        file
    } else {
        folder.join(example).join("src/main.rs")
    }
}

/// The package of an example; `None` if the example is a file of this package.
pub(crate) fn package(example: &str) -> Option<String> {
    let is_package = source(example).ends_with("src/main.rs");
    is_package.then(|| format!("example-{}", example.replace('_', "-")))
}

/// Builds an example with the profile and, for the library, the features of this test. If `EXAMPLES_ARE_BUILT` is set,
/// does not call Cargo, which may be compiling for other tests.
pub(crate) fn build(example: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let package = package(example);
    let program = match &package {
        Some(package) => target.join(package),
        None => target.join("examples").join(example),
    };
    if env::var_os("EXAMPLES_ARE_BUILT").is_some() {
        return program;
    }
    let mut cargo = cargo(target);
    match &package {
        // Selects only packages that tests of the library depend on, together with one such test, so that Cargo reuses
        // the compiled dependencies.
        Some(package) if example == "server" => {
            library(&mut cargo).args(["-p", package, "--bin", package, "--test", "suites"])
        }
        Some(package) => cargo.args(["-p", package]),
        None => library(&mut cargo).args(["--example", example]),
    };
    let is_built = cargo.status().unwrap().success();
    assert!(is_built, "the example `{example}` does not build");
    program
}

/// `cargo build`, with the profile of this test.
fn cargo(target: &Path) -> Command {
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
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--profile", profile]);
    cargo
}

/// Selects the library, with the features of this test.
fn library(cargo: &mut Command) -> &mut Command {
    let features = features().into_iter().map(|it| format!("sluicegate/{it}"));
    cargo
        .args(["-p", "sluicegate", "--no-default-features", "--features"])
        .arg(features.collect::<Vec<_>>().join(","))
}
