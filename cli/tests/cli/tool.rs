//! Runs the tool in an empty folder, with an empty environment.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A folder to run the tool in.
pub(crate) struct Tool {
    folder: TempDir,
}

/// The output of the tool.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Tool {
    pub(crate) fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.folder().join(name), content).unwrap();
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.current_dir(self.folder()).env_clear();
        command
    }

    /// Runs the tool with these arguments, separated by blanks.
    pub(crate) fn run(&self, args: &str) -> Said {
        self.run_with(args, b"")
    }

    /// Runs the tool with this input on stdin.
    pub(crate) fn run_with(&self, args: &str, stdin: &[u8]) -> Said {
        let mut command = self.command();
        command.args(args.split_whitespace());
        said(&mut command, stdin)
    }
}

pub(crate) fn said(command: &mut Command, stdin: &[u8]) -> Said {
    let mut child = {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
    }
    .spawn()
    .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    // The tool may end before it has read all input.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Said {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
