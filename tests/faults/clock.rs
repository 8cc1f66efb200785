//! A clock that the tests move, for programs that they start.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use support::sharing::not_tried;
use tempfile::TempDir;

/// The path of the library; `None` without a compiler.
static LIBRARY: LazyLock<Option<(TempDir, PathBuf)>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("clock.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/clock.c"))
        .status();
    let is_built = cfg!(target_os = "linux") && built.is_ok_and(|status| status.success());
    is_built.then_some((folder, library))
});

#[derive(Debug)]
pub(crate) struct Clock {
    folder: TempDir,
    offset_us: AtomicI64,
}

impl Clock {
    /// A clock with the true time.
    pub(crate) fn new() -> Self {
        let clock = Self {
            folder: tempfile::tempdir().unwrap(),
            offset_us: AtomicI64::new(0),
        };
        clock.jump(Duration::ZERO, true);
        clock
    }

    /// Whether such a clock is possible here. If not, prints a message.
    pub(crate) fn is_available() -> bool {
        if LIBRARY.is_none() {
            not_tried("clocks cannot be moved here; install a C compiler (on Linux)");
        }
        LIBRARY.is_some()
    }

    /// The environment for a program that uses this clock.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let (_, library) = LIBRARY.as_ref().unwrap();
        vec![
            ("LD_PRELOAD".into(), library.to_str().unwrap().into()),
            ("CLOCK_OFFSET".into(), self.file().to_str().unwrap().into()),
        ]
    }

    pub(crate) fn jump(&self, by: Duration, ahead: bool) {
        let by = i64::try_from(by.as_micros()).unwrap();
        let by = if ahead { by } else { -by };
        let offset = self.offset_us.fetch_add(by, Relaxed) + by;
        // Written in place, because the file is mapped.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.file())
            .unwrap();
        file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}
