//! Plain words: limits for constructions in the project's prose that you have to read twice, and for long functions
//! without a comment.
//!
//! The limits are rates of crates whose documentation reads well. Rewrite the sentence so that its subject acts: "the
//! store returns", "you pass".

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders and pages that keep the limits. Add one by a line here after you have rewritten the prose. A folder is
/// measured with all pages, Rust files and Lua files inside.
const PLACES: &[&str] = &[
    "docs/guide",
    "benches",
    "cli/src",
    "cli/tests",
    "examples",
    "lua",
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
    "ACCURACY.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SCALING.md",
    "SECURITY.md",
    "benches/README.md",
    "cli/README.md",
    "lua/README.md",
];

/// The places that talk to users: they say "you" and "use".
const FOR_USERS: &[&str] = &[
    "docs/guide",
    "examples",
    "ACCURACY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SCALING.md",
    "SECURITY.md",
    "cli/README.md",
];

/// The areas in which at most half of the long functions have no comment.
const COMMENTED: &[&str] = &[
    "benches",
    "cli/src",
    "examples",
    "src/domain",
    "src/extract",
    "src/limiter",
    "src/middleware",
    "src/observe",
    "src/store",
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
        per_ten_thousand_words: 140,
    },
];

const YOU: &[&str] = &["you", "your", "use", "uses", "used"];

/// At least, in ten thousand words.
const TALKS_TO_YOU: usize = 50;

const OPENINGS: &[&str] = &[
    "Anew ",
    "By no ",
    "For whom ",
    "Nobody ",
    "Of ",
    "What ",
    "Whatever ",
    "Where ",
    "Who ",
    "Whoever ",
    "Whom ",
    "Whose ",
];

/// At most, in ten thousand sentences.
const OPENED: usize = 50;

/// The lines of a function that a reader expects to find commented.
const LONG: usize = 20;

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

fn extension(path: &Path) -> &str {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.unwrap_or_default()
}

/// The marks of a comment, or an empty one for a page. `None` for files that are not text, such as pictures.
fn marks(path: &Path) -> Option<&'static [&'static str]> {
    match extension(path) {
        "md" => Some(&[""]),
        "rs" => Some(&["//!", "///", "//"]),
        "lua" => Some(&["--"]),
        _ => None,
    }
}

/// The prose of a page or of a file's comments: without code, headings and tables.
fn prose(path: &Path) -> String {
    let Some(marks) = marks(path) else {
        return String::new();
    };
    let text = fs::read_to_string(path).expect("the file can be read");
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines().map(str::trim_start) {
        let Some(line) = marks.iter().find_map(|mark| line.strip_prefix(mark)) else {
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

fn count(prose: &str, listed: &[&str]) -> usize {
    words(prose)
        .filter(|word| listed.contains(&word.as_str()))
        .count()
}

/// All prose of a place, in one text.
fn prose_of(place: &str) -> String {
    let files = files(&support::root().join(place));
    files.iter().map(|file| prose(file)).collect()
}

fn is_broken(place: &str, name: &str, found: usize, of: usize, limit: usize) -> Option<String> {
    // A short page may have one.
    let allowed = (limit * of / 10_000).max(1);
    (found > allowed).then(|| format!("{place}: {name}: {found} in {of}, at most {allowed}"))
}

/// Returns each limit that the place breaks.
fn broken(place: &str) -> Vec<String> {
    let prose = prose_of(place);
    let all = words(&prose).count();
    assert!(all > 100, "{place} has {all} words of prose");
    let mut broken = Vec::new();
    for limit in LIMITS {
        let found = count(&prose, limit.words);
        let most = limit.per_ten_thousand_words;
        broken.extend(is_broken(place, limit.name, found, all, most));
    }
    let sentences: Vec<&str> = prose
        .split(['.', '?', '!', ':'])
        .map(str::trim_start)
        .collect();
    let is_opened = |sentence: &&&str| OPENINGS.iter().any(|word| sentence.starts_with(word));
    let opened = sentences.iter().filter(is_opened).count();
    let name = "sentences that open with Of, What, Where or Who";
    broken.extend(is_broken(place, name, opened, sentences.len(), OPENED));
    let (you, least) = (count(&prose, YOU), TALKS_TO_YOU * all / 10_000);
    if FOR_USERS.contains(&place) && you < least {
        broken.push(format!(
            "{place}: you, use: {you} in {all}, at least {least}"
        ));
    }
    broken
}

#[test]
fn prose_keeps_to_plain_constructions() {
    let broken: Vec<String> = PLACES.iter().flat_map(|place| broken(place)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The bodies of the functions of a file, without unit tests. The formatter indents a function's closing brace like the
/// first line.
fn bodies(text: &str) -> Vec<Vec<&str>> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut bodies = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let (indent, line) = line.split_at(line.len() - line.trim_start().len());
        let is_function = line.starts_with("fn ") || line.contains(" fn ");
        let is_code = is_function && !line.starts_with("//") && !line.contains('"');
        let rest = &lines[at..];
        // A declaration in a trait ends without a body.
        let opens = rest.iter().find(|line| line.ends_with(['{', ';', '}']));
        if is_code && opens.is_some_and(|line| line.ends_with('{')) {
            let end = format!("{indent}}}");
            let body = rest.iter().skip(1).copied();
            bodies.push(body.take_while(|line| *line != end).collect());
        }
    }
    bodies
}

fn has_comment(body: &[&str]) -> bool {
    body.iter().any(|line| line.trim_start().starts_with("//"))
}

#[test]
fn long_functions_have_comments() {
    let mut broken = Vec::new();
    for area in COMMENTED {
        let files = files(&support::root().join(area));
        let is_code = |file: &&PathBuf| extension(file) == "rs" && !file.ends_with("tests.rs");
        let texts = files.iter().filter(is_code).map(fs::read_to_string);
        let texts: Vec<String> = texts.collect::<Result<_, _>>().expect("files can be read");
        let bodies = texts.iter().flat_map(|text| bodies(text));
        let long: Vec<_> = bodies.filter(|body| body.len() >= LONG).collect();
        let silent = long.iter().filter(|body| !has_comment(body)).count();
        if 2 * silent > long.len() {
            let all = long.len();
            broken.push(format!(
                "{area}: {silent} of {all} long functions have no comment"
            ));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn code_and_headings_are_no_prose() {
    let page = "# What goes wrong\n\nYou pass `what` you want.\n\n```\nwho\n```\n";
    assert_eq!(
        words_of("prose.md", page),
        ["you", "pass", "code", "you", "want"]
    );
}

#[test]
fn comments_of_a_script_are_prose() {
    let script = "-- Who reads\nlocal what = 1 -- not this\n  -- inside\n";
    assert_eq!(words_of("prose.lua", script), ["who", "reads", "inside"]);
}

fn words_of(name: &str, text: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).expect("the file can be written");
    words(&prose(&path)).collect()
}

#[test]
fn functions_end_at_the_brace_below_their_first_line() {
    let file = "trait T {\n    fn declared(\n        &self,\n    ) -> u8;\n}\nimpl T {\n    pub(crate) async fn f() {\n        if true {\n            // why\n        }\n    }\n}\n#[cfg(test)]\nmod tests {\nfn test() {\n}\n}\n";
    let bodies = bodies(file);
    assert_eq!(bodies.len(), 1);
    assert_eq!(bodies[0].len(), 3);
    assert!(has_comment(&bodies[0]));
}
