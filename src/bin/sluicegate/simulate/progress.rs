//! [`Progress`]: a bar on stderr, if that is a terminal.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    pub(super) bar: ProgressBar,
    /// Bytes that were read, before they are unpacked.
    pub(super) read: Arc<AtomicU64>,
}

impl Progress {
    pub(super) fn new(logs: &[PathBuf]) -> Self {
        let sizes = logs.iter().map(|path| {
            fs::metadata(path)
                .ok()
                .filter(fs::Metadata::is_file)
                .map(|it| it.len())
        });
        let size: Option<u64> = sizes.sum();
        let (bar, template) = match size {
            Some(size) => (
                ProgressBar::new(size),
                "{bar:40} {percent:>3} %  {bytes_per_sec}, {eta} left",
            ),
            None => (
                ProgressBar::no_length(),
                "{spinner} {bytes} read, {bytes_per_sec}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self {
            bar,
            read: Arc::default(),
        }
    }

    pub(super) fn show(&self) {
        self.bar.set_position(self.read.load(Ordering::Relaxed));
    }
}
