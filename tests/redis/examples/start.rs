//! The first hour, `docs/guide/start.md`, from the first command to the last, as a reader types them: each step's lines
//! stand in its program, and each command prints the output of the page.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command},
};

use crate::prelude::*;

const PAGE: &str = include_str!("../../../docs/guide/start.md");

/// The program of a step, in a process that writes its log into a file.
struct Program {
    child: Child,
    log: PathBuf,
    address: String,
}

impl Program {
    fn start(step: usize, redis: &str, words: &str, log: PathBuf) -> Self {
        let program = programs().join(format!("step_{step}"));
        let mut command = Command::new(program);
        command.arg("127.0.0.1:0").env("REDIS_URL", redis);
        let level = words
            .strip_prefix("RUST_LOG=")
            .map_or("info", |it| it.split(' ').next().unwrap());
        let output = File::create(&log).unwrap();
        let child = command.env("RUST_LOG", level).stdout(output).spawn();
        let mut program = Self {
            child: child.unwrap(),
            log,
            address: String::new(),
        };
        wait("the service listens", || program.said().contains('\n'));
        let said = program.said();
        let first = said.lines().next().unwrap();
        program.address = first.split_once("http://").unwrap().1.to_owned();
        program
    }

    /// Without colours.
    fn said(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap();
        let mut parts = said.split('\u{1b}');
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |all, part| {
            all + part.split_once('m').map_or("", |it| it.1)
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn programs() -> PathBuf {
    example::build("server").parent().unwrap().to_owned()
}

/// Times differ between runs.
fn without_times(line: &str) -> String {
    let mut shape = String::new();
    let mut is_time = false;
    for char in line.trim_end().chars() {
        is_time &= char.is_ascii_digit();
        is_time |= shape.ends_with(";t=") || shape.ends_with("retry-after: ");
        shape.push(if is_time { '_' } else { char });
    }
    shape
        .replace(['_', '─'], "")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether the lines of the page occur in the output, in this order.
fn prints(output: &str, expected: &[&str]) -> bool {
    let mut lines = output.lines().map(without_times);
    expected
        .iter()
        .all(|it| lines.any(|line| line == without_times(it)))
}

/// What the reader has: a server, once it was started, and the programs that run.
struct Reader {
    redis: Option<Server>,
    running: Vec<Program>,
    folder: tempfile::TempDir,
}

impl Reader {
    /// Runs a command of a step. Asserts that it prints these lines.
    fn types(&mut self, step: usize, command: &str, expected: &[&str]) {
        let url = self.redis.as_ref().map(Server::url).unwrap_or_default();
        match command.split(' ').next().unwrap() {
            _ if command.contains("cargo run") => {
                if !command.contains(" -- ") {
                    self.running.clear();
                }
                let log = self.folder.path().join(self.running.len().to_string());
                let program = Program::start(step, &url, command, log);
                self.running.push(program);
            }
            "cargo" | "export" => assert!(expected.is_empty()), // the packages of the workspace, and its tests
            "redis-server" => self.redis = Some(Server::start()),
            "redis-cli" => self.redis.as_mut().unwrap().kill(),
            _ => {
                let mut last = String::new();
                // The tool shows reports, which come once a second; all else is right at once.
                wait_or(&mut last, command.starts_with("sluicegate"), |last| {
                    *last = self.shell(command, &url);
                    prints(last, expected)
                });
                assert!(prints(&last, expected), "{command} prints:\n{last}");
            }
        }
    }

    fn shell(&self, command: &str, redis: &str) -> String {
        let mut command = command.replace("localhost", "127.0.0.1");
        for (program, port) in self.running.iter().zip(["3000", "3001"]) {
            let (_, listening) = program.address.rsplit_once(':').unwrap();
            command = command.replace(port, listening);
        }
        let path = format!("{}:{}", programs().display(), env::var("PATH").unwrap());
        let mut sh = Command::new("sh");
        sh.args(["-c", &command]).env("NO_PROXY", "*");
        sh.env("PATH", path).env("REDIS_URL", redis);
        let output = sh.output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn wait_or(last: &mut String, is_late: bool, mut attempt: impl FnMut(&mut String) -> bool) {
    if !attempt(last) && is_late {
        wait("the tool shows it", || attempt(last));
    }
}

/// The fenced blocks of a step: each language, and the lines.
fn blocks(step: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let blocks = step.split("```").skip(1).step_by(2);
    blocks.map(|block| {
        let mut lines = block.lines();
        (lines.next().unwrap(), lines.collect())
    })
}

/// A command, and the lines that it prints, for each of a block.
fn commands<'a>(lines: &[&'a str]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push((command, Vec::new())),
            None => commands.last_mut().unwrap().1.push(line),
        }
    }
    commands
}

#[test]
fn each_step_of_the_first_hour_does_what_the_page_says() {
    let mut reader = Reader {
        redis: None,
        running: Vec::new(),
        folder: tempfile::tempdir().unwrap(),
    };
    let steps = PAGE.split("\n## ").skip(1).enumerate();
    for (step, text) in steps.map(|(place, text)| (place + 1, text)) {
        assert!(text.starts_with(&format!("{step}. ")), "{text}");
        let path = format!("examples/start/src/bin/step_{step}.rs");
        let program = fs::read_to_string(support::root().join(path)).unwrap();
        for (language, lines) in blocks(text) {
            let block = lines.join("\n");
            match language {
                "rust" => assert!(program.contains(&block), "step {step} lacks:\n{block}"),
                "console" => {
                    for (command, expected) in commands(&lines) {
                        reader.types(step, command, &expected);
                    }
                }
                _ => {
                    let running = &reader.running[0];
                    wait("the log says so", || running.said().contains(&block));
                }
            }
        }
    }
}
