//! [`bar`]: the progress of reading the logs, on stderr if that is a terminal.

use std::{fs, path::PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

/// Counts the bytes of the files, which may be packed.
pub(super) fn bar(logs: &[PathBuf]) -> ProgressBar {
    let sizes = logs.iter().map(|path| {
        let file = fs::metadata(path).ok().filter(fs::Metadata::is_file);
        file.map(|metadata| metadata.len())
    });
    let (bar, template) = match sizes.sum::<Option<u64>>() {
        Some(size) => (
            ProgressBar::new(size),
            "{bar:40} {percent:>3} %  {bytes_per_sec}, {eta} left",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {bytes} read, {bytes_per_sec}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
