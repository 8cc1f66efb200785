//! Plain words: limits for words in the project's prose that a reader has to read twice. `CONTRIBUTING.md` says more.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder is measured as a whole, with its pages, Rust files and Lua files.
const PLACES: &str = "docs/guide benches cli/src cli/tests examples lua src tests/support tests/core tests/faults \
    tests/http tests/pages tests/redis ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md \
    cli/README.md docs/accuracy.md docs/scaling.md";

/// Words, and at most how many of them in ten thousand.
const LIMITS: [(&str, usize); 4] = [
    ("who whom whose whoever what whatever whichever", 25),
    ("told tell tells telling", 2),
    ("heed heeds heeded anew nobody", 2),
    ("it its itself", 140),
];

fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_path_buf()];
    }
    let entries = fs::read_dir(place).unwrap();
    entries.flat_map(|it| files(&it.unwrap().path())).collect()
}

/// The words of a page or of a file's comments, without headings and tables. Inline code is one word.
fn words(path: &Path) -> Vec<String> {
    let marks: &[&str] = match path.extension().and_then(|it| it.to_str()) {
        Some("md") => &[""],
        Some("rs") => &["//!", "///", "//"],
        Some("lua") => &["--"],
        _ => return Vec::new(),
    };
    let text = fs::read_to_string(path).unwrap();
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines().map(str::trim_start) {
        let Some(line) = marks.iter().find_map(|mark| line.strip_prefix(mark)) else {
            continue;
        };
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with(['#', '|']) {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let parts = prose.split('`').enumerate();
    let plain = parts.map(|(place, part)| if place % 2 == 0 { part } else { "code" });
    let words = plain.flat_map(|part| part.split(|it: char| !it.is_alphabetic()));
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[test]
fn prose_keeps_to_plain_words() {
    let mut broken = Vec::new();
    for place in PLACES.split_whitespace() {
        let files = files(&crate::root().join(place));
        let all: Vec<String> = files.iter().flat_map(|file| words(file)).collect();
        assert!(all.len() > 100, "{place} has {} words of prose", all.len());
        for (listed, limit) in LIMITS {
            let found = all
                .iter()
                .filter(|it| listed.split(' ').any(|word| word == *it));
            // A short page may have one.
            let (found, most) = (found.count(), (limit * all.len() / 10_000).max(1));
            if found > most {
                broken.push(format!("{place}: {listed}: {found}, at most {most}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
