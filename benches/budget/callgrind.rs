//! Runs a program under callgrind, and reads its counts.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    ops::Sub,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Counts of a whole program, at user level.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) instructions: u64,
    /// Calls of `malloc` and its kin, `realloc` among them.
    pub(crate) allocations: u64,
    /// Calls of `memcpy` and `memmove`.
    pub(crate) copies: u64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.saturating_sub(other.instructions),
            allocations: self.allocations.saturating_sub(other.allocations),
            copies: self.copies.saturating_sub(other.copies),
        }
    }
}

pub(crate) struct Callgrind {
    folder: TempDir,
}

impl Callgrind {
    pub(crate) fn new() -> Self {
        let callgrind = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/budget/fixed.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(callgrind.fixed())
            .arg(source)
            .status();
        assert!(built.is_ok_and(|it| it.success()), "a C compiler is needed");
        callgrind
    }

    fn fixed(&self) -> PathBuf {
        self.folder.path().join("fixed.so")
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("callgrind.out")
    }

    /// The command that runs `program` under callgrind.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--quiet"])
            .arg(format!("--callgrind-out-file={}", self.output().display()))
            .arg(program)
            .env("LD_PRELOAD", self.fixed());
        command
    }

    /// Runs a command of [`command`](Self::command) to its end.
    pub(crate) fn run(&self, command: &mut Command) -> Counts {
        let status = command.stdin(Stdio::null()).status();
        assert!(status.expect("valgrind is needed").success());
        self.counts()
    }

    /// The counts of the run that ended last.
    pub(crate) fn counts(&self) -> Counts {
        read(&self.text())
    }

    /// The calls of each function of this crate in the run that ended last.
    pub(crate) fn calls_of_this_crate(&self) -> BTreeMap<String, u64> {
        let (text, mut all) = (self.text(), BTreeMap::new());
        for_each_call(&text, |callee, calls| {
            let name = callee.trim_start_matches('<');
            if name.starts_with("sluicegate::") {
                *all.entry(callee.to_owned()).or_default() += calls;
            }
        });
        all
    }

    fn text(&self) -> String {
        fs::read_to_string(self.output()).expect("callgrind writes its counts")
    }
}

/// Reads the file that callgrind wrote.
fn read(text: &str) -> Counts {
    let mut counts = Counts {
        instructions: 0,
        allocations: 0,
        copies: 0,
    };
    for_each_call(text, |callee, calls| match callee {
        "malloc" | "calloc" | "realloc" | "posix_memalign" | "aligned_alloc" => {
            counts.allocations += calls;
        }
        _ if callee.starts_with("__memcpy") || callee.starts_with("__memmove") => {
            counts.copies += calls;
        }
        _ => {}
    });
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    counts.instructions = totals.map_or(0, |total| total.trim().parse().unwrap());
    counts
}

/// A name stands once, beside its number: `cfn=(7) malloc`, then `cfn=(7)`.
fn for_each_call<'a>(text: &'a str, mut note: impl FnMut(&'a str, u64)) {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut callee = "";
    for line in text.lines() {
        let (field, value) = line.split_once('=').unwrap_or_default();
        if let "fn" | "cfn" = field {
            let (number, name) = value.split_once(' ').unwrap_or((value, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            callee = names.get(number).copied().unwrap_or_default();
        } else if field == "calls" {
            note(callee, value.split(' ').next().unwrap().parse().unwrap());
        }
    }
}
