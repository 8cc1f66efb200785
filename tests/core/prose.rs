//! Plain words: limits for constructions in the project's prose that you have to read twice.
//!
//! The limits are rates of crates whose documentation reads well. Rewrite the sentence so that its subject acts: "the
//! store returns", "you pass".

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders and pages that keep the limits. Add a folder after you have rewritten its prose.
const PLACES: &[&str] = &[
    "docs/guide",
    "benches",
    "cli/src",
    "cli/tests",
    "src/domain",
    "src/extract",
    "src/limiter",
    "src/middleware",
    "src/observe",
    "src/store",
    "src/lib.rs",
    "tests/support",
    "tests/core",
    "tests/faults",
    "tests/http",
    "tests/redis",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "SCALING.md",
];

struct Limit {
    name: &'static str,
    words: &'static [&'static str],
    per_ten_thousand_words: usize,
}

const LIMITS: &[Limit] = &[
    Limit {
        name: "clauses with who or what",
        words: &[
            "who",
            "whom",
            "whose",
            "whoever",
            "what",
            "whatever",
            "whichever",
        ],
        per_ten_thousand_words: 25,
    },
    Limit {
        name: "told, tell",
        words: &["told", "tell", "tells", "telling"],
        per_ten_thousand_words: 2,
    },
    Limit {
        name: "heed, anew, nobody",
        words: &["heed", "heeds", "heeded", "anew", "nobody"],
        per_ten_thousand_words: 2,
    },
    Limit {
        name: "it, its",
        words: &["it", "its", "itself"],
        per_ten_thousand_words: 160,
    },
];

/// In ten thousand sentences.
const OPENINGS_WITH_OF: usize = 20;

/// The files of a place, or the place itself.
fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_path_buf()];
    }
    let entries =
        fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    paths.flat_map(|path| files(&path)).collect()
}

/// The prose of a page or of a file's comments: without code, headings and tables.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("the file can be read");
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines().map(str::trim_start) {
        let comment = ["//!", "///", "//"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark));
        let Some(line) = (if is_page { Some(line) } else { comment }) else {
            prose.push('\n');
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
    without_inline_code(&prose)
}

fn without_inline_code(prose: &str) -> String {
    let parts = prose.split('`').enumerate();
    let kept = parts.map(|(place, part)| if place % 2 == 0 { part } else { "code" });
    kept.collect()
}

fn words(prose: &str) -> impl Iterator<Item = String> {
    let words = prose.split(|letter: char| !letter.is_alphabetic());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Other files, such as pictures, are not text.
fn has_prose(file: &Path) -> bool {
    file.extension()
        .is_some_and(|extension| extension == "rs" || extension == "md")
}

/// All prose of a place, in one text.
fn prose_of(place: &str) -> String {
    let root = support::root();
    let files = files(&root.join(place));
    let texts = files.iter().filter(|file| has_prose(file));
    texts.map(|file| prose(file)).collect()
}

fn is_broken(place: &str, name: &str, found: usize, of: usize, limit: usize) -> Option<String> {
    // A short page may have one.
    let allowed = (limit * of / 10_000).max(1);
    (found > allowed).then(|| format!("{place}: {name}: {found} in {of}, at most {allowed}"))
}

#[test]
fn prose_keeps_to_plain_constructions() {
    let mut broken = Vec::new();
    for place in PLACES {
        let prose = prose_of(place);
        let count = words(&prose).count();
        assert!(count > 100, "{place} has {count} words of prose");
        for limit in LIMITS {
            let found = words(&prose).filter(|word| limit.words.contains(&word.as_str()));
            broken.extend(is_broken(
                place,
                limit.name,
                found.count(),
                count,
                limit.per_ten_thousand_words,
            ));
        }
        let sentences = prose.split(['.', '?', '!', ':']).map(str::trim_start);
        let openings = sentences
            .clone()
            .filter(|sentence| sentence.starts_with("Of "));
        let name = "sentences that open with Of";
        broken.extend(is_broken(
            place,
            name,
            openings.count(),
            sentences.count(),
            OPENINGS_WITH_OF,
        ));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn code_and_headings_are_no_prose() {
    let page = "# What goes wrong\n\nYou pass `what` you want.\n\n```\nwho\n```\n";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prose.md");
    fs::write(&path, page).expect("the page can be written");
    let found: Vec<_> = words(&prose(&path)).collect();
    assert_eq!(found, ["you", "pass", "code", "you", "want"]);
}
