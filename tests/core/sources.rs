//! The files of a folder, as `walls.rs` and `sizes.rs` read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) struct File {
    /// Relative to the repository.
    pub(crate) path: String,
    text: String,
}

/// All files of a folder, and of those in it, with this extension.
pub(crate) fn sources(folder: &str, extension: &str) -> Vec<File> {
    let mut paths = paths(&support::root().join(folder), extension);
    paths.sort();
    paths.iter().map(|path| file(path)).collect()
}

fn paths(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => self::paths(&path, extension),
            false if path.extension().is_some_and(|it| it == extension) => vec![path],
            false => Vec::new(),
        })
        .collect()
}

fn file(path: &Path) -> File {
    let text = fs::read_to_string(path).expect("the file can be read");
    let path = path.strip_prefix(support::root()).expect("it is below");
    File {
        path: path.to_string_lossy().replace('\\', "/"),
        text,
    }
}

impl File {
    /// Without comments, and without imports that only the documentation needs.
    pub(crate) fn code(&self) -> String {
        let lines = self.text.lines();
        without_docs(lines.filter(|line| !line.trim_start().starts_with("//")))
    }

    /// The same without the modules of tests.
    pub(crate) fn code_without_tests(&self) -> String {
        without_docs(self.lines().into_iter())
    }

    /// Lines of code: without blanks and comments, without the modules of tests, and none of a `tests.rs`.
    pub(crate) fn lines(&self) -> Vec<&str> {
        if self.path.ends_with("/tests.rs") {
            return Vec::new();
        }
        let comment = if self.path.ends_with(".lua") {
            "--"
        } else {
            "//"
        };
        let mut all = self.text.lines();
        let mut lines = Vec::new();
        while let Some(line) = all.next() {
            let words = line.trim_start();
            let is_test = ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(loom)]"];
            if is_test.iter().any(|it| words.starts_with(it)) {
                let mut attributes = vec![line];
                let item = all.by_ref().find(|it| {
                    attributes.push(it);
                    !it.trim_start().starts_with("#[")
                });
                match item.filter(|it| is_module(it.trim_start())) {
                    Some(module) => skip(module, &mut all),
                    None => lines.extend(attributes),
                }
            } else if !words.is_empty() && !words.starts_with(comment) {
                lines.push(line);
            }
        }
        lines
    }
}

/// Without imports that only the documentation needs.
fn without_docs<'a>(mut lines: impl Iterator<Item = &'a str>) -> String {
    let mut code = String::new();
    while let Some(line) = lines.next() {
        if line == "#[cfg(doc)]" {
            lines.find(|line| line.ends_with(';'));
        } else {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

fn is_module(item: &str) -> bool {
    item.starts_with("mod ") || item.starts_with("pub") && item.contains(" mod ")
}

/// Skips the lines of a module, to the brace that stands where the module begins.
fn skip<'a>(module: &str, lines: &mut impl Iterator<Item = &'a str>) {
    if module.ends_with('{') {
        let indent = &module[..module.len() - module.trim_start().len()];
        lines.find(|line| *line == format!("{indent}}}"));
    }
}
