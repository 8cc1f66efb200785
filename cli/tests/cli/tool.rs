//! Runs the tool in an empty folder, with an empty environment.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// Asserts that a document has these fields, among others.
macro_rules! has {
    ($document:expr, $($fields:tt)+) => {
        $crate::tool::has_fields(&$document, &serde_json::json!($($fields)+))
    };
}

#[track_caller]
pub(crate) fn has_fields(document: &Value, fields: &Value) {
    for (name, value) in fields.as_object().unwrap() {
        if value.as_object().is_some_and(|it| !it.is_empty()) {
            has_fields(&document[name], value);
        } else {
            assert_eq!(&document[name], value, "{name} in {document}");
        }
    }
}

macro_rules! begins {
    ($text:expr => $start:expr) => {
        assert!(
            $text.starts_with($start),
            "not at the start: {}\n{}",
            $start,
            $text
        )
    };
}

/// Asserts that a text has all of these parts.
macro_rules! says {
    ($text:expr => $($part:expr),+) => {
        $(assert!($text.contains($part), "missing: {}\n{}", $part, $text);)+
    };
}

macro_rules! says_not {
    ($text:expr => $($part:expr),+) => {
        $(assert!(!$text.contains($part), "there is: {}\n{}", $part, $text);)+
    };
}

/// The rows of a table, and their parts.
pub(crate) fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let rows = table.trim().lines().map(|row| {
        let parts = row.split('|').map(|it| it.trim().replace(r"\n", "\n"));
        parts.collect::<Vec<_>>().try_into().expect(row)
    });
    rows.collect()
}

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

    /// Runs the commands of a table: a command, the exit code, and parts of the output, or behind a `!` parts that the
    /// output must not have.
    pub(crate) fn told(&self, table: &str) {
        for row in table.trim().lines() {
            let mut parts = row.split(" | ").map(str::trim);
            let (command, code) = (parts.next().unwrap(), parts.next().expect(row));
            let said = self.run(command);
            assert_eq!(said.code.to_string(), code, "{command}: {said:?}");
            let output = said.stdout + &said.stderr;
            for part in parts {
                let (part, expected) = part
                    .strip_prefix('!')
                    .map_or((part, true), |it| (it, false));
                let part = part.replace("\\n", "\n");
                assert_eq!(
                    output.contains(&part),
                    expected,
                    "{command}: {part}\n{output}"
                );
            }
        }
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
